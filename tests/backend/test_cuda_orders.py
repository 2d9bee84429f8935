"""Rows that many threads share give the same results, in whatever order threads run."""

from __future__ import annotations

import pytest

import vertexrt as vrt
from tests.agreement import agree
from tests.declared import Declared
from tests.devices import shim
from tests.runs import Way
from tests.strategies import WORDS, one_graph, pulls_for

H, WIDE, CLASSES = 6, 1102, 100


class WideRows(
    Declared,
    arity=2,
    state={"h": H},
    embedding=(WORDS, H),
    w=(WIDE, H),
    v=(H, WIDE - 1),
    u=(CLASSES, H),
):
    """A softmax over more elements than a block's threads take at once, read beside its place."""

    def forward(self) -> None:
        x = vrt.embed(self.embedding, self.pull("word")) + self.gather(0).h - self.gather(1).h
        y = vrt.softmax(self.w @ x)
        steps = vrt.tanh(100.0 * (y[1:] - y[:-1])) / vrt.max(y)
        h = vrt.tanh(self.v @ steps) * vrt.exp(-vrt.sum(y * y))
        self.scatter(h=h)
        logits = self.push("logits", self.u @ h)
        self.push("loss", vrt.losses.cross_entropy(logits, self.pull("label")))


@shim
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_any_order_of_threads_agrees(seed: int) -> None:
    batch = one_graph([[], [], [0, 1], [], [3, -1], [2, 4]], pulls_for(6, 3))
    net = agree(WideRows, batch, Way("shim", shuffle=seed))
    variants = net.executor.model.variants.values()
    sources = [text for v in variants for text in v.ready().executable.sources.values()]  # type: ignore[union-attr]
    rows = [text for text in sources if "constexpr int T = 256;" in text]
    assert any("RowLogSumExp" in text for text in rows)
    assert any("all_scratch" in text and "row_wait<T>()" in text for text in rows)
