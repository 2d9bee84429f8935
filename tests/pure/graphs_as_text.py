"""Graphs as a text that says all of them, which tables of tests compare.

First come the pulls, divided by semicolons: what numbers their words, or their dtype and the shape
of a value; then the names of relations, if there are types. Each graph has a line: its vertices,
divided by semicolons, with their type, their values by name and, in brackets, the child in each
slot, its relation and its values divided by strokes:

    word: <unk>, good, film; x: float32 []
    word=good; word=film x=0.5; x=1.0 (0 1)

Of a data set, the description stands above, and each graph has the name of its split before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from vertexrt.data import Dataset, Embeddings, Examples, Vocabulary
from vertexrt.graph import GraphBatch, Rows
from vertexrt.graph.networks import values_of

Vocabularies = Mapping[str, Vocabulary]


def as_text(found: Examples | Dataset | Embeddings) -> str:
    """Return the text of what was read."""
    if isinstance(found, Embeddings):
        return f"{found.share:.3f} of the words: {found.matrix.tolist()}"
    lines = []
    if isinstance(found, Dataset):
        lines.append(f"{found.description}, {found.classes} classes")
        for split, batch in found.splits.items():
            lines += [*heads(batch, found.vocabularies)] if len(lines) == 1 else []
            ids = found.ids.get(split, ())
            lines += [f"{split}: {line}" for line in graphs(batch, found.vocabularies, ids)]
    else:
        lines += [*heads(found.batch, found.vocabularies), *graphs(*found)]
    return "\n".join(lines)


def heads(batch: GraphBatch, vocabularies: Vocabularies) -> Iterator[str]:
    """Yield a line of the pulls, and one of the relations."""
    pulls = []
    for name, pull in sorted({**batch.pulls, **batch.edge_pulls}.items()):
        table = pull.table if isinstance(pull, Rows) else pull
        kind = f"{table.dtype} {list(table.shape[1:])}"
        if name in vocabularies and table.dtype == np.int32:
            kind = ", ".join(vocabularies[name].words)
        pulls.append(f"{name}: {kind}")
    yield "; ".join(pulls)
    if batch.types is not None:
        yield f"relations: {', '.join(batch.types.relations)}"


def graphs(batch: GraphBatch, vocabularies: Vocabularies, ids: Sequence[Any] = ()) -> Iterator[str]:
    """Yield a line for each graph, which begins with its id where it has one."""
    values, of_edges = (
        {
            name: vocabularies[name].decode(pull) if name in vocabularies else values_of(pull)
            for name, pull in sorted(pulls.items())
        }
        for pulls in (batch.pulls, batch.edge_pulls)
    )
    types = batch.types
    for number, (first, end) in enumerate(pairwise(batch.graph_ptr.tolist())):
        vertices = []
        for vertex in range(first, end):
            parts = [types.names[types.of_vertex[vertex]]] if types else []
            parts += given(values, vertex)
            slots = []
            for edge in range(*batch.child_ptr[vertex : vertex + 2]):
                child = batch.child[edge] - first if batch.child[edge] >= 0 else "none"
                relation = [types.relations[types.of_edge[edge]]] if types else []
                slots.append("/".join([str(child), *relation, *given(of_edges, edge)]))
            parts += [f"({' '.join(slots)})"] if slots else []
            vertices.append(" ".join(parts) or "-")
        name = ids[number] if ids else None
        yield f"{'' if name is None else f'#{name} '}{'; '.join(vertices)}"


def given(columns: Mapping[str, Any], at: int) -> list[str]:
    """Return the values of a vertex or an edge, by name."""
    return [f"{name}={column[at]}" for name, column in columns.items() if column[at] is not None]
