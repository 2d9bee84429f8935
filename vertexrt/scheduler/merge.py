"""Merge identical vertices: same kind, same pulled values, same children. They are computed once.

Words repeat within a batch, and so do short phrases: of 256 SST trees more than half of the leaves
go. The merged graphs are a DAG; a vertex that stands for m copies weighs m in the loss, and the
gradient of a shared child is the sum over its distinct parents, so results are exact. It does not
hold for functions with random ops, where each copy draws its own mask.

Source: ours (DESIGN section 5); hash-consing, Ershov 1958.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Merged:
    """Distinct vertices of a batch.

    Attributes:
        child_ptr, child: their graph, as in GraphBatch.
        first: [D] the first user's vertex that each stands for.
        weight: [D] how many it stands for.
        of_vertex: [V] which one stands for each of the user's vertices.
    """

    child_ptr: npt.NDArray[np.int32]
    child: npt.NDArray[np.int32]
    first: npt.NDArray[np.int32]
    weight: npt.NDArray[np.int32]
    of_vertex: npt.NDArray[np.int32]


def merge_vertices(
    child_ptr: Array, child: Array, bits: Array, fields: tuple[Array, ...]
) -> Merged:
    """Find the distinct vertices of a batch.

    Args:
        child_ptr, child: CSR of children.
        bits: [V] kinds.
        fields: int32 [V] arrays of everything else that a vertex reads.
    """
    if len(child) and not _children_first(child_ptr, child):
        from vertexrt.scheduler.compiled import FRONTIER, order_tasks

        kinds = np.zeros(len(bits), np.int32)
        order, _, _ = order_tasks(child_ptr, child, kinds, 1, FRONTIER)
    else:
        order = np.arange(len(bits), dtype=np.int32)
    return Merged(*_merge(child_ptr, child, bits, fields or (order[:0],), order, len(fields)))


@njit(cache=True, nogil=True)
def _children_first(child_ptr: Array, child: Array) -> bool:
    for v in range(len(child_ptr) - 1):
        for e in range(child_ptr[v], child_ptr[v + 1]):
            if child[e] >= v:
                return False
    return True


@njit(cache=True, nogil=True)
def _merge(
    child_ptr: Array,
    child: Array,
    bits: Array,
    fields: tuple[Array, ...],
    order: Array,
    num_fields: int,
) -> tuple[Array, Array, Array, Array, Array]:
    count = len(bits)
    slots = 16
    while slots < 2 * count:
        slots *= 2
    table = np.full(slots, -1, np.int32)
    first = np.empty(count, np.int32)
    weight = np.empty(count, np.int32)
    of_vertex = np.empty(count, np.int32)
    new_ptr = np.zeros(count + 1, np.int32)
    new_child = np.empty(len(child), np.int32)
    distinct, edges = 0, 0
    prime = np.uint64(0x100000001B3)
    for v in order:
        h = np.uint64(bits[v]) + np.uint64(0xCBF29CE484222325)
        for k in range(num_fields):
            h = (h ^ np.uint64(np.uint32(fields[k][v]))) * prime
        for e in range(child_ptr[v], child_ptr[v + 1]):
            c = of_vertex[child[e]] if child[e] >= 0 else -1
            h = (h ^ np.uint64(np.uint32(c))) * prime
        at = np.int64((h ^ (h >> np.uint64(29))) & np.uint64(slots - 1))
        while True:
            d = table[at]
            if d < 0:
                break
            u = first[d]
            degree = child_ptr[v + 1] - child_ptr[v]
            same = bits[u] == bits[v] and new_ptr[d + 1] - new_ptr[d] == degree
            for k in range(num_fields):
                same = same and fields[k][u] == fields[k][v]
            if same:
                for s in range(degree):
                    x = child[child_ptr[v] + s]
                    c = of_vertex[x] if x >= 0 else -1
                    if new_child[new_ptr[d] + s] != c:
                        same = False
                        break
            if same:
                break
            at = (at + 1) & (slots - 1)
        if d >= 0:
            weight[d] += 1
            of_vertex[v] = d
            continue
        table[at] = distinct
        first[distinct] = v
        weight[distinct] = 1
        of_vertex[v] = distinct
        for e in range(child_ptr[v], child_ptr[v + 1]):
            new_child[edges] = of_vertex[child[e]] if child[e] >= 0 else -1
            edges += 1
        distinct += 1
        new_ptr[distinct] = edges
    return (
        new_ptr[: distinct + 1].copy(),
        new_child[:edges].copy(),
        first[:distinct].copy(),
        weight[:distinct].copy(),
        of_vertex,
    )
