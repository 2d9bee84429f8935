"""Pairs of common graphs against plain loops and networkx."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import networkx as nx
import numpy as np
import pytest

import vertexrt as vrt
from tests.messages import text_of
from vertexrt.data import edges
from vertexrt.errors import GraphError

Pairs = list[tuple[int, int]]
LENGTHS = [3, 0, 1, 4, 0]
PARENTS = [2, 2, 6, -1, 5, 6, -1]
CYCLE = [(1, 0), (2, 0), (0, 1), (1, 2)]


def of(found: object) -> Pairs:
    array = np.asarray(found)
    assert array.dtype == np.int32
    assert array.shape[1:] == (2,)
    return [(int(child), int(parent)) for child, parent in array]


def by_parent(pairs: Iterable[tuple[int, int]]) -> Pairs:
    return sorted(pairs, key=lambda pair: (pair[1], pair[0]))


def chains(reverse: bool) -> Pairs:
    found: Pairs = []
    start = 0
    for length in LENGTHS:
        for i in range(start + 1, start + length):
            found.append((i, i - 1) if reverse else (i - 1, i))
        start += length
    return found


def chain_ends(reverse: bool) -> Pairs:
    found: Pairs = []
    for k, length in enumerate(LENGTHS):
        if length:
            start = sum(LENGTHS[:k])
            found.append((start if reverse else start + length - 1, k))
    return found


def unrolled() -> Pairs:
    """By networkx: the tensor product of the rounds, a path, with the graph."""
    path = nx.path_graph(4, nx.DiGraph)
    product = nx.tensor_product(path, nx.DiGraph(CYCLE))
    return [(r * 3 + u, s * 3 + v) for (r, u), (s, v) in product.edges]


def near(count: int, first: int, last: int) -> Pairs:
    return [
        (j, i) for i in range(count) for j in range(count) if first <= j - i <= last
    ]  # for each parent, rising


CASES: dict[str, tuple[object, Pairs]] = {
    "a chain": (edges.chain(5), list(nx.path_graph(5, nx.DiGraph).edges)),
    "a reversed chain": (
        edges.chain(5, reverse=True),
        by_parent(nx.path_graph(5, nx.DiGraph).reverse().edges),
    ),
    "chains": (edges.chain(LENGTHS), chains(False)),
    "reversed chains": (edges.chain(LENGTHS, reverse=True), chains(True)),
    "nothing": (edges.chain(0), []),
    "ends": (edges.ends(LENGTHS), chain_ends(False)),
    "ends of reversed chains": (edges.ends(LENGTHS, reverse=True), chain_ends(True)),
    "same": (edges.same(3), [(0, 0), (1, 1), (2, 2)]),
    "the two before": (edges.window(5, -2, -1), near(5, -2, -1)),
    "both neighbours": (edges.window(6, -1, 1), near(6, -1, 1)),
    "no window": (edges.window(3, 1, 0), []),
    "all pairs": (edges.all_pairs(3, 2), [(i, j) for j in range(2) for i in range(3)]),
    "layers": (edges.layers(3, 4), [(i, i + 3) for i in range(9)]),
    "one layer": (edges.layers(3, 1), []),
    "rounds": (edges.rounds(CYCLE, 3, 3), unrolled()),
    "no round": (edges.rounds(CYCLE, 3, 0), []),
    "a tree": (edges.tree(PARENTS), [(i, p) for i, p in enumerate(PARENTS) if p >= 0]),
    "a tree, down": (
        edges.tree(PARENTS, down=True),
        [(p, i) for i, p in enumerate(PARENTS) if p >= 0],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_edges_are_those_of_a_loop(name: str) -> None:
    found, expected = CASES[name]
    pairs = of(found)
    assert by_parent(pairs) == by_parent(expected)
    assert [c for c, _ in sorted(pairs, key=lambda p: p[1])] == [c for c, _ in by_parent(pairs)]


def test_edges_are_taken_by_graphs() -> None:
    n = 4
    graph = vrt.InputGraph.from_types(
        {"letter": sum(LENGTHS), "word": len(LENGTHS), "tag": len(LENGTHS)},
        {
            ("letter", "before", "letter"): edges.chain(LENGTHS),
            ("letter", "spelling", "word"): edges.ends(LENGTHS),
            ("word", "around", "tag"): edges.window(len(LENGTHS), -1, 1),
        },
    )
    assert graph.num_edges == len(chains(False)) + 3 + len(near(len(LENGTHS), -1, 1))
    dag = vrt.InputGraph.from_edges(3 * n, edges.rounds([(0, 1), (1, 0)], n, 2)).to_networkx()
    assert nx.is_directed_acyclic_graph(dag)
    both = nx.DiGraph([*of(edges.tree(PARENTS)), *of(edges.tree(PARENTS, down=True))])
    assert nx.is_forest(nx.Graph(both))
    assert both.number_of_edges() == 10


MISTAKES: dict[str, tuple[Callable[[], object], str]] = {
    "a negative length": (lambda: edges.chain(-1), "a length is -1"),
    "a real length": (lambda: edges.chain([2, 3.5]), "a length is 3.5"),  # type: ignore[list-item]
    "a text": (lambda: edges.same("3"), "count is '3'"),  # type: ignore[arg-type]
    "a real window": (lambda: edges.window(3, -1.5, 0), "the window is float64 [2]"),  # type: ignore[arg-type]
    "PyTorch Geometric's edges": (
        lambda: edges.rounds(np.zeros((2, 5), int), 3, 1),
        "edges is an array [2, 5]; expected pairs (sender, receiver)",
    ),
    "parents of parents": (lambda: edges.tree([[0]]), "parents is int64 [1, 1]"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(name: str) -> None:
    call, part = MISTAKES[name]
    assert part in text_of(GraphError, call)
