"""Run batches on devices whose memory is the host's; `kernels.host` has their backends."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np

from vertexrt.config import usable_threads
from vertexrt.engine.batched import (
    BoundRun,
    Jobs,
    Part,
    Run,
    Worker,
    bind,
    make_jobs,
    pushed,
)
from vertexrt.engine.executor import Arenas, TrainStep, step_on_host
from vertexrt.engine.explain_host import Explanation, HostExplanation
from vertexrt.engine.lazy import NOTHING, Loss, Outputs
from vertexrt.engine.model import CompiledModel
from vertexrt.engine.planned import NewPulls, PlannedLaunches, PlanRequest
from vertexrt.engine.shared_step import step_in_group
from vertexrt.engine.update import Outcome, Touched, Update, apply_update, collect
from vertexrt.engine.variant import CompileOptions
from vertexrt.graph.device_rows import refuse_device_rows
from vertexrt.ir.program import Program
from vertexrt.kernels.backend import HostBackend
from vertexrt.locks import CallThreads, share
from vertexrt.native.blas import one_thread

Array = np.ndarray[Any, Any]


class HostExecutor:
    """Runs batches in the host's memory, each share of one in a worker.

    A run that an exception ends leaves parameters as they are; what it was adding up is noted, and
    cleared before anything is added again.
    """

    on_host = True

    def __init__(self, model: CompiledModel) -> None:
        self.model = model
        self.workers = [Worker(model.store.gradients)]
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
        """Run one part of each run's launches, each in its worker or group."""
        model = self.model
        self._calls.settle()
        while len(self.workers) < len(runs):
            self.workers.append(Worker(model.store.copies[len(self.workers)]))
        if model.timeline is not None:
            model.timeline.begin()
        jobs = [
            make_jobs(bind(run, model.store, worker, model.param_at, part), model.timeline)
            for run, worker, part in zip(runs, self.workers, parts, strict=False)
        ]
        self.call(jobs)
        return [job.arena for job in jobs]

    def call(self, jobs: Sequence[Jobs]) -> None:
        """Do jobs at once, the first in this thread; BLAS has one thread for each meanwhile."""

        def stop() -> None:
            for job in jobs:
                job.stop()

        calls: list[Callable[[], None]] = []
        calls_blas = False
        for job in jobs:
            calls += job.calls
            calls_blas |= job.calls_blas
        try:
            if calls_blas:
                one_thread.begin(self)
            self._calls.run(calls, stop)
            if calls_blas:
                one_thread.end(self)
        except BaseException:
            one_thread.end(self)
            raise
        for job in jobs:
            job.check()

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

    def step(self, step: TrainStep) -> Loss:
        """Train on a batch: forward, backward, update."""
        train = step_on_host if step.group is None else step_in_group
        loss, found = train(self, step)
        return Loss(loss, Outputs(found) if found else NOTHING)

    def plan(self, request: PlanRequest) -> PlannedLaunches:
        """Bind runs to memory of their own."""
        return HostPlan(self, request)

    def wait(self) -> None:
        """Wait for nothing: here each step is done when its call returns."""

    @property
    def arenas(self) -> Arenas:
        """The workers, which have them."""
        return self.workers

    def use_arenas(self, arenas: Arenas | None = None) -> None:
        """Take other workers, by default a new one; a launch makes more where it needs them."""
        given = cast("list[Worker] | None", arenas)
        self.workers = [Worker(self.model.store.gradients)] if given is None else given

    def begin_gradients(self, runs: Sequence[Run]) -> list[Touched]:
        """Clear the gradients of the last step; note the rows that a step touches."""
        store = self.model.store
        self._calls.settle()
        if self._adding:
            self.collect_gradients(self._adding)
        store.zero_gradients()
        touched: list[Touched] = [
            run.once(("touched",), (), partial(self.model.touched, run)) for run in runs
        ]
        for name in self.model.sparse:
            rows = [rows_of[name] for rows_of in touched]
            store.touched[name] = rows[0] if len(rows) == 1 else np.unique(np.concatenate(rows))
        self._adding = touched
        return touched

    def collect_gradients(self, touched: Sequence[Touched]) -> None:
        """Add up the workers' gradients in order."""
        if len(touched) > 1:
            collect(self.model.store, touched)
        self._adding = ()

    def update(self, update: Update) -> Outcome:
        """Update the store by its gradients."""
        backend = cast("HostBackend", self.model.backend)
        return apply_update(self.model.store, update, backend.update)


