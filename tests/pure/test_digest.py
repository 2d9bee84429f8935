"""Digests of graphs: whatever decides how a batch runs changes them, and nothing else does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vertexrt as vrt
from vertexrt.graph.batch import key_of
from vertexrt.graph.digest import FACTORS, STARTS, hash_graphs

Arrays = dict[str, Any]


TWO_GRAPHS = {
    "graph_ptr": "0 3 5",
    "child_ptr": "0 0 1 3 3 4",
    "child": "0 1 -1 3",
    "of_vertex": "0 1 0 1 2",
    "of_edge": "0 1 0 1",
    "pulls": "4 -1 0 2 -1; -1 3 3 0 1",
    "edge_pulls": "0 5 -1 1;",
}


def two_graphs() -> Arrays:
    """Return what is hashed of two typed graphs, of three vertices and of two."""
    found = {}
    for name, text in TWO_GRAPHS.items():
        rows = [row.split() for row in text.split(";") if row]
        found[name] = np.array(rows if ";" in text else rows[0], np.int32)
    return found


def hashed(arrays: Arrays) -> tuple[Any, Any]:
    """Return the structure and the numbers of each graph."""
    return hash_graphs(*arrays.values(), STARTS, FACTORS)


def others(name: str, before: int) -> list[int]:
    """Return numbers that an array may have in a place, in place of another."""
    if name == "child_ptr":
        return [min(2, before + 1) if before < 2 else 1]
    bits = [1 << bit for bit in range(0, 31, 3)]
    if before < 0:  # it has none; now it has one
        return bits
    return [*(before ^ bit for bit in bits), *([] if name.startswith("of") else [-1])]


@pytest.mark.parametrize("name", list(two_graphs())[1:])
def test_one_bit_changes_one_graph(name: str) -> None:
    structure, numbers = hashed(two_graphs())
    for at in np.ndindex(two_graphs()[name].shape):
        if name == "child_ptr" and at[0] in (0, 3, 5):  # where a graph begins or ends
            continue
        graph, before = int(at[-1] >= 3), int(two_graphs()[name][at])
        for after in others(name, before):
            arrays = two_graphs()
            arrays[name][at] = after
            there, other = hashed(arrays)
            hides = "pulls" in name and (before >= 0) == (after >= 0)  # it has another number
            assert (there[graph] != structure[graph]).all() != hides
            assert (other[graph] != numbers[graph]).all()
            assert np.array_equal(there[1 - graph], structure[1 - graph])
            assert np.array_equal(other[1 - graph], numbers[1 - graph])


def structure_of(*lists: list[list[int]], **pulls: Any) -> bytes:
    graphs = [vrt.InputGraph.from_children(each, pulls) for each in lists]
    return key_of(vrt.GraphBatch.from_graphs(graphs), "structure")


def typed(kind: str, relation: str) -> bytes:
    graph = vrt.InputGraph.from_types({kind: 2}, {(kind, relation, kind): [(0, 1)]})
    return key_of(vrt.GraphBatch.from_graphs([graph]), "structure")


def test_what_graphs_are_and_are_called_changes_the_structure() -> None:
    keys = [
        structure_of([[], []], [[]]),
        structure_of([[]], [[], []]),  # they end elsewhere
        structure_of([[], [], []]),
        structure_of([[]], [[]], [[]]),
        structure_of([[], [0]]),
        structure_of([[], [0]], word=[0, 1]),
        structure_of([[], [0]], other=[0, 1]),
        structure_of([[], [0]], word=vrt.Rows(ROWS, [0, 1])),
        structure_of([[], [0]], word=vrt.Rows(ROWS, [0, -1])),
        typed("a", "r"),
        typed("b", "r"),
        typed("a", "s"),
    ]
    assert len(set(keys)) == len(keys)
    assert typed("a", "r") in keys
    assert structure_of([[], [0]], word=[1, 0]) in keys
    assert structure_of([[], [0]], word=vrt.Rows(ROWS, [1, 1])) in keys


ROWS = np.zeros((2, 3))


def numbers_of(**pulls: Any) -> bytes:
    batch = vrt.GraphBatch.from_graphs([vrt.InputGraph.chain(2, {"word": [0, 1], **pulls})])
    return key_of(batch, "numbers")


def test_real_rows_decide_nothing_and_numbers_and_names_do() -> None:
    batch = vrt.GraphBatch.from_graphs([vrt.InputGraph.chain(2, {"word": [0, 1]})])
    plain = key_of(batch, "numbers")
    assert plain == numbers_of(x=ROWS) == key_of(batch.with_pulls({"x": ROWS + 1}), "numbers")
    assert plain == numbers_of(word=vrt.Rows(np.array([5, 0, 1]), [1, 2])), "the same, by an index"
    others: list[dict[str, Any]] = [
        {"word": [1, 0]},
        {"other": [0, 1]},
        {"another": [0, 1]},
        {"word": vrt.Rows(ROWS, [0, 1])},
    ]
    by_index = [{"x": vrt.Rows(ROWS, index)} for index in ([0, 1], [1, 1], [1, -1])]
    keys = {numbers_of(**pulls) for pulls in others + by_index}
    assert len({plain, *keys}) == 8
