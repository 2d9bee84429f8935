"""A training step that processes do together: each has some shares of the batch.

Every process is handed the whole batch, and reads its own graphs alone where the batch was taken
from another: see `graph_facts`. It computes the gradients of its shares one after another,
packed into one flat array. `ProcessGroup` adds the arrays up in an order that does not depend on
the number of processes; then each process does the same update. `step_in_group` does this in the
host's memory; devices that are linked do it in theirs, from the same `SharedWork`.
"""

from __future__ import annotations

import math
import operator
import time
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np

from vertexrt.engine.batched import Part, Run, read_rows
from vertexrt.engine.executor import (
    Executor,
    Pushed,
    Request,
    end_step,
    loss_scale,
    total_loss,
)
from vertexrt.engine.graph_facts import GraphFacts
from vertexrt.engine.lazy import NOTHING, Loss, Outputs
from vertexrt.engine.model import CompiledModel
from vertexrt.engine.update import Touched
from vertexrt.engine.variant import Variant
from vertexrt.errors import UsageError
from vertexrt.parallel.communicator import Communicator
from vertexrt.parallel.group import ProcessGroup
from vertexrt.parallel.sums import HostArrays, add_in_pairs, sum_over
from vertexrt.scheduler.balance import Share, assign_graphs, shares_of

Array = np.ndarray[Any, Any]
Int64 = np.ndarray[Any, np.dtype[np.int64]]

COMPARED = ("another batch", "other pulled values", "another random seed", "other parameters")
COMPARED_BYTES = 6  # of digests: a float64 has no more


class SharedWork(NamedTuple):
    """What a process does of a step.

    Attributes:
        rows: of sparse parameters that the whole batch looks up.
        owner: [graphs] the share of each; parts: how many shares have graphs.
        shares, own: those of this process, and the runs of each; none for one without a graph.
        room: how many shares the process has, with and without graphs.
        part: the factor on the summed loss, and the random seed.
        same: numbers that all processes must have alike, the first of COMPARED.
    """

    variant: Variant
    rows: Touched
    owner: Array
    parts: int
    shares: list[Share]
    own: list[list[Run]]
    room: int
    part: Part
    same: tuple[float, ...]


def divide_step(model: CompiledModel, call: Request, group: ProcessGroup) -> SharedWork:
    """Schedule the shares that this process has of a step.

    Raises: PullError, GraphError: in every process alike.
    """
    facts, graphs = model.facts_of(call.use, call.batch)
    parts = min(group.shares, len(graphs))
    owner = assign_graphs(facts.costs[graphs], parts)
    shares = shares_of(Share(call.batch), owner, range(parts)[group.own])
    if call.reduction == "mean_vertices":
        scale = 1.0 / max(1, int(facts.with_loss[graphs].sum()))
    else:
        scale = loss_scale(call.reduction, call.batch, ())
    return SharedWork(
        facts.variant,
        model.looked_up(facts, graphs),
        owner,
        parts,
        shares,
        [model.prepare_share(call.use, share) for share in shares],
        group.shares // group.size,
        Part(loss_scale=scale, random_seed=call.seed),
        _numbers(call, facts, graphs),
    )


def _numbers(call: Request, facts: GraphFacts, graphs: Int64) -> tuple[float, ...]:
    """Return a number for each of the first of COMPARED."""
    digests = facts.digests
    keys = [digests.key(of, graphs) for of in (digests.structure, digests.numbers)]
    return *[int.from_bytes(key[:COMPARED_BYTES]) for key in keys], call.seed


def _sample_of(values: Array) -> int:
    """Return a checksum of some of the parameters."""
    sample = values[:: sample_stride(values.size)].tobytes()
    return int.from_bytes(blake2b(sample, digest_size=COMPARED_BYTES).digest())


def total_of(group: ProcessGroup, told: list[list[float]]) -> float:
    """Return the sum of the losses of all shares; tell the largest signal to `group.signal`.

    Args:
        told: of each process a signal, a number for each of COMPARED, losses.
    Raises: UsageError, when a process has another batch, seed or parameters.
    """
    group.signal = int(max([numbers[0] for numbers in told]))
    refuse_differences([numbers[1 : 1 + len(COMPARED)] for numbers in told])
    losses = [loss for numbers in told for loss in numbers[1 + len(COMPARED) :]]
    total: float = add_in_pairs(losses, operator.add)
    return total


def refuse_differences(numbers: list[list[float]]) -> None:
    """Refuse processes that do not have the same.

    Args:
        numbers: of each process one for the first of COMPARED.
    Raises: UsageError, which names the first that has something else than process 0.
    """
    first = numbers[0]
    for k, what in zip(range(len(first)), COMPARED, strict=False):
        others = [rank for rank, own in enumerate(numbers) if own[k] != first[k]]
        if others:
            raise UsageError.at(
                "step",
                f"process {others[0]} has {what} than process 0",
                "every process is handed the whole batch, and compiles with the same seed",
                "do not divide batches: the group does; give loaders and vrt.compile one seed",
            )


