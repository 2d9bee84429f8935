"""Make the schedule of a graph batch: which vertices run together, and in which rows.

Source: Cavs (Xu et al., ATC 2018), section 3.2: a task V_t is a slice of the frontier; backward
pops what forward pushed. Rows are numbered in execution order, so that a scatter is a contiguous
write.
Policies:

- `frontier`: everything ready, one task a kind (breadth first; Cavs). Vertices of a function
  that no other reads come last, all together.
- `depth`: by distance from the roots, the farthest first (as late as possible).
- `agenda`: all ready vertices of the kind that has most of them (Neubig et al. 2017, on-the-fly
  operation batching, without its averages), copies of merged vertices counted too.
- `serial`: one vertex a task, the baseline.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from vertexrt.errors import UsageError, nearest
from vertexrt.scheduler.compiled import AGENDA, DEPTH, FRONTIER, SERIAL

Int32 = npt.NDArray[np.int32]


@dataclass(slots=True)
class Schedule:
    """Batching tasks of one batch, and its graphs renumbered by row.

    There are as many rows as vertices, or fewer, where identical ones were merged.

    Attributes:
        order: [rows] the vertex in each row, the first of those that it stands for.
        row_of: [V] the row of each vertex.
        task_lo: [T + 1] first row of each task.
        task_kind: [T] kind of each task's vertices.
        edge_ptr: [rows + 1] first edge of each row; edge `edge_ptr[row] + slot` is that slot's.
        child_row: [E] row of the child, -1 for an empty slot.
        edge_row: [E] row of the parent.
        parent_ptr, parent_edge: for each row the edges in which it is the child, ascending.
        every_ptr: [rows + 1] first edge of each row that `gather_all` reads: `edge_ptr` itself, but
            where edges are split (`Program.splits_edges`), `edge_ptr` numbers those of slots alone,
            and the others come after all of these.
        edge_order: [E] the place of each edge in the pulls of a batch: V, and its number there;
            empty, where nothing of edges is pulled.
        relation_ptr: [rows R + 1], where R relations are read whole, and R > 1: the first edge of a
            row in each of them, row by row (`Program.relations`); else empty.
        above_edge: [functions] of each layer of functions, where they run layer by layer, the first
            edge whose parent is of a layer above it; there may be fewer layers than functions.
        weight: [rows] how many vertices each row stands for, as reals; empty, if none may merge.
        indices: what the arrays before it are parts of; begins: where each begins, in this order.
    """

    order: Int32
    row_of: Int32
    task_lo: Int32
    task_kind: Int32
    edge_ptr: Int32
    child_row: Int32
    edge_row: Int32
    parent_ptr: Int32
    parent_edge: Int32
    every_ptr: Int32
    edge_order: Int32
    relation_ptr: Int32
    above_edge: Int32
    weight: npt.NDArray[Any]
    indices: Int32
    begins: list[int]

    @property
    def num_tasks(self) -> int:
        """Count the batching tasks."""
        return len(self.task_kind)


_POLICIES = {"frontier": FRONTIER, "depth": DEPTH, "agenda": AGENDA, "serial": SERIAL}
POLICIES = tuple(_POLICIES)


def policy_of(name: str) -> int:
    """Return what compiled loops call one of POLICIES.

    Raises: UsageError for another one.
    """
    if name in _POLICIES:
        return _POLICIES[name]
    raise UsageError.at(
        "schedule",
        f"policy is {name!r}",
        "one of " + ", ".join(POLICIES),
        f"choose one of these.{nearest(name, POLICIES)}",
    )


def schedule_of(ints: Int32, extents: npt.NDArray[np.int64], weight: npt.NDArray[Any]) -> Schedule:
    """Return what `number_rows` found."""
    bounds = extents.tolist()
    parts: list[Any] = [ints[begin:end] for begin, end in bounds]
    return Schedule(*[*parts, weight, ints, [begin for begin, _ in bounds]])
