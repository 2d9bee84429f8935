"""What `explain` asks of a GPU: from runs to the records that `kernels.cuda.explain` prints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from vertexrt.engine.batched import Run
from vertexrt.engine.variant import Variant
from vertexrt.kernels.cuda.describe import count_launches, describe, describe_steps
from vertexrt.kernels.cuda.device_scripts import inputs_of, write_launch
from vertexrt.kernels.cuda.device_streams import order_of
from vertexrt.kernels.cuda.explain import Launch, explain_launch
from vertexrt.kernels.cuda.one_launch import OneLaunch

if TYPE_CHECKING:
    from vertexrt.kernels.cuda.persistent import PersistentExecutable


@dataclass(frozen=True, slots=True)
class DeviceExplanation:
    """See `Explanation`."""

    one_launch: OneLaunch

    def program(self, variant: Variant, number: int) -> list[str]:
        """Say in what a task program is launched, or that groups run it."""
        if not variant.processors:
            itemsize = self.one_launch.session.dtype.itemsize
            lines = describe(variant.tasks[number], variant.binding, itemsize)
            return [f"launches: {text}" for text in lines]
        executable = cast("PersistentExecutable", variant.ready().processors)
        if not executable.beside[number]:
            return ["groups of processors run its segments"]
        lines = describe_steps(executable.writer.launches[number].steps)
        return [f"all processors run: {text}" for text in lines]

    def calls(self, run: Run) -> str:
        """Count kernels, and products of cuBLAS."""
        if run.configuration.persistent:
            return "1 kernel, which runs all of them and the end of the step"
        itemsize = self.one_launch.session.dtype.itemsize
        counts = count_launches(run.variant.tasks, run.variant.binding, itemsize, run.table)
        return "{} kernels, {} products of cuBLAS, and the end of the step".format(*counts)

    def launches(self, run: Run) -> list[str]:
        """Say how several streams share the launches."""
        session = self.one_launch.session
        if run.configuration.persistent:
            return []
        order = order_of(run, run.table, session, inputs_of(run))
        if order is None:
            return []
        calls = ", ".join(str(count) for count in order.of_streams())
        return [
            f"streams: {session.streams}; calls of each: {calls}; waits for another: "
            f"{len(order.waits)}"
        ]

    def scripts(self, run: Run) -> str:
        """Print what the persistent kernel runs."""
        trains = run.variant.use.backward
        executable, path, written = write_launch(run, run.table, self.one_launch, False, trains)
        blocks, params = self.one_launch.blocks(executable, path), run.variant.binding.params
        return explain_launch(Launch(executable, path, written, blocks, params, trains))