class SharedPushes:
    """The pushes that a step is asked for, of all vertices: each process fills those of its shares.

    Args:
        work: of the step.
    """

    def __init__(self, model: CompiledModel, call: Request, work: SharedWork) -> None:
        self._work, self._batch, self._vertices = work, call.batch, call.vertices
        self._whole = {
            name: np.empty(
                (call.batch.num_vertices, math.prod(work.variant.pushes.shapes[name])),
                model.store.dtype,
            )
            for name in call.outputs
        }

    def place(self, runs: Sequence[Run], arenas: Sequence[Array]) -> None:
        """Copy what a share has pushed to the places of its vertices."""
        for name, found in self._whole.items():
            for run, data in zip(runs, arenas, strict=True):
                rows = read_rows(run, data, run.variant.pushes.keys[name])
                found[run.share.vertices] = rows.take(run.row_of, axis=0)

    def gathered(self, group: ProcessGroup) -> Pushed:
        """Bring the rows of other processes; return the pushes that are wanted, [n, *shape].

        Raises: ParallelError, when a process is lost.
        """
        variant = self._work.variant
        if self._whole:
            process = np.repeat(self._work.owner, self._batch.sizes()) // self._work.room
            vertices = [np.flatnonzero(process == rank) for rank in range(group.size)]
            for found in self._whole.values():
                _gather_push(group, vertices, found)
        shapes = {name: variant.pushes.shapes[name] for name in self._whole}
        chosen = slice(None) if self._vertices is None else self._vertices
        return {n: x.reshape(len(x), *shapes[n])[chosen] for n, x in self._whole.items()}


def _gather_push(group: ProcessGroup, vertices: Sequence[Array], whole: Array) -> None:
    """Bring the rows of a push from the processes that have them, whose vertices are given."""
    width = whole.shape[1]
    own = whole[vertices[group.rank]].reshape(-1)
    found = group.gather_rows(own, [width * len(each) for each in vertices])
    for at, rows in zip(vertices, found, strict=True):
        whole[at] = rows.reshape(-1, width)


def step_in_group(executor: Executor, call: Request) -> Loss:
    """Do this process's part of a step; return the loss of the whole batch, and its pushes.

    Raises: as `Executor.step`, in every process alike; ParallelError, when a process is lost;
        UsageError, when processes do not have the same batch, seed or parameters.
    """
    model, group = executor.model, call.group
    assert group is not None
    work = divide_step(model, call, group)
    packed = PackedGradients(executor, group.communicator, work.rows)
    pushes, losses = SharedPushes(model, call, work), np.zeros(work.room)

    def gradients() -> Iterator[Array]:
        """Return the packed gradients of each of this process's shares."""
        for k, runs in enumerate(work.own):
            start = time.perf_counter()
            executor.begin_gradients(runs)
            arenas = executor.launch(runs, [work.part] * len(runs))
            losses[k] = total_loss(runs, arenas)
            pushes.place(runs, arenas)
            yield packed.pack()
            model.time_runs(call.use, work.shares[k].batch, runs, start, start)
        for _ in range(len(work.own), work.room):  # there are fewer graphs than shares
            yield packed.zeros()

    total = add_in_pairs(gradients(), packed.add)
    update = call.optimizer._next_update(model.store, call.draws) if call.built_in else None
    sample = _sample_of(model.store.values)
    mine = np.array([group.signal, *work.same, sample, *losses], np.float64)
    loss = total_of(group, group.gather(mine).tolist()) * work.part.loss_scale
    total = sum_over(group.rank, group.size, total, packed, group.limit)
    found = pushes.gathered(group)
    group.began()
    packed.unpack(total)
    end_step(executor, call, update, loss, work.part.loss_scale, work.parts)
    return Loss(loss, Outputs(found) if found else NOTHING)


SAMPLE = 4096  # parameters that processes compare in each step


class PackedGradients(HostArrays):
    """Packed in the host's memory, from where a group sends them.

    Args:
        rows: the rows of sparse parameters that the batch looks up.
    """

    def __init__(self, executor: Executor, communicator: Communicator, rows: Touched) -> None:
        super().__init__(communicator)
        self._executor, self._store, self._rows = executor, executor.model.store, rows

    def pack(self) -> Array:
        """Return a copy of the gradients that a launch has left: the dense part, rows of tables."""
        store = self._store
        self._executor.collect_gradients()
        tables = (store.gradient(name)[own].reshape(-1) for name, own in self._rows.items())
        return np.concatenate([store.gradients[: store.dense_size], *tables])

    def zeros(self) -> Array:
        """Return the gradients of a share without a graph."""
        store = self._store
        shapes = [(len(own), *store.shapes[name][1:]) for name, own in self._rows.items()]
        return np.zeros(store.dense_size + sum(map(math.prod, shapes)), store.dtype)

    def unpack(self, total: Array) -> None:
        """Put the sum of all back into the store, whose update reads it."""
        store = self._store
        store.zero_gradients()
        store.gradients[: store.dense_size] = total[: store.dense_size]
        at = store.dense_size
        for name, own in self._rows.items():
            shape = (len(own), *store.shapes[name][1:])
            end = at + math.prod(shape)
            store.touched[name] = own
            store.gradient(name)[own] = total[at:end].reshape(shape)
            at = end


def sample_stride(parameters: int) -> int:
    """Return the distance of the parameters that processes compare."""
    return max(1, parameters // SAMPLE)
