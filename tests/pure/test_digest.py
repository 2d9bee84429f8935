"""Digests of graphs: whatever decides how a batch runs changes them, and nothing else does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vertexrt as vrt
from vertexrt.graph.batch import key_of
from vertexrt.graph.digest import FACTORS, STARTS, hash_graphs

Arrays = dict[str, Any]


def two_graphs() -> Arrays:
    """Return what is hashed of two typed graphs, of three vertices and of two."""
    return {
        "graph_ptr": np.array([0, 3, 5], np.int32),
        "child_ptr": np.array([0, 0, 1, 3, 3, 4], np.int32),
        "child": np.array([0, 1, -1, 3], np.int32),
        "of_vertex": np.array([0, 1, 0, 1, 2], np.int32),
        "of_edge": np.array([0, 1, 0, 1], np.int32),
        "pulls": np.array([[4, -1, 0, 2, -1], [-1, 3, 3, 0, 1]], np.int32),
        "edge_pulls": np.array([[0, 5, -1, 1]], np.int32),
    }


def hashed(arrays: Arrays) -> tuple[Any, Any]:
    """Return the structure and the numbers of each graph."""
    return hash_graphs(*arrays.values(), STARTS, FACTORS)


@pytest.mark.parametrize(
    "name", ["child_ptr", "child", "of_vertex", "of_edge", "pulls", "edge_pulls"]
)
def test_one_bit_changes_one_graph(name: str) -> None:
    structure, numbers = hashed(two_graphs())
    for at in np.ndindex(two_graphs()[name].shape):
        if name == "child_ptr" and at[0] in (0, 3, 5):  # where a graph begins or ends
            continue
        for bit in range(0, 31, 3):
            arrays = two_graphs()
            before = arrays[name][at]
            after = before ^ (1 << bit)
            if name == "child_ptr":
                after = min(2, before + 1) if before < 2 else 1
            elif before < 0:
                after = 1 << bit  # it has none; now it has one
            arrays[name][at] = after
            there, other = hashed(arrays)
            graph = int(at[-1] >= (2 + 1 if "edge" in name or name == "child" else 3))
            hides = name in ("pulls", "edge_pulls") and before >= 0  # it has another number
            assert (there[graph] != structure[graph]).all() != hides
            assert (other[graph] != numbers[graph]).all()
            assert np.array_equal(there[1 - graph], structure[1 - graph])
            assert np.array_equal(other[1 - graph], numbers[1 - graph])


def test_hashes_are_those_of_python() -> None:
    compiled: Any = hash_graphs
    with np.errstate(over="ignore"):
        plain = compiled.__wrapped__(*two_graphs().values(), STARTS, FACTORS)
    assert np.array_equal(np.array(plain), np.array(hashed(two_graphs())))


def test_who_pulls_nothing_changes_the_structure() -> None:
    structure, _ = hashed(two_graphs())
    for name in ("pulls", "edge_pulls"):
        for at in np.argwhere(two_graphs()[name] >= 0):
            arrays = two_graphs()
            arrays[name][tuple(at)] = -1
            assert not np.array_equal(hashed(arrays)[0], structure)


def test_where_a_graph_ends_changes_it() -> None:
    chains = vrt.InputGraph.from_children([[], []]), vrt.InputGraph.from_children([[]])
    keys = {
        key_of(vrt.GraphBatch.from_graphs(each), "structure") for each in (chains, chains[::-1])
    }
    joined = vrt.InputGraph.from_children([[], [], []])
    keys |= {key_of(vrt.GraphBatch.from_graphs([joined]), "structure")}
    keys |= {key_of(vrt.GraphBatch.from_graphs([chains[1]] * 3), "structure")}
    assert len(keys) == 4


def batch(**pulls: Any) -> vrt.GraphBatch:
    """Return a chain of two with pulls."""
    return vrt.GraphBatch.from_graphs([vrt.InputGraph.chain(2, pulls)])


def test_real_rows_decide_nothing_and_names_do() -> None:
    rows, word = np.zeros((2, 3)), np.array([0, 1])
    plain = batch(word=word)
    assert key_of(plain, "numbers") == key_of(batch(word=word, x=rows), "numbers")
    assert key_of(plain, "numbers") == key_of(plain.with_pulls({"x": rows + 1}), "numbers")
    assert key_of(plain, "numbers") != key_of(batch(other=word), "numbers")
    assert key_of(plain, "structure") == key_of(batch(word=word[::-1]), "structure")
    assert key_of(plain, "numbers") != key_of(batch(word=word[::-1]), "numbers")
    by_index = [batch(x=vrt.Rows(rows, np.array(index))) for index in ([0, 1], [1, 1], [1, -1])]
    assert len({key_of(each, "numbers") for each in by_index}) == 3
    assert len({key_of(each, "structure") for each in by_index}) == 2
    assert key_of(plain, "numbers") != key_of(batch(word=vrt.Rows(rows, word)), "numbers")
    table = vrt.Rows(np.array([5, 0, 1]), np.array([1, 2]))
    assert key_of(plain, "numbers") == key_of(batch(word=table), "numbers"), (
        "the same numbers, by an index"
    )


def test_types_and_relations_are_known_by_their_names() -> None:
    def typed(kind: str, relation: str) -> bytes:
        edges = {(kind, relation, kind): [(0, 1)]}
        graph = vrt.InputGraph.from_types({kind: 2}, edges)
        return key_of(vrt.GraphBatch.from_graphs([graph]), "structure")

    keys = [typed("a", "r"), typed("b", "r"), typed("a", "s"), typed("a", "r")]
    assert len(set(keys)) == 3
    assert keys[0] == keys[3]
    assert keys[0] != key_of(batch(), "structure")
