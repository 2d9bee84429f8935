"""Run batches on devices whose memory is the host's; `kernels.host` has their backends."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from vertexrt.config import usable_threads
from vertexrt.engine.batched import (
    NO_ROWS,
    BoundRun,
    Job,
    Part,
    Run,
    RunMemory,
    bind,
    calls_of,
    pushed,
    pushed_rows,
)
from vertexrt.engine.executor import Arenas, Planned, Request, step_with_host_update
from vertexrt.engine.explain_host import Explanation, HostExplanation
from vertexrt.engine.lazy import Loss, Outputs
from vertexrt.engine.model import CompiledModel
from vertexrt.engine.shared_step import step_in_group
from vertexrt.engine.update import Outcome, Touched, Update, apply_update, collect
from vertexrt.engine.variant import CompileOptions
from vertexrt.graph.device_rows import refuse_device_rows
from vertexrt.ir.program import Program
from vertexrt.kernels.backend import HostBackend, HostExecutable
from vertexrt.locks import CallThreads, share
from vertexrt.native.blas import one_thread

Array = np.ndarray[Any, Any]


class HostExecutor:
    """Runs batches in the host's memory, each share of one in memory of its own.

    A run that an exception ends leaves parameters as they are; what it was adding up is noted, and
    cleared before anything is added again.
    """

    on_host = True

    def __init__(self, model: CompiledModel) -> None:
        self.model = model
        self.memories = [RunMemory(model.store.gradients)]
        self._adding: Sequence[Touched] = ()  # rows of gradients that are not in the store yet
        self.after_fork()
        share(self)

    def explanation(self) -> Explanation:
        """Return what `explain` asks of the host."""
        return HostExplanation()

    def after_fork(self) -> None:
        """Make what a process has of its own: the lock, and the threads besides the caller's.

        A forked child works on; the threads of its parent are not there.
        """
        self.lock: Any = threading.RLock()
        self._calls = CallsAtOnce()

    def launch(self, runs: Sequence[Run], parts: Sequence[Part]) -> list[Array]:
        """Run one part of each run's launches, each in its memory."""
        store, param_at, memories, bounds = self.model.store, self.model.param_at, self.memories, []
        self._calls.settle()
        while len(memories) < len(runs):
            memories.append(RunMemory(store.copies[len(memories)]))
        for run, memory, part in zip(runs, memories, parts, strict=False):
            bounds.append(bind(run, store, memory, param_at, part))
        arenas = self.run(bounds)
        for bound in bounds:
            bound.buffers.floats = bound.buffers.d_pushes = ()  # they may be large, and others' own
        return arenas

    def run(self, bounds: Sequence[BoundRun]) -> list[Array]:
        """Run launches that are bound, at once; BLAS has one thread for each meanwhile."""
        timeline, calls_blas = self.model.timeline, False
        if timeline is not None:
            timeline.begin()
        calls: list[Job] = []
        checks: list[Job] = []
        stops: list[Job] = []
        arenas = []
        for bound in bounds:
            own, check, stop = calls_of(bound, timeline)
            ready = bound.run.ready
            kernels = cast("HostExecutable", ready.executable or ready.processors)
            calls_blas |= bound.run.layout.most > kernels.blas_above
            calls += own
            checks += check
            stops += stop
            arenas.append(bound.buffers.arena)
        try:
            if calls_blas:
                one_thread.begin(self)
            self._calls.run(calls, stops)
            if calls_blas:
                one_thread.end(self)
        except BaseException:
            one_thread.end(self)
            raise
        for done in checks:
            done()
        return arenas

    def push(
        self,
        runs: Sequence[Run],
        parts: Sequence[Part],
        names: Sequence[str],
        vertices: Array | None = None,
        stays: bool = False,
    ) -> Outputs:
        """Run launches; here what they push is there at once, and in one kind of arrays."""
        arenas = self.launch(runs, parts)
        return Outputs({name: pushed(runs, arenas, name, vertices) for name in names})

    def step(self, call: Request) -> Loss:
        """Train on a batch: forward, backward, update."""
        return (step_with_host_update if call.group is None else step_in_group)(self, call)

    def plan(self, runs: Sequence[Run], call: Request) -> Planned:
        """Bind runs to memory of their own."""
        store, param_at, bounds = self.model.store, self.model.param_at, []
        for run in runs:
            bounds.append(bind(run, store, RunMemory(store.gradients), param_at, run.forward()))

        views: dict[str, Array] = {}  # of one run: where its pushes are in the arena
        rows, vertices = NO_ROWS, call.vertices
        if len(runs) == 1:
            rows = runs[0].row_of if vertices is None else runs[0].row_of.take(vertices)
            arena = bounds[0].buffers.arena
            views = {name: pushed_rows(runs[0], arena, name) for name in call.outputs}

        def launch(_: Sequence[int], seed: int) -> dict[str, Any]:
            self._calls.settle()
            for bound in bounds:
                bound.buffers.random_seed = seed
                bound.buffers.floats = bound.run.inputs.floats
                refuse_device_rows(bound.buffers.floats)
            arenas = self.run(bounds)
            if views:
                return {name: view.take(rows, axis=0) for name, view in views.items()}
            return {name: pushed(runs, arenas, name, vertices) for name in call.outputs}

        return launch

    def wait(self) -> None:
        """Wait for nothing: here each step is done when its call returns."""

    @property
    def arenas(self) -> Arenas:
        """The memories of shares, which have them."""
        return self.memories

    def use_arenas(self, arenas: Arenas | None = None) -> None:
        """Take other memories, by default new ones; a launch makes more where it needs them."""
        given = cast("list[RunMemory] | None", arenas)
        self.memories = [RunMemory(self.model.store.gradients)] if given is None else given

    def begin_gradients(self, runs: Sequence[Run]) -> None:
        """Clear the gradients of the last step; note the rows that a step touches.

        The update of that step has cleared them already, unless it was refused or left parameters
        out (`store.cleared`).
        """
        store = self.model.store
        self._calls.settle()
        if self._adding:  # of one that was left in the middle
            self.collect_gradients()
        store.zero_gradients()
        touched: list[Touched] = [*map(self.model.touched, runs)]
        store.touched.update(touched[0])
        if len(touched) > 1:
            for name in self.model.sparse:
                rows = np.concatenate([rows_of[name] for rows_of in touched])
                store.touched[name] = np.unique(rows)
        self._adding = touched

    def collect_gradients(self) -> None:
        """Add up the gradients of all memories in order."""
        if len(self._adding) > 1:
            collect(self.model.store, self._adding)
        self._adding = ()

    def apply_update(self, update: Update) -> Outcome:
        """Update the store by its gradients."""
        backend = cast("HostBackend", self.model.backend)
        return apply_update(self.model.store, update, backend.apply_update)


