"""What decides how a batch runs, as a key of 128 bits: batches with equal keys run alike.

A batch runs as its graphs do: by their children, by the types of vertices and edges, and by who
pulls a whole number or a row: the *structure*. Where equal vertices are computed once, it also
depends on which numbers and rows these are: the *numbers*. What the rows hold decides nothing.
Each graph is hashed once, whatever minibatches it comes in; a minibatch hashes those of its graphs.
The hashes start from random bits of this process: nobody can write graphs that collide.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np

from vertexrt.graph.checks import NO_NUMBERS
from vertexrt.graph.pulls import IntArray, Pulls, PullValue, in_order, parts_of
from vertexrt.graph.types import VertexTypes
from vertexrt.native.compiled import compiled

Array = np.ndarray[Any, Any]

BITS_128 = 16  # bytes
STARTS = np.frombuffer(os.urandom(16), np.uint64)  # of the hashes of this process
FACTORS = np.array([0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93], np.uint64)


# [V] of `find_levels`; whether no vertex has two parents; where each graph begins, and which of
# them a batch has that is taken from these.
Levels = tuple[Array, bool, IntArray, Array]


class BatchFields(NamedTuple):
    """What a batch, or a graph, holds."""

    graph_ptr: IntArray
    child_ptr: IntArray
    child: IntArray
    pulls: Pulls
    types: VertexTypes | None
    edge_pulls: Pulls


class GraphDigests(NamedTuple):
    """The hashes of the graphs of a batch.

    Attributes:
        names: of types, relations and pulls, hashed.
        structure, numbers: uint64 [K, 2].
    """

    names: bytes
    structure: Array
    numbers: Array

    def key(self, of: Array, graphs: Any) -> bytes:
        """Return the digest of some of the graphs, side by side; `of` is one of the hashes."""
        return blake2b(of[graphs].tobytes(), digest_size=BITS_128, key=self.names).digest()


class BatchForm:
    """What is known of a batch, and of others that differ from it in the rows of real pulls alone.

    Attributes:
        starts: int32 [K+1] each, the first vertex and the first slot of each graph; None, until
            they are asked for.
        graphs: of its graphs, structure, numbers: digests; None, until they are asked for.
        levels: of `levels_of`; None, as above. same_sizes: all graphs have as many vertices, and as
            many slots; known with it, of a batch that others are taken from.
        counts: of `count_graphs`; None, as above.
        comes_again: a batch with graphs of its own, or these of another one, was prepared before.
    """

    starts: tuple[IntArray, IntArray] | None = None
    graphs: GraphDigests | None = None
    structure: bytes | None = None
    numbers: bytes | None = None
    same_sizes = False
    levels: Levels | None = None
    counts: IntArray | None = None
    comes_again = False


def digest_graphs(batch: BatchFields, starts: Array = STARTS) -> GraphDigests:
    """Hash each graph of a batch.

    Args:
        starts: uint64 [2]; with others than those of this process, digests do not tell batches of
            somebody who means harm apart.
    """
    count, types, kinds = len(batch.child_ptr) - 1, batch.types, (NO_NUMBERS, NO_NUMBERS)
    of_vertices, vertices = _columns_of(batch.pulls, count)
    of_edges, edges = _columns_of(batch.edge_pulls, len(batch.child))
    names: tuple[object, ...] = of_vertices, of_edges
    if types is not None:
        names, kinds = (*names, types.names, types.relations), (types.of_vertex, types.of_edge)
    graphs = batch.graph_ptr, batch.child_ptr, batch.child
    structure, numbers = hash_graphs(*graphs, *kinds, vertices, edges, starts, FACTORS)
    hashed = blake2b(repr(names).encode(), digest_size=BITS_128).digest()
    return GraphDigests(hashed, structure, numbers)


def _columns_of(
    pulls: Mapping[str, PullValue], count: int
) -> tuple[tuple[tuple[str, str], ...], Array]:
    """Return the whole number, or the row, that each vertex or edge has; by name and what it is.

    Real numbers that have a row for each, in order, decide nothing.
    """
    found: dict[tuple[str, str], Array] = {}
    for name in sorted(pulls):
        table, index = parts_of(pulls[name])
        if table.dtype.kind == "i":
            none = np.int32(-1)
            found[name, "number"] = table if index is None else np.append(table, none)[index]
        elif index is not None and index is not in_order(len(index)):
            found[name, "row"] = index
    return tuple(found), np.array([*found.values()], np.int32).reshape(len(found), count)


@compiled
def hash_graphs(
    graph_ptr: Array,
    child_ptr: Array,
    child: Array,
    of_vertex: Array,
    of_edge: Array,
    pulls: Array,
    edge_pulls: Array,
    starts: Array,
    factors: Array,
) -> tuple[Array, Array]:
    """Hash the structure of each graph, and its structure with its numbers: uint64 [K, 2] each.

    Args:
        of_vertex: int32 [V], types; of_edge: int32 [E], relations; empty, where there are none.
        pulls: int32 [pulls, V]; edge_pulls: int32 [pulls, E]; -1 for none.
        starts, factors: uint64 [2].
    """
    count = len(graph_ptr) - 1
    structure = np.empty((count, 2), np.uint64)
    numbers = np.empty((count, 2), np.uint64)
    start, typed = (starts[0], starts[1], factors[0], factors[1]), len(of_vertex) > 0
    for g in range(count):
        first, end = graph_ptr[g], graph_ptr[g + 1]
        begin, stop = child_ptr[first], child_ptr[end]
        key = _mixed(_mixed(start, end - first), stop - begin)
        for v in range(first, end):
            slots = child_ptr[v + 1] - child_ptr[v]
            key = _mixed(key, (int(slots) << 32) + (int(of_vertex[v]) if typed else 0))
        for e in range(begin, stop):
            number = child[e] - first + 1 if child[e] >= 0 else 0
            key = _mixed(key, (int(number) << 32) + (int(of_edge[e]) if typed else 0))
        whole = key
        for column in pulls:
            key, whole = _with_column(key, whole, column[first:end])
        for column in edge_pulls:
            key, whole = _with_column(key, whole, column[begin:stop])
        structure[g, 0], structure[g, 1], _, _ = key
        numbers[g, 0], numbers[g, 1], _, _ = whole
    return structure, numbers


def _with_column(key: Any, whole: Any, column: Array) -> Any:
    """Mix into the one who has nothing, into the other what all have."""
    for at in range(len(column)):
        if column[at] < 0:
            key = _mixed(key, at + 1)
        whole = _mixed(whole, int(column[at]) + 1)
    return _mixed(key, 0), whole


def _mixed(keys: Any, value: int) -> Any:
    """Mix a number into two hashes, each with its factor: neither loses what it held."""
    word = np.uint64(value)
    key, other, factor, second = keys
    key, other = (key ^ word) * factor, (other ^ word) * second
    return key ^ (key >> 32), other ^ (other >> 32), factor, second
