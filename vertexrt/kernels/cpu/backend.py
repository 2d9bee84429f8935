"""The `cpu` backend: kernels compiled by LLVM, and BLAS; the whole launch table in one call."""

from __future__ import annotations

import functools
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import numpy.typing as npt
from threadpoolctl import ThreadpoolController

from vertexrt.ir.passes.fuse import TaskProgram
from vertexrt.ir.passes.segment import SegmentedTask
from vertexrt.ir.updates import UpdateRule
from vertexrt.kernels.cpu.compile import LoadedKernels
from vertexrt.kernels.cpu.drivers import run_table
from vertexrt.kernels.cpu.processors import CpuProcessors
from vertexrt.kernels.cpu.update import finish
from vertexrt.kernels.layout import Binding, Buffers, Processors, StoreUpdate
from vertexrt.locks import ProcessLock
from vertexrt.lower.lowering import lower


@functools.cache
def blas_threads() -> Any:
    """Return the BLAS thread pools of the process: each worker calls BLAS on its own thread."""
    return ThreadpoolController().select(user_api="blas")


class _OneThread:
    """BLAS on one thread while a call is inside; the limit is the process's, networks are many."""

    def __init__(self) -> None:
        self._lock = ProcessLock()
        self._inside = 0
        self._limit: Any = None

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._limit = blas_threads().limit(limits=1)
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                self._limit.restore_original_limits()


_one_thread = _OneThread()


class CpuExecutable:
    """Compiled task programs, and the driver that calls them."""

    def __init__(self, programs: list[TaskProgram], binding: Binding, dtype: np.dtype[Any]) -> None:
        self.loaded = LoadedKernels([lower(program, binding) for program in programs], dtype)
        self.scratch = self.loaded.scratch

    def run(self, table: npt.NDArray[np.int64], buffers: Buffers) -> None:
        """Run the launches of a table in one compiled call."""
        tasks, context = self.loaded.addresses, self.loaded.contexts.make(buffers)
        run_table(np.ascontiguousarray(table), tasks, buffers.temporary, context)


class CpuBackend:
    """Kernels compiled by LLVM.

    Args:
        dtype: of reals.
    """

    name = "cpu"
    where = "cpu"
    apart = frozenset(("embed_grad",))  # rows of one word are far between
    shares_graphs = False
    publishes = True
    most_scratch = 8 << 20

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self.dtype = dtype

    def alone(self) -> AbstractContextManager[object]:
        """Keep BLAS to the calling threads while workers run; takes 10 us."""
        return _one_thread

    def load(self, programs: list[TaskProgram], binding: Binding) -> CpuExecutable:
        """Lower, compile or find in the cache."""
        return CpuExecutable(programs, binding, self.dtype)

    def update(self, update: StoreUpdate) -> None:
        """Run the compiled loop of the rule."""
        finish(update)

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
        return CpuProcessors(tasks, binding, self.dtype)
