"""A scheduled minibatch, and which rows of a tensor a launch of it reads or writes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from vertexrt.ir.passes.store import Key
from vertexrt.kernels.layout import CHILDREN, PARENTS, Scheduled, rows_read

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Minibatch:
    """What launches are verified against.

    Attributes:
        table: the launches.
        rows: execution rows of those that take a list.
        graph_ptr: of the batch.
    """

    table: Array
    schedule: Scheduled
    rows: Array
    graph_ptr: Array


def touched_rows(
    minibatch: Minibatch, launch: Array, key: Key, edges: bool, written: bool
) -> Array:
    """Mark the rows (or edges) of a tensor that a launch reads or writes.

    Args:
        launch: a row of the table.
        edges: the tensor has a row for each edge.
    Returns: bool [V], or [E].
    """
    s = minibatch.schedule
    _, n, lo, at, m, elo = launch.tolist()
    rows = np.arange(lo, lo + n) if lo >= 0 else minibatch.rows[at : at + n]
    if edges:
        mask = np.zeros(len(s.edge_row), np.bool_)
        mask[elo : elo + m] = True
        if not written and rows_read(key) & PARENTS:
            mask |= np.isin(s.child_row, rows)
        return mask
    mask = np.zeros(len(s.order), np.bool_)
    mask[rows] = True
    if not written and rows_read(key) & CHILDREN:
        children = s.child_row[elo : elo + m] if lo >= 0 else s.child_row[np.isin(s.edge_row, rows)]
        mask[children[children >= 0]] = True
    return mask
