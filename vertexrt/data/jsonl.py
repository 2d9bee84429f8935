"""Read graphs from JSON lines: one graph a line. docs/guide/data.md has the schema in full."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Unpack

import numpy as np

from vertexrt.data.collector import Collector
from vertexrt.data.columns import Examples, ReadOptions
from vertexrt.data.files import expanded, read_text
from vertexrt.errors import DataError, UsageError, VertexrtError, nearest
from vertexrt.graph import InputGraph

# The field that says how a line gives its structure -> fields that may come with it.
_FORMS = {
    "children": frozenset({"edge_pulls", "pulls"}),
    "chain": frozenset({"edge_pulls", "pulls"}),
    "vertices": frozenset({"edges", "edge_pulls", "pulls"}),
    "types": frozenset({"relations", "pulls"}),
}
_MOST_VERTICES = 1 << 24  # of a line: a slip in a number must not take all memory
_RELATION = ("child", "relation", "parent", "pairs")


def read_jsonl(path: str | os.PathLike[str], **options: Unpack[ReadOptions]) -> Examples:
    """Read graphs from JSON lines; a file whose name ends in .gz is decompressed.

    Args:
        path: of the file, in UTF-8. Blank lines are skipped.
        options: how words become numbers: `vocabularies`, `labels`, `min_count`, `dtype`; see
            `ReadOptions`.
    Returns: the batch of all graphs, in the order of the file, and the vocabularies.
    Raises: DataError, GraphError or PullError with file and line, when a line is not as the schema
        says, a graph cannot be evaluated, or values do not fit each other.
    """
    file = expanded(path)
    collector = Collector(str(file), options)
    for line, text in enumerate(read_text(file).split("\n"), 1):
        if text.strip():
            add_record(collector, line, _read_record(text, collector.place(line)))
    return collector.examples()


def from_records(records: Iterable[Any], **options: Unpack[ReadOptions]) -> Examples:
    """Make a batch of graphs that are given as the lines of `read_jsonl` are, as dicts and lists.

    Args:
        records: each what `json.loads` returns of a line.
        options: as those of `read_jsonl`.
    Raises: as `read_jsonl` does, with the number of the record.
    """
    given: object = records
    if not isinstance(given, list | tuple | Iterator):
        got = f"a {type(given).__name__}"
        raise UsageError.at("from_records", got, "expected a list of dicts", "pass [{...}]")
    collector = Collector("from_records", options, "record")
    for number, record in enumerate(records):
        add_record(collector, number, record)
    return collector.examples()


def add_record(collector: Collector, number: int, record: object) -> None:
    """Add the graph of a record of the schema.

    Args:
        number: of its line, or its own.
    Raises: DataError, GraphError or PullError, when it is not as the schema says.
    """
    where = collector.place(number)
    if not isinstance(record, dict):
        got = f"a {type(record).__name__}"
        raise DataError.at(where, got, "expected an object", "write {...} for each graph")
    read = _read_graph(record, where)
    graph, edge_pulls = read.graph, _in_slot_order(read)
    if graph.edge_pulls:  # the numbers of edges have served
        graph = InputGraph(graph.child_ptr, graph.child, {}, graph.types)
    if read.sizes is None:
        collector.add(number, graph, read.pulls, edge_pulls)
        return
    for part in read.edge_pulls:
        if part.size:
            collector.require_same_edges(number, part.key, part.values)
    collector.add_typed(number, graph, read.sizes, read.pulls, edge_pulls)


class _EdgePulls(NamedTuple):
    """Pulls of the edges of a relation, or of all edges of a graph without types.

    Attributes:
        key: child type, relation, parent type.
        size: number of edges.
        values: by name, one for each edge in the order given.
    """

    key: tuple[str, ...]
    size: int
    values: dict[str, list[Any]]


class _Structure(NamedTuple):
    """A graph, and the pulls of its edges.

    Where edges were not given in the order of `child`, the graph has an edge pull that says which
    of those given each is.
    """

    graph: InputGraph
    edge_pulls: Sequence[_EdgePulls]


class _Read(NamedTuple):
    """What a line holds: a graph, the sizes of its vertex types if it has any, and its pulls."""

    graph: InputGraph
    sizes: Mapping[str, int] | None
    pulls: Mapping[str, Any]
    edge_pulls: Sequence[_EdgePulls]


_AT = "at"  # the edge pull that numbers edges as they were given


def _in_slot_order(read: _Read) -> dict[str, list[Any]]:
    """Return the pulls of all edges in the order of `child`, None where there is none."""
    total = sum(part.size for part in read.edge_pulls)
    found: dict[str, list[Any]] = {}
    first = 0
    for part in read.edge_pulls:
        for name, values in part.values.items():
            found.setdefault(name, [None] * total)[first : first + part.size] = values
        first += part.size
    at: Any = read.graph.edge_pulls.get(_AT)
    if at is None or total == 0:  # no numbers of no edges
        return found
    return {name: [values[edge] for edge in at.tolist()] for name, values in found.items()}


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise DataError.at("", f"the name '{twice}' twice", "expected each name once", "rename one")
    return record


_DECODER = json.JSONDecoder(object_pairs_hook=_once)


def _read_record(text: str, where: str) -> object:
    """Return what the JSON of a line says."""
    try:
        record: object = _DECODER.decode(text)
    except DataError as error:
        raise error.moved(where) from None
    except json.JSONDecodeError as error:
        got = f"{error.msg} at column {error.colno}"
        raise DataError.at(where, got, "expected one JSON object", "correct the line") from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits; deep nesting
        raise DataError.at(
            where, f"no JSON that can be read: {error}", "expected a JSON object", "correct it"
        ) from error
    return record


def _read_graph(record: dict[str, Any], where: str) -> _Read:
    forms = [name for name in _FORMS if name in record]
    if len(forms) != 1:
        got = f"the fields {', '.join(record) or '(none)'}"
        expected = f"expected one of {', '.join(_FORMS)}"
        raise DataError.at(where, got, expected, "say how the graph is given")
    form = forms[0]
    _check_fields(record, {form, "id"} | _FORMS[form], where)
    _check_count(record[form], where)
    try:
        graph, edge_pulls = _BUILDERS[form](record, where)
    except VertexrtError as error:
        raise error.moved(where) from error
    pulls = record.get("pulls", {})
    if form != "types":
        _check_lists(pulls, "pulls", where)
        return _Read(graph, None, pulls, edge_pulls)
    _check_named(pulls, "pulls", where)
    for name, given in pulls.items():
        if name not in record["types"]:
            known = f"the types are {', '.join(record['types'])}"
            action = "name one of these." + nearest(name, record["types"])
            raise DataError.at(where, f"pulls of the type '{name}'", known, action)
        _check_lists(given, f"pulls of '{name}'", where)
    return _Read(graph, record["types"], pulls, edge_pulls)


def _children(record: dict[str, Any], where: str) -> _Structure:
    return _in_order(InputGraph.from_children(record["children"]), record, where)


def _chain(record: dict[str, Any], where: str) -> _Structure:
    return _in_order(InputGraph.chain(record["chain"]), record, where)


def _in_order(graph: InputGraph, record: dict[str, Any], where: str) -> _Structure:
    return _Structure(graph, [_edge_pulls(record, (), graph.num_edges, where)])


def _edges(record: dict[str, Any], where: str) -> _Structure:
    given = record.get("edges", [])
    edge_pulls = _edge_pulls(record, (), len(given) if isinstance(given, list) else 0, where)
    number = {_AT: np.arange(edge_pulls.size)} if edge_pulls.values else None
    graph = InputGraph.from_edges(record["vertices"], given, None, number)
    return _Structure(graph, [edge_pulls])


def _edge_pulls(record: dict[str, Any], key: tuple[str, ...], size: int, where: str) -> _EdgePulls:
    """Return the pulls that a graph, or a relation, gives of its edges."""
    values = record.get("edge_pulls", {})
    _check_lists(values, "edge_pulls", where)
    for name, given in values.items():
        if len(given) != size:
            got = f"the edge pull '{name}' has {len(given)} values"
            raise DataError.at(where, got, f"expected one for each of {size} edges", "correct it")
    return _EdgePulls(key, size, values)


def _typed(record: dict[str, Any], where: str) -> _Structure:
    edges: dict[tuple[str, str, str], Any] = {}
    edge_pulls: list[_EdgePulls] = []
    for number, relation in enumerate(_relations(record, where)):
        key = _key_of(relation, f"relation {number}", where)
        if key in edges:
            got = f"relation {number} is {key} again"
            raise DataError.at(where, got, "expected each once", "join their pairs")
        pairs = edges[key] = relation["pairs"]
        size = len(pairs) if isinstance(pairs, list) else 0
        edge_pulls.append(_edge_pulls(relation, key, size, where))
    numbers = _numbered(edge_pulls) if any(part.values for part in edge_pulls) else None
    return _Structure(InputGraph.from_types(record["types"], edges, None, numbers), edge_pulls)


def _key_of(relation: Any, what: str, where: str) -> tuple[str, str, str]:
    """Return child type, relation and parent type of an object with the fields of a relation."""
    _check_named(relation, what, where)
    _check_fields(relation, {*_RELATION, "edge_pulls"}, where)
    missing = [name for name in _RELATION if name not in relation]
    if missing:
        got, expected = f"{what} has no '{missing[0]}'", f"expected {', '.join(_RELATION)}"
        raise DataError.at(where, got, expected, "add it")
    child, name, parent = (relation[field] for field in _RELATION[:3])
    if not all(isinstance(each, str) for each in (child, name, parent)):
        got = f"{what} has the names {(child, name, parent)!r:.80}"
        raise DataError.at(where, got, "expected words", "correct them")
    return child, name, parent


def _numbered(edge_pulls: Sequence[_EdgePulls]) -> dict[Any, dict[str, Any]]:
    """Return edge pulls that number the edges of all relations, one after another."""
    first = np.cumsum([0, *(part.size for part in edge_pulls)])
    return {
        part.key: {_AT: np.arange(at, at + part.size)}
        for part, at in zip(edge_pulls, first, strict=False)
    }


_BUILDERS = {"children": _children, "chain": _chain, "vertices": _edges, "types": _typed}


def _relations(record: dict[str, Any], where: str) -> Iterator[Any]:
    relations = record.get("relations", [])
    if not isinstance(relations, list):
        got = f"relations is {relations!r:.60}"
        raise DataError.at(where, got, "expected a list of objects", "write [{...}]")
    return iter(relations)


def _check_fields(record: dict[str, Any], known: set[str], where: str) -> None:
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
