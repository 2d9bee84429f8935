"""Streams of a GPU for the launches of a minibatch: what these need of each other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from vertexrt.config import config
from vertexrt.ir.passes.fuse import TaskProgram
from vertexrt.ir.passes.store import Key
from vertexrt.kernels.cuda.executable import CudaExecutable, Relations
from vertexrt.kernels.cuda.streams import STAGES, Order, order_launches
from vertexrt.kernels.cuda.verify_streams import verify_streams
from vertexrt.kernels.layout import CHILDREN, OWN, PARENTS, rows_read, tensor_uses

if TYPE_CHECKING:
    from vertexrt.engine.batched import Run
    from vertexrt.engine.variant import Variant
    from vertexrt.kernels.cuda.session import Inputs, Session

Array = np.ndarray[Any, Any]


def order_of(run: Run, table: Array, session: Session, inputs: Inputs) -> Order | None:
    """Share launches of a minibatch among the streams of a session; None where there is one.

    Args:
        table: the launches, of the batched engine.
        inputs: of the minibatch.
    Raises: PlanError under VERTEXRT_CHECK=1, when two launches that need each other are at once.
    """
    if session.streams == 1:
        return None
    executable = cast("CudaExecutable", run.ready.executable)
    if executable.relations is None:
        executable.relations = relations_of(run.variant)
    s = run.schedule
    order = order_launches(
        table,
        executable,
        executable.relations,
        (
            inputs.rows,
            s.edge_ptr,
            s.child_row,
            s.edge_row,
            s.parent_ptr,
            s.parent_edge,
        ),
        session.sorted_lookups(executable, table, inputs),
        session.streams,
        (run.plan.total - run.plan.temporary) // session.streams,
    )
    if config().check:
        verify_streams(run, table, order)
    return order


def relations_of(variant: Variant) -> Relations:
    """Find what launches of a variant's task programs need of each other.

    A row of a tensor is written once a step, before anybody reads it. So what is left are those who
    read what another writes, and tensors that share a buffer since their lives do not overlap.
    """
    tasks, numbers = variant.tasks, variant.table.numbers
    buffer = variant.ready().sharing.buffer
    writers: dict[Key, list[int]] = defaultdict(list)
    touched: dict[int, list[tuple[int, Key]]] = defaultdict(list)
    for p, task in enumerate(tasks):
        for key, _, _, written in tensor_uses(task):
            touched[int(buffer[numbers[key]])].append((p, key))
            if written:
                writers[key].append(p)
    count = len(tasks)
    reads, reuses = np.zeros((count, count), np.uint8), np.zeros((count, count), np.bool_)
    for p, task in enumerate(tasks):
        for key, _, _, written in tensor_uses(task):
            if written:
                others = [a for a, other in touched[int(buffer[numbers[key]])] if other != key]
                reuses[others, p] = True
            else:
                reads[writers[key], p] |= rows_read(key)
    stage = np.array([int(task.stage) for task in tasks], np.int64)
    return Relations(stage, reads, _wanted(tasks, stage, reads), reuses)


def _wanted(tasks: Sequence[TaskProgram], stage: Array, reads: Array) -> Array:
    """Return `Relations.wanted`."""
    found = np.zeros((len(tasks), 3), np.int64)
    for at, bit in enumerate((OWN, CHILDREN, PARENTS)):
        for k in range(STAGES):
            found[:, at] |= (reads[stage == k] & bit != 0).any(axis=0).astype(np.int64) << k
    return found
