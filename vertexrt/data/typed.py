"""Build many graphs of several vertex types at once, as array code."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from vertexrt.data.edges import same
from vertexrt.graph import GraphBatch, InputGraph
from vertexrt.graph.pulls import ordered_pulls

IntArray = npt.NDArray[np.int32]
Relation = tuple[str, str, str]


def typed_batch(
    sizes: Mapping[str, npt.NDArray[np.integer]],
    edges: Mapping[Relation, npt.NDArray[np.integer]],
    pulls: Mapping[str, Mapping[str, npt.NDArray[Any]]],
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
    before: IntArray,
    layers: int,
    ends: tuple[str, str],
    pulls: Mapping[str, Mapping[str, npt.NDArray[Any]]],
    edges: Mapping[Relation, IntArray] | None = None,
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
