"""Read and write graphs as JSON lines: a record a line, see `records`."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from vertexrt.data.dataset import Vocabulary
from vertexrt.data.files import expanded, read_file
from vertexrt.data.records import LARGEST, Examples, ReadOptions, collect
from vertexrt.errors import DataError, UsageError
from vertexrt.graph import GraphBatch, InputGraph, Pulled, PullValue
from vertexrt.graph.networks import values_of
from vertexrt.plain_files import write_atomically

Mask = npt.NDArray[np.bool_]
Values = dict[str, list[Any]]  # by pull: a value for each vertex of the batch, None for none


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
    file, text = read_file(path)
    lines = ((number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip())
    return collect(file, lines, options, make=_read_record)


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
    return collect("from_records", enumerate(records), options, "record")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise DataError.at("", f"the name '{twice}' twice", "expected each name once", "rename one")
    return record


def _read_record(text: str) -> object:
    try:
        record: object = json.loads(text, object_pairs_hook=_once)
    except json.JSONDecodeError as error:
        got = f"{error.msg} at column {error.colno}"
        raise DataError.at("", got, "expected one JSON object", "correct the line") from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits; deep nesting
        got = f"no JSON that can be read: {error}"
        raise DataError.at("", got, "expected a JSON object", "correct it") from error
    return record


def write_jsonl(
    path: str | os.PathLike[str],
    graphs: GraphBatch | Iterable[InputGraph],
    vocabularies: Mapping[str, Vocabulary] | None = None,
) -> None:
    """Write one graph a line; a file whose name ends in .gz is compressed.

    Args:
        path: of the file, which is replaced in one step.
        graphs: a batch, or graphs.
        vocabularies: by pull; the numbers of these pulls are written as words.
    Raises: DataError, when the file cannot be written, a number stands for no word, or is none that
        `read_jsonl` reads; GraphError and PullError, as `GraphBatch.from_graphs` does.
    """
    batch = graphs if isinstance(graphs, GraphBatch) else GraphBatch.from_graphs(graphs)
    values, of_edges = (_values(x, vocabularies or {}) for x in (batch.pulls, batch.edge_pulls))
    write = _plain if batch.types is None else _typed
    content = "".join(f"{line_of(record)}\n" for record in write(batch, values, of_edges)).encode()
    file = expanded(path)
    try:
        write_atomically(file, gzip.compress(content) if file.suffix == ".gz" else content)
    except OSError as error:
        got = f"cannot be written: {error.strerror}"
        raise DataError.at(str(file), got, "a file that may be written", "give another") from error


def line_of(record: object) -> str:
    """Return a line of JSON; what does not print, such as half of a surrogate pair, is escaped."""
    text = json.dumps(record, ensure_ascii=False, default=np.ndarray.tolist)
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in text)


def _values(pulls: Mapping[str, PullValue], vocabularies: Mapping[str, Vocabulary]) -> Values:
    found: Values = {}
    for name, pull in pulls.items():
        table = pull.values if isinstance(pull, Pulled) else pull
        if not (table <= LARGEST if table.dtype.kind == "i" else np.isfinite(table)).all():
            got = f"the pull '{name}' is not finite, or above {LARGEST}"
            raise DataError.at("write_jsonl", got, "expected what read_jsonl reads", "replace it")
        values = found[name] = values_of(pull)
        if name in vocabularies and table.dtype.kind == "i":
            numbers = (-1 if value is None else value for value in values)
            found[name] = list(vocabularies[name].decode(numbers))
    return found


def _plain(batch: GraphBatch, values: Values, of_edges: Values) -> Iterable[dict[str, Any]]:
    child_ptr, child = batch.child_ptr.tolist(), batch.child.tolist()
    for first, end in pairwise(batch.graph_ptr.tolist()):
        edges = slice(child_ptr[first], child_ptr[end])
        children = [
            [each - first if each >= 0 else -1 for each in child[a:b]]
            for a, b in pairwise(child_ptr[first : end + 1])
        ]
        record = {"children": children, "pulls": {n: v[first:end] for n, v in values.items()}}
        if of_edges:
            record["edge_pulls"] = {name: v[edges] for name, v in of_edges.items()}
        yield record


def _typed(batch: GraphBatch, values: Values, of_edges: Values) -> Iterable[dict[str, Any]]:
    types = batch.types
    assert types is not None
    of_vertex, names, child_ptr = types.of_vertex, types.names, batch.child_ptr
    parent = np.repeat(np.arange(batch.num_vertices, dtype=np.int32), np.diff(child_ptr))
    # What each slot is of: child type, relation and parent type; -1 if empty.
    keys = np.stack([of_vertex[batch.child], types.of_edge, of_vertex[parent]], axis=1)
    keys[batch.child < 0] = -1
    found = [key for key in np.unique(keys, axis=0).tolist() if key[0] >= 0]
    # A relation without an edge keeps its name, which a network may ask for.
    unused = set(range(len(types.relations))) - {relation for _, relation, _ in found}
    relations = [
        (
            {"child": names[key[0]], "relation": types.relations[key[1]], "parent": names[key[2]]},
            *_members((keys == key).all(axis=1), of_edges),
        )
        for key in [*found, *([0, relation, 0] for relation in sorted(unused))]
    ]
    owners = [(name, *_members(of_vertex == n, values)) for n, name in enumerate(names)]
    number_of = np.empty(batch.num_vertices, np.int32)  # of each vertex: its number in its type
    for first, end in pairwise(batch.graph_ptr.tolist()):
        record: dict[str, Any] = {"types": {}, "relations": [], "pulls": {}}
        for name, has, pulls in owners:
            vertices = first + np.flatnonzero(has[first:end])
            number_of[vertices] = np.arange(len(vertices))
            record["types"][name] = len(vertices)
            if pulls:
                record["pulls"][name] = _picked(pulls, vertices)
        slots = slice(child_ptr[first], child_ptr[end])
        for fields, has, pulls in relations:
            own = slots.start + np.flatnonzero(has[slots])
            ends = np.stack([number_of[batch.child[own]], number_of[parent[own]]], axis=1)
            relation = {**fields, "pairs": ends.tolist()}
            if pulls:
                relation["edge_pulls"] = _picked(pulls, own)
            record["relations"].append(relation)
        yield record


def _members(has: Mask, values: Values) -> tuple[Mask, Values]:
    """Return which vertices, or edges, are of a type, and the pulls that one of them has."""
    at = np.flatnonzero(has).tolist()
    owned = {n: v for n, v in values.items() if any(v[each] is not None for each in at)}
    return has, owned


def _picked(values: Values, at: npt.NDArray[np.integer]) -> Values:
    return {name: [v[each] for each in at.tolist()] for name, v in values.items()}
