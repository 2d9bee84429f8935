"""Batches with levels of many widths, in which children come from far below."""

from __future__ import annotations

import numpy as np

from tests.functions import FUNCTIONS
from tests.strategies import pulls_for
from vertexrt.graph import GraphBatch, InputGraph


def wide(name: str, graphs: int) -> GraphBatch:
    """Return graphs with levels of many widths, in which children come from far below."""
    rng = np.random.default_rng(len(name))
    if FUNCTIONS[name][1] == 1:
        lists = [[[], *([k] for k in range(3 + g))] for g in range(graphs)]
    else:
        lists = [binary(10 + 3 * g, rng) for g in range(graphs)]
    return GraphBatch.from_graphs(
        [InputGraph.from_children(x, pulls_for(len(x), k)) for k, x in enumerate(lists)]
    )


def binary(leaves: int, rng: np.random.Generator) -> list[list[int]]:
    """Return a random binary tree."""
    lists: list[list[int]] = [[] for _ in range(leaves)]
    roots = list(range(leaves))
    while len(roots) > 1:
        pair = [roots.pop(rng.integers(len(roots))) for _ in range(2)]
        roots.append(len(lists))
        lists.append(pair)
    return lists
