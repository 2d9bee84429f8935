"""Types of vertices and named relations: which function a vertex evaluates, what an edge is for."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from vertexrt.errors import GraphError, PullError, nearest
from vertexrt.graph.checks import by_parent, count_of, int32_array, pairs_of
from vertexrt.graph.owned import INT32, REALS, own
from vertexrt.graph.pulls import (
    PullValue,
    check_pull,
    join_pulls,
    ordered_pulls,
    parts_of_pull,
    rows_unchecked,
)

IntArray = npt.NDArray[np.int32]

_WHERE = "input graph"


class VertexTypes(NamedTuple):
    """The types of a graph's vertices and the relations of its edges.

    Attributes:
        names: of the types; relations: names of the relations.
        of_vertex: int32 [V], the number of each vertex's type.
        of_edge: int32 [E], the number of each edge's relation.
    """

    names: tuple[str, ...]
    relations: tuple[str, ...]
    of_vertex: IntArray
    of_edge: IntArray

    def number(self, name: str) -> int:
        """Return the number of a type.

        Raises: GraphError, when there is no such type.
        """
        if name in self.names:
            return self.names.index(name)
        raise unknown_type("types", name, self.names)


def unknown_type(what: str, name: object, names: Sequence[str]) -> GraphError:
    """Return the error for a vertex type that is not declared."""
    return GraphError.at(
        _WHERE,
        f"{what} name the vertex type {name!r}",
        f"the vertex types are {', '.join(names) or 'none'}",
        f"name one of these.{nearest(str(name), list(names))}",
    )


def read_typed(
    sizes: Mapping[str, int],
    edges: Mapping[tuple[str, str, str], Any],
    pulls: Mapping[str, Mapping[str, Any]] | None,
    edge_pulls: Mapping[tuple[str, str, str], Mapping[str, Any]] | None,
) -> tuple[Any, ...]:
    """Return the fields of a graph of vertices of several types; see `InputGraph.from_types`.

    Raises: GraphError and PullError, where names or numbers do not fit.
    """
    if not isinstance(sizes, Mapping) or not sizes:
        got = f"sizes is {sizes!r:.60}"
        expected = "a dict of names of vertex types to numbers of vertices"
        raise GraphError.at(_WHERE, got, expected, "write sizes={'word': 5}")
    counts = {name: count_of(size, f"sizes[{name!r}]", _WHERE) for name, size in sizes.items()}
    of_vertex = np.repeat(np.arange(len(counts), dtype=np.int32), list(counts.values()))
    relations, columns = _read_edges(counts, edges)
    child, parent, of_edge = np.concatenate([np.zeros((3, 0), np.int32), *columns.values()], axis=1)
    child_ptr, order = by_parent(parent, len(of_vertex))
    types = VertexTypes(tuple(counts), relations, own(of_vertex, INT32), own(of_edge[order], INT32))
    many = {key: column.shape[1] for key, column in columns.items()}
    of_edges = ordered_pulls(_join_owned(many, edge_pulls, "edge"), order)
    return child_ptr, child[order], _join_owned(counts, pulls, "vertex"), types, of_edges


def _read_edges(
    counts: Mapping[str, int], edges: object
) -> tuple[tuple[str, ...], dict[tuple[str, str, str], IntArray]]:
    """Return the relations; and of each key its edges: child, parent and relation, int32 [3, n]."""
    if not isinstance(edges, Mapping):
        got = f"edges is a {type(edges).__name__}"
        expected = "a dict of (child type, relation, parent type) to pairs (child, parent)"
        raise GraphError.at(_WHERE, got, expected, "write {('word', 'before', 'word'): pairs}")
    first = dict(zip(counts, np.cumsum([0, *counts.values()]).tolist(), strict=False))
    relations: dict[str, int] = {}
    found: dict[tuple[str, str, str], IntArray] = {}
    for key, given in edges.items():
        if not isinstance(key, tuple) or [type(x) for x in key] != [str] * 3:
            got, expected = f"edges of {key!r}", "names (child type, relation, parent type)"
            raise GraphError.at(_WHERE, got, expected, "name all three")
        source, relation, target = key
        for name in (source, target):
            if name not in counts:
                raise unknown_type("edges", name, list(counts))
        expected = "pairs (child, parent)"
        pairs = pairs_of(given, f"edges of {key}", "are", expected, _WHERE)
        wrong = (pairs < 0) | (pairs >= np.array([counts[source], counts[target]]))
        if wrong.any():
            at, column = divmod(int(np.argmax(wrong)), 2)
            name = key[2 * column]
            got = f"edge {at} of {key} has the {('child', 'parent')[column]} {pairs[at, column]}"
            expected = f"there are {counts[name]} vertices of type {name!r}"
            raise GraphError.at(_WHERE, got, expected, "number vertices from 0 in each type")
        number = np.full(len(pairs), relations.setdefault(relation, len(relations)), np.int32)
        child, parent = pairs.T + np.array([[first[source]], [first[target]]], np.int32)
        found[key] = np.stack([child, parent, number])
    return tuple(relations), found


# How users give what vertices or edges pull: the argument, what it is, and an example.
_FORMS = {
    "vertex": (
        "pulls",
        "a dict of vertex types to dicts of arrays by name",
        "write pulls={'word': {'label': labels}}",
    ),
    "edge": (
        "edge_pulls",
        "a dict of the keys of edges to dicts of arrays by name",
        "write edge_pulls={('word', 'before', 'word'): {'weight': weights}}",
    ),
}


def _join_owned(counts: Mapping[Any, int], pulls: object, each: str) -> dict[str, PullValue]:
    """Return pulls over all vertices: absent where a type does not give one; or those of edges."""
    pulls = {} if pulls is None else pulls
    if not isinstance(pulls, Mapping) or not all(isinstance(x, Mapping) for x in pulls.values()):
        name, expected, action = _FORMS[each]
        raise PullError.at(_WHERE, f"{name} is {pulls!r:.60}", expected, action)
    for owner in pulls:
        if owner not in counts and each == "vertex":
            raise unknown_type("pulls", owner, list(counts))
        if owner not in counts:
            got = f"edge_pulls name the edges {owner!r}"
            expected = f"edges are given of {', '.join(map(str, counts)) or 'none'}"
            raise GraphError.at(_WHERE, got, expected, "name the key of some edges")
    names = dict.fromkeys(name for given in pulls.values() for name in given)
    several: list[dict[str, PullValue]] = []
    for owner, count in counts.items():
        given = pulls.get(owner, {})
        none = rows_unchecked(own(np.zeros(0), REALS[8]), own(np.full(count, -1), INT32))
        several.append(dict.fromkeys(names, none))  # of any dtype and shape
        for name, value in given.items():
            found = check_pull(f"{name!r} of {owner!r} has", value, count, each, _WHERE)
            whole = isinstance(found, np.ndarray) and found.dtype == INT32
            if count:  # of no vertices: any dtype and shape
                several[-1][name] = found if whole else rows_unchecked(*parts_of_pull(found))
    what = "type" if each == "vertex" else "key"
    return join_pulls(several, list(counts.values()), what, list(counts)) if several else {}


def check_types(given: object, vertices: int, slots: int, where: str) -> VertexTypes | None:
    """Return the types of a graph with arrays of our own; None, where it has none.

    Raises: GraphError, when they do not fit the graph.
    """
    if given is None:
        return None
    if not isinstance(given, VertexTypes):
        raise GraphError.at(
            where, f"types is a {type(given).__name__}", "VertexTypes", "use from_types"
        )
    of_vertex = int32_array(given.of_vertex, "types.of_vertex", where)
    of_edge = int32_array(given.of_edge, "types.of_edge", where)
    for what, numbers, length, names in (
        ("of_vertex", of_vertex, vertices, given.names),
        ("of_edge", of_edge, slots, given.relations),
    ):
        wrong = (numbers < 0) | (numbers >= len(names))
        if len(numbers) != length or wrong.any():
            got = f"types.{what} has {len(numbers)} numbers, {int(wrong.sum())} of no name"
            expected = f"{length} numbers in 0..{len(names) - 1}"
            raise GraphError.at(where, got, expected, "use InputGraph.from_types")
    return VertexTypes(tuple(given.names), tuple(given.relations), of_vertex, of_edge)


def join_types(several: Sequence[VertexTypes | None], where: str) -> VertexTypes | None:
    """Return the types of graphs side by side.

    Raises: GraphError, when some have types and others none.
    """
    typed = [each for each in several if each is not None]
    if not typed:
        return None
    if len(typed) < len(several):
        got = f"{len(typed)} of {len(several)} graphs have vertex types"
        raise GraphError.at(where, got, "all or none", "build all graphs with from_types")
    names, of_vertex = _join_numbers([(each.names, each.of_vertex) for each in typed])
    relations, of_edge = _join_numbers([(each.relations, each.of_edge) for each in typed])
    return VertexTypes(names, relations, of_vertex, of_edge)


def _join_numbers(
    several: Sequence[tuple[tuple[str, ...], IntArray]],
) -> tuple[tuple[str, ...], IntArray]:
    """Return all names, and the numbers one after another, as numbers of these names."""
    names = tuple(dict.fromkeys(itertools.chain(*(own_names for own_names, _ in several))))
    parts = [
        numbers
        if own_names == names[: len(own_names)]
        else np.array([names.index(name) for name in own_names], np.int32)[numbers]
        for own_names, numbers in several
    ]
    return names, own(np.concatenate(parts), INT32)
