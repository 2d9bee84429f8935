"""Read graphs from JSON lines: one graph a line. docs/guide/data.md has the schema in full."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Unpack

from vertexrt.data.collector import Collector
from vertexrt.data.columns import Examples, ReadOptions
from vertexrt.data.files import expanded, read_text
from vertexrt.errors import DataError, UsageError, VertexrtError, nearest
from vertexrt.graph import InputGraph

# The field that says how a line gives its structure -> fields that may come with it.
_FORMS = {
    "children": frozenset({"pulls"}),
    "chain": frozenset({"pulls"}),
    "vertices": frozenset({"edges", "features", "pulls"}),
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
    if read.sizes is None:
        collector.add(number, read.graph, read.pulls)
    else:
        collector.add_typed(number, read.graph, read.sizes, read.pulls)


class _Read(NamedTuple):
    """What a line holds: a graph, the sizes of its vertex types if it has any, and its pulls."""

    graph: InputGraph
    sizes: Mapping[str, int] | None
    pulls: Mapping[str, Any]


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
    _refuse_features(record, where)
    _check_count(record[form], where)
    try:
        graph = _BUILDERS[form](record, where)
    except VertexrtError as error:
        raise error.moved(where) from error
    pulls = record.get("pulls", {})
    if form != "types":
        _check_lists(pulls, "pulls", where)
        return _Read(graph, None, pulls)
    _check_named(pulls, "pulls", where)
    for name, given in pulls.items():
        if name not in record["types"]:
            known = f"the types are {', '.join(record['types'])}"
            action = "name one of these." + nearest(name, record["types"])
            raise DataError.at(where, f"pulls of the type '{name}'", known, action)
        _check_lists(given, f"pulls of '{name}'", where)
    return _Read(graph, record["types"], pulls)


def _children(record: dict[str, Any], where: str) -> InputGraph:
    return InputGraph.from_children(record["children"])


def _chain(record: dict[str, Any], where: str) -> InputGraph:
    return InputGraph.chain(record["chain"])


def _edges(record: dict[str, Any], where: str) -> InputGraph:
    return InputGraph.from_edges(record["vertices"], record.get("edges", []))


def _typed(record: dict[str, Any], where: str) -> InputGraph:
    edges: dict[tuple[str, str, str], Any] = {}
    for number, relation in enumerate(_relations(record, where)):
        what = f"relation {number}"
        _check_named(relation, what, where)
        _check_fields(relation, {*_RELATION, "features"}, where)
        _refuse_features(relation, where)
        missing = [name for name in _RELATION if name not in relation]
        if missing:
            got, expected = f"{what} has no '{missing[0]}'", f"expected {', '.join(_RELATION)}"
            raise DataError.at(where, got, expected, "add it")
        key = relation["child"], relation["relation"], relation["parent"]
        if not all(isinstance(name, str) for name in key):
            got = f"{what} has the names {key!r:.80}"
            raise DataError.at(where, got, "expected words", "correct them")
        if key in edges:
            got = f"{what} is {key} again"
            raise DataError.at(where, got, "expected each once", "join their pairs")
        edges[key] = relation["pairs"]
    return InputGraph.from_types(record["types"], edges)


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


def _refuse_features(record: dict[str, Any], where: str) -> None:
    if record.get("features"):
        expected = "features of edges are not supported yet"
        raise DataError.at(where, "features", expected, "leave them out")


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
