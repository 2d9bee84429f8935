"""What runs the batches of a compiled model, and what every device does alike.

A model prepares a batch: it is scheduled, its memory is planned, nothing has run. An executor
launches it and waits for it; what has been computed is read by `pushed`. There is one for the host
and one for each kind of device; neither knows the other.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
import numpy.typing as npt

from vertexrt.engine.batched import Part, Run, pushed, read_rows
from vertexrt.engine.diagnose import Attempt, refused_loss, refused_step
from vertexrt.engine.explain_host import Explanation
from vertexrt.engine.lazy import NOTHING, Loss, Outputs
from vertexrt.engine.model import CompiledModel
from vertexrt.engine.parameters import ParameterStore, StoreDraft
from vertexrt.engine.update import (
    Outcome,
    Update,
    all_finite,
    refused_gradient,
    refused_update,
    written_by,
)
from vertexrt.engine.variant import Use
from vertexrt.errors import NumericError
from vertexrt.graph import GraphBatch
from vertexrt.kernels.store_update import sum_loss
from vertexrt.parallel.group import ProcessGroup

Array = np.ndarray[Any, Any]
Pushed = Mapping[str, Any]  # arrays by the names of pushes
Arenas = Sequence[Any]  # of an executor, to which alone they mean something
# Launches runs that have their memory to themselves, of which some pulls are others: see `plan`.
Planned = Callable[[Sequence[int], int], Pushed]
LOSS = ("push", "loss")  # the tensor of the losses of vertices
UNCOUNTED: Array = np.zeros(1, np.int64)  # where something is counted that nobody reads


class Trainer(Protocol):
    """What a step needs of an optimizer."""

    def _next_update(self, store: ParameterStore, draws: Array = UNCOUNTED) -> Update:
        """Say what the next update is to do, and what it is to count."""

    def _settle(self, outcome: Outcome) -> None:
        """Note how an update has ended that was done."""

    def update(self, store: ParameterStore) -> None:
        """Move the parameters by their gradients."""


class Request(NamedTuple):
    """What prepared runs are given: an evaluation, or a step: forward, backward, update.

    Attributes:
        outputs: names of pushes, in order.
        seed: 32 random bits, for what is drawn in inference as well.
        vertices: int64, those whose pushes are wanted; None for all.
        stays: pushes may be arrays of the device, for which a step is not waited for.
        optimizer: of a step, which reads it; built_in: it has no update of its own, so that the
            device may do it.
        reduction: of the loss, see `vrt.compile`.
        draws: int64 [1], counts the network's draws: one more when the step is done.
        group: of the processes that do it together; None for this one alone.
    """

    use: Use
    batch: GraphBatch
    outputs: Sequence[str]
    seed: int
    vertices: npt.NDArray[np.int64] | None = None
    stays: bool = False
    optimizer: Trainer = cast("Trainer", None)
    built_in: bool = True
    reduction: str = ""
    draws: Array = UNCOUNTED
    group: ProcessGroup | None = None


class Executor(Protocol):
    """What runs the batches of a model on a device.

    Attributes:
        lock: a thread that uses it or its model holds it, one at a time. A thread may take it
            again.
        on_host: its memory is the host's: all is done at once.
    """

    model: CompiledModel
    lock: Any
    on_host: bool

    def explanation(self) -> Explanation:
        """Return what `explain` asks of the device."""

    def launch(self, runs: Sequence[Run], parts: Sequence[Part]) -> list[Array]:
        """Run one part of each run's launches; return the arenas, to be read."""

    def push(
        self,
        runs: Sequence[Run],
        parts: Sequence[Part],
        names: Sequence[str],
        vertices: npt.NDArray[np.int64] | None = None,
        stays: bool = False,
    ) -> Outputs:
        """Run one part of each run's launches; return pushes of some vertices, of all by default.

        Args:
            stays: they are arrays of the device.
        """

    def step(self, call: Request) -> Loss:
        """Train on a batch; return the loss, with the pushes asked for.

        Raises: NumericError, when the loss, a gradient or a number that would be written is not
            finite; nothing was updated then. A device may raise it at a later call.
        """

    def plan(self, runs: Sequence[Run], call: Request) -> Planned:
        """Give runs memory of their own, and make them ready to be launched again and again.

        Returns: what evaluates them with the pulls that their inputs have then, and returns pushes
            by name; given which rows of `Inputs.index`, or their real numbers, may be others than
            the last time, and 32 random bits.
        """

    def wait(self) -> None:
        """Wait for all steps."""

    @property
    def arenas(self) -> Arenas:
        """Those in which runs compute."""

    def use_arenas(self, arenas: Arenas | None = None) -> None:
        """Let runs compute in other arenas, by default new ones; whoever wants the others has them.

        A signal comes before it or after it.
        """

    def begin_gradients(self, runs: Sequence[Run]) -> None:
        """Clear the gradients of the last step; note the rows that a step touches."""

    def collect_gradients(self) -> None:
        """Bring the sum of all gradients since `begin_gradients` to the store."""

    def apply_update(self, update: Update) -> Outcome:
        """Update parameters by the gradients in the store: see `engine.update.apply_update`."""


