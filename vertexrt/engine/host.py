"""Run batches on devices whose memory is the host's; `kernels.host` has their backends."""

from __future__ import annotations

import threading
import time
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
    chosen_rows,
    make_jobs,
    outputs_of,
    pushed_by,
    rows_of_tensor,
)
from vertexrt.engine.executor import (
    Arenas,
    Asked,
    Executor,
    TrainStep,
    step_on_host,
    total_loss,
)
from vertexrt.engine.explain_host import Explanation, HostExplanation
from vertexrt.engine.graph_facts import union_of
from vertexrt.engine.lazy import NOTHING, Loss, Outputs
from vertexrt.engine.model import CompiledModel
from vertexrt.engine.parameters import ParameterStore
from vertexrt.engine.planned import NewPulls, PlannedLaunches, PlanRequest
from vertexrt.engine.results import (
    Gradients,
    LossAndGradients,
    PassResults,
    PushRows,
    WayBack,
    pulled_rows,
    table_of,
)
from vertexrt.engine.shared_step import step_in_group
from vertexrt.engine.update import Outcome, Touched, Update, apply_update, collect
from vertexrt.engine.variant import CompileOptions
from vertexrt.graph import GraphBatch
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

    def results_here(self) -> PassResults:
        """Return what copies to arrays of the host."""
        return HostResults(self)

    def step(self, step: TrainStep) -> Loss:
        """Train on a batch: forward, backward, update."""
        train = step_on_host if step.group is None else step_in_group
        loss, found = train(self, step)
        return Loss(loss, Outputs(found) if found else NOTHING)

    def submit(self, asked: Asked) -> Outputs:
        """Evaluate F on a batch; here the result is there at once."""
        use, batch = asked.use, asked.batch
        start = time.perf_counter()
        runs = self.model.prepare(use, batch)
        arenas = self.launch(runs, [run.forward(asked.seed) for run in runs])
        self.model.observe(use, batch, runs, time.perf_counter() - start)
        return Outputs(pushed_by(runs, arenas, asked.outputs, asked.vertices))

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
        for name, marks in self.model.marks.items():
            rows = [rows_of[name] for rows_of in touched]
            one = len(rows) == 1
            store.touched[name] = rows[0] if one else union_of(marks, np.concatenate(rows))
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
        self._chosen = chosen_rows(request.runs, request.vertices)
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
        return {name: outputs_of(self._runs, arenas, name, self._chosen) for name in self.outputs}

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


class HostResults:
    """PassResults are arrays of the host."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def array(self, given: Any, shape: tuple[int, ...]) -> Any:
        """Return an array of the host."""
        dtype = self._executor.model.store.dtype
        return np.zeros(shape, dtype) if given is None else np.ascontiguousarray(given, dtype)

    def forward(
        self, runs: Sequence[Run], parts: Sequence[Part], wanted: Sequence[PushRows]
    ) -> list[Any]:
        """Run launches; return copies of the pushes."""
        arenas = self._executor.launch(runs, parts)
        chosen = {id(push.vertices): chosen_rows(runs, push.vertices) for push in wanted}
        return [outputs_of(runs, arenas, push.name, chosen[id(push.vertices)]) for push in wanted]

    def backward(self, way: WayBack) -> Gradients:
        """Go back; the gradients are in the store then, too."""
        runs, executor = way.runs, self._executor
        touched = executor.begin_gradients(runs)
        arenas = executor.launch(runs, [_part(way, run) for run in runs])
        executor.collect_gradients(touched)
        found = gradients_of(executor.model.store, way.sparse)
        for name in way.pulls:
            found.pulled[name] = _pulled_gradient(way.batch, runs, arenas, name)
        return found

    def loss(self, way: WayBack) -> LossAndGradients:
        """Evaluate the loss, and go back from it; the gradients are in the store then, too."""
        runs, executor = way.runs, self._executor
        store, back = executor.model.store, runs[0].variant.use.backward
        touched = executor.begin_gradients(runs) if back else []
        arenas = executor.launch(
            runs, [Part(loss_scale=way.scale, random_seed=way.seed)] * len(runs)
        )
        loss = np.array(total_loss(runs, arenas) * way.scale, store.dtype)
        if not back:
            return LossAndGradients(loss, None, {}, {})
        executor.collect_gradients(touched)
        looked_up = _looked_up(store, way.sparse)
        flat = store.gradients[: store.dense_size] if looked_up else store.gradients
        pulled = {n: _pulled_gradient(way.batch, runs, arenas, n) for n in way.pulls}
        return LossAndGradients(loss, flat.copy(), looked_up, pulled)


def _part(way: WayBack, run: Run) -> Part:
    """Return the launches of a way back, and what they start from."""
    own = [way.scale * given[run.share.vertices] for given in way.d_outputs.values()]
    seeds = tuple(np.ascontiguousarray(given).reshape(-1) for given in own)
    return Part(run.layout.backward, 1.0, way.seed, seeds)


def gradients_of(store: ParameterStore, sparse: bool) -> Gradients:
    """Return copies of the gradients in a store; none of pulls."""
    looked_up = _looked_up(store, sparse)
    whole = {n: store.gradient(n).copy() for n in store.trained if n not in looked_up}
    return Gradients(whole, {}, looked_up)


def _looked_up(store: ParameterStore, sparse: bool) -> dict[str, tuple[Array, Array]]:
    """Return the rows of tables that have a gradient, and copies of these, if they are wanted."""
    if not sparse:
        return {}
    touched = {name: rows.astype(np.int64) for name, rows in store.touched.items()}
    return {name: (rows, store.gradient(name)[rows]) for name, rows in touched.items()}


def _pulled_gradient(
    batch: GraphBatch, runs: Sequence[Run], arenas: Sequence[Array], name: str
) -> Array:
    """Add up the gradients of pulled values over the vertices (or edges) that pulled them."""
    pulls, tensors = runs[0].variant.program.pulls_from(name), runs[0].variant.table.numbers
    table, _ = table_of(batch, pulls[0])
    out = np.zeros(table.shape, arenas[0].dtype)
    for pull in pulls:
        key = "pull_grad", pull.name
        for run, data in zip(runs, arenas, strict=True):
            to, at = pulled_rows(batch, run, pull)
            if key not in tensors or not len(to):  # it may be younger than the plan of this run
                continue
            found = rows_of_tensor(run, data, key, at)
            np.add.at(out, to, found.reshape(-1, *table.shape[1:]))
    return out


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
