"""Batches that come again: how they run is decided once, and what they give is the same."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np
import pytest

import vertexrt as vrt
from tests.backend.test_frozen import batch
from tests.backend.test_open_training import Tree
from tests.declared import Declared
from tests.runs import Way
from tests.strategies import one_chain, one_graph
from vertexrt.models import TreeLSTM

WAYS = [
    Way(),
    Way("cpu"),
    Way("cpu", threads=2),
    Way("cpu", engine="persistent", processors=1),
    Way("cpu", engine="persistent", threads=2, processors=2),
    Way("shim"),
]
ORDER = (0, 0, 1, 0, 2, 1, 0, 2, 2, 0, 1)  # of batches of 1, 2 and 40 trees: the arena grows


def make(number: int) -> vrt.GraphBatch:
    return batch(*range(number, number + (1, 2, 40)[number]))


def play(net: vrt.Network, batch_of: Callable[[int], vrt.GraphBatch]) -> list[Any]:
    """Train, evaluate and go back; return all that comes of it."""
    adam, found = vrt.Adam(0.01), []
    for number in ORDER:
        loss = net.step(batch_of(number), adam, outputs=["h"])
        found += [float(loss), loss.outputs["h"]]
        found.append(net(batch_of(number))["h"])
        passes = [net.record(batch_of(k)) for k in (number, 0)]
        for each in passes:
            found += each.backward(accumulate=False).parameters.values()
    return [*found, *net.parameters.values()]


@pytest.mark.parametrize("way", WAYS)
def test_they_have_the_bits_of_batches_that_are_new(way: Way) -> None:
    kept = [make(k) for k in range(3)]
    again, new = (play(way.compile(Tree()), f) for f in (kept.__getitem__, make))
    for a, b in zip(again, new, strict=True):
        np.testing.assert_array_equal(a, b)


def calls_of(call: Callable[[], object]) -> int:
    """Count the calls of functions of the package in Python."""
    count = 0

    def seen(frame: FrameType, event: str, _: object) -> None:
        nonlocal count
        count += event == "call" and "vertexrt" in frame.f_code.co_filename.replace("tests", "")

    before = sys.getprofile()
    sys.setprofile(seen)
    try:
        call()
    finally:
        sys.setprofile(before)
    return count


def test_a_step_that_comes_again_asks_little_of_python() -> None:
    """Measured: 76 and 52 calls; 155 and 145 at 6f5003ff."""
    lists = {"word": [1, 2, -1, 2, -1], "label": [0, 1, 1, 0, 1]}
    batch, adagrad = one_graph([[], [], [0, 1], [], [2, 3]], lists), vrt.Adagrad(0.05)
    net = vrt.compile(TreeLSTM(vocab=3, embed=8, hidden=8, classes=2), device="cpu", threads=1)
    for _ in range(4):
        net.step(batch, adagrad)
        net(batch)
    assert calls_of(lambda: net.step(batch, adagrad)) <= 80
    assert calls_of(lambda: net(batch)) <= 55


class Rows(Declared, arity=1, state={"h": 3}):
    """A state of what is pulled."""

    def forward(self) -> None:
        self.scatter(h=self.push("h", self.pull("x", (3,)) + self.gather(0).h))


@pytest.mark.parametrize("way", WAYS[:2])
def test_what_stays_bound_holds_no_batch(way: Way) -> None:
    """Other rows are read from where they are then; those of before may be large, and are gone."""
    net, rng = way.compile(Rows()), np.random.default_rng(0)
    first = one_chain(4, {"x": rng.random((4, 3))})
    for _ in range(4):
        batch = first.with_pulls({"x": rng.random((4, 3))})
        found = net(batch)["h"]
        np.testing.assert_allclose(found, np.cumsum(batch.pulls["x"], axis=0), rtol=1e-5)
        last = weakref.ref(batch)
        del batch
        gc.collect()
        assert last() is None
