"""Write graphs as JSON lines, in the schema that `read_jsonl` reads."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from vertexrt.data.columns import LARGEST
from vertexrt.data.dataset import Vocabulary
from vertexrt.data.files import expanded
from vertexrt.errors import DataError
from vertexrt.graph import GraphBatch, InputGraph, Pulled, PullValue
from vertexrt.graph.types import VertexTypes
from vertexrt.plain_files import write_atomically

IntArray = npt.NDArray[np.int32]
Values = dict[str, list[Any]]  # by pull: a value for each vertex of the batch, None for none


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
        table = pull.values if isinstance(pull, Pulled) else pull
        if not (table <= LARGEST if table.dtype.kind == "i" else np.isfinite(table)).all():
            got = f"the pull '{name}' is not finite, or above {LARGEST}"
            raise DataError.at("write_jsonl", got, "expected what read_jsonl reads", "replace it")
    return {name: _values(pull, vocabularies.get(name)) for name, pull in pulls.items()}


def _values(pull: PullValue, vocabulary: Vocabulary | None) -> list[Any]:
    """Return the value of each vertex as JSON has it."""
    if isinstance(pull, Pulled):
        table = _values(pull.values, vocabulary)
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
    pulled = _pulls_of_types(batch, values)
    edges = _edges_of(batch, types, of_edges)
    bounds = np.searchsorted(edges.parent, batch.graph_ptr)
    for graph, (first, end) in enumerate(pairwise(batch.graph_ptr.tolist())):
        numbers = types.of_vertex[first:end]
        members = {name: np.flatnonzero(numbers == n) for n, name in enumerate(types.names)}
        at = np.empty(end - first, np.int32)  # of each vertex: its number in its type
        for vertices in members.values():
            at[vertices] = np.arange(len(vertices))
        inside = slice(bounds[graph], bounds[graph + 1])
        ends = np.stack([edges.child[inside], edges.parent[inside]], axis=1)
        yield {
            "types": {name: len(vertices) for name, vertices in members.items()},
            "relations": edges.relations(inside, at[ends - first]),
            "pulls": {
                owner: {name: [values[name][first + v] for v in members[owner]] for name in names}
                for owner, names in pulled.items()
            },
        }


class _Edges(NamedTuple):
    """The edges of a batch, empty slots left out.

    Attributes:
        child, parent: int32 [n] each, vertices of the batch; parents rise.
        key: int [n], which of `names` an edge is of.
        names: child type, relation and parent type.
        pulls: of the edges of each of `names` those that one of them has, n values each.
    """

    child: IntArray
    parent: IntArray
    key: npt.NDArray[np.int64]
    names: list[dict[str, str]]
    pulls: list[Values]

    def relations(self, inside: slice, pairs: IntArray) -> list[dict[str, Any]]:
        """Return the relations of a graph: their names, and pairs and pulls of each."""
        keys = self.key[inside]
        found: list[dict[str, Any]] = []
        for number, (names, pulls) in enumerate(zip(self.names, self.pulls, strict=True)):
            own = np.flatnonzero(keys == number)
            relation: dict[str, Any] = {**names, "pairs": pairs[own].tolist()}
            if pulls:
                at = (own + inside.start).tolist()
                relation["edge_pulls"] = {name: [v[e] for e in at] for name, v in pulls.items()}
            found.append(relation)
        return found


def _edges_of(batch: GraphBatch, types: VertexTypes, of_edges: Values) -> _Edges:
    filled = np.flatnonzero(batch.child >= 0)
    parent = np.repeat(np.arange(batch.num_vertices, dtype=np.int32), np.diff(batch.child_ptr))
    child, parent, relation = batch.child[filled], parent[filled], types.of_edge[filled]
    columns = types.of_vertex[child], relation, types.of_vertex[parent]
    keys, key = np.unique(np.column_stack(columns), axis=0, return_inverse=True)
    named = [(types.names[c], types.relations[r], types.names[p]) for c, r, p in keys.tolist()]
    # A relation without an edge keeps its name, which a network may ask for.
    unused = set(range(len(types.relations))) - set(relation.tolist())
    named += [(types.names[0], types.relations[r], types.names[0]) for r in sorted(unused)]
    names = [{"child": c, "relation": r, "parent": p} for c, r, p in named]
    edges = filled.tolist()
    given = {name: [values[e] for e in edges] for name, values in of_edges.items()}
    key = key.reshape(-1)
    pulls = [_of_members(given, key == number) for number in range(len(names))]
    return _Edges(child, parent, key, names, pulls)


def _of_members(values: Values, members: npt.NDArray[np.bool_]) -> Values:
    """Return the pulls that one of some vertices or edges has."""
    has = {name: np.array([value is not None for value in v]) for name, v in values.items()}
    return {name: values[name] for name, present in has.items() if present[members].any()}


def _pulls_of_types(batch: GraphBatch, values: Values) -> dict[str, list[str]]:
    """Return by type the pulls that a vertex of it has somewhere in the batch."""
    assert batch.types is not None
    of_vertex, names = batch.types.of_vertex, batch.types.names
    found = {owner: list(_of_members(values, of_vertex == n)) for n, owner in enumerate(names)}
    return {owner: pulls for owner, pulls in found.items() if pulls}
