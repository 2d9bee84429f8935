"""Which graphs of a batch are alike: the same children, types, and pulls in the same places.

Batches that are taken from one batch differ in nothing but numbers where their graphs are alike, in
order. That is known by the numbers of graphs, before anything of them is copied.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from vertexrt.graph.batch import GraphBatch, fields_of, parts_of
from vertexrt.graph.hashes import SPREAD, mixed
from vertexrt.graph.owned import INT32
from vertexrt.graph.pulls import Rows, held_index, held_table
from vertexrt.graph.taken import AlikeGraphs, BatchFields, PullColumn
from vertexrt.native.compiled import compiled

Array = np.ndarray[Any, Any]

OFTEN = 3  # batches that are taken from one, until its graphs are compared
TYPE_AT = 32  # of the bits of a vertex: its type, after a bit for each of so many pulls


def alike_key(batch: GraphBatch) -> tuple[object, bytes] | None:
    """Return what batches have in common that were taken from one and are alike; None, if unknown.

    Graphs are compared once, when OFTEN batches have been taken.
    """
    taken = batch._taken
    if taken is None:
        return None
    alike = parts_of(taken.source).alike
    if alike.numbers is None:
        alike.asked += 1
        if alike.asked < OFTEN:
            return None
        fields = fields_of(taken.source)
        alike.columns = _columns_of(fields)
        alike.numbers = number_alike(fields)
        alike.are_all = not alike.numbers.any()
    return alike.token, alike.numbers[taken.ids].tobytes()


def all_alike(batch: GraphBatch) -> AlikeGraphs | None:
    """Return what a batch was taken from, if all graphs of that are known to be alike."""
    taken = batch._taken
    found = None if taken is None else parts_of(taken.source).alike
    return found if found is not None and found.are_all else None


def has_same_sizes(batch: GraphBatch) -> bool:
    """Tell whether all graphs of what a batch was taken from have one size.

    Of a batch that was not taken, its own graphs, if there are several.
    """
    taken = batch._taken
    if taken is not None:
        return parts_of(taken.source).alike.same_sizes
    return batch.num_graphs > 1 and parts_of(batch).alike.same_sizes


def _columns_of(batch: BatchFields) -> dict[str, PullColumn]:
    """Return `AlikeGraphs.columns`."""
    found: dict[str, PullColumn] = {}
    for name, pull in batch.pulls.items():
        column = held_index(pull) if isinstance(pull, Rows) else pull
        if column is not None and column.dtype is INT32:
            table = held_table(pull) if isinstance(pull, Rows) else None
            found[name] = PullColumn(table, column)
    return found


def number_alike(batch: BatchFields) -> npt.NDArray[np.int32]:
    """Return the first graph that each graph of a batch is like: int32 [K]."""
    bits = np.zeros(len(batch.child_ptr) - 1, np.int64)
    of_edge = np.zeros(len(batch.child), np.int32)
    whole = [column for _, column in _columns_of(batch).values()]
    if len(whole) > TYPE_AT:
        return np.arange(len(batch.graph_ptr) - 1, dtype=np.int32)  # each is like itself
    for k, column in enumerate(whole):
        bits |= (column >= 0).astype(np.int64) << k
    if batch.types is not None:
        bits |= batch.types.of_vertex.astype(np.int64) << TYPE_AT
        of_edge = batch.types.of_edge
    found: npt.NDArray[np.int32] = compare_graphs(
        batch.graph_ptr, batch.child_ptr, batch.child, bits, of_edge
    )
    return found


@compiled
def compare_graphs(
    graph_ptr: Array, child_ptr: Array, child: Array, bits: Array, of_edge: Array
) -> Any:
    """Return the first graph that each is like, int32 [K]; hashes find it, and it is compared.

    Args:
        bits: int64 [V] what vertices are; of_edge: int32 [E] what edges are.
    """
    count = len(graph_ptr) - 1
    found = np.empty(count, np.int32)
    size, shift = 16, 60
    while size < 2 * count:
        size *= 2
        shift -= 1
    table = np.full(size, -1, np.int32)
    graphs = graph_ptr, child_ptr, child, bits, of_edge
    for g in range(count):
        at = int((_hash(graphs, g) * SPREAD) >> shift)
        while table[at] >= 0 and not _are_alike(graphs, table[at], g):
            at = (at + 1) & (size - 1)
        if table[at] < 0:
            table[at] = g
        found[g] = table[at]
    return found


def _hash(graphs: tuple[Array, Array, Array, Array, Array], g: int) -> Any:
    graph_ptr, child_ptr, child, bits, of_edge = graphs
    first, end = graph_ptr[g], graph_ptr[g + 1]
    key = np.uint64(int(end - first))
    for v in range(first, end):
        key = mixed(key, bits[v] ^ (bits[v] >> TYPE_AT))
        key = mixed(key, child_ptr[v + 1] - child_ptr[v])
    for e in range(child_ptr[first], child_ptr[end]):
        key = mixed(key, child[e] - first if child[e] >= 0 else -1)
        key = mixed(key, of_edge[e])
    return key


def _are_alike(graphs: tuple[Array, Array, Array, Array, Array], g: int, h: int) -> bool:
    """Tell whether two graphs are alike."""
    graph_ptr, child_ptr, child, bits, of_edge = graphs
    first, other = graph_ptr[g], graph_ptr[h]
    count = graph_ptr[g + 1] - first
    begin, at = child_ptr[first], child_ptr[other]
    slots = child_ptr[first + count] - begin
    if graph_ptr[h + 1] - other != count or child_ptr[graph_ptr[h + 1]] - at != slots:
        return False
    same = True
    for v in range(count):
        same &= bits[first + v] == bits[other + v]
        same &= child_ptr[first + v] - begin == child_ptr[other + v] - at
    for e in range(slots):
        c, d = child[begin + e], child[at + e]
        same &= (c - first if c >= 0 else -1) == (d - other if d >= 0 else -1)
        same &= of_edge[begin + e] == of_edge[at + e]
    return same


@compiled
def take_column(out: Array, column: Array, graph_ptr: Array, graphs: Array) -> None:
    """Copy what the vertices of some graphs have, one graph after another.

    Args:
        out: int32, of these vertices; column: int32 [V] of all; graphs: int64 [n].
    """
    at = 0
    for k in range(len(graphs)):
        first, end = graph_ptr[graphs[k]], graph_ptr[graphs[k] + 1]
        out[at : at + end - first] = column[first:end]
        at += end - first