def step_with_host_update(executor: Executor, call: Request) -> Loss:
    """Do a step whose gradients are updated in the host's memory; see `Network.step`."""
    start = time.perf_counter()
    model, use, batch = executor.model, call.use, call.batch
    runs = model.prepare(use, batch, executor.on_host)
    scale = loss_scale(call.reduction, batch, runs)
    executor.begin_gradients(runs)
    update = call.optimizer._next_update(model.store, call.draws) if call.built_in else None
    whole = Part(loss_scale=scale, random_seed=call.seed)
    arenas = executor.launch(runs, [whole] * len(runs))
    executor.collect_gradients()
    loss = total_loss(runs, arenas) * scale
    found = NOTHING
    if call.outputs:
        given = runs, arenas
        found = Outputs({name: pushed(*given, name, call.vertices) for name in call.outputs})
    end_step(executor, call, update, loss, scale, len(runs))
    if model.tuner is not None:
        model.time_runs(use, batch, runs, start, start)
    return Loss(loss, found)


def end_step(
    executor: Executor, call: Request, update: Update | None, loss: float, scale: float, parts: int
) -> None:
    """Update the parameters by the gradients of a step, which the store has.

    Args:
        update, scale, parts: of `Attempt`.
    Raises: NumericError, when the loss or a number that would be written is not finite; nothing
        was updated then.
    """
    model = executor.model

    def attempt() -> Attempt:
        return Attempt(call.use, call.batch, scale, call.seed, parts, update)

    if not math.isfinite(loss):
        model.store.refresh()
        raise NumericError(refused_loss(model, attempt(), loss))
    _apply_update(
        executor,
        call.optimizer,
        call.draws,
        update,
        lambda norm: refused_step(model, attempt(), norm, True),
    )


def update_by_gradients(executor: Executor, optimizer: Trainer, built_in: bool) -> None:
    """Update parameters by the gradients in the store, which are no step's; see `Request`.

    Raises: NumericError, when a gradient or a number that would be written is not finite.
    """
    store = executor.model.store
    update = optimizer._next_update(store) if built_in else None

    def refused(norm: float) -> str:
        if update is None:
            return refused_gradient(type(optimizer).__name__, store)
        return refused_update(store, update, norm)

    if update is None:
        store.refresh()
    _apply_update(executor, optimizer, UNCOUNTED, update, refused)


def _apply_update(
    executor: Executor,
    optimizer: Trainer,
    draws: Array,
    update: Update | None,
    refused: Callable[[float], str],
) -> None:
    """Update parameters by the gradients in the store.

    All that a step changes for good, it changes here, in one call of machine code: parameters,
    moments and counts. So whatever exception ends it, a step was done, or it was not.

    Args:
        update: None for one of the optimizer's own, which is done to a copy.
        refused: says why it was refused, given the norm of the gradients if that is known.
    """
    store = executor.model.store
    if update is not None:
        outcome = executor.apply_update(update)
        if not outcome.done:
            raise NumericError(refused(outcome.norm))
        return optimizer._settle(outcome)
    if not all_finite(store, store.gradients):
        raise NumericError(refused(0.0))
    draft = StoreDraft(store)
    optimizer.update(draft)
    if not all_finite(draft, draft.values):
        raise NumericError(written_by(type(optimizer).__name__, draft))
    return draft.commit((store.versions, draws, getattr(optimizer, "_count", UNCOUNTED)))


def total_loss(runs: Sequence[Run], arenas: Sequence[Array]) -> float:
    """Sum the push `loss` over all vertices, in float64 and in execution order."""
    total = 0.0
    for run, data in zip(runs, arenas, strict=True):
        total += sum_loss(read_rows(run, data, LOSS).reshape(-1), run.layout.weight)
    return total


def loss_scale(reduction: str, batch: GraphBatch, runs: Sequence[Run]) -> float:
    """Return the factor on the summed loss: see `vrt.compile`."""
    if reduction == "mean_graphs":
        return 1.0 / batch.num_graphs
    if reduction == "mean_vertices":
        return 1.0 / max(1, sum(run.layout.with_loss for run in runs))
    return 1.0


def step_seed(seed: int, step: int) -> int:
    """Mix seed and step into 32 random bits (splitmix64's finaliser)."""
    z = (seed * 0x9E3779B97F4A7C15 + step * 0xBF58476D1CE4E5B9) % 2**64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    return (z ^ (z >> 31)) % 2**32
