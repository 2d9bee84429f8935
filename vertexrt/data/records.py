"""Graphs as records, which every reader makes: dicts and lists as a line of JSON has them.

docs/guide/data.md has the schema in full. A record says how its graph is given (children, a chain,
edges, or types with relations) and has values for each vertex and edge; what is collected of all
records of a file becomes one batch.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from vertexrt.data.columns import Columns, Examples, ReadOptions, checked
from vertexrt.errors import DataError, VertexrtError, nearest
from vertexrt.graph import GraphBatch, InputGraph

# The field that says how a record gives its structure -> fields that may come with it.
_FORMS = {
    "children": ("edge_pulls", "pulls"),
    "chain": ("edge_pulls", "pulls"),
    "vertices": ("edges", "edge_pulls", "pulls"),
    "types": ("relations", "pulls"),
}
_MOST_VERTICES = 1 << 24  # of a line: a slip in a number must not take all memory
_RELATION = ("child", "relation", "parent", "pairs")
Key = tuple[str, str, str]
_ONE_TYPE = "", "", ""  # the key of edges where vertices have no types


class _Relation(NamedTuple):
    """The edges of a relation, or all edges of a graph without types.

    Attributes:
        key: child type, relation, parent type.
        pairs: (child, parent) of each; None, where they come in the order of `child`.
        size: number of edges.
        pulls: by name, one for each edge in the order given.
    """

    key: Key
    pairs: Any
    size: int
    pulls: dict[str, list[Any]]


class Collector:
    """Collect the graphs of a file and the values of their vertices and edges.

    Args:
        file: name for error messages.
        options: of the reader.
        unit: what a graph stands in, which messages number.
    Raises: UsageError, when an option is unknown or has no such value.
    """

    def __init__(self, file: str, options: ReadOptions, unit: str = "line") -> None:
        self._options = checked(options)
        self._graphs: list[InputGraph] = []
        self._vertices = Columns(file, unit, "pull")
        self._edges = Columns(file, unit, "edge pull")
        self.place = self._vertices.place

    def add(self, number: int, record: object) -> None:
        """Add the graph of a record.

        Args:
            number: of its line, or its own.
        Raises: DataError, GraphError or PullError, when it is not as the schema says, or does not
            fit the graphs before it.
        """
        where = self.place(number)
        if not isinstance(record, dict):
            got = f"a {type(record).__name__}"
            raise DataError.at(where, got, "expected an object", "write {...} for each graph")
        forms = [name for name in _FORMS if name in record]
        if len(forms) != 1:
            got = f"the fields {', '.join(record) or '(none)'}"
            expected = f"expected one of {', '.join(_FORMS)}"
            raise DataError.at(where, got, expected, "say how the graph is given")
        form = forms[0]
        _check_fields(record, (form, "id", *_FORMS[form]), where)
        _check_count(record[form], where)
        try:
            graph, relations = _build(record, form, where)
        except VertexrtError as error:
            raise error.moved(where) from error
        pulls, sizes = record.get("pulls", {}), {"": graph.num_vertices}
        typed = form == "types"
        if typed:
            sizes = record["types"]
            _check_named(pulls, "pulls", where)
            for name, given in pulls.items():
                if name not in sizes:
                    known = f"the types are {', '.join(sizes)}"
                    action = "name one of these." + nearest(name, sizes)
                    raise DataError.at(where, f"pulls of the type '{name}'", known, action)
                _check_lists(given, f"pulls of '{name}'", where)
        else:
            _check_lists(pulls, "pulls", where)
            pulls = {"": pulls}
        first: dict[str, int] = {}
        end = 0
        for name, size in sizes.items():
            first[name] = end
            if size or name in pulls:
                given = pulls.get(name, {})
                owner = f" of the type '{name}'" if typed else ""
                self._vertices.require_same(number, owner, given)
                self._vertices.add(number, self._vertices.count + end, given, size)
            end += size
        for relation in relations:
            if relation.size:
                owner = f" of {relation.key}" if typed else ""
                self._edges.require_same(number, owner, relation.pulls)
        if self._graphs and typed == (self._graphs[0].types is None):
            got = f"{'' if typed else 'no '}vertex types"
            expected = f"the {self._vertices.unit}s before differ"
            action = "give all graphs vertex types, or none"
            raise DataError.at(where, got, expected, action)
        of_edges = _in_slot_order(relations, first)
        self._edges.add(number, self._edges.count, of_edges, graph.num_edges)
        self._graphs.append(graph)
        self._vertices.count += graph.num_vertices
        self._edges.count += graph.num_edges

    def examples(self) -> Examples:
        """Return the batch of all graphs with their pulls, and the vocabularies.

        Raises: DataError, when there is no graph, or values do not fit each other.
        """
        file = self._vertices.file
        if not self._graphs:
            raise DataError.at(file, "no graph", "expected at least one", "add examples")
        for name in self._edges.by_name.keys() & self._vertices.by_name.keys():
            got = f"'{name}' is a pull and an edge pull"
            raise DataError.at(file, got, "a name for each", "rename one")
        batch = GraphBatch.from_graphs(self._graphs)
        given = self._options["vocabularies"] or {}
        vocabularies = {name: vocabulary for name, vocabulary in given.items() if vocabulary}
        pulls, of_edges = (
            {
                name: column.array(self._options, vocabularies)
                for name, column in columns.by_name.items()
            }
            for columns in (self._vertices, self._edges)
        )
        structure = batch.graph_ptr, batch.child_ptr, batch.child
        return Examples(GraphBatch(*structure, pulls, batch.types, of_edges), vocabularies)


def _build(record: dict[str, Any], form: str, where: str) -> tuple[InputGraph, list[_Relation]]:
    """Return the graph of a record, and its edges."""
    given = record[form]
    if form in ("children", "chain"):
        make = InputGraph.from_children if form == "children" else InputGraph.chain
        graph = make(given)
        return graph, [_relation(record, _ONE_TYPE, None, graph.num_edges, where)]
    if form == "vertices":
        pairs = record.get("edges", [])
        relation = _relation(record, _ONE_TYPE, pairs, _length(pairs), where)
        return InputGraph.from_edges(given, pairs), [relation]
    relations: dict[Key, _Relation] = {}
    listed = record.get("relations", [])
    if not isinstance(listed, list):
        got = f"relations is {listed!r:.60}"
        raise DataError.at(where, got, "expected a list of objects", "write [{...}]")
    for number, each in enumerate(listed):
        key = _key_of(each, f"relation {number}", where)
        if key in relations:
            got = f"relation {number} is {key} again"
            raise DataError.at(where, got, "expected each once", "join their pairs")
        pairs = each["pairs"]
        relations[key] = _relation(each, key, pairs, _length(pairs), where)
    edges = {key: relation.pairs for key, relation in relations.items()}
    return InputGraph.from_types(given, edges), list(relations.values())


def _length(pairs: object) -> int:
    return len(pairs) if isinstance(pairs, list) else 0


def _relation(record: dict[str, Any], key: Key, pairs: Any, size: int, where: str) -> _Relation:
    """Return edges, with the pulls that a graph, or a relation, gives of them."""
    values = record.get("edge_pulls", {})
    _check_lists(values, "edge_pulls", where)
    for name, given in values.items():
        if len(given) != size:
            got = f"the edge pull '{name}' has {len(given)} values"
            raise DataError.at(where, got, f"expected one for each of {size} edges", "correct it")
    return _Relation(key, pairs, size, values)


def _key_of(relation: Any, what: str, where: str) -> Key:
    """Return child type, relation and parent type of an object with the fields of a relation."""
    _check_named(relation, what, where)
    _check_fields(relation, (*_RELATION, "edge_pulls"), where)
    missing = [name for name in _RELATION if name not in relation]
    if missing:
        got, expected = f"{what} has no '{missing[0]}'", f"expected {', '.join(_RELATION)}"
        raise DataError.at(where, got, expected, "add it")
    child, name, parent = (relation[field] for field in _RELATION[:3])
    if not all(isinstance(each, str) for each in (child, name, parent)):
        got = f"{what} has the names {(child, name, parent)!r:.80}"
        raise DataError.at(where, got, "expected words", "correct them")
    return child, name, parent


def _in_slot_order(
    relations: Sequence[_Relation], first: Mapping[str, int]
) -> dict[str, list[Any]]:
    """Return the pulls of all edges in the order of `child`, None where there is none.

    Args:
        first: vertex of each type.
    """
    total = sum(relation.size for relation in relations)
    found: dict[str, list[Any]] = {}
    parents: list[int] = []
    at = 0
    for relation in relations:
        for name, values in relation.pulls.items():
            found.setdefault(name, [None] * total)[at : at + relation.size] = values
        at += relation.size
        pairs = relation.pairs[: relation.size] if relation.pairs is not None else ()
        parents += [first[relation.key[2]] + parent for _, parent in pairs]
    if not parents:
        return found
    order = np.argsort(parents, kind="stable").tolist()
    return {name: [values[edge] for edge in order] for name, values in found.items()}


def _check_fields(record: dict[str, Any], known: Collection[str], where: str) -> None:
    for name in record:
        if name not in known:
            expected = f"the fields are {', '.join(sorted(known))}"
            raise DataError.at(
                where, f"the field '{name}'", expected, "correct it." + nearest(name, known)
            )


def _check_count(given: object, where: str) -> None:
    """Refuse more vertices than a line is likely to mean."""
    for count in given.values() if isinstance(given, dict) else [given]:
        if isinstance(count, int) and count > _MOST_VERTICES:
            expected = f"expected at most {_MOST_VERTICES} in a graph"
            raise DataError.at(where, f"{count} vertices", expected, "correct the number")


def _check_named(given: object, what: str, where: str) -> None:
    if not isinstance(given, dict):
        got = f"{what} is {given!r:.60}"
        raise DataError.at(where, got, "expected an object of names", 'write {"name": ...}')


def _check_lists(given: object, what: str, where: str) -> None:
    _check_named(given, what, where)
    assert isinstance(given, dict)
    for name, values in given.items():
        if not isinstance(values, list):
            got = f"{what} gives {values!r:.60} as '{name}'"
            raise DataError.at(where, got, "expected a list, a value a vertex", "write [...]")
