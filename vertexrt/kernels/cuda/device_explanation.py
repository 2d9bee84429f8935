"""What `explain` asks of a GPU: from runs to the records that `kernels.cuda.explain` prints."""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import indent
from typing import TYPE_CHECKING, cast

from vertexrt.engine.batched import Run
from vertexrt.engine.variant import Variant
from vertexrt.kernels.cuda.dependences import launched_steps
from vertexrt.kernels.cuda.device_scripts import write_launch
from vertexrt.kernels.cuda.driver import IS_GEMM
from vertexrt.kernels.cuda.executable import CudaExecutable
from vertexrt.kernels.cuda.explain import Launch, explain_launch
from vertexrt.kernels.cuda.persistent_launch import PersistentLaunch
from vertexrt.kernels.cuda.streams import Streams
from vertexrt.lower.launches import title_of
from vertexrt.script.isa import NONE, WAIT

if TYPE_CHECKING:
    from vertexrt.kernels.cuda.persistent import PersistentExecutable


@dataclass(frozen=True, slots=True)
class DeviceExplanation:
    """See `Explanation`."""

    persistent_launch: PersistentLaunch
    streams: Streams | None

    def program(self, variant: Variant, number: int) -> list[str]:
        """Say in what a task program is launched, or that groups run it."""
        if not variant.processors:
            launches = cast("CudaExecutable", variant.ready().executable).launches
            return [f"launches: {title_of(step)}" for step in launches[number].plan.steps]
        executable = cast("PersistentExecutable", variant.ready().processors)
        if executable.sides[number] >= 0:
            return ["groups of processors run its segments"]
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
        segments = enumerate(executable.writer.path[number].segments)
        return "\n".join(f"segment {s}:\n{indent(str(x), '  ')}" for s, x in segments)

    def calls(self, run: Run) -> str:
        """Say how many kernels, and products of cuBLAS, there are."""
        if run.configuration.persistent:
            return "1 kernel, which runs all of them and the end of the step"
        return "{} kernels, {} products of cuBLAS, and the end of the step".format(
            *self._launched(run)
        )

    def _launched(self, run: Run) -> tuple[int, int]:
        executable = cast("CudaExecutable", run.ready.executable)
        table = run.table if self.streams is not None else executable.table_of(run)
        lookups = self.persistent_launch.session.sorted_lookups(run, table)
        launched = [s for _, s, _ in launched_steps(table, executable.program, lookups)]
        products = int(executable.program[1][launched, IS_GEMM].sum())
        return len(launched) - products, products

    def counts(self, run: Run) -> dict[str, float]:
        """Count kernels; products, and what several streams share; or instructions and waits."""
        if run.configuration.persistent:
            trains = run.variant.use.backward
            executable, _, written = write_launch(
                run, run.table, self.persistent_launch, False, trains
            )
            return {
                "calls": 1,
                "kernels": 1,
                "instructions": len(written.script),
                "waits": int((written.script[:, WAIT] != NONE).sum()),
                "unheld_bytes": executable.weights_in_memory,
            }
        kernels, library = self._launched(run)
        found: dict[str, float] = {"calls": 1, "kernels": kernels, "library": library}
        return found if self.streams is None else found | self.streams.counts(run)

    def scripts(self, run: Run) -> str:
        """Print what the persistent kernel runs."""
        trains = run.variant.use.backward
        executable, path, written = write_launch(
            run, run.table, self.persistent_launch, False, trains
        )
        blocks, params = self.persistent_launch.blocks(executable, path), run.variant.binding.params
        return explain_launch(Launch(executable, path, written, blocks, params, trains))
