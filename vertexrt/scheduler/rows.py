"""Number the rows of a schedule: vertices by task, and the edges by row."""

from __future__ import annotations

from typing import Any

import numpy as np

from vertexrt.native.compiled import compiled
from vertexrt.scheduler.compiled import AGENDA, FRONTIER, order_tasks
from vertexrt.scheduler.merge import is_order, merge_vertices

Array = np.ndarray[Any, Any]

# The arrays of `Schedule` that are int32, in its order: they come as parts of one.
PARTS = 13
ORDER, ROW_OF, TASK_LO, TASK_KIND, EDGE_PTR, CHILD_ROW, EDGE_ROW, PARENT_PTR, PARENT_EDGE = range(9)
EVERY_PTR, EDGE_ORDER, RELATION_PTR, ABOVE_EDGE = 9, 10, 11, 12


@compiled
def number_rows(
    child_ptr: Array,
    child: Array,
    functions: Array,
    begins: Array,
    layers: Array,
    first_of: Array,
    kinds: Array,
    num_kinds: int,
    level: Array,
    policy: int,
    pulls: Array,
    used: Array,
    weight: Array,
    forest: bool,
    inner: bool,
    lists_edges: bool,
) -> tuple[Any, ...]:
    """Order the vertices by task, give them rows in that order, and rewrite the edges by row.

    What it finds is one array, since making an object of Python of each would take longer than the
    loops where the batch is small.

    Args:
        functions, begins, layers: of `read_vertices`; first_of: of `Structure`.
        kinds, num_kinds, level, policy: of `order_tasks`.
        pulls: int32 [pulls, V]; used: the numbers of those that are read.
        weight: reals, [V] where vertices merge, written with the vertices of each row; else empty.
        forest: no vertex has two parents.
        inner: vertices with children merge too.
        lists_edges: the user's edges are wanted by row.
    Returns: int32 [*], the arrays of `Schedule` that are int32; int64 [PARTS, 2], where each of
        them begins and ends; the weight of each row.
    """
    merges = len(weight) > 0
    for k in used:
        merges &= not is_order(pulls[k, : len(weight)])
    if not merges:
        weight[:] = 1
    order, task_lo, task_kind = order_tasks(child_ptr, child, kinds, num_kinds, level, policy)
    together = policy in (FRONTIER, AGENDA)
    count, tasks, slots = len(order), len(task_kind), len(child)
    listed = slots if lists_edges else 0
    ints, extents = _make_room(
        (
            count, count, tasks + 1, tasks, count + 1, slots, slots, count + 1, slots, count + 1,
            listed, len(first_of), len(layers),
        )
    )  # fmt: skip
    user, row_of = part_of(ints, extents, ORDER), part_of(ints, extents, ROW_OF)
    new_lo, new_kind = part_of(ints, extents, TASK_LO), part_of(ints, extents, TASK_KIND)
    rows = count
    if merges:
        # Where identical vertices share a task, rows of others need no comparison.
        shortcut = together and forest
        rows, tasks = merge_vertices(
            child_ptr, child, kinds, order, task_lo, task_kind, pulls, used, weight, together,
            shortcut, inner, user, row_of, new_lo, new_kind,
        )  # fmt: skip
    else:
        user[:] = order
        new_lo[:] = task_lo
        new_kind[:] = task_kind
        for r in range(count):
            row_of[order[r]] = r
    _cut(extents, ORDER, rows)
    _cut(extents, TASK_LO, tasks + 1)
    _cut(extents, TASK_KIND, tasks)
    _cut(extents, EDGE_PTR, rows + 1)
    _cut(extents, PARENT_PTR, rows + 1)
    child_row = part_of(ints, extents, CHILD_ROW)
    parent_ptr = part_of(ints, extents, PARENT_PTR)
    parent_ptr[:] = 0
    edge_row, edge_ptr = part_of(ints, extents, EDGE_ROW), part_of(ints, extents, EDGE_PTR)
    graph, into = (child_ptr, child, functions), (child_row, edge_row, parent_ptr)
    edges = _rewrite(graph, begins, user[:rows], row_of, edge_ptr, into, 0, False)
    if len(begins) == 0:
        extents[EVERY_PTR] = extents[EDGE_PTR]
    else:
        _cut(extents, EVERY_PTR, rows + 1)
    every_ptr = part_of(ints, extents, EVERY_PTR)
    if len(begins) > 0:
        edges = _rewrite(graph, begins, user[:rows], row_of, every_ptr, into, edges, True)
    if len(first_of) > 0:
        # Where the edges of each row begin in each relation that is read whole.
        whole = (len(first_of) - 1) // max(count, 1)
        _cut(extents, RELATION_PTR, rows * whole + 1)
        begin_of = part_of(ints, extents, RELATION_PTR)
        for r in range(rows):
            v = user[r]
            # In the batch, the first child of those that are read whole: they come last.
            first = child_ptr[v + 1] - (every_ptr[r + 1] - every_ptr[r])
            for k in range(whole):
                begin_of[r * whole + k] = every_ptr[r] + max(first_of[v * whole + k] - first, 0)
        begin_of[rows * whole] = every_ptr[rows]
    if len(layers) > 0:
        # The first edge of the rows that are of a layer above each one; rows are by layer.
        above, done = part_of(ints, extents, ABOVE_EDGE), 0
        for t in range(tasks):
            row = new_lo[t]
            while done < layers[functions[user[row]]]:
                above[done] = edge_ptr[row]
                done += 1
        above[done:] = edge_ptr[rows]
    if lists_edges:
        # Where the external values of each edge are: after those of all vertices.
        _cut(extents, EDGE_ORDER, edges)
        place = part_of(ints, extents, EDGE_ORDER)
        for r in range(rows):
            first = count + child_ptr[user[r]]
            for e in range(edge_ptr[r], edge_ptr[r + 1]):
                place[e] = first + e - edge_ptr[r]
            if len(begins) > 0:
                first += edge_ptr[r + 1] - edge_ptr[r]
                for e in range(every_ptr[r], every_ptr[r + 1]):
                    place[e] = first + e - every_ptr[r]
    listed = _list_parents(child_row[:edges], parent_ptr, part_of(ints, extents, PARENT_EDGE))
    _cut(extents, CHILD_ROW, edges)
    _cut(extents, EDGE_ROW, edges)
    _cut(extents, PARENT_EDGE, listed)
    return ints, extents, weight[:rows]


