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
        f"name one of these.{nearest(name, names)}",
    )


def read_typed(sizes: Any, edges: Any, pulls: Any, edge_pulls: Any) -> tuple[Any, ...]:
    """Return the fields of a graph of vertices of several types; see `InputGraph.from_types`.

    Raises: GraphError and PullError, where names or numbers do not fit.
    """
    if not isinstance(sizes, Mapping) or not sizes:
        got = f"sizes is {sizes!r:.60}"
        expected = "a dict of names of vertex types to numbers of vertices"
        raise GraphError.at(_WHERE, got, expected, "write sizes={'word': 5}")
    counts = {name: count_of(size, f"sizes[{name!r}]", _WHERE) for name, size in sizes.items()}
    if not isinstance(edges, Mapping):
        got = f"edges is a {type(edges).__name__}"
        expected = "a dict of (child type, relation, parent type) to pairs (child, parent)"
        raise GraphError.at(_WHERE, got, expected, "write {('word', 'before', 'word'): pairs}")
    first = dict(zip(counts, np.cumsum([0, *counts.values()]).tolist(), strict=False))
    relations: dict[str, int] = {}
    many: dict[tuple[str, str, str], int] = {}
    columns = [np.zeros((0, 3), INT32)]  # of each key its edges: child, parent and relation
    for key, given in edges.items():
        if not isinstance(key, tuple) or [type(x) for x in key] != [str] * 3:
            got, expected = f"edges of {key!r}", "names (child type, relation, parent type)"
            raise GraphError.at(_WHERE, got, expected, "name all three")
        ends = key[::2]
        for name in ends:
            if name not in counts:
                raise unknown_type("edges", name, list(counts))
        expected = "pairs (child, parent)"
        pairs = pairs_of(given, f"edges of {key}", "are", expected, _WHERE)
        wrong = (pairs < 0) | (pairs >= [counts[name] for name in ends])
        if wrong.any():
            at, end = divmod(int(np.argmax(wrong)), 2)
            got = f"edge {at} of {key} has the {('child', 'parent')[end]} {pairs[at, end]}"
            expected = f"there are {counts[ends[end]]} vertices of type {ends[end]!r}"
            raise GraphError.at(_WHERE, got, expected, "number vertices from 0 in each type")
        number = np.full(len(pairs), relations.setdefault(key[1], len(relations)))
        columns.append(np.column_stack([pairs + [first[name] for name in ends], number]))
        many[key] = len(pairs)
    child, parent, of_edge = np.concatenate(columns).T
    of_vertex = np.repeat(np.arange(len(counts)), list(counts.values()))
    child_ptr, order = by_parent(parent, len(of_vertex))
    numbers = own(of_vertex, INT32), own(of_edge[order], INT32)
    types = VertexTypes(tuple(counts), tuple(relations), *numbers)
    of_edges = ordered_pulls(_join_owned(many, edge_pulls, "edge"), order)
    return child_ptr, child[order], _join_owned(counts, pulls, "vertex"), types, of_edges


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
    names, relations, of_vertex, of_edge = zip(*typed, strict=True)
    joined, numbers = _join_numbers(names, of_vertex)
    relations, of_edges = _join_numbers(relations, of_edge)
    return VertexTypes(joined, relations, numbers, of_edges)


def _join_numbers(
    names: Sequence[tuple[str, ...]], numbers: Sequence[IntArray]
) -> tuple[tuple[str, ...], IntArray]:
    """Return all names, and the numbers one after another, as numbers of these names."""
    known = tuple(dict.fromkeys(itertools.chain(*names)))
    parts = [
        of if each == known[: len(each)] else np.array([known.index(x) for x in each], INT32)[of]
        for each, of in zip(names, numbers, strict=True)
    ]
    return known, own(np.concatenate(parts), INT32)
