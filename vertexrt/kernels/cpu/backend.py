"""The `cpu` backend: generated numba code and BLAS, the whole launch table in one compiled call.

Each task program becomes a module named by the hash of its source, so that models share what is
equal, in a process and in the cache. The driver, which loops over the launch table and calls them,
is generated the same way.
"""

from __future__ import annotations

import functools
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.linalg.cython_blas  # noqa: F401  the products call it through numba
from threadpoolctl import ThreadpoolController

from vertexrt.ir.passes.fuse import TaskProgram
from vertexrt.ir.passes.segment import SegmentedTask
from vertexrt.ir.updates import UpdateRule
from vertexrt.kernels.cpu.call_arguments import OF_BATCH, OF_LAUNCH, arguments
from vertexrt.kernels.cpu.emit import emit
from vertexrt.kernels.cpu.generated import load_source
from vertexrt.kernels.cpu.processors import CpuProcessors
from vertexrt.kernels.cpu.update import finish
from vertexrt.kernels.layout import Binding, Buffers, Processors, StoreUpdate
from vertexrt.locks import ProcessLock


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


def driver_source(names: list[str]) -> str:
    """Write the loop over the launch table that calls the task programs by number."""
    lines = ["from vertexrt.cache.compiled import njit"]
    lines += [f"from {name} import task as task{k}" for k, name in enumerate(names)]
    lines += ["", "", "@njit(cache=True, nogil=True)"]
    lines += [f"def run(table, {OF_BATCH}):"]
    lines += ["    for t in range(len(table)):"]
    lines += [f"        number, {OF_LAUNCH} = table[t]"]
    for k in range(len(names)):
        lines.append(f"        {'el' if k else ''}if number == {k}:")
        lines.append(f"            task{k}({OF_LAUNCH}, {OF_BATCH})")
    return "\n".join(lines) + "\n"


class CpuExecutable:
    """Compiled task programs and the driver that calls them."""

    def __init__(self, programs: list[TaskProgram], binding: Binding) -> None:
        emitted = [emit(program, binding) for program in programs]
        self.sources = [source for source, *_ in emitted]
        self.scratch = [(rows, edges, once) for _, rows, edges, once in emitted]
        modules = [load_source(source) for source in self.sources]
        driver = driver_source([module.__name__ for module in modules])
        self.driver: Any = load_source(driver).run

    def run(self, table: npt.NDArray[np.int64], buffers: Buffers) -> None:
        """Run the launches of a table in one compiled call."""
        self.driver(table, *arguments(buffers, buffers.temporary))


class CpuBackend:
    """Generated numba kernels."""

    name = "cpu"
    where = "cpu"
    apart = frozenset(("embed_grad",))  # rows of one word are far between
    shares_graphs = False
    most_scratch = 8 << 20

    def alone(self) -> AbstractContextManager[object]:
        """Keep BLAS to the calling threads while workers run; takes 10 us."""
        return _one_thread

    def load(self, programs: list[TaskProgram], binding: Binding) -> CpuExecutable:
        """Generate, compile or find in the cache."""
        return CpuExecutable(programs, binding)

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
        """Generate segments for processors that are threads."""
        return CpuProcessors(tasks, binding)
