"""The same seed gives the same bits, whatever ran before."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vertexrt as vrt
from tests import typed_models
from tests.functions import FUNCTIONS
from tests.runs import Way, assert_bits


def drawn(seed: int, count: int) -> vrt.GraphBatch:
    """Draw trees whose vertices have a word or not, a label or not, and one child or two."""
    rng, graphs = np.random.default_rng(seed), []
    for _ in range(count):
        lists = [
            [] if v < 3 else rng.choice(v, rng.integers(1, 3), replace=False).tolist()
            for v in range(9)
        ]
        pulls = {"word": rng.integers(-1, 7, 9), "label": rng.integers(-1, 3, 9)}
        graphs.append(vrt.InputGraph.from_children(lists, pulls))
    return vrt.GraphBatch.from_graphs(graphs)


def spelt(seed: int, count: int) -> vrt.GraphBatch:
    """Draw sentences of words that are spelt: vertices of four types."""
    rng = np.random.default_rng(seed)
    lengths = [rng.integers(1, 4, rng.integers(1, 5)).tolist() for _ in range(count)]
    return vrt.GraphBatch.from_graphs([typed_models.sentence(each, rng) for each in lengths])


MET_BEFORE = [
    Way("reference", "float32"),
    Way("cpu", "float32", "agenda", threads=2),
    Way("cpu", "float32", engine="persistent", threads=2, processors=2),
    Way("shim", "float32"),
    Way("shim", "float32", engine="persistent", processors=2),
]


@pytest.mark.parametrize("way", MET_BEFORE)
@pytest.mark.parametrize(
    ("make", "draw"), [(FUNCTIONS["tree-lstm"][0], drawn), (typed_models.CharTagger, spelt)]
)
def test_batches_met_before_change_no_bit(way: Way, make: Any, draw: Any) -> None:
    """Issue 52: kinds were numbered as they were met, and sums followed these numbers."""
    ends, batch = [], draw(0, 12)
    for others in ([], [1, 2], [3]):
        net = way.compile(make())
        for seed in others:
            net.step(draw(seed, 1), vrt.SGD(0.0))
            net(draw(seed + 10, 2))
        loss = float(net.step(batch, vrt.SGD(0.1), outputs=["loss"]))
        ends.append({"loss": np.array(loss)} | dict(net.parameters))
    for end in ends[1:]:
        assert_bits(ends[0], end)
