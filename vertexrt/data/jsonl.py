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

from vertexrt.data.columns import LARGEST, Examples, ReadOptions
from vertexrt.data.dataset import Vocabulary
from vertexrt.data.files import expanded, read_file
from vertexrt.data.records import Collector
from vertexrt.errors import DataError, UsageError
from vertexrt.graph import GraphBatch, InputGraph, PullValue, Rows
from vertexrt.plain_files import write_atomically

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
    collector = Collector(file, options)
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            collector.add(number, _read_record(line, collector.place(number)))
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
        collector.add(number, record)
    return collector.examples()


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
    values, of_edges = (
        _all_values(pulls, vocabularies or {}) for pulls in (batch.pulls, batch.edge_pulls)
    )
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
    text = json.dumps(record, ensure_ascii=False)
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in text)


def _all_values(pulls: Mapping[str, PullValue], vocabularies: Mapping[str, Vocabulary]) -> Values:
    for name, pull in pulls.items():
        table = pull.table if isinstance(pull, Rows) else pull
        if not (table <= LARGEST if table.dtype.kind == "i" else np.isfinite(table)).all():
            got = f"the pull '{name}' is not finite, or above {LARGEST}"
            raise DataError.at("write_jsonl", got, "expected what read_jsonl reads", "replace it")
    return {name: _values(pull, vocabularies.get(name)) for name, pull in pulls.items()}


def _values(pull: PullValue, vocabulary: Vocabulary | None) -> list[Any]:
    """Return the value of each vertex as JSON has it."""
    if isinstance(pull, Rows):
        table = _values(pull.table, vocabulary)
        if pull.index is None:
            return table
        return [table[row] if row >= 0 else None for row in pull.index.tolist()]
    if pull.dtype.kind == "f":
        return list(pull.tolist())
    if vocabulary is not None:
        return list(vocabulary.decode(pull.tolist()))
    return [None if number < 0 else number for number in pull.tolist()]


def _plain(batch: GraphBatch, values: Values, of_edges: Values) -> Iterable[dict[str, Any]]:
    child_ptr, child, ends = batch.child_ptr, batch.child, batch.graph_ptr.tolist()
    for first, end in pairwise(ends):
        slots = child[child_ptr[first] : child_ptr[end]]
        local = np.where(slots >= 0, slots - first, -1).tolist()
        at = (child_ptr[first : end + 1] - child_ptr[first]).tolist()
        children = [local[a:b] for a, b in pairwise(at)]
        record = {"children": children, "pulls": {n: v[first:end] for n, v in values.items()}}
        if of_edges:
            edges = slice(child_ptr[first], child_ptr[end])
            record["edge_pulls"] = {name: v[edges] for name, v in of_edges.items()}
        yield record


def _typed(batch: GraphBatch, values: Values, of_edges: Values) -> Iterable[dict[str, Any]]:
    types = batch.types
    assert types is not None
    of_vertex, names, child_ptr = types.of_vertex, types.names, batch.child_ptr
    pulled = [_of_members(values, of_vertex == number) for number in range(len(names))]
    # Of each slot, which of `keys` it is of: child type, relation and parent type; -1 if empty.
    parent = np.repeat(np.arange(batch.num_vertices, dtype=np.int32), np.diff(child_ptr))
    filled = np.flatnonzero(batch.child >= 0)
    columns = of_vertex[batch.child], types.of_edge, of_vertex[parent]
    found, key = np.unique(np.column_stack(columns)[filled], axis=0, return_inverse=True)
    key_of = np.full(len(batch.child), -1)
    key_of[filled] = key.reshape(-1)
    # A relation without an edge keeps its name, which a network may ask for.
    unused = set(range(len(types.relations))) - set(found[:, 1].tolist())
    keys = [
        {"child": names[c], "relation": types.relations[r], "parent": names[p]}
        for c, r, p in [*found.tolist(), *((0, r, 0) for r in sorted(unused))]
    ]
    pulled_by = [_of_members(of_edges, key_of == number) for number in range(len(keys))]
    number_of = np.empty(batch.num_vertices, np.int32)  # of each vertex: its number in its type
    for first, end in pairwise(batch.graph_ptr.tolist()):
        record: dict[str, Any] = {"types": {}, "relations": [], "pulls": {}}
        for number, (name, pulls) in enumerate(zip(names, pulled, strict=True)):
            vertices = first + np.flatnonzero(of_vertex[first:end] == number)
            number_of[vertices] = np.arange(len(vertices))
            record["types"][name] = len(vertices)
            if pulls:
                record["pulls"][name] = _picked(pulls, vertices)
        slots = slice(child_ptr[first], child_ptr[end])
        for number, (each, pulls) in enumerate(zip(keys, pulled_by, strict=True)):
            own = slots.start + np.flatnonzero(key_of[slots] == number)
            ends = np.stack([number_of[batch.child[own]], number_of[parent[own]]], axis=1)
            relation = {**each, "pairs": ends.tolist()}
            if pulls:
                relation["edge_pulls"] = _picked(pulls, own)
            record["relations"].append(relation)
        yield record


def _of_members(values: Values, members: npt.NDArray[np.bool_]) -> Values:
    """Return the pulls that one of some vertices or edges has."""
    has = {name: np.array([value is not None for value in v]) for name, v in values.items()}
    return {name: values[name] for name, present in has.items() if present[members].any()}


def _picked(values: Values, at: npt.NDArray[np.integer]) -> Values:
    return {name: [v[each] for each in at.tolist()] for name, v in values.items()}
