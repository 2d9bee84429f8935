"""The `cpu` backend: kernels compiled by LLVM, and BLAS; the whole launch table in one call."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from vertexrt.ir.passes.fuse import TaskProgram
from vertexrt.ir.passes.segment import SegmentedTask
from vertexrt.ir.updates import UpdateRule
from vertexrt.kernels.backend import TIMED, Processors
from vertexrt.kernels.cpu.choose_products import choices, decide
from vertexrt.kernels.cpu.costs import seconds_of, ways_of
from vertexrt.kernels.cpu.kernels import REALS, LoadedKernels
from vertexrt.kernels.cpu.processors import CpuProcessors, run_table
from vertexrt.kernels.cpu.render import render
from vertexrt.kernels.cpu.update import finish
from vertexrt.kernels.layout import Binding, Buffers
from vertexrt.kernels.store_update import StoreUpdate
from vertexrt.kernels.ways import Configuration, Work
from vertexrt.lower.lowering import lower
from vertexrt.scheduler.batch_shape import BatchShape


class CpuExecutable(LoadedKernels):
    """Compiled task programs, and the driver that calls them."""

    def run(self, table: npt.NDArray[np.int64], buffers: Buffers) -> None:
        """Run the launches of a table in one compiled call."""
        tasks, context = self.addresses, self.contexts.of(buffers)
        run_table(np.ascontiguousarray(table), tasks, buffers.temporary, context)


class CpuBackend:
    """Kernels compiled by LLVM.

    Args:
        dtype: of reals.
        products: what makes them, of `PRODUCTS`.
    """

    name = "cpu"
    where = "cpu"
    apart = frozenset(("embed_grad",))  # rows of one word are far between
    shares_graphs = False
    publishes = True
    most_scratch = 8 << 20

    def __init__(self, dtype: np.dtype[Any], products: str = TIMED) -> None:
        self.dtype, self.products = dtype, products

    def ways(self, threads: int, processors: int | None) -> list[Configuration]:
        """List what shares the threads: workers, or groups of processors."""
        return ways_of(threads, processors)

    def seconds(self, way: Configuration, work: Work, batch: BatchShape) -> float:
        """Predict what a way takes."""
        return seconds_of(way, work, batch)

    def load(self, programs: list[TaskProgram], binding: Binding) -> CpuExecutable:
        """Lower, compile or find in the cache."""
        kernels = [lower(program, binding) for program in programs]
        return CpuExecutable(kernels, self.dtype, self.products)

    def update(self, update: StoreUpdate) -> None:
        """Run the compiled loop of the rule."""
        finish(update)

    def made_by(self, program: TaskProgram, binding: Binding) -> list[str]:
        """Say what makes each product: register tiles or BLAS."""
        kernel = lower(program, binding)
        return [str(each) for each in choices(kernel, REALS[self.dtype], self.products)]

    def text(self, program: TaskProgram, binding: Binding, name: str) -> str:
        """Print the function of LLVM."""
        real = REALS[self.dtype]
        return render(decide(lower(program, binding), real, self.products), real, name)

    def written_for(self, processors: int) -> int:
        """Return 1 or 2: several are told how many they are."""
        return min(processors, 2)

    def load_segments(
        self,
        tasks: list[SegmentedTask],
        binding: Binding,
        processors: int,
        kinds: npt.NDArray[np.int64],
        rule: UpdateRule | None,
    ) -> Processors:
        """Lower segments for processors that are threads."""
        kernels = [lower(t.task, binding, t) for t in tasks]
        return CpuProcessors(kernels, self.dtype, self.products)