class HostPlan:
    """Runs whose kernels are bound to arrays of their own: a request writes pulls and calls them.

    Args:
        executor: calls them.
        request: what is planned.
    """

    def __init__(self, executor: HostExecutor, request: PlanRequest) -> None:
        self.outputs = request.outputs
        self._executor, self._runs = executor, request.runs
        self._vertices = request.vertices
        self._bound = [self._bind(run) for run in request.runs]
        self._own: dict[int, Array] = {}  # tables of real pulls that were given, by number

    def _bind(self, run: Run) -> BoundRun:
        model = self._executor.model
        worker = Worker(model.store.gradients)
        return bind(run, model.store, worker, model.param_at, run.forward())

    def forward(self, new: NewPulls, seed: int) -> dict[str, Any]:
        """Write real pulls, call the kernels, copy what they pushed."""
        for number, table in new.reals:
            self._put(number, table)
        for bound in self._bound:
            bound.buffers.random_seed = seed
        jobs = [make_jobs(bound) for bound in self._bound]
        self._executor.call(jobs)
        arenas = [job.arena for job in jobs]
        return {name: pushed(self._runs, arenas, name, self._vertices) for name in self.outputs}

    def _put(self, number: int, table: Any) -> None:
        """Copy a table to where kernels read it: the first one that is given, to a new array."""
        refuse_device_rows([table])
        own = self._own.get(number)
        if own is None:
            own = np.empty(table.size, self._executor.model.store.dtype)
            self._own[number] = own
            for run, bound in zip(self._runs, self._bound, strict=True):
                floats = list(run.inputs.floats)
                floats[number] = own
                run.inputs.floats = bound.buffers.floats = tuple(floats)
                bound.buffers.kept = None
        np.copyto(own.reshape(table.shape), table, casting="same_kind")


def compile_on(backend: HostBackend, traced: Program, options: CompileOptions) -> HostExecutor:
    """Compile a program of F for a backend."""
    threads = options.threads or options.processors or usable_threads()
    return HostExecutor(CompiledModel(traced, backend, options, threads))


Call = Callable[[], None]


class _Calls(NamedTuple):
    """Calls that belong together.

    Attributes:
        left: those that no thread has begun, the last first.
        stop: lets calls return that wait for others; errors: of those that have ended.
    """

    left: list[Call]
    stop: Call
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


_NOTHING = _Calls([], lambda: None, [])


class CallsAtOnce:
    """Does calls at once, in threads that are started when they are needed."""

    def __init__(self) -> None:
        self._threads = CallThreads()
        self._calls = _NOTHING

    def run(self, calls: Sequence[Call], stop: Call) -> None:
        """Do calls at once, the first in this thread; when this returns or raises, all have ended.

        Args:
            stop: lets those return that wait for others.
        Raises: what a call has raised.
        """
        self.settle()
        first, *rest = calls
        if not rest:
            return first()
        given = self._calls = _Calls(rest[::-1], stop, [])
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
        self._calls = _NOTHING
        if given.errors:
            raise given.errors[0]

    def settle(self) -> None:
        """Wait for calls of a `run` that was left in the middle; what was not begun is not done."""
        calls = self._calls
        if calls is not _NOTHING:
            calls.left.clear()
            calls.stop()
            self._threads.wait()
            self._calls = _NOTHING
