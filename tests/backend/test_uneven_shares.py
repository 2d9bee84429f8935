"""States of any size in groups: rows that are no whole vectors, pieces that no group divides."""

from __future__ import annotations

import numpy as np
import pytest

import vertexrt as vrt
from tests.devices import SHIM_AND_GPU, require
from tests.runs import assert_close
from tests.shim_device import put_in_place
from vertexrt import nn
from vertexrt.graph import GraphBatch, InputGraph

WORDS = 7
LARGE = {4: (70,)}  # graphs, by processors: more rows than a tile has
BOUND = {"float32": 2e-6, "tf32": 2e-3, "float64": 1e-12}


class TwoLayers(vrt.VertexFunction):
    """Two LSTMs one above the other, whose states are `size` numbers each."""

    def __init__(self, size: int) -> None:
        super().__init__(state={"h": size, "c": size, "g": size, "d": size}, arity=1)
        self.table = vrt.Parameter((WORDS, size))
        self.first, self.second = nn.LSTMCell(size, size), nn.LSTMCell(size, size)

    def forward(self) -> None:
        before = self.gather(0)
        word = vrt.embed(self.table, self.pull("word"))
        h, c = self.first(word, (before.h, before.c))
        g, d = self.second(h, (before.g, before.d))
        self.scatter(h=h, c=c, g=g, d=d)
        self.push("loss", vrt.losses.squared_error(g, 0.3))


def chains(count: int) -> GraphBatch:
    """Return chains of one to three words."""
    rng, graphs = np.random.default_rng(count), []
    for n in rng.integers(1, 4, count):
        lists = [[], *([k] for k in range(n - 1))]
        graphs.append(InputGraph.from_children(lists, {"word": rng.integers(0, WORDS, n)}))
    return GraphBatch.from_graphs(graphs)


@pytest.mark.parametrize("device", SHIM_AND_GPU)
@pytest.mark.parametrize(
    ("precision", "size", "processors"),
    [
        ("float32", 50, 4),
        ("float32", 51, 4),
        ("float32", 38, 16),
        ("float64", 50, 4),
        ("float32", 130, 20),
        ("tf32", 130, 20),
    ],
)
def test_gradients(
    device: str, precision: str, size: int, processors: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one row, of rows by plain arithmetic, and of more by matrix units.

    Groups of 20 take more than eight rows at a time.
    """
    require(device)
    dtype = "float64" if precision == "float64" else "float32"
    chosen = "float32" if precision == "float64" else precision
    if device == "shim":
        put_in_place(monkeypatch, processors=processors, precision=chosen)
    here = vrt.compile(
        TwoLayers(size),
        device="cuda",
        engine="persistent",
        processors=processors,
        dtype=dtype,
        precision=chosen,
        seed=4,
    )
    there = vrt.compile(TwoLayers(size), device="cpu", dtype="float64", seed=4)
    there.parameters.update(here.parameters)
    for count in (1, 3, 19, *LARGE.get(processors, ())):
        batch = chains(count)
        for net in (here, there):
            net.zero_grad()
        found, wanted = (net.record(batch).backward() for net in (here, there))
        for name, value in wanted.parameters.items():
            assert_close(found.parameters[name], value, BOUND[precision], f"{name}, {count} chains")
