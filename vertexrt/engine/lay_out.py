"""The compiled call that prepares a minibatch: kinds, schedule, launch table, memory plan.

Each part is a loop of its own, tested by itself. They are one call because what goes from one to
the next need not become objects of Python: at batch 1 that costs more than the loops.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from vertexrt.engine.launches import build_table
from vertexrt.memory.compiled import place_tensors
from vertexrt.scheduler.kinds import FINE, read_vertices
from vertexrt.scheduler.merge import (
    EDGE_PTR,
    ORDER,
    TASK_KIND,
    TASK_LO,
    number_rows,
    part_of,
)

Array = np.ndarray[Any, Any]


@njit(cache=True, nogil=True)
def lay_out(
    child_ptr: Array,
    child: Array,
    pulls: Array,
    real: Array,
    policy: int,
    merges: bool,
    inner: bool,
    # of `Variant.vertex_facts`
    numbers: Array,
    used: Array,
    bounds: Array,
    slots: int,
    limited: bool,
    path_mask: int,
    lazy_mask: int,
    path_known: Array,
    lazy_known: Array,
    has_loss: Array,
    # of `Ready.program_facts`
    path_programs: Array,
    lazy_programs: Array,
    by_ranges: Array,
    scratch_of: Array,
    writes_ptr: Array,
    writes: Array,
    edges: Array,
    most_scratch: int,
    buffer: Array,
    width: Array,
    sizes: Array,
    zero_elements: int,
) -> tuple[Any, ...]:
    """Decide everything about a minibatch.

    Args:
        child_ptr, child: CSR of the children; pulls: int32 [pulls, V].
        real: an array of the dtype of reals.
        policy: number of one of POLICIES; merges, inner: of `number_rows`.
        The others are those of `read_vertices`, `build_table` and `place_tensors`.
    Returns: what `read_vertices` found, and unless that is FINE nothing else that counts; how many
        vertices have a loss; what `number_rows` returns; the fields of `MemoryPlan`; and of
        `build_table` the table, how many launches are forward, and the rows of launches that take
        a list.
    """
    found, _, _, path, lazy, level, forest, losses = read_vertices(
        child_ptr, child, pulls, numbers, used, bounds, slots, limited, path_mask, lazy_mask,
        path_known, lazy_known, has_loss,
    )  # fmt: skip
    if found != FINE:
        child_ptr, child, path, lazy, level = (
            child_ptr[:1],
            child[:0],
            path[:0],
            lazy[:0],
            level[:0],
        )
    weight = np.empty(len(path) if merges else 0, real.dtype)
    schedule = number_rows(
        child_ptr, child, path, len(path_known), level, policy, pulls, used, weight, forest, inner
    )
    ints, extents, _ = schedule
    table, forward, listed, first_row, end_row, scratch = build_table(
        part_of(ints, extents, TASK_LO), part_of(ints, extents, TASK_KIND),
        part_of(ints, extents, EDGE_PTR), part_of(ints, extents, ORDER), lazy, path_programs,
        lazy_programs, by_ranges, scratch_of, writes_ptr, writes, edges, most_scratch,
    )  # fmt: skip
    plan = place_tensors(buffer, width, sizes, first_row, end_row, zero_elements, scratch)
    return found, losses, schedule, plan, table, forward, listed
