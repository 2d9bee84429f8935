"""Pairs of common graphs against plain loops and networkx."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import networkx as nx
import numpy as np
import pytest

from tests.messages import table, text_of
from vertexrt.data import edges
from vertexrt.errors import GraphError

LENGTHS = [3, 0, 1, 4, 0]
CHAINS = [[0, 1, 2], [], [3], [4, 5, 6, 7], []]
PARENTS = [2, 2, 6, 0, 5, 6, -1]
UP = [(i, parent) for i, parent in enumerate(PARENTS) if parent >= 0]
CYCLE = [(1, 0), (2, 0), (0, 1), (1, 2)]
STEPS = nx.path_graph(4, nx.DiGraph)
PAIRS = [pair for chain in CHAINS for pair in pairwise(chain)]


def near(count: int, first: int, last: int) -> list[tuple[int, int]]:
    return [(j, i) for i in range(count) for j in range(count) if first <= j - i <= last]


CASES: dict[str, Any] = {
    "chain(4)": STEPS.edges,
    "chain(4, reverse=True)": STEPS.reverse().edges,
    "chain(LENGTHS)": PAIRS,
    "chain(LENGTHS, reverse=True)": [(j, i) for i, j in PAIRS],
    "chain(0)": [],
    "ends(LENGTHS)": [(2, 0), (3, 2), (7, 3)],
    "ends(LENGTHS, reverse=True)": [(0, 0), (3, 2), (4, 3)],
    "same(3)": [(0, 0), (1, 1), (2, 2)],
    "window(5, -2, -1)": near(5, -2, -1),
    "window(6, -1, 1)": near(6, -1, 1),
    "window(3, 1, 0)": [],
    "all_pairs(3, 2)": [(i, j) for j in range(2) for i in range(3)],
    "layers(3, 4)": [(i, i + 3) for i in range(9)],
    "layers(3, 1)": [],
    "rounds(CYCLE, 3, 3)": [  # by networkx: the product of the rounds, a path, with the graph
        (r * 3 + u, s * 3 + v)
        for (r, u), (s, v) in nx.tensor_product(STEPS, nx.DiGraph(CYCLE)).edges
    ],
    "tree(PARENTS)": UP,
    "tree(PARENTS, down=True)": [(parent, i) for i, parent in UP],
}


@pytest.mark.parametrize("code", CASES)
def test_edges_are_those_of_a_loop(code: str) -> None:
    found, expected = eval(code, {**vars(edges), **globals()}), CASES[code]
    assert found.dtype == np.int32
    assert found.shape == (len(expected), 2)
    in_order = found[np.argsort(found[:, 1], kind="stable")].tolist()
    assert in_order == sorted(map(list, expected), key=lambda pair: (pair[1], pair[0]))


MISTAKES = table(__file__, "MISTAKES")


@pytest.mark.parametrize("code", MISTAKES)
def test_mistakes(code: str) -> None:
    assert MISTAKES[code] in text_of(GraphError, lambda: eval(code, {**vars(edges), **globals()}))
