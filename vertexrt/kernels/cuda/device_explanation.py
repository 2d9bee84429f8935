"""What `explain` asks of a GPU: from runs to the records that `kernels.cuda.explain` prints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, cast

from vertexrt.engine.batched import Run
from vertexrt.engine.variant import Variant
from vertexrt.kernels.cuda.branches import Branches
from vertexrt.kernels.cuda.cell_text import CellText
from vertexrt.kernels.cuda.dependences import launched_steps
from vertexrt.kernels.cuda.device_scripts import write_launch
from vertexrt.kernels.cuda.driver import IS_GEMM, sizes_of, wide_splits
from vertexrt.kernels.cuda.executable import CudaExecutable
from vertexrt.kernels.cuda.explain import Launch, explain_launch
from vertexrt.kernels.cuda.persistent_launch import PersistentLaunch
from vertexrt.lower.launches import title_of
from vertexrt.script.isa import NONE, WAIT

if TYPE_CHECKING:
    from vertexrt.kernels.cuda.persistent import PersistentExecutable


class LaunchCounts(NamedTuple):
    """What a run launches: kernels, products that warp groups make, and products of cuBLAS."""

    kernels: int
    wide: int
    library: int

    def __str__(self) -> str:
        wide = f"{self.wide} products by warp groups, " if self.wide else ""
        of = "" if self.wide else " products"
        return f"{self.kernels} kernels, {wide}{self.library}{of} of cuBLAS"


@dataclass(frozen=True, slots=True)
class DeviceExplanation:
    """See `Explanation`."""

    persistent_launch: PersistentLaunch
    branches: Branches | None

    def program(self, variant: Variant, number: int) -> list[str]:
        """Say in what a task program is launched, or that groups run it."""
        if not variant.processors:
            launches = cast("CudaExecutable", variant.ready().executable).launches
            return [f"launches: {title_of(step)}" for step in launches[number].plan.steps]
        executable = cast("PersistentExecutable", variant.ready().processors)
        if executable.sides[number] >= 0:
            return ["groups of processors run it as a cell"]
        steps = executable.launches[number].plan.steps
        return [f"all processors run: {title_of(step)}" for step in steps]

    def kernels(self, variant: Variant, number: int) -> str:
        """Print the groups' kernels, and name the others."""
        if not variant.processors:
            launches = cast("CudaExecutable", variant.ready().executable).launches
            return str(launches[number].plan)
        executable = cast("PersistentExecutable", variant.ready().processors)
        if executable.sides[number] < 0:
            return str(executable.launches[number].plan)
        side, writer = int(executable.sides[number]), executable.writer
        cells, places = writer.cells[side]
        text = CellText(f"side_{side}", cells, writer.sides[side], places, writer.numbers)
        return "\n".join(text.lines())

    def calls(self, run: Run) -> str:
        """Say how many kernels, and products, there are."""
        if run.configuration.persistent:
            return "1 kernel, which runs all of them and the end of the step"
        return f"{self._launched(run)}, and the end of the step"

    def _launched(self, run: Run) -> LaunchCounts:
        executable = cast("CudaExecutable", run.ready.executable)
        table = run.layout.table if self.branches is not None else executable.table_of(run)
        session = self.persistent_launch.session
        lookups = session.sorted_lookups(run, table)
        steps = executable.program[1]
        grids = [(steps[s], g) for _, s, g in launched_steps(table, executable.program, lookups)]
        products = [(step, g) for step, g in grids if step[IS_GEMM]]
        calls = session.calls_of(session.device.calls)
        wide = sum(wide_splits(calls, *sizes_of(step, g.across)) > 0 for step, g in products)
        return LaunchCounts(len(grids) - len(products), wide, len(products) - wide)

    def counts(self, run: Run) -> dict[str, float]:
        """Count kernels; products, and what several streams share; or instructions and waits."""
        if run.configuration.persistent:
            trains = run.variant.use.backward
            _, _, written = write_launch(
                run, run.layout.table, self.persistent_launch, False, trains
            )
            return {
                "calls": 1,
                "kernels": 1,
                "instructions": len(written.script),
                "waits": int((written.script[:, WAIT] != NONE).sum()),
            }
        kernels, wide, library = self._launched(run)
        found: dict[str, float] = {
            "calls": 1,
            "kernels": kernels,
            "wide": wide,
            "library": library,
        }
        return found if self.branches is None else found | self.branches.counts(run)

    def scripts(self, run: Run) -> str:
        """Print what the persistent kernel runs."""
        trains = run.variant.use.backward
        executable, path, written = write_launch(
            run, run.layout.table, self.persistent_launch, False, trains
        )
        blocks = self.persistent_launch.blocks(executable)
        params = run.variant.binding.params
        return explain_launch(Launch(executable, path, written, blocks, params, trains))
