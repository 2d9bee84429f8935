"""The compiled loops of the scheduler: kinds, order of tasks, edges by row."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

FRONTIER, DEPTH, AGENDA, SERIAL = range(4)

Array = np.ndarray[Any, Any]


@njit(cache=True, nogil=True)
def slot_bits(child_ptr: Array, child: Array, slots: int) -> Array:
    """Return [V] int64: bit s set where slot s has a child; bit `slots` where any has."""
    count = len(child_ptr) - 1
    bits = np.zeros(count, np.int64)
    for v in range(count):
        here = 0
        for e in range(child_ptr[v], child_ptr[v + 1]):
            if child[e] >= 0:
                slot = e - child_ptr[v]
                if slot < slots:
                    here |= 1 << slot
                here |= 1 << slots
        bits[v] = here
    return bits


@njit(cache=True, nogil=True)
def add_presence(bits: Array, index: Array, bit: int) -> None:
    """Set a bit where an index is not -1."""
    for v in range(len(bits)):
        if index[v] >= 0:
            bits[v] |= 1 << bit


@njit(cache=True, nogil=True)
def classify(bits: Array, mask: int, known: Array, number: Array, out: Array) -> int:
    """Write the number of the kind of each vertex.

    Args:
        bits: [V] kinds as bits.
        mask: the bits that matter.
        known: the kinds with a number; number: their numbers.
        out: [V] written with the number of each vertex's kind.
    Returns: the first kind that is not known, or -1.
    """
    last = -1
    value = 0
    for v in range(len(bits)):
        kind = bits[v] & mask
        if last < 0 or known[last] != kind:
            last = -1
            for k in range(len(known)):
                if known[k] == kind:
                    last = k
                    break
            if last < 0:
                return int(kind)
            value = number[last]
        out[v] = value
    return -1


@njit(cache=True, nogil=True)
def _parents(child_ptr: Array, child: Array) -> tuple[Array, Array, Array]:
    """Return the CSR of parents by vertex, and how many children each vertex waits for."""
    count = len(child_ptr) - 1
    waits = np.zeros(count, np.int32)
    ptr = np.zeros(count + 1, np.int32)
    for v in range(count):
        for e in range(child_ptr[v], child_ptr[v + 1]):
            if child[e] >= 0:
                waits[v] += 1
                ptr[child[e] + 1] += 1
    for v in range(count):
        ptr[v + 1] += ptr[v]
    fill = ptr[:-1].copy()
    parent = np.empty(ptr[count], np.int32)
    for v in range(count):
        for e in range(child_ptr[v], child_ptr[v + 1]):
            c = child[e]
            if c >= 0:
                parent[fill[c]] = v
                fill[c] += 1
    return ptr, parent, waits


@njit(cache=True, nogil=True)
def order_tasks(
    child_ptr: Array, child: Array, kinds: Array, num_kinds: int, policy: int
) -> tuple[Array, Array, Array]:
    """Order the vertices by task (Kahn's algorithm with one queue a kind).

    Returns: order [<= V] (shorter if there is a cycle), task_lo [T + 1], task_kind [T].
    """
    count = len(child_ptr) - 1
    ptr, parent, waits = _parents(child_ptr, child)
    start = np.zeros(num_kinds + 1, np.int32)  # each kind's queue is its share of one array
    for v in range(count):
        start[kinds[v] + 1] += 1
    for k in range(num_kinds):
        start[k + 1] += start[k]
    queue = np.empty(count, np.int32)
    head, tail, until = start[:-1].copy(), start[:-1].copy(), start[:-1].copy()
    for v in range(count):
        if waits[v] == 0:
            queue[tail[kinds[v]]] = v
            tail[kinds[v]] += 1

    order = np.empty(count, np.int32)
    task_lo = np.empty(count + 1, np.int32)
    task_kind = np.empty(count, np.int32)
    done, tasks = 0, 0
    while done < count:
        if policy == AGENDA:
            best = 0
            for k in range(num_kinds):
                until[k] = head[k]
                if tail[k] - head[k] > tail[best] - head[best]:
                    best = k
            until[best] = tail[best]
        else:
            until[:] = tail
        before = done
        for k in range(num_kinds):
            if until[k] == head[k]:
                continue
            one = policy == SERIAL
            for q in range(head[k], until[k]):
                if one or q == head[k]:
                    task_lo[tasks] = done
                    task_kind[tasks] = k
                    tasks += 1
                order[done] = queue[q]
                done += 1
            head[k] = until[k]
        if done == before:
            break  # a cycle
        for r in range(before, done):
            v = order[r]
            for p in range(ptr[v], ptr[v + 1]):
                waits[parent[p]] -= 1
                if waits[parent[p]] == 0:
                    k = kinds[parent[p]]
                    queue[tail[k]] = parent[p]
                    tail[k] += 1
    task_lo[tasks] = done
    if policy == DEPTH and done == count:
        return _by_depth(order, ptr, parent, kinds, num_kinds)
    return order[:done], task_lo[: tasks + 1].copy(), task_kind[:tasks].copy()


@njit(cache=True, nogil=True)
def _by_depth(
    order: Array, ptr: Array, parent: Array, kinds: Array, num_kinds: int
) -> tuple[Array, Array, Array]:
    """Regroup a topological order by (longest distance from a root, descending; kind)."""
    count = len(order)
    depth = np.zeros(count, np.int32)
    deepest = 0
    for r in range(count - 1, -1, -1):
        v = order[r]
        for p in range(ptr[v], ptr[v + 1]):
            depth[v] = max(depth[v], depth[parent[p]] + 1)
        deepest = max(deepest, depth[v])
    buckets = (deepest + 1) * num_kinds
    start = np.zeros(buckets + 1, np.int32)
    for v in range(count):
        start[(deepest - depth[v]) * num_kinds + kinds[v] + 1] += 1
    task_lo = np.empty(buckets + 1, np.int32)
    task_kind = np.empty(buckets, np.int32)
    tasks = 0
    for b in range(buckets):
        if start[b + 1] > 0:
            task_lo[tasks] = start[b]
            task_kind[tasks] = b % num_kinds
            tasks += 1
        start[b + 1] += start[b]
    task_lo[tasks] = count
    out = np.empty(count, np.int32)
    fill = start[:-1].copy()
    for r in range(count):
        v = order[r]
        b = (deepest - depth[v]) * num_kinds + kinds[v]
        out[fill[b]] = v
        fill[b] += 1
    return out, task_lo[: tasks + 1].copy(), task_kind[:tasks].copy()


@njit(cache=True, nogil=True)
def inverse(order: Array) -> Array:
    """Return the inverse of a permutation."""
    out = np.empty(len(order), np.int32)
    for r in range(len(order)):
        out[order[r]] = r
    return out


@njit(cache=True, nogil=True)
def renumber(
    child_ptr: Array, child: Array, order: Array
) -> tuple[Array, Array, Array, Array, Array]:
    """Rewrite the edges by row: edge_ptr, child_row, edge_row, parent_ptr, parent_edge."""
    count, edges = len(order), len(child)
    row_of = np.empty(count, np.int32)
    for r in range(count):
        row_of[order[r]] = r
    edge_ptr = np.empty(count + 1, np.int32)
    child_row = np.empty(edges, np.int32)
    edge_row = np.empty(edges, np.int32)
    parent_ptr = np.zeros(count + 1, np.int32)
    e = 0
    for r in range(count):
        edge_ptr[r] = e
        for u in range(child_ptr[order[r]], child_ptr[order[r] + 1]):
            c = child[u]
            child_row[e] = row_of[c] if c >= 0 else -1
            edge_row[e] = r
            if c >= 0:
                parent_ptr[row_of[c] + 1] += 1
            e += 1
    edge_ptr[count] = e
    for r in range(count):
        parent_ptr[r + 1] += parent_ptr[r]
    parent_edge = np.empty(parent_ptr[count], np.int32)
    fill = parent_ptr[:-1].copy()
    for e in range(edges):
        c = child_row[e]
        if c >= 0:
            parent_edge[fill[c]] = e
            fill[c] += 1
    return edge_ptr, child_row, edge_row, parent_ptr, parent_edge
