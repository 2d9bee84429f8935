"""A training step that processes do together: each has some shares of the batch.

Every process is handed the whole batch. It computes the gradients of its shares one after another,
packed into one flat array (`packed_gradients`), on the host or on a device. `ProcessGroup` adds the
arrays up in an order that does not depend on the number of processes; then each process does the
same update.
"""

from __future__ import annotations

import math
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from vertexrt.engine.batched import Run, in_user_order, read_rows
from vertexrt.engine.diagnose import Attempt
from vertexrt.engine.executor import (
    Executor,
    Outputs,
    TrainStep,
    end_step,
    loss_scale,
    total_loss,
)
from vertexrt.engine.inputs import Inputs
from vertexrt.engine.model import CompiledModel
from vertexrt.engine.packed_gradients import PackedGradients
from vertexrt.engine.part import Part
from vertexrt.engine.variant import Variant
from vertexrt.errors import UsageError
from vertexrt.graph import GraphBatch
from vertexrt.kernels.cpu.costs import level_in_vertices
from vertexrt.parallel.group import ProcessGroup
from vertexrt.parallel.sums import add_in_pairs
from vertexrt.scheduler.balance import Share, assign_graphs, share_of

Array = np.ndarray[Any, Any]

COMPARED = ("another batch", "other pulled values", "another random seed", "other parameters")


def step_in_group(executor: Executor, step: TrainStep) -> tuple[float, Outputs]:
    """Do this process's part of a step; return the loss of the whole batch, and its pushes.

    Raises: as `Executor.step`, in every process alike; ParallelError, when a process is lost;
        UsageError, when processes do not have the same batch, seed or parameters.
    """
    model, group = executor.model, step.group
    assert group is not None
    variant, inputs = model.read(step.use, step.batch)
    packed = executor.packed(step, group, model.looked_up(variant, inputs))
    parts = min(group.shares, step.batch.num_graphs)
    owner = assign_graphs(step.batch, parts, level_in_vertices(model.chooser.work.all))
    shares, own = _own_shares(model, step, owner, range(parts)[group.own])
    scale = _scale(step, group, own)
    whole = {name: _empty_push(model, step.batch, variant, name) for name in step.outputs}
    losses = np.zeros(group.shares // group.size)

    def gradients() -> Iterator[Any]:
        """Return the packed gradients of each of this process's shares."""
        for k, runs in enumerate(own):
            start = time.perf_counter()
            touched = executor.begin_gradients(runs)
            part = Part(loss_scale=scale, random_seed=step.seed)
            arenas = executor.launch(runs, [part] * len(runs))
            losses[k] = total_loss(runs, arenas)
            _place_pushes(whole, runs, arenas)
            yield packed.pack(touched)
            model.observe(step.use, shares[k].batch, runs, time.perf_counter() - start)
        for _ in range(len(own), len(losses)):  # there are fewer graphs than shares
            yield packed.zeros()

    total = add_in_pairs(gradients(), packed.add)
    update = step.optimizer._request(model.store) if step.asks else None
    loss = _total_loss(group, losses, _fingerprint(step, inputs, packed)) * scale
    group.add_up(total, packed)
    for found in whole.values():
        _gather_push(group, np.repeat(owner, step.batch.sizes()), found)
    group.began()
    packed.unpack(total)
    attempt = Attempt(step.use, step.batch, scale, step.seed, parts, update)
    end_step(executor, step.optimizer, attempt, loss, packed)
    return loss, {n: each.reshape(len(each), *variant.push_shape(n)) for n, each in whole.items()}


def _own_shares(
    model: CompiledModel, step: TrainStep, owner: Array, parts: range
) -> tuple[list[Share], list[list[Run]]]:
    """Return the shares of this process, and their runs; none for a share without a graph."""
    shares = [share_of(step.batch, owner, part) for part in parts]
    return shares, [model.prepare_share(step.use, share) for share in shares]


def _scale(step: TrainStep, group: ProcessGroup, own: Sequence[Sequence[Run]]) -> float:
    """Return the factor on the summed loss, of the whole batch."""
    if step.reduction != "vertex":
        return loss_scale(step.reduction, step.batch, ())
    count = np.array(sum(run.with_loss for runs in own for run in runs))
    return 1.0 / max(1, int(group.gather(count).sum()))


def _fingerprint(step: TrainStep, inputs: Inputs, packed: PackedGradients) -> list[float]:
    """Return a number for each thing of COMPARED that all processes must have alike."""
    structure = _checksum(inputs.child, _checksum(inputs.child_ptr, step.batch.num_graphs))
    return [structure, _checksum(inputs.index), step.seed, _checksum(packed.sample())]


def _checksum(array: Array, start: int = 0) -> int:
    """Return a checksum of the bytes of an array."""
    return zlib.crc32(np.ascontiguousarray(array).data, start)


def _total_loss(group: ProcessGroup, losses: Array, fingerprint: list[float]) -> float:
    """Return the sum of the losses of all shares; tell `group.signal` to all processes.

    Raises: UsageError, when a process has another batch, seed or parameters.
    """
    mine = np.array([group.signal, *fingerprint, *losses], np.float64)
    found = group.gather(mine)
    group.signal = int(found[:, 0].max())
    for k, what in enumerate(COMPARED, 1):
        others = np.flatnonzero(found[:, k] != found[0, k])
        if len(others):
            raise UsageError.at(
                "step",
                f"process {others[0]} has {what} than process 0",
                "every process is handed the whole batch, and compiles with the same seed",
                "do not divide batches: the group does; give loaders and vrt.compile one seed",
            )
    return float(add_in_pairs(found[:, 1 + len(COMPARED) :].reshape(-1, 1))[0])


def _empty_push(model: CompiledModel, batch: GraphBatch, variant: Variant, name: str) -> Array:
    """Return room for a push of all vertices."""
    size = math.prod(variant.push_shape(name))
    return np.empty((batch.num_vertices, size), model.store.dtype)


def _place_pushes(whole: Mapping[str, Array], runs: Sequence[Run], arenas: Sequence[Array]) -> None:
    """Copy what a share has pushed to the places of its vertices."""
    for name, found in whole.items():
        for run, data in zip(runs, arenas, strict=True):
            found[run.share.vertices] = in_user_order(run, read_rows(run, data, ("push", name)))


def _gather_push(group: ProcessGroup, owner: Array, whole: Array) -> None:
    """Bring the rows of a push from the processes that have them.

    Args:
        owner: [V], the share of each vertex.
    """
    process = owner // (group.shares // group.size)
    vertices = [np.flatnonzero(process == rank) for rank in range(group.size)]
    width = whole.shape[1]
    own = whole[vertices[group.rank]].reshape(-1)
    found = group.gather_rows(own, [width * len(each) for each in vertices])
    for at, rows in zip(vertices, found, strict=True):
        whole[at] = rows.reshape(-1, width)
