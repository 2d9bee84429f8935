"""Schedules of graphs of one vertex function, as the compiled loops make them."""

from __future__ import annotations

from typing import Any

import numpy as np

from vertexrt.graph.compiled import children_first
from vertexrt.scheduler import Schedule, policy_of
from vertexrt.scheduler.rows import number_rows
from vertexrt.scheduler.schedule import schedule_of

Array = np.ndarray[Any, Any]

INTS, LONGS = np.zeros(0, np.int32), np.zeros(0, np.int64)
NO_PULLS, NO_WEIGHT = np.zeros((0, 0), np.int32), np.zeros(0, np.float32)


def make_schedule(
    child_ptr: Array,
    child: Array,
    kinds: Array,
    num_kinds: int,
    policy: str = "frontier",
    *,
    pulls: Array = NO_PULLS,
    used: Array = LONGS,
    weight: Array = NO_WEIGHT,
    forest: bool = False,
    inner: bool = True,
) -> Schedule:
    """Batch the vertices of all graphs into tasks; arguments are those of `number_rows`."""
    _, level = children_first(child_ptr, child)
    return schedule_of(
        *number_rows(
            child_ptr, child, INTS, LONGS, LONGS, INTS, kinds, num_kinds,
            level, policy_of(policy), pulls, used, weight, forest, inner, False,
        )
    )  # fmt: skip
