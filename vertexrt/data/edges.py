"""Pairs (child, parent) of common graphs, for `InputGraph.from_types` and `from_edges`.

    edges = vrt.data.edges
    vrt.InputGraph.from_types(
        {"word": 5, "phrase": 5},
        {
            ("word", "before", "word"): edges.chain(5),
            ("word", "own", "phrase"): edges.same(5),
            ("phrase", "after", "phrase"): edges.chain(5, reverse=True),
        },
    )

Each function returns int32 [E, 2]. The children of a parent come in rising order; in `rounds` as
they are given. Functions that `__all__` does not list are of readers: they build many graphs of
several vertex types at once.
Raises: GraphError, for what are no whole numbers from 0 on, or no pairs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from vertexrt.graph import GraphBatch, InputGraph
from vertexrt.graph.checks import count_of, int32_array, pairs_of
from vertexrt.graph.pulls import ordered_pulls

__all__ = ["all_pairs", "chain", "ends", "layers", "rounds", "same", "tree", "window"]

Pairs = npt.NDArray[np.int32]
Arrays = Mapping[str, npt.NDArray[Any]]  # by vertex type, or by pull
Relation = tuple[str, str, str]
Lengths = Sequence[int] | npt.NDArray[np.integer]
_WHERE = "edges"


def chain(lengths: int | Lengths, *, reverse: bool = False) -> Pairs:
    """Return the edges of a chain: vertex i reads i - 1, or i + 1 if it is reversed.

    Args:
        lengths: of the chain; or of several, whose vertices come one chain after the other.
        reverse: from the last vertex to the first.
    """
    sizes = _sizes(lengths)
    before = np.delete(np.arange(sizes.sum()), np.cumsum(sizes)[sizes > 0] - 1)
    return pairs(before + reverse, before + (not reverse))


def ends(lengths: Lengths, *, reverse: bool = False) -> Pairs:
    """Return the edges from the end of each chain to a vertex of another type, chain k to vertex k.

    Args:
        lengths: of chains, whose vertices come one chain after the other; an empty one has none.
        reverse: chains that were made with `reverse`, which end at their first vertices.
    """
    sizes = _sizes(lengths)
    stops = np.cumsum(sizes)
    found = stops - sizes if reverse else stops - 1
    return pairs(found[sizes > 0], np.flatnonzero(sizes))


def same(count: int) -> Pairs:
    """Return the edges from each vertex of a type to that of another type with its number."""
    each = np.arange(_count(count))
    return pairs(each, each)


def window(count: int, first: int, last: int) -> Pairs:
    """Return the edges of windows: vertex i reads i + first to i + last, as far as there are.

    `window(n, -2, -1)` is the two before, of one type; `window(n, -1, 1)`, with the vertex between
    its neighbours, is a window over another type of as many vertices.

    Args:
        first, last: whole numbers of any sign.
    """
    parent = np.arange(_count(count))[:, None]
    low, high = int32_array([first, last], "the window", _WHERE)
    child = parent + np.arange(low, high + 1)
    inside = (child >= 0) & (child < count)
    return pairs(child[inside], np.broadcast_to(parent, child.shape)[inside])


def all_pairs(children: int, parents: int) -> Pairs:
    """Return an edge from each of the children of one type to each of the parents of another."""
    parent, child = np.indices((_count(parents), _count(children))).reshape(2, -1)
    return pairs(child, parent)


def layers(count: int, depth: int) -> Pairs:
    """Return the edges of layer over layer in one type: each vertex reads the one below it.

    Args:
        count: vertices of a layer; those of the lowest come first.
        depth: layers.
    """
    return rounds(same(count), count, max(_count(depth), 1) - 1)


def rounds(edges: Any, count: int, times: int) -> Pairs:
    """Return the edges of message passing, unrolled: those of a graph from each round to the next.

    Whatever the edges are, cycles too, the unrolled graph has none. `layers(count, times + 1)` are
    the edges from each vertex to itself a round later.

    Args:
        edges: pairs (sender, receiver), of numbers below `count`.
        count: vertices of a round; vertex v of round r is r * count + v.
        times: rounds after the first one, which only sends.
    """
    size = _count(count)
    given = pairs_of(edges, "edges", "is", "expected pairs (sender, receiver)", _WHERE)
    sender, receiver = (given + size * np.arange(_count(times))[:, None, None]).reshape(-1, 2).T
    return pairs(sender, receiver + size)


def tree(parents: Any, *, down: bool = False) -> Pairs:
    """Return the edges of a tree, or of several: a vertex reads its children, or its parent.

    Args:
        parents: whole numbers [V], the parent of each vertex, -1 at a root.
        down: from parents to their children.
    """
    of = int32_array(parents, "parents", _WHERE)
    child = np.flatnonzero(of >= 0)
    return pairs(of[child], child) if down else pairs(child, of[child])


def _count(given: object) -> int:
    return count_of(given, "a number of vertices", _WHERE)


def _sizes(lengths: Any) -> npt.NDArray[np.int64]:
    axes = np.ndim(lengths)
    listed = lengths.tolist() if isinstance(lengths, np.ndarray) else lengths
    several = listed if axes else [listed]
    for size in {*several} if axes == 1 else several:  # each length is checked once
        _count(size)
    return np.array(lengths, np.int64).reshape(-1)


def pairs(child: npt.NDArray[Any], parent: npt.NDArray[Any]) -> Pairs:
    """Return edges of two arrays of vertices."""
    return np.stack([child, parent], axis=1).astype(np.int32)


def typed_batch(
    sizes: Arrays,
    edges: Mapping[Relation, npt.NDArray[Any]],
    pulls: Mapping[str, Arrays],
) -> GraphBatch:
    """Build K graphs at once, as `InputGraph.from_types` builds one.

    Args:
        sizes: vertex type -> int [K], how many vertices of it each graph has.
        edges: (child type, relation, parent type) -> int [E, 2], pairs (child, parent). Vertices
            of a type are numbered from 0 through all graphs.
        pulls: vertex type -> name -> array with a row for each vertex of the type, in all graphs.
    Raises: GraphError and PullError, as `from_types` does; GraphError for an edge between graphs.
    """
    whole = InputGraph.from_types({name: int(n.sum()) for name, n in sizes.items()}, edges, pulls)
    assert whole.types is not None
    graphs = np.arange(len(next(iter(sizes.values()))), dtype=np.int32)
    graph_of = np.concatenate([np.repeat(graphs, counts) for counts in sizes.values()])
    order = np.argsort(graph_of, kind="stable").astype(np.int32)  # types stay in order
    place = np.empty_like(order)
    place[order] = np.arange(len(order), dtype=np.int32)
    slots = np.diff(whole.child_ptr)
    by_parent = np.argsort(np.repeat(place, slots), kind="stable")
    return GraphBatch(
        ptr_of(sum(sizes.values(), start=np.zeros(1, np.int32))),
        ptr_of(slots[order]),
        place[whole.child[by_parent]],
        ordered_pulls(whole.pulls, order),
        whole.types._replace(
            of_vertex=whole.types.of_vertex[order], of_edge=whole.types.of_edge[by_parent]
        ),
    )


def ptr_of(sizes: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return where each of several runs begins, and where the last one ends: [K + 1]."""
    return np.concatenate([[0], np.cumsum(sizes)])


def stacked(
    sizes: npt.NDArray[np.integer],
    before: Pairs,
    layers: int,
    ends: tuple[str, str],
    pulls: Mapping[str, Arrays],
    edges: Mapping[Relation, Pairs] | None = None,
) -> GraphBatch:
    """Build graphs once for each layer: the types layers.0 and so on, and those at the ends.

    Args:
        sizes: int [K], vertices of each graph in a layer.
        before: int [E, 2], edges between the vertices of a layer: the relation `before`.
        ends: names of the types under and above the layers, "" for none. Each type reads the one
            under it in the relation `below`.
        pulls, edges: as of `typed_batch`; edges besides these.
    """
    middle = [f"layers.{k}" for k in range(layers)]
    types = [name for name in (ends[0], *middle, ends[1]) if name]
    own = same(int(sizes.sum()))
    below = {(lower, "below", upper): own for lower, upper in pairwise(types)}
    inside = {(name, "before", name): before for name in middle}
    return typed_batch(dict.fromkeys(types, sizes), {**below, **inside, **(edges or {})}, pulls)