def _make_room(most: tuple[int, ...]) -> tuple[Array, Array]:
    """Return an array with room for parts of so many elements, and where each begins and ends."""
    extents = np.empty((len(most), 2), np.int64)
    at = 0
    for k, size in enumerate(most):
        extents[k, 0] = at
        at += size
        extents[k, 1] = at
    return np.empty(at, np.int32), extents


def part_of(ints: Array, extents: Array, part: int) -> Array:
    """Return one of the arrays that `number_rows` found."""
    return ints[extents[part, 0] : extents[part, 1]]


def _cut(extents: Array, part: int, size: int) -> None:
    """Say how much of a part's room is used."""
    extents[part, 1] = extents[part, 0] + size


def _rewrite(
    graph: tuple[Array, Array, Array],
    begins: Array,
    order: Array,
    row_of: Array,
    ptr: Array,
    into: tuple[Array, Array, Array],
    edges: int,
    others: bool,
) -> int:
    """Write the edges by row, and count those to each child in `parent_ptr`, one place after it.

    Args:
        graph: child_ptr, child and functions.
        begins: see `number_rows`. Where there are any, the edges of the slots of all rows come
            before all `others`.
        ptr: gets the first edge of each row.
        into: child_row, edge_row and parent_ptr, from the number `edges` on.
    Returns: how many edges there are.
    """
    child_ptr, child, functions = graph
    child_row, edge_row, parent_ptr = into
    for r in range(len(order)):
        v = order[r]
        ptr[r] = edges
        first, end = child_ptr[v], child_ptr[v + 1]
        if len(begins) > 0:
            middle = min(first + begins[functions[v]], end)
            first, end = middle if others else first, end if others else middle
        for e in range(first, end):
            row = -1
            if child[e] >= 0:
                row = row_of[child[e]]
                parent_ptr[row + 1] += 1
            child_row[edges] = row
            edge_row[edges] = r
            edges += 1
    ptr[len(order)] = edges
    return edges


def _list_parents(child_row: Array, parent_ptr: Array, parent_edge: Array) -> int:
    """Turn counts, one place to the right, into the first parent edge of each row, and list them.

    Returns: how many edges have a child.
    """
    rows = len(parent_ptr) - 1
    total = 0
    for r in range(1, rows + 1):  # where the row before starts: it moves on as edges come
        many = parent_ptr[r]
        parent_ptr[r] = total
        total += many
    for e in range(len(child_row)):
        if child_row[e] >= 0:
            after = child_row[e] + 1
            parent_edge[parent_ptr[after]] = e
            parent_ptr[after] += 1
    return total
