"""Types of vertices and named relations: which function a vertex evaluates, what an edge is for."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from types import NoneType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from vertexrt.errors import GraphError, PullError, message, nearest
from vertexrt.graph.checks import count_of, int32_array, shape_of
from vertexrt.graph.compiled import take_rows
from vertexrt.graph.owned import INT32, own, read_array, unwritten
from vertexrt.graph.pulls import Pulled, ordered_pulls

IntArray = npt.NDArray[np.int32]

_WHERE = "input graph"


class TypedOrigin:
    """The typed batch that graphs were taken from: what all its graphs have, any of them have.

    Attributes:
        child_ptr, child, of_vertex, of_edge: of the batch.
        known: what was found of it: by the identity of a table of rules, that table, which stays
            alive by it, and whether all children lie in its order.
    """

    __slots__ = ("child", "child_ptr", "known", "of_edge", "of_vertex")

    def __init__(
        self, child_ptr: IntArray, child: IntArray, of_vertex: IntArray, of_edge: IntArray
    ) -> None:
        self.child_ptr, self.child = child_ptr, child
        self.of_vertex, self.of_edge = of_vertex, of_edge
        self.known: dict[int, tuple[object, bool]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        """Go nowhere: a batch for another process is not to bring all others along."""
        return NoneType, ()


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


class TakenTypes(VertexTypes):
    """Types of graphs that were taken from a batch, which is their `origin`."""

    origin: TypedOrigin


def origin_of(types: VertexTypes) -> TypedOrigin | None:
    """Return the batch that graphs were taken from, if they were."""
    return types.origin if isinstance(types, TakenTypes) else None


def find_origin(
    types: VertexTypes | None, child_ptr: IntArray, child: IntArray
) -> TypedOrigin | None:
    """Return the origin of what is taken from a batch; None, where it has no types."""
    if types is None:
        return None
    return origin_of(types) or TypedOrigin(child_ptr, child, types.of_vertex, types.of_edge)


def take_types(
    types: VertexTypes | None,
    origin: TypedOrigin | None,
    of_vertex: IntArray,
    edges: int,
    ptr: IntArray,
    ids: npt.NDArray[np.int64],
) -> VertexTypes | None:
    """Return the types of the graphs named.

    Args:
        types, origin: of the batch that they are taken from.
        of_vertex: of their vertices; edges: how many they have.
        ptr: [graphs + 1], the first edge of each.
    """
    if types is None or origin is None:
        return None
    of_edge = unwritten(edges, INT32)
    take_rows(of_edge, types.of_edge, ptr, ids)
    taken = TakenTypes(types.names, types.relations, of_vertex, of_edge)
    taken.origin = origin
    return taken


class TypedParts(NamedTuple):
    """What `InputGraph.from_types` makes of its arguments: the fields of a graph."""

    child_ptr: IntArray
    child: IntArray
    pulls: dict[str, Any]
    types: VertexTypes
    edge_pulls: dict[str, Any]


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
    pulls: Mapping[str, Mapping[str, Any]],
    edge_pulls: Mapping[tuple[str, str, str], Mapping[str, Any]],
) -> TypedParts:
    """Put vertices of several types into one graph, type after type; see `from_types`.

    Raises: GraphError and PullError, where names or numbers do not fit.
    """
    if not isinstance(sizes, Mapping) or not sizes:
        got = f"sizes is {sizes!r:.60}"
        expected = "a dict of names of vertex types to numbers of vertices"
        raise GraphError.at(_WHERE, got, expected, "write sizes={'word': 5}")
    names = tuple(sizes)
    counts = [count_of(sizes[name], f"sizes[{name!r}]", _WHERE) for name in names]
    first = dict(zip(names, np.cumsum([0, *counts[:-1]]).tolist(), strict=True))
    total = sum(counts)
    of_vertex = np.repeat(np.arange(len(names), dtype=np.int32), counts)
    by_name = dict(zip(names, counts, strict=True))
    child, parent, relations, of_edge, many = _read_edges(by_name, first, edges)
    order = np.argsort(parent, kind="stable")
    child_ptr = np.cumsum(np.concatenate([[0], np.bincount(parent, minlength=total)]))
    types = VertexTypes(names, relations, own(of_vertex, INT32), own(of_edge[order], INT32))
    joined = _join_pulls(by_name, first, pulls)
    begins = dict(zip(many, np.cumsum([0, *many.values()]).tolist(), strict=False))
    of_edges = _join_pulls(many, begins, edge_pulls, "edges")
    return TypedParts(
        child_ptr, child[order], joined, types, ordered_pulls(of_edges, order, _WHERE)
    )


def _read_edges(
    counts: Mapping[str, int], first: Mapping[str, int], edges: object
) -> tuple[IntArray, IntArray, tuple[str, ...], IntArray, dict[tuple[str, str, str], int]]:
    """Return child and parent of all edges in the graph's numbers, relations, and that of each.

    And how many edges there are of each key, in order.
    """
    if not isinstance(edges, Mapping):
        got = f"edges is a {type(edges).__name__}"
        expected = "a dict of (child type, relation, parent type) to pairs (child, parent)"
        raise GraphError.at(_WHERE, got, expected, "write {('word', 'before', 'word'): pairs}")
    relations: dict[str, int] = {}
    many: dict[tuple[str, str, str], int] = {}
    none = np.zeros(0, np.int32)
    children, parents, numbers = [none], [none], [none]
    for key, given in edges.items():
        if not isinstance(key, tuple) or [type(x) for x in key] != [str] * 3:
            got, expected = f"edges of {key!r}", "names (child type, relation, parent type)"
            raise GraphError.at(_WHERE, got, expected, "name all three")
        source, relation, target = key
        for name in (source, target):
            if name not in counts:
                raise unknown_type("edges", name, list(counts))
        pairs = _read_pairs(key, given, counts[source], counts[target])
        many[key] = len(pairs)
        number = relations.setdefault(relation, len(relations))
        children.append(pairs[:, 0] + np.int32(first[source]))
        parents.append(pairs[:, 1] + np.int32(first[target]))
        numbers.append(np.full(len(pairs), number, np.int32))
    child, parent, of_edge = (np.concatenate(x) for x in (children, parents, numbers))
    return child, parent, tuple(relations), of_edge, many


def _read_pairs(key: tuple[str, str, str], given: Any, sources: int, targets: int) -> IntArray:
    array = read_array(given)
    if isinstance(array, str) or (array.size and array.shape[1:] != (2,)):
        got = array if isinstance(array, str) else f"an array {shape_of(array)}"
        text = message(
            _WHERE, f"edges of {key} are {got}", "pairs (child, parent)", "list the pairs"
        )
        raise GraphError(text)
    pairs: IntArray = int32_array(array.reshape(-1), f"edges of {key}", _WHERE).reshape(-1, 2)
    for column, (what, count) in enumerate((("child", sources), ("parent", targets))):
        wrong = (pairs[:, column] < 0) | (pairs[:, column] >= count)
        if wrong.any():
            at = int(np.argmax(wrong))
            got = f"edge {at} of {key} has the {what} {pairs[at, column]}"
            expected = f"there are {count} vertices of type {key[2 * column]!r}"
            raise GraphError.at(_WHERE, got, expected, "number vertices from 0 in each type")
    return pairs


class _Given(NamedTuple):
    """What one type gives of a pull: for how many vertices, from which vertex of the graph on.

    Or what the edges of one key give: for how many of them, from which on.
    """

    owner: Any
    first: int
    size: int
    value: Any
    each: str = "vertices"


# How users give what vertices or edges pull: the argument, what it is, and an example.
_FORMS = {
    "vertices": (
        "pulls",
        "a dict of vertex types to dicts of arrays by name",
        "write pulls={'word': {'label': labels}}",
    ),
    "edges": (
        "edge_pulls",
        "a dict of the keys of edges to dicts of arrays by name",
        "write edge_pulls={('word', 'before', 'word'): {'weight': weights}}",
    ),
}


def _join_pulls(
    counts: Mapping[Any, int], first: Mapping[Any, int], pulls: object, each: str = "vertices"
) -> dict[str, Any]:
    """Return pulls over all vertices: absent where a type does not give one; or those of edges."""
    if not isinstance(pulls, Mapping) or not all(isinstance(x, Mapping) for x in pulls.values()):
        name, expected, action = _FORMS[each]
        raise PullError.at(_WHERE, f"{name} is {pulls!r:.60}", expected, action)
    by_name: dict[str, list[_Given]] = {}
    for owner, given in pulls.items():
        if owner not in counts:
            raise _unknown_owner(owner, each, list(counts))
        for name, value in given.items():
            part = _Given(owner, first[owner], counts[owner], value, each)
            by_name.setdefault(name, []).append(part)
    total = sum(counts.values())
    return {name: _join_pull(name, total, parts) for name, parts in by_name.items()}


def _unknown_owner(owner: Any, each: str, known: Sequence[Any]) -> GraphError:
    if each == "vertices":
        return unknown_type("pulls", owner, known)
    got = f"edge_pulls name the edges {owner!r}"
    expected = f"edges are given of {', '.join(map(str, known)) or 'none'}"
    return GraphError.at(_WHERE, got, expected, "name the key of some edges")


def _join_pull(name: str, total: int, parts: Sequence[_Given]) -> Any:
    """Join what several types pull under one name."""
    index = np.full(total, -1, np.int32)
    tables: list[npt.NDArray[Any]] = []
    for part in parts:
        table, at = _read_pull(name, part)
        if table is not None:
            at = np.where(at >= 0, at + sum(map(len, tables)), -1)
            tables += [table] if part.size else []
        index[part.first : part.first + part.size] = at
    there = [part for part in parts if part.size]
    if not there:  # of no vertices: any dtype and shape
        return Pulled(np.zeros(0), index)
    if not tables:
        return index
    if len(tables) < len(there) or len({table.shape[1:] for table in tables}) > 1:
        got = f"{name!r} of {', '.join(str(p.owner) for p in parts)} differs in dtype or shape"
        raise PullError.at(_WHERE, got, "one dtype and shape for each name", "rename one")
    return Pulled(tables[0] if len(tables) == 1 else np.concatenate(tables), index)


def _read_pull(name: str, part: _Given) -> tuple[npt.NDArray[Any] | None, IntArray]:
    """Return a table, None for whole numbers, and the row (or the number) of each vertex."""
    given = part.value
    if isinstance(given, Pulled):
        index = given.index
        at = np.arange(len(given.values), dtype=np.int32) if index is None else index
        _check_length(name, part, len(at))
        return given.values, at
    array = read_array(given)
    if isinstance(array, str) or not array.ndim:
        raise _misfit(name, part, array if isinstance(array, str) else "no rows")
    _check_length(name, part, len(array))
    if array.dtype.kind in "iu":
        return None, int32_array(array, f"{name!r} of {part.owner!r}", _WHERE)
    return array, np.arange(part.size, dtype=np.int32)


def _check_length(name: str, part: _Given, length: int) -> None:
    if length != part.size:
        raise _misfit(name, part, f"{length} values")


def _misfit(name: str, part: _Given, got: str) -> PullError:
    expected = f"an array with a row for each of {part.size} {part.each}"
    return PullError.at(_WHERE, f"{name!r} of {part.owner!r} has {got}", expected, "correct it")


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
    _check_numbers("of_vertex", of_vertex, vertices, given.names, where)
    _check_numbers("of_edge", of_edge, slots, given.relations, where)
    return VertexTypes(tuple(given.names), tuple(given.relations), of_vertex, of_edge)


def _check_numbers(
    what: str, numbers: IntArray, length: int, names: Sequence[str], where: str
) -> None:
    wrong = (numbers < 0) | (numbers >= len(names))
    if len(numbers) != length or wrong.any():
        got = f"types.{what} has {len(numbers)} numbers, {int(wrong.sum())} of no name"
        expected = f"{length} numbers in 0..{len(names) - 1}"
        raise GraphError.at(where, got, expected, "use InputGraph.from_types")


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
    parts = [_renumbered(numbers, own_names, names) for own_names, numbers in several]
    return names, own(np.concatenate(parts), INT32)


def _renumbered(numbers: IntArray, old: Sequence[str], new: Sequence[str]) -> IntArray:
    """Return numbers of names as those of another list, which has all of them."""
    if tuple(old) == tuple(new)[: len(old)]:
        return numbers
    return np.array([new.index(name) for name in old], np.int32)[numbers]
