"""The compiled loop that reads the vertices of a batch: checks, kinds and levels in one pass."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from vertexrt.scheduler.compiled import find_levels

Array = np.ndarray[Any, Any]

# What `read_vertices` may find.
FINE, NEW_PATH_KIND, NEW_LAZY_KIND, NOT_BOUNDED, TOO_MANY_CHILDREN = range(5)


@njit(cache=True, nogil=True)
def read_vertices(
    child_ptr: Array,
    child: Array,
    pulls: Array,
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
) -> tuple[Any, ...]:
    """Find the kind and the level of each vertex.

    The bits of a vertex are those of `specialise.Atoms`: bit s where slot s has a child, the bit
    behind the slots where any has, then one bit for each pull that has a value.

    Args:
        child_ptr, child: CSR of the children.
        pulls: int32 [pulls, V], -1 where a vertex has none.
        numbers: [pulls] which bit each has; used: the places of those that are read.
        bounds: [pulls] how many values each may take, -1 for any.
        slots: that F declares; limited: a child in a slot beyond them is an error.
        path_mask: the bits that matter on the path; lazy_mask: all that matter.
        path_known, lazy_known: bits of the kinds that have a number, in order.
        has_loss: of the kinds in `lazy_known`.
    Returns: what was found (else than FINE at once, and not more), at which vertex, and its bits;
        path kinds, lazy kinds and levels by vertex; whether no vertex has two parents; how many
        vertices have a loss.
    """
    count = len(child_ptr) - 1
    path = np.empty(count, np.int32)
    lazy = np.empty(count, np.int32)
    level = np.empty(count, np.int32)
    has_parent = np.zeros(count, np.bool_)
    forest, ordered = True, True
    last, path_kind, lazy_kind = np.int64(-1), -1, -1
    losses = 0
    end = child_ptr[0]
    for v in range(count):
        begin, end = end, child_ptr[v + 1]
        bits, above = np.int64(0), 0
        for e in range(begin, end):
            c = child[e]
            if c < 0:
                continue
            if e - begin < slots:
                bits |= 1 << (e - begin)
            elif limited:
                return TOO_MANY_CHILDREN, v, bits, path, lazy, level, forest, losses
            bits |= 1 << slots
            if has_parent[c]:
                forest = False
            has_parent[c] = True
            if c < v:
                above = max(above, level[c] + 1)
            else:
                ordered = False
        level[v] = above
        for k in used:
            value = pulls[k, v]
            if value >= 0:
                bits |= 1 << (slots + 1 + numbers[k])
            if bounds[k] >= 0 and (value >= bounds[k] or value < -1):
                return NOT_BOUNDED, v, bits, path, lazy, level, forest, losses
        if bits != last:
            path_kind = _number(bits & path_mask, path_known)
            if path_kind < 0:
                return NEW_PATH_KIND, v, bits & path_mask, path, lazy, level, forest, losses
            lazy_kind = _number(bits & lazy_mask, lazy_known)
            if lazy_kind < 0:
                return NEW_LAZY_KIND, v, bits & lazy_mask, path, lazy, level, forest, losses
            last = bits
        path[v] = path_kind
        lazy[v] = lazy_kind
        losses += has_loss[lazy_kind]
    if not ordered:
        level = find_levels(child_ptr, child)
    return FINE, -1, 0, path, lazy, level, forest, losses


@njit(cache=True, nogil=True)
def _number(kind: Any, known: Array) -> int:
    for k in range(len(known)):
        if known[k] == kind:
            return k
    return -1
