"""The CPU's backend, whose calls are counted, and whose processors can be broken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np

import vertexrt as vrt
from tests.runs import Way
from vertexrt.engine.host import compile_on
from vertexrt.kernels.backend import ScriptRun
from vertexrt.kernels.cpu.backend import SECONDS, CpuBackend, CpuProcessors
from vertexrt.kernels.layout import Array, Buffers
from vertexrt.script.isa import NONE, WAIT


class WatchedExecutable:
    """A compiled function of the batched engine."""

    def __init__(self, executable: Any, backend: WatchedBackend) -> None:
        self._executable, self._backend = executable, backend

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executable, name)

    def run(self, table: Array, buffers: Buffers) -> None:
        self._backend.tables.append(len(table))
        self._executable.run(table, buffers)


class WatchedProcessors:
    """Processors of the persistent engine."""

    def __init__(self, processors: CpuProcessors, backend: WatchedBackend) -> None:
        self._processors, self._backend = processors, backend

    def __getattr__(self, name: str) -> Any:
        return getattr(self._processors, name)

    def new_counters(self, count: int) -> Array:
        self._backend.counters.append(self._processors.new_counters(count))
        return self._backend.counters[-1]

    def run(self, run: ScriptRun) -> None:
        backend = self._backend
        self._processors.seconds = backend.seconds
        group = next(k for k, each in enumerate(backend.counters) if each is run.counters)
        call = Call(run.script, run.buffers, group)
        backend.before(call)
        if call.script is not None:
            self._processors.run(run._replace(script=call.script))


class Call:
    """A call of a processor, which may be changed.

    Attributes:
        script: what it runs; None for nothing.
        buffers: see `ScriptRun`; group: in the order in which groups were made.
    """

    def __init__(self, script: Array, buffers: Buffers, group: int) -> None:
        self.script: Array | None = script
        self.buffers, self.group = buffers, group


class WatchedBackend(CpuBackend):
    """Counts calls, and lets `before` change each call of a processor.

    Attributes:
        tables: launches of each call of the batched engine.
        counters: those of each group's script.
        seconds: until a processor gives up waiting.
    """

    def __init__(self, dtype: np.dtype) -> None:
        super().__init__(dtype)
        self.tables: list[int] = []
        self.counters: list[Array] = []
        self.seconds = SECONDS
        self.before: Callable[[Call], None] = lambda call: None

    def mend(self) -> None:
        """Let calls be as they are."""
        self.before, self.seconds = lambda call: None, SECONDS

    def load(self, *given: Any) -> Any:
        return WatchedExecutable(super().load(*given), self)

    def load_segments(self, *given: Any) -> Any:
        return WatchedProcessors(cast("CpuProcessors", super().load_segments(*given)), self)


def watched(way: Way, function: vrt.VertexFunction) -> tuple[vrt.Network, WatchedBackend]:
    """Compile for the CPU in one way."""
    backend = WatchedBackend(np.dtype(way.dtype))
    executor = compile_on(backend, function.trace(), way.options())
    return way.with_values(vrt.Network(executor, 3, "mean_graphs")), backend


def wait_for_itself(call: Call) -> None:
    """Let the last instruction that waits for another wait for itself."""
    assert call.script is not None
    call.script = call.script.copy()
    at = int(np.flatnonzero(call.script[:, WAIT] != NONE)[-1])
    call.script[at, WAIT] = at
