"""Tiles narrower than a task change no result, on the interpreter and on compiled processors."""

from __future__ import annotations

import numpy as np
import pytest

import vertexrt as vrt
from tests.agreement import compare
from tests.backend.test_persistent import (
    ALL_FUNCTIONS,
    COMPILED,
    TOLERANCE,
    generated,
    interpreted,
    two_steps,
)
from tests.runs import Way, assert_same
from vertexrt.api.network import Network
from vertexrt.engine.model import CompiledModel
from vertexrt.kernels.ways import Configuration

WIDTHS = (1, 3, 16, 0)  # 0: whole tasks


def tiled(net: Network, processors: int, tile: int) -> Network:
    """Fix the width of a tile."""
    assert isinstance(net.executor.model, CompiledModel)
    net.executor.model.chooser.only(Configuration(True, 1, processors, tile))
    return net


@pytest.mark.parametrize("processors", [1, 2, 5])
@pytest.mark.parametrize("name", COMPILED)
def test_interpreted_tiles_equal_the_reference(name: str, processors: int) -> None:
    make, _ = ALL_FUNCTIONS[name]
    batch = generated(COMPILED[name], 7)
    want = two_steps(Way("reference").compile(make()), batch)
    for tile in WIDTHS:
        net = tiled(interpreted(make(), processors, tile), processors, tile)
        assert_same(two_steps(net, batch), want, TOLERANCE["float64"])


class NothingKept(vrt.VertexFunction):
    """What a segment leaves for the next lies in tensors alone: its tiles have no memory."""

    def __init__(self) -> None:
        super().__init__(arity=3, state={"h": 1})
        self.w, self.b = vrt.Parameter((8, 1)), vrt.Parameter((8,))
        self.v = vrt.Parameter((1, 8))

    def forward(self) -> None:
        self.pull_index("word")
        told = self.present("word")
        y = vrt.relu(self.v @ (self.w @ self.gather(2).h + self.b))
        self.scatter(h=y * told)
        self.push("loss", told)


def test_tiles_without_temporaries() -> None:
    leaves = vrt.InputGraph.from_children([[], []], {"word": [-1, -1]})
    batch = vrt.GraphBatch.from_graphs([leaves])
    compare(tiled(interpreted(NothingKept(), 2, 1), 2, 1), NothingKept(), batch)


@pytest.mark.parametrize("processors", [1, 2])
@pytest.mark.parametrize("name", ["two-exchanges"])
def test_compiled_tiles_equal_the_reference(name: str, processors: int) -> None:
    make, _ = ALL_FUNCTIONS[name]
    way = Way("cpu", engine="persistent", processors=processors, threads=processors)
    for graphs in (1, 40):
        batch = generated(COMPILED[name], graphs)
        want = two_steps(Way("reference").compile(make()), batch)
        for tile in WIDTHS:
            got = two_steps(tiled(way.compile(make()), processors, tile), batch)
            assert_same(got, want, TOLERANCE["float64"])
            again = two_steps(tiled(way.compile(make()), processors, tile), batch)
            assert_same(again, got, 0.0)


def test_explain_shows_tiles() -> None:
    make, _ = ALL_FUNCTIONS["two-exchanges"]
    net = tiled(interpreted(make(), 2, None), 2, 3)
    text = net.explain_batch(generated("chain", 20))
    assert "persistent, 1 x 2 processors, tiles of 3 rows" in text
    (line,) = [x for x in text.splitlines() if x.strip().startswith("path:")]
    tasks, tiles, instructions = (
        int(word.split()[0]) for word in line.split(": ")[1].split(", ")[:3]
    )
    assert tasks < tiles < instructions
    assert np.isfinite(two_steps(net, generated("chain", 2)).loss)
