"""The compiled loops of the scheduler: levels, and the order of tasks."""

from __future__ import annotations

from typing import Any

import numpy as np

from vertexrt.graph.compiled import children_first, list_parents
from vertexrt.native.compiled import compiled

Array = np.ndarray[Any, Any]

FRONTIER, DEPTH, AGENDA, SERIAL = range(4)  # see `schedule`
SLOTS_AT, LEVELS, LAST_SLOT = 30, (1 << 30) - 1, 32  # of `find_levels`


def order_tasks(
    child_ptr: Array,
    child: Array,
    kinds: Array,
    num_kinds: int,
    level: Array,
    policy: int,
) -> tuple[Array, Array, Array]:
    """Order the vertices by task.

    Within a task their numbers rise: vertices of one graph stay together, as their children do.

    Args:
        level: [V] of each vertex.
        policy: such as FRONTIER.
    Returns: order [V], task_lo [T + 1], task_kind [T].
    """
    if policy in (FRONTIER, DEPTH):
        if policy == DEPTH:
            level = _from_roots(child_ptr, child, level)
        return _sort(level, kinds, num_kinds)
    return _take_turns(child_ptr, child, kinds, num_kinds, policy == SERIAL)


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
    bucket = np.empty(count, np.int32)
    for v in range(count):
        bucket[v] = level[v] * num_kinds + kinds[v]
    for v in range(half):
        start[bucket[v] + 1] += 1
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
        order[start[bucket[v]]] = v
        order[upper[bucket[u]]] = u
        start[bucket[v]] += 1
        upper[bucket[u]] += 1
    if half + half < count:
        order[upper[bucket[count - 1]]] = count - 1
    return order, task_lo[: tasks + 1], task_kind[:tasks]


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
    for v in range(count):
        depth[v] = deepest - depth[v]
    return depth


@compiled
def find_levels(child_ptr: Array, child: Array) -> tuple[Array, bool, bool]:
    """Find the longest distance of each vertex from a leaf, in whatever order they come.

    A level is a frontier: what is ready when all frontiers before it are evaluated.

    Returns: int64 [V], level and, from bit SLOTS_AT on, which slots have a child, the last bit for
        all later ones; whether children come before parents; whether no vertex has two parents.
    """
    found = np.zeros(len(child_ptr) - 1, np.int64)
    has_parent = np.zeros(len(found), np.bool_)
    ordered, forest = True, True
    for v in range(len(found)):
        level, slots, first = 0, 0, child_ptr[v]
        for e in range(first, child_ptr[v + 1]):
            c = child[e]
            if c >= 0:
                level = max(level, (found[c] & LEVELS) + 1)
                slots |= 1 << min(e - first, LAST_SLOT)
                ordered &= c < v
                forest &= not has_parent[c]
                has_parent[c] = True
        found[v] = level | slots << SLOTS_AT
    if not ordered:
        order, levels = children_first(child_ptr, child)
        assert len(order) == len(found), "a cycle got past the graph's validation"
        for v in range(len(found)):
            found[v] = (found[v] & ~LEVELS) | levels[v]
    return found, ordered, forest


def _take_turns(
    child_ptr: Array, child: Array, kinds: Array, num_kinds: int, serial: bool
) -> tuple[Array, Array, Array]:
    """Order the vertices with one queue a kind (Kahn's algorithm): `agenda`, or `serial`."""
    count = len(child_ptr) - 1
    ptr, parent, waits = list_parents(child_ptr, child)
    queue, head, tail = _start_queues(kinds, num_kinds, waits)
    order = np.empty(count, np.int32)
    task_lo = np.empty(count + 1, np.int32)
    task_kind = np.empty(count, np.int32)
    done, tasks = 0, 0
    while done < count:
        before = done
        first = 0
        if not serial:  # the longest queue
            for k in range(1, num_kinds):
                if tail[k] - head[k] > tail[first] - head[first]:
                    first = k
        for k in range(first, num_kinds if serial else first + 1):
            ready = tail[k] - head[k]
            order[done : done + ready] = queue[head[k] : tail[k]]
            head[k] = tail[k]
            if not serial:
                _sort_rising(order[done : done + ready])  # they came as they got ready
            for n in range(0, ready, 1 if serial else ready):
                task_lo[tasks], task_kind[tasks] = done + n, k
                tasks += 1
            done += ready
        assert done > before, "a cycle got past the graph's validation"
        _release(order[before:done], ptr, parent, waits, kinds, queue, tail)
    task_lo[tasks] = count
    return order, task_lo[: tasks + 1], task_kind[:tasks]


def _start_queues(kinds: Array, num_kinds: int, waits: Array) -> tuple[Array, Array, Array]:
    """Return the queues of vertices that wait for no child: one array, where each begins and ends.

    The queue of a kind is its share of the array, with room for all vertices of that kind.
    """
    counts = np.zeros(num_kinds, np.int64)
    for kind in kinds:
        counts[kind] += 1
    head, tail = np.empty(num_kinds, np.int64), np.empty(num_kinds, np.int64)
    before = 0
    for k in range(num_kinds):
        head[k] = tail[k] = before
        before += counts[k]
    queue = np.empty(len(kinds), np.int32)
    for v in range(len(kinds)):
        if waits[v] == 0:
            queue[tail[kinds[v]]] = v
            tail[kinds[v]] += 1
    return queue, head, tail


def _sort_rising(values: Array) -> None:
    """Sort in place (Shell 1959)."""
    gap = 1
    while gap < len(values) // 3:
        gap = 3 * gap + 1
    while gap > 0:
        for k in range(gap, len(values)):
            value, at = values[k], k
            while at >= gap and values[at - gap] > value:
                values[at] = values[at - gap]
                at -= gap
            values[at] = value
        gap //= 3


def _release(
    vertices: Array,
    ptr: Array,
    parent: Array,
    waits: Array,
    kinds: Array,
    queue: Array,
    tail: Array,
) -> None:
    """Let the parents of some vertices wait for a child less; queue those that wait for none."""
    for v in vertices:
        for p in range(ptr[v], ptr[v + 1]):
            u = parent[p]
            waits[u] -= 1
            if waits[u] == 0:
                queue[tail[kinds[u]]] = u
                tail[kinds[u]] += 1
