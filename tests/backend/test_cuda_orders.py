"""Rows that many threads share give the reference's results, in whatever order threads run."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import vertexrt as vrt
from tests.declared import Declared
from tests.devices import SHIM_AND_GPU, require, shim
from tests.functions import FUNCTIONS
from tests.runs import TOLERANCE, Way, assert_same, evaluate, train
from tests.shim.build import build
from tests.shim_device import NOTHING, put_in_place
from tests.strategies import WORDS, pulls_for
from vertexrt.graph import GraphBatch, InputGraph

H, WIDE, CLASSES = 6, 1102, 100
STEPS = {"shim": 20, "cuda": 100}


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


@pytest.fixture
def in_order_afterwards() -> Iterator[None]:
    yield
    build(NOTHING).seed(0)


@shim
def test_any_order_of_threads_agrees_with_the_reference(
    monkeypatch: pytest.MonkeyPatch, in_order_afterwards: None
) -> None:
    lists = [[], [], [0, 1], [], [3, -1], [2, 4]]
    batch = GraphBatch.from_graphs([InputGraph.from_children(lists, pulls_for(6, 3))])
    reference = Way().compile(WideRows())
    want = [run(reference, batch) for run in (evaluate, train)]
    for seed in (1, 2, 3):
        put_in_place(monkeypatch, seed=seed)
        net = Way(device="cuda").compile(WideRows())
        got = [run(net, batch) for run in (evaluate, train)]
        for mine, theirs in zip(got, want, strict=True):
            assert_same(mine, theirs, TOLERANCE["float64"])
    variants = net.executor.model.variants.values()
    sources = [text for v in variants for text in v.ready().executable.sources.values()]  # type: ignore[union-attr]
    rows = [text for text in sources if "constexpr int T = 256;" in text]
    assert any("RowLogSumExp" in text for text in rows)
    assert any("all_scratch" in text and "row_wait<T>()" in text for text in rows)


@pytest.mark.parametrize(
    "device",
    SHIM_AND_GPU,
)
def test_training_agrees_with_the_cpu(device: str) -> None:
    """In float32, where sums in another order differ: they must not run apart."""
    require(device)
    make, _ = FUNCTIONS["tree-lstm"]
    nets = [Way(device=d, dtype="float32").compile(make()) for d in (device, "cpu")]
    optimizers = [vrt.Adagrad(0.05, clip_norm=5.0) for _ in nets]
    lists = [[], [], [0, 1], [], [2, 3], []]
    losses = []
    for k in range(STEPS[device]):
        graphs = [InputGraph.from_children(lists, pulls_for(6, 3 * (k % 4) + g)) for g in range(3)]
        batch = GraphBatch.from_graphs(graphs)
        losses.append(
            [
                net.step(batch, optimizer, outputs=net.pushes)
                for net, optimizer in zip(nets, optimizers, strict=True)
            ]
        )
    got, want = np.array(losses).T
    assert got == pytest.approx(want, rel=1e-4)
    assert want[-5:].mean() < want[:5].mean()
