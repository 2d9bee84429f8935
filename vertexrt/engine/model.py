"""A compiled vertex function: its parameters, its variants and the workers that run them."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt

from vertexrt.engine.batched import (
    Run,
    Worker,
    in_user_order,
    make_jobs,
    meet_kinds,
    prepare,
    read_rows,
    start_of,
)
from vertexrt.engine.choose import Chooser, Configuration, configurations, predicted_best
from vertexrt.engine.diagnose import Attempt, refused_loss, refused_step
from vertexrt.engine.inputs import read_inputs
from vertexrt.engine.parameters import ParameterStore
from vertexrt.engine.refused import written_by
from vertexrt.engine.touched import new_marks, rows_looked_up, take_marked
from vertexrt.engine.trace import Timeline
from vertexrt.engine.update import (
    Outcome,
    Touched,
    Update,
    all_finite,
    apply_update,
    collect,
    cut,
    end_of_step,
    outcome_of,
)
from vertexrt.engine.variant import Passes, Use, Variant, make_variant
from vertexrt.errors import DeviceError, GraphError, NumericError, PullError, message, nearest
from vertexrt.graph import GraphBatch
from vertexrt.ir.passes.place import place
from vertexrt.ir.passes.stack import stack_parameters
from vertexrt.ir.pretty import format_program
from vertexrt.ir.program import Program
from vertexrt.kernels.layout import Backend, Ending, HostBackend, Processors
from vertexrt.locks import share
from vertexrt.scheduler import POLICIES as POLICIES  # for the front end
from vertexrt.scheduler.balance import Share, share_out
from vertexrt.script.cost import level_in_vertices

Array = np.ndarray[Any, Any]
Outputs = dict[str, Array]
REDUCTIONS = ("graph", "vertex", "sum")


class Trainer(Protocol):
    """What a step needs of an optimizer."""

    steps: int

    def request(self, store: ParameterStore) -> Update:
        """Say what the next update is to do."""

    def settle(self, outcome: Outcome) -> None:
        """Count an update that was done."""

    def update(self, store: ParameterStore) -> None:
        """Move the parameters by their gradients."""


DEVICES = ("auto", "cpu", "cuda", "reference")
PRECISIONS = ("float32", "tf32", "bf16")


def device_named(device: str) -> str:
    """Return the name of the device that `auto` stands for: a GPU where there is a usable one."""
    if device != "auto":
        return device
    from vertexrt.kernels.cuda.device import usable

    return "cuda" if usable() else "cpu"


def backend_named(device: str) -> Backend:
    """Return the backend of a device whose memory is the host's.

    Raises: DeviceError for a device that is unknown.
    """
    if device == "cpu":
        from vertexrt.kernels.cpu.backend import CpuBackend

        return CpuBackend()
    if device == "reference":
        from vertexrt.kernels.reference.backend import ReferenceBackend

        return ReferenceBackend()
    raise DeviceError(
        message(
            "device",
            f"device is {device!r}",
            "one of " + ", ".join(DEVICES),
            f"choose one of these.{nearest(str(device), DEVICES)}",
        )
    )


def sparse_parameters(program: Program) -> list[str]:
    """Name the parameters that are only looked up in: their gradients touch few rows."""
    tables: dict[str, bool] = {}
    for node in program.nodes:
        for position, i in enumerate(node.inputs):
            source = program.nodes[i]
            if source.op == "param":
                looked_up = node.op == "embed" and position == 0
                tables[source["name"]] = tables.get(source["name"], True) and looked_up
    return [name for name, only in tables.items() if only]


class Evaluation:
    """Pushes of a batch, which a GPU may still be computing. Made by `Network.submit`."""

    def __init__(self, model: CompiledModel, outputs: Callable[[], Outputs]) -> None:
        self._model = model
        self._wait = outputs
        self._outputs: Outputs | None = None
        self._failure: DeviceError | None = None

    def __repr__(self) -> str:
        if self._failure is not None:
            return "Evaluation(failed)"
        if self._outputs is None:
            return "Evaluation(not waited for)"
        return f"Evaluation({', '.join(f'{n} {list(a.shape)}' for n, a in self._outputs.items())})"

    def settle(self) -> None:
        """Wait for the pushes and keep them, or why there are none."""
        with self._model.lock:
            if self._outputs is None and self._failure is None:
                try:
                    self._outputs = self._wait()
                except DeviceError as error:
                    self._failure = error

    def result(self) -> Outputs:
        """Return the pushes, waiting for them: name -> [V, *shape], in the user's vertex order.

        Raises: DeviceError, when the batch did not run to its end.
        """
        self.settle()
        if self._outputs is None:
            assert self._failure is not None
            raise self._failure
        return self._outputs


class CompiledModel:
    """F, its parameter store, and one variant for each way in which it has been run.

    `lock` is for who uses it: one thread at a time. A thread may take it again.

    Args:
        traced: the program of F.
        backend: what runs it.
        dtype: float32 or float64.
        policy: of the scheduler.
        threads: how many run at once.
        engine: `batched`, `persistent`, or `auto`, which times them.
        processors: of a group of the persistent engine; by default the model of `choose` picks the
            number for each batch, without timing, so that runs repeat.
    """

    def __init__(
        self,
        traced: Program,
        backend: Backend,
        dtype: npt.DTypeLike,
        policy: str,
        passes: Passes,
        threads: int,
        engine: str = "batched",
        processors: int | None = None,
    ) -> None:
        self.function = stack_parameters(place(traced)) if passes.stack else traced
        self.backend = backend
        self.policy = policy
        self.engine = engine
        self.passes = passes
        self.sparse = sparse_parameters(traced)
        stacked = self.function.stacks
        self.store = ParameterStore(traced.params, dtype, self.sparse, stacked, max(threads, 1))
        stacks = {"+".join(names): self.store.stacked(names) for names in self.function.stacks}
        self.param_names = [*self.store.names, *stacks]
        offsets = [self.store.offsets[n] for n in self.store.names] + list(stacks.values())
        self.param_at = np.array(offsets, np.int64)
        self.variants: dict[tuple[Use, int], Variant] = {}
        self.workers = [Worker(self.store.gradients)]
        self.chooser: Chooser | None = None
        self._predicted: dict[tuple[int, int], Configuration] = {}  # by graphs, vertices
        self.timeline: Timeline | None = None  # while runs are recorded
        self.threads = threads
        self.work = multiplications(self.function)
        self.configuration: Configuration | None = None  # None: another one for each batch
        if engine == "batched":
            self.configuration = Configuration(False, threads)
        elif engine == "auto":
            key = (
                f"{format_program(self.function)} {self.store.dtype} {policy} {passes} {threads} "
                f"{backend.where}"
            )
            self.chooser = Chooser(key, self.candidates, Configuration(False, threads))
        elif processors is not None:
            self.configuration = Configuration(True, max(threads // processors, 1), processors)
        self._helpers = max(threads, processors or 1) - 1
        self.start_helpers()
        share(self)
        self.last_loss = math.nan
        self._marks = {n: new_marks(self.store.shapes[n][0]) for n in self.sparse}

    def start_helpers(self) -> None:
        """Make what a process has of its own: the lock, and the threads beside the caller's."""
        self.lock: Any = threading.RLock()
        self._pool = ThreadPoolExecutor(self._helpers) if self._helpers else None

    def after_fork(self) -> None:
        """Work on in a forked child; the threads of the parent are not there."""
        self.start_helpers()

    def choose(self, use: Use, batch: GraphBatch) -> Configuration:
        """Return how a batch is to run."""
        if self.configuration is not None:
            return self.configuration
        if self.chooser is not None:
            return self.chooser.pick(purpose(use), batch)
        sizes = batch.num_graphs, batch.num_vertices
        if sizes not in self._predicted:
            options = [option for option in configurations(self.threads) if option.persistent]
            self._predicted[sizes] = predicted_best(options, batch, self.work)[0]
        return self._predicted[sizes]

    def candidates(self, batch: GraphBatch) -> list[Configuration]:
        """List the ways to run a batch, the best by the model first."""
        return predicted_best(configurations(self.threads), batch, self.work)

    @property
    def persistent(self) -> bool:
        """Tell whether every batch runs on processors."""
        return self.chooser is None and (
            self.configuration is None or self.configuration.persistent
        )

    def variant(self, use: Use, chosen: Configuration) -> Variant:
        """Return F compiled for one use and engine."""
        processors = self.backend.written_for(chosen.processors) if chosen.persistent else 0
        found = self.variants.get((use, processors))
        if found is None:
            found = self.variants[use, processors] = make_variant(
                self.function, use, self.backend, self.param_names, self.passes, processors
            )
        return found

    def prepare(self, use: Use, batch: GraphBatch) -> list[Run]:
        """Schedule a batch, one run for each worker or group that gets a share of it."""
        return self.prepare_as(self.choose(use, batch), use, batch)

    def prepare_as(self, chosen: Configuration, use: Use, batch: GraphBatch) -> list[Run]:
        """Schedule a batch for a way to run it; see `prepare`."""
        variant = self.variant(use, chosen)
        parts = min(chosen.groups, batch.num_graphs)
        while len(self.workers) < parts:
            self.workers.append(Worker(self.store.copies[len(self.workers)]))
        dtype = self.store.dtype
        shares = (
            [Share(batch)] if parts == 1 else share_out(batch, parts, level_in_vertices(self.work))
        )
        try:
            return [prepare(variant, share, self.policy, dtype, chosen) for share in shares]
        except (GraphError, PullError):
            inputs = read_inputs(variant.reader, batch, dtype)
            meet_kinds(variant, batch, inputs)  # names the vertex as the user knows it
            raise

    def observe(self, use: Use, batch: GraphBatch, runs: Sequence[Run], seconds: float) -> None:
        """Tell the automatic choice what a step took."""
        if self.chooser is not None:
            self.chooser.observe(purpose(use), batch, runs[0].configuration, seconds)

    def execute(self, runs: Sequence[Run], parts: Sequence[slice], **options: Any) -> list[Array]:
        """Run one part of each run's launches, each in its worker or group.

        Args:
            options: of `make_jobs`, or functions of the share's number that give them.
        """
        jobs = []
        if self.timeline is not None:
            self.timeline.begin()
            options["timeline"] = self.timeline
        for k, run in enumerate(runs):
            own = {n: v(k) if callable(v) else v for n, v in options.items()}
            own |= {"part": parts[k], "group": k}
            job = make_jobs(run, self.store, self.workers[k], self.param_at, **own)
            jobs.append(job)
        first, *rest = [call for job in jobs for call in job.calls]
        done = False
        try:
            with self.backend.alone():
                waiting = [self._pool.submit(call) for call in rest] if self._pool else []
                first()
                for other in waiting:
                    other.result()
            for job in jobs:
                job.check()
            done = True
        finally:
            if not done:  # which rows have a gradient is not known
                for worker in self.workers:
                    worker.gradients[:] = 0.0
        return [job.arena for job in jobs]

    def step(
        self,
        use: Use,
        batch: GraphBatch,
        optimizer: Trainer,
        asks: bool,
        reduction: str,
        seed: int,
        outputs: Sequence[str],
    ) -> tuple[float, Outputs]:
        """Train on a batch: forward, backward, update.

        Args:
            asks: the optimizer has no update of its own; processors may do it.
            seed: 32 random bits.
            outputs: names of pushes.
        Returns: the loss, and the pushes in the user's vertex order.
        Raises: NumericError, when the loss, a gradient or a number that would be written is not
            finite; nothing was updated then.
        """
        start = time.perf_counter()
        runs = self.prepare(use, batch)
        scale = loss_scale(reduction, batch, runs)
        touched = self.begin_gradients(runs)
        update = optimizer.request(self.store) if asks else None
        ending = None if update is None else self.ending(runs, touched, update, scale)
        whole = [slice(None)] * len(runs)
        arenas = self.execute(runs, whole, loss_scale=scale, random_seed=seed, ending=ending)
        if ending is None:
            self.collect_gradients(touched)
            loss = total_loss(runs, arenas) * scale
        else:
            loss = float(ending.found[0]) * scale
        attempt = Attempt(use, batch, scale, seed, len(runs), update)
        if not math.isfinite(loss):
            raise NumericError(refused_loss(self, attempt, loss))
        found = {name: outputs_of(runs, arenas, name) for name in outputs}
        if update is None:
            self._update_by(optimizer, attempt)
        else:
            backend = cast("HostBackend", self.backend)
            outcome = (
                apply_update(self.store, update, backend.update)
                if ending is None
                else outcome_of(self.store, ending)
            )
            if not outcome.done:
                raise NumericError(refused_step(self, attempt, outcome.norm, True))
            optimizer.settle(outcome)
        self.observe(use, batch, runs, time.perf_counter() - start)
        self.last_loss = loss
        return loss, found

    def _update_by(self, optimizer: Trainer, attempt: Attempt) -> None:
        """Let an optimizer with an update of its own move the parameters; see `Network.step`."""
        if not all_finite(self.store, self.store.gradients):
            raise NumericError(refused_step(self, attempt, 0.0, True))
        optimizer.update(self.store)
        if not all_finite(self.store, self.store.values):
            raise NumericError(written_by(optimizer, self.store))

    def submit(self, use: Use, batch: GraphBatch, names: Sequence[str]) -> Evaluation:
        """Evaluate F on a batch; here the result is there at once."""
        start = time.perf_counter()
        runs = self.prepare(use, batch)
        arenas = self.execute(runs, [slice(0, run.forward_launches) for run in runs], random_seed=0)
        self.observe(use, batch, runs, time.perf_counter() - start)
        found = {name: outputs_of(runs, arenas, name) for name in names}
        return Evaluation(self, lambda: found)

    def sync(self) -> float:
        """Return the loss of the last step: here it is never waited for."""
        return self.last_loss

    def begin_gradients(self, runs: Sequence[Run]) -> list[Touched]:
        """Clear the gradients of the last step; note the rows that a step touches.

        Returns: for each run the rows of sparse parameters that it looks up.
        """
        self.store.zero_gradients()
        touched: list[Touched] = [self._touched(run) for run in runs]
        for name, marks in self._marks.items():
            if len(touched) == 1:
                self.store.touched[name] = touched[0][name]
                continue
            for rows_of in touched:
                marks[rows_of[name]] = True
            self.store.touched[name] = take_marked(marks)
        return touched

    def collect_gradients(self, touched: Sequence[Touched]) -> None:
        """Add up the workers' gradients in order, given what `begin_gradients` returned."""
        if len(touched) > 1:
            collect(self.store, touched)

    def ending(
        self, runs: Sequence[Run], touched: Sequence[Touched], update: Update, scale: float
    ) -> Ending | None:
        """Return what lets processors end a step with an update; None where they cannot.

        Args:
            scale: factor on the loss.
        """
        processors = cast("Processors | None", runs[0].ready.processors)
        if processors is None:
            return None
        gate = processors.new_gate(len(runs), runs[0].configuration.processors)
        if gate is None:
            return None
        loss_at = [start_of(run, ("push", "loss")) for run in runs]
        pieces = cut(self.store, touched)
        return end_of_step(self.store, pieces, update, gate, loss_at, scale)

    def _touched(self, run: Run) -> dict[str, Array]:
        """List for each sparse parameter the rows that a run looked up."""
        index, lookups = run.inputs.index, run.variant.lookups
        return {n: rows_looked_up(self._marks[n], index, lookups[n]) for n in self.sparse}


