"""Number the rows of a schedule, and merge identical vertices on the way.

Identical are vertices of the same kind with the same pulled values and the same children: they are
computed once. Words repeat within a batch, and so do short phrases: of 256 SST trees more than half
of the leaves go. The merged graphs are a DAG; a row that stands for m vertices weighs m in the
loss, and the gradient of a shared child is the sum over its distinct parents, so results are exact.
It does not hold for functions with random ops, where each copy draws its own mask.

Source: ours (DESIGN section 5); hash-consing, Ershov 1958.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

Array = np.ndarray[Any, Any]


@njit(cache=True, nogil=True)
def number_rows(
    child_ptr: Array,
    child: Array,
    order: Array,
    task_lo: Array,
    task_kind: Array,
    pulls: Array,
    used: Array,
    weight: Array,
    merges: bool,
    together: bool,
    forest: bool,
) -> tuple[Any, ...]:
    """Give the vertices rows in the order of tasks, and rewrite the edges by row.

    A vertex is looked up in a hash table of rows, but for one with a child that has no copy and no
    other parent: nothing else has that child, so it has no copy either. That is most of a tree.

    Args:
        order, task_lo, task_kind: of `order_tasks`.
        pulls: int32 [pulls, V]; used: the numbers of those that are read.
        weight: reals, [V] where vertices merge, written with the vertices of each row; else empty.
        together: identical vertices are in one task, so that rows of others need no comparison.
        forest: no vertex has two parents.
    Returns: of `Schedule`: order, row_of, task_lo, task_kind, edge_ptr, child_row, edge_row,
        parent_ptr, parent_edge.
    """
    count = len(order)
    row_of = np.empty(count, np.int32)
    user = np.empty(count, np.int32)
    edge_ptr = np.zeros(count + 1, np.int32)
    child_row = np.empty(len(child), np.int32)
    edge_row = np.empty(len(child), np.int32)
    parent_ptr = np.zeros(count + 1, np.int32)
    new_lo = np.empty(len(task_lo), np.int32)
    new_kind = np.empty(len(task_kind), np.int32)
    shortcut = together and forest
    slots = _table_size(task_lo, together) if merges else 1
    table = np.full(slots, -1, np.int32)
    prime = np.uint64(0x100000001B3)
    rows, edges, tasks = 0, 0, 0
    for t in range(len(task_kind)):
        first = rows
        oldest = first if together else 0  # what the table has of rows before is as if empty
        for q in range(task_lo[t], task_lo[t + 1]):
            v = order[q]
            end = edges
            alone = not merges
            for e in range(child_ptr[v], child_ptr[v + 1]):
                r = row_of[child[e]] if child[e] >= 0 else np.int32(-1)
                child_row[end] = r
                end += 1
                if shortcut and r >= 0 and merges and weight[r] == 1:
                    alone = True
            if not alone:
                h = np.uint64(0xCBF29CE484222325)
                for k in used:
                    h = (h ^ np.uint64(np.uint32(pulls[k, v]))) * prime
                for e in range(edges, end):
                    h = (h ^ np.uint64(np.uint32(child_row[e]))) * prime
                at = np.int64((h ^ (h >> np.uint64(29))) & np.uint64(slots - 1))
                found = np.int32(-1)
                while table[at] >= oldest:
                    d = table[at]
                    u = user[d]
                    same = edge_ptr[d + 1] - edge_ptr[d] == end - edges
                    for k in used:
                        same = same and pulls[k, u] == pulls[k, v]
                    if same:
                        for s in range(end - edges):
                            if child_row[edge_ptr[d] + s] != child_row[edges + s]:
                                same = False
                                break
                    if same:
                        found = d
                        break
                    at = (at + 1) & (slots - 1)
                if found >= 0:
                    weight[found] += 1
                    row_of[v] = found
                    continue
                table[at] = rows
            if merges:
                weight[rows] = 1
            user[rows] = v
            row_of[v] = rows
            for e in range(edges, end):
                edge_row[e] = rows
                if child_row[e] >= 0:
                    parent_ptr[child_row[e] + 1] += 1
            edges = end
            rows += 1
            edge_ptr[rows] = edges
        if rows > first:
            new_lo[tasks] = first
            new_kind[tasks] = task_kind[t]
            tasks += 1
    new_lo[tasks] = rows
    parent_edge = np.empty(edges, np.int32)
    used_edges = _list_parents(child_row[:edges], parent_ptr[: rows + 1], parent_edge)
    return (
        user[:rows],
        row_of,
        new_lo[: tasks + 1],
        new_kind[:tasks],
        edge_ptr[: rows + 1],
        child_row[:edges],
        edge_row[:edges],
        parent_ptr[: rows + 1],
        parent_edge[:used_edges],
    )


@njit(cache=True, nogil=True)
def _table_size(task_lo: Array, together: bool) -> int:
    """Return a power of 2 that leaves half of a hash table empty."""
    most = task_lo[-1]
    if together:
        most = 0
        for t in range(len(task_lo) - 1):
            most = max(most, task_lo[t + 1] - task_lo[t])
    slots = 16
    while slots < 2 * most:
        slots *= 2
    return slots


@njit(cache=True, nogil=True)
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
        r = child_row[e]
        if r >= 0:
            parent_edge[parent_ptr[r + 1]] = e
            parent_ptr[r + 1] += 1
    return total
