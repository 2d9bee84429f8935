"""The compiled call that prepares a minibatch: kinds, schedule, launch table, memory plan.

Each part is a loop of its own, tested by itself. They are one call because what goes from one to
the next need not become objects of Python: at batch 1 that costs more than the loops.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from vertexrt.engine.launches import ProgramFacts, build_table
from vertexrt.memory.plan import place_tensors
from vertexrt.native.compiled import compiled
from vertexrt.scheduler.kinds import FINE, read_vertices
from vertexrt.scheduler.rows import EVERY_PTR, ORDER, TASK_KIND, TASK_LO, number_rows, part_of

Array = np.ndarray[Any, Any]


class VertexFacts(NamedTuple):
    """What `read_vertices` takes after a batch; see there."""

    numbers: Array
    used: Array
    bounds: Array
    slots: int
    begins: Array
    limits: Array
    path_masks: Array
    lazy_masks: Array
    path_known: Array
    lazy_known: Array
    has_loss: Array
    layers: Array


@compiled
def lay_out(
    child_ptr: Array,
    child: Array,
    functions: Array,
    first_of: Array,
    pulls: Array,
    real: Array,
    policy: int,
    merges: bool,
    inner: bool,
    lists_edges: bool,
    vertices: VertexFacts,
    programs: ProgramFacts,
) -> tuple[Any, ...]:
    """Decide everything about a minibatch.

    Args:
        child_ptr, child: CSR of the children; pulls: int32 [pulls, V].
        functions: of `read_vertices`; first_of: of `Structure`.
        real: an array of the dtype of reals.
        policy: of `policy_of`; merges, inner, lists_edges: of `number_rows`.
    Returns: what `read_vertices` found, and unless that is FINE nothing else that counts; how many
        vertices have a loss; what `number_rows` returns; the fields of `MemoryPlan`; and of
        `build_table` the table, how many launches are forward, and the rows of launches that take
        a list.
    """
    found, _, _, path, lazy, level, forest, losses = read_vertices(
        child_ptr, child, functions, pulls, *vertices
    )
    used, path_kinds = vertices.used, len(vertices.path_known)
    if found != FINE:
        child_ptr, child, first_of = child_ptr[:1], child[:0], first_of[:0]
        path, lazy, level = path[:0], lazy[:0], level[:0]
    weight = np.empty(len(path) if merges else 0, real.dtype)
    schedule = number_rows(
        child_ptr, child, functions, vertices.begins, vertices.layers, first_of, path, path_kinds,
        level, policy, pulls, used, weight, forest, inner, lists_edges,
    )  # fmt: skip
    ints, extents, _ = schedule
    ordered = (
        part_of(ints, extents, TASK_LO), part_of(ints, extents, TASK_KIND),
        part_of(ints, extents, EVERY_PTR), part_of(ints, extents, ORDER),
    )  # fmt: skip
    table, forward, listed, first_row, end_row, scratch = build_table(ordered, lazy, programs)
    plan = place_tensors(
        programs.buffer, programs.width, programs.sizes, first_row, end_row,
        programs.zero_elements, scratch,
    )  # fmt: skip
    return found, losses, schedule, plan, table, forward, listed
