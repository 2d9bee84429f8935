"""The compiled call that prepares a minibatch: kinds, schedule, launch table, memory plan.

Each part is a loop of its own, tested by itself. They are one call because what goes from one to
the next need not become objects of Python: at batch 1 that costs more than the loops.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from vertexrt.engine.launches import build_table
from vertexrt.engine.packed_args import number_at, row_at, table_at
from vertexrt.memory.compiled import place_tensors
from vertexrt.native.compiled import compiled
from vertexrt.scheduler.kinds import FINE, read_vertices
from vertexrt.scheduler.rows import (
    EDGE_PTR,
    ORDER,
    TASK_KIND,
    TASK_LO,
    number_rows,
    part_of,
)

Array = np.ndarray[Any, Any]

# Of `Variant.vertex_facts` and `Ready.program_facts`.
(
    NUMBERS, USED, BOUNDS, SLOTS, LIMITS, PATH_MASKS, LAZY_MASKS, PATH_KNOWN, LAZY_KNOWN, HAS_LOSS
) = range(10)  # fmt: skip
(
    PATH_PROGRAMS, LAZY_PROGRAMS, BY_RANGES, SCRATCH, WRITES_PTR, WRITES, EDGES, MOST_SCRATCH,
    BUFFER, WIDTH, SIZES, ZERO_ELEMENTS,
) = range(12)  # fmt: skip


def _of_programs(program_facts: Array) -> tuple[Any, ...]:
    """Return what `build_table` takes of task programs."""
    return (
        table_at(program_facts, PATH_PROGRAMS), table_at(program_facts, LAZY_PROGRAMS),
        row_at(program_facts, BY_RANGES), table_at(program_facts, SCRATCH),
        row_at(program_facts, WRITES_PTR), row_at(program_facts, WRITES),
        row_at(program_facts, EDGES), number_at(program_facts, MOST_SCRATCH),
    )  # fmt: skip


@compiled
def read_batch(
    child_ptr: Array, child: Array, functions: Array, pulls: Array, vertex_facts: Array
) -> Any:
    """Call `read_vertices`.

    Args:
        vertex_facts: what it takes after a batch, packed.
    """
    return read_vertices(
        child_ptr, child, functions, pulls, row_at(vertex_facts, NUMBERS),
        row_at(vertex_facts, USED), table_at(vertex_facts, BOUNDS), number_at(vertex_facts, SLOTS),
        row_at(vertex_facts, LIMITS), row_at(vertex_facts, PATH_MASKS),
        row_at(vertex_facts, LAZY_MASKS), row_at(vertex_facts, PATH_KNOWN),
        row_at(vertex_facts, LAZY_KNOWN), row_at(vertex_facts, HAS_LOSS),
    )  # fmt: skip


@compiled
def lay_out(
    child_ptr: Array,
    child: Array,
    functions: Array,
    pulls: Array,
    real: Array,
    policy: int,
    merges: bool,
    inner: bool,
    vertex_facts: Array,
    program_facts: Array,
) -> tuple[Any, ...]:
    """Decide everything about a minibatch.

    Args:
        child_ptr, child: CSR of the children; pulls: int32 [pulls, V].
        functions: of `read_vertices`.
        real: an array of the dtype of reals.
        policy: of `policy_of`; merges, inner: of `number_rows`.
        vertex_facts: of `Variant`, for `read_batch`.
        program_facts: of `Ready`: what `build_table` and `place_tensors` take after a schedule.
    Returns: what `read_vertices` found, and unless that is FINE nothing else that counts; how many
        vertices have a loss; what `number_rows` returns; the fields of `MemoryPlan`; and of
        `build_table` the table, how many launches are forward, and the rows of launches that take
        a list.
    """
    found, _, _, path, lazy, level, forest, losses = read_batch(
        child_ptr, child, functions, pulls, vertex_facts
    )
    used, path_kinds = row_at(vertex_facts, USED), len(row_at(vertex_facts, PATH_KNOWN))
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
        child_ptr, child, path, path_kinds, level, policy, pulls, used, weight, forest, inner
    )
    ints, extents, _ = schedule
    ordered = (
        part_of(ints, extents, TASK_LO), part_of(ints, extents, TASK_KIND),
        part_of(ints, extents, EDGE_PTR), part_of(ints, extents, ORDER),
    )  # fmt: skip
    table, forward, listed, first_row, end_row, scratch = build_table(
        ordered, lazy, _of_programs(program_facts)
    )
    plan = place_tensors(
        row_at(program_facts, BUFFER), row_at(program_facts, WIDTH),
        row_at(program_facts, SIZES), first_row, end_row, number_at(program_facts, ZERO_ELEMENTS),
        scratch,
    )  # fmt: skip
    return found, losses, schedule, plan, table, forward, listed
