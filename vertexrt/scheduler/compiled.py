"""The compiled loops of the scheduler: levels, and the order of tasks.

Indices that come from arrays are unsigned in loops over all vertices, here and in `merge` and
`kinds`: numba counts negative ones from the end of an array, and tests for them at every access.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from vertexrt.cache.compiled import njit

FRONTIER, DEPTH, AGENDA, SERIAL = range(4)
ONE = np.uint32(1)

Array = np.ndarray[Any, Any]


@njit(cache=True, nogil=True)
def order_tasks(
    child_ptr: Array, child: Array, kinds: Array, num_kinds: int, level: Array, policy: int
) -> tuple[Array, Array, Array]:
    """Order the vertices by task.

    Within a task their numbers rise: vertices of one graph stay together, as their children do.

    Args:
        level: [V] of `find_levels`.
    Returns: order [V], task_lo [T + 1], task_kind [T].
    """
    if policy == FRONTIER:
        return _sort(level, kinds, num_kinds)
    if policy == DEPTH:
        return _sort(_from_roots(child_ptr, child, level), kinds, num_kinds)
    return _take_turns(child_ptr, child, kinds, num_kinds, policy == SERIAL)


@njit(cache=True, nogil=True)
def _sort(level: Array, kinds: Array, num_kinds: int) -> tuple[Array, Array, Array]:
    """Sort the vertices by level, then kind, then number: a task is what shares both.

    About half of the vertices are leaves, all in one bucket, so that each addition depends on the
    one before. Counting and placing the two halves alternately makes these chains half as long.
    """
    count = len(level)
    half = count // 2
    highest = 0
    for v in range(count):
        highest = max(highest, level[v])
    buckets = (highest + 1) * num_kinds
    start = np.zeros(buckets + 1, np.int32)
    upper = np.zeros(buckets, np.int32)  # of the upper half
    bucket = np.empty(count, np.uint32)
    for v in range(count):
        bucket[v] = level[v] * num_kinds + kinds[v]
    for v in range(half):
        start[bucket[v] + ONE] += 1
        upper[bucket[half + v]] += 1
    if half + half < count:
        upper[bucket[count - 1]] += 1
    task_lo = np.empty(buckets + 1, np.int32)
    task_kind = np.empty(buckets, np.int32)
    tasks = 0
    for b in range(buckets):
        lower, higher = start[b + 1], upper[b]
        if lower + higher > 0:
            task_lo[tasks] = start[b]
            task_kind[tasks] = b % num_kinds
            tasks += 1
        upper[b] = start[b] + lower
        start[b + 1] = upper[b] + higher
    task_lo[tasks] = count
    order = np.empty(count, np.int32)
    for v in range(half):
        u = half + v
        order[np.uint32(start[bucket[v]])] = v
        order[np.uint32(upper[bucket[u]])] = u
        start[bucket[v]] += 1
        upper[bucket[u]] += 1
    if half + half < count:
        order[np.uint32(upper[bucket[count - 1]])] = count - 1
    return order, task_lo[: tasks + 1], task_kind[:tasks]


@njit(cache=True, nogil=True)
def _from_roots(child_ptr: Array, child: Array, level: Array) -> Array:
    """Return [V] the longest distance of any vertex from a root, less that of each."""
    count = len(level)
    order, _, _ = _sort(level, np.zeros(count, np.int32), 1)
    depth = np.zeros(count, np.int32)
    deepest = 0
    for r in range(count - 1, -1, -1):
        v = order[r]
        deepest = max(deepest, depth[v])
        for e in range(child_ptr[v], child_ptr[v + 1]):
            if child[e] >= 0:
                depth[child[e]] = max(depth[child[e]], depth[v] + 1)
    return deepest - depth


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
def find_levels(child_ptr: Array, child: Array) -> Array:
    """Return [V] the longest distance of each vertex from a leaf, in whatever order they come.

    A level is a frontier: what is ready when all frontiers before it are evaluated.
    """
    count = len(child_ptr) - 1
    ptr, parent, waits = _parents(child_ptr, child)
    level = np.zeros(count, np.int32)
    queue = np.empty(count, np.int32)
    head, tail = 0, 0
    for v in range(count):
        if waits[v] == 0:
            queue[tail] = v
            tail += 1
    while head < tail:
        v = queue[head]
        head += 1
        for p in range(ptr[v], ptr[v + 1]):
            u = parent[p]
            level[u] = level[v] + 1  # the last child to come has the highest level
            waits[u] -= 1
            if waits[u] == 0:
                queue[tail] = u
                tail += 1
    assert head == count, "a cycle got past the graph's validation"
    return level


@njit(cache=True, nogil=True)
def _take_turns(
    child_ptr: Array, child: Array, kinds: Array, num_kinds: int, serial: bool
) -> tuple[Array, Array, Array]:
    """Order the vertices with one queue a kind (Kahn's algorithm): `agenda`, or `serial`."""
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
        if serial:
            until[:] = tail
        else:
            best = 0
            for k in range(num_kinds):
                until[k] = head[k]
                if tail[k] - head[k] > tail[best] - head[best]:
                    best = k
            until[best] = tail[best]
        before = done
        for k in range(num_kinds):
            for q in range(head[k], until[k]):
                if serial or q == head[k]:
                    task_lo[tasks] = done
                    task_kind[tasks] = k
                    tasks += 1
                order[done] = queue[q]
                done += 1
            if not serial:
                order[done - (until[k] - head[k]) : done].sort()  # they came as they got ready
            head[k] = until[k]
        assert done > before, "a cycle got past the graph's validation"
        for r in range(before, done):
            v = order[r]
            for p in range(ptr[v], ptr[v + 1]):
                waits[parent[p]] -= 1
                if waits[parent[p]] == 0:
                    k = kinds[parent[p]]
                    queue[tail[k]] = parent[p]
                    tail[k] += 1
    task_lo[tasks] = count
    return order, task_lo[: tasks + 1], task_kind[:tasks]