def purpose(use: Use) -> str:
    """Name what is timed together."""
    return "training" if use.backward else "inference"


def multiplications(program: Program) -> float:
    """Count the multiplications that a vertex with all its children takes to train."""
    products = [n for n in program.nodes if n.op == "matmul"]
    return 3.0 * sum(program.nodes[n.inputs[0]].type.size for n in products)


def outputs_of(runs: Sequence[Run], arenas: Sequence[Array], name: str) -> Array:
    """Return a push of all shares in the user's vertex order: [V, *shape], a copy."""
    whole = rows_of_batch(runs, arenas, ("push", name))
    return whole.reshape(len(whole), *runs[0].variant.push_shape(name))


def rows_of_batch(runs: Sequence[Run], arenas: Sequence[Array], key: tuple[object, ...]) -> Array:
    """Return a tensor of all shares in the user's vertex order, [V, size], a copy."""
    parts = [
        in_user_order(run, read_rows(run, data, key))
        for run, data in zip(runs, arenas, strict=True)
    ]
    if len(parts) == 1:
        return parts[0]
    whole = np.empty((sum(len(p) for p in parts), parts[0].shape[1]), parts[0].dtype)
    for run, part in zip(runs, parts, strict=True):
        whole[run.share.vertices] = part
    return whole


def total_loss(runs: Sequence[Run], arenas: Sequence[Array]) -> float:
    """Sum the push `loss` over all vertices, in float64 and in execution order."""
    from vertexrt.kernels.cpu.update import sum_loss

    total = 0.0
    for run, data in zip(runs, arenas, strict=True):
        rows, at = run.num_rows, start_of(run, ("push", "loss"))
        total += sum_loss(data[at : at + rows], 0, rows, run.weight)
    return total


def loss_scale(reduction: str, batch: GraphBatch, runs: Sequence[Run]) -> float:
    """Return the factor on the summed loss: see `vrt.compile`."""
    if reduction == "graph":
        return 1.0 / batch.num_graphs
    if reduction == "vertex":
        return 1.0 / max(1, sum(run.with_loss for run in runs))
    return 1.0


def step_seed(seed: int, step: int) -> int:
    """Mix seed and step into 32 random bits (splitmix64's finaliser)."""
    z = (seed * 0x9E3779B97F4A7C15 + step * 0xBF58476D1CE4E5B9) % 2**64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    return (z ^ (z >> 31)) % 2**32
