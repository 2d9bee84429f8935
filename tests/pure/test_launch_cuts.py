"""Launches over all rows of a kind are cut where temporaries would be too large, evenly."""

from __future__ import annotations

import numpy as np
import pytest

import vertexrt as vrt
from tests.runs import use_of
from vertexrt.graph import GraphBatch, InputGraph
from vertexrt.scheduler.schedule import POLICIES

WORDS, ROWS, GRAPHS = 50_000, 261, 5


class Wide(vrt.VertexFunction):
    """A chain; what its vertices predict is a wide temporary each."""

    def __init__(self) -> None:
        super().__init__(state={"h": 4}, arity=1)
        self.w = vrt.Parameter((WORDS, 4))

    def forward(self) -> None:
        h = vrt.tanh(self.gather(0).h + self.pull("x", 4))
        self.scatter(h=h)
        logits = self.w @ h
        self.push("loss", vrt.losses.cross_entropy(logits, self.pull("label")))


@pytest.mark.parametrize("policy", POLICIES)
def test_parts_are_of_nearly_one_size(policy: str) -> None:
    rng = np.random.default_rng(0)
    lists = [[] if k == 0 else [k - 1] for k in range(ROWS)]
    pulls = {"x": rng.standard_normal((ROWS, 4)), "label": rng.integers(0, WORDS, ROWS)}
    batch = GraphBatch.from_graphs([InputGraph.from_children(lists, pulls)] * GRAPHS)
    net = vrt.compile(Wide(), device="reference", policy=policy, threads=1)
    (run,) = net.executor.model.prepare(use_of("training", net.executor.model.traced), batch)
    parts = [row[1] for row in run.layout.table if row[1] > 4 * GRAPHS]
    assert sum(parts) % (ROWS * GRAPHS) == 0
    assert min(parts) > 200
    assert max(parts) <= 256  # the fewest that a launch is cut to