def compile_on(backend: HostBackend, traced: Program, options: CompileOptions) -> HostExecutor:
    """Compile a program of F for a backend."""
    threads = options.threads or options.processors or usable_threads()
    return HostExecutor(CompiledModel(traced, backend, options, threads))


class _Calls(NamedTuple):
    """Calls that belong together.

    Attributes:
        left: those that no thread has begun, the last first.
        stops: let calls return that wait for others; errors: of those that have ended.
    """

    left: list[Job]
    stops: Sequence[Job]
    errors: list[BaseException]

    def work(self) -> None:
        """Do what is left."""
        while self.left:
            try:
                call = self.left.pop()
            except IndexError:  # another thread was faster
                return
            try:
                call()
            except BaseException as error:  # noqa: BLE001, the caller raises it
                self.errors.append(error)
                self.stop()

    def stop(self) -> None:
        """Let calls return before their end."""
        for stop in self.stops:
            stop()


class CallsAtOnce:
    """Does calls at once, in threads that are started when they are needed."""

    def __init__(self) -> None:
        self._threads = CallThreads()
        self._calls: _Calls | None = None

    def run(self, calls: Sequence[Job], stops: Sequence[Job]) -> None:
        """Do calls at once, the first in this thread; when this returns or raises, all have ended.

        Args:
            stops: let those return that wait for others.
        Raises: what a call has raised.
        """
        first, *rest = calls
        if not rest:
            return first()
        given = self._calls = _Calls(rest[::-1], stops, [])
        try:
            self._threads.start(len(rest))
            for _ in rest:
                self._threads.put(given.work)
            first()
            given.work()
            self._threads.wait()
        except BaseException:
            self.settle()
            raise
        self._calls = None
        if given.errors:
            raise given.errors[0]

    def settle(self) -> None:
        """Wait for calls of a `run` that was left in the middle; what was not begun is not done."""
        calls = self._calls
        if calls is not None:
            calls.left.clear()
            calls.stop()
            self._threads.wait()
            self._calls = None
