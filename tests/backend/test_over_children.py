"""Softmax, its logarithm and its sum over children or over elements: said, never guessed.

`vrt.softmax` of a value per child was over its elements once, so that attention weights of numbers
were refused, and those of vectors added up to one for each child.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import vertexrt as vrt
from tests.runs import Way, assert_loss_gradients, assert_output_gradients, assert_same, evaluate
from tests.shim import build as shim

H = 3

WAYS = {
    "reference": Way(),
    "cpu": Way(device="cpu"),
    "cpu-persistent": Way(device="cpu", engine="persistent", processors=2, threads=2),
    "shim": Way(device="shim"),
    "shim-persistent": Way(device="shim", engine="persistent", processors=2),
}

CHILDREN: list[list[int]] = [[], [], [], [0, 1, 2], [3], [-1, 3, 4, 0], []]
X = np.random.default_rng(4).standard_normal((len(CHILDREN), H))


def batch() -> vrt.GraphBatch:
    """Vertices with none, one and several children, and an empty slot."""
    return vrt.GraphBatch.from_graphs([vrt.InputGraph.from_children(CHILDREN, {"x": X})])


class Attention(vrt.VertexFunction):
    """Attention by a number per child; both families of reductions over both."""

    def __init__(self) -> None:
        super().__init__(state={"h": H})
        self.query = vrt.Parameter((1, H))
        self.u = vrt.Parameter((H, H))

    def forward(self) -> None:
        kids, x = self.gather_all(), self.pull("x", shape=(H,))
        weight = vrt.softmax((self.query @ kids.h)[0], axis="children")
        gates = vrt.softmax(self.u @ kids.h + x, axis="children")
        inner = vrt.softmax(kids.h * x, axis="elements")
        logs = vrt.log_softmax(kids.h, axis="children") + vrt.log_softmax(kids.h, axis="elements")
        h = vrt.tanh(x + vrt.sum(weight * kids.h) + vrt.sum(gates * kids.h) - vrt.sum(inner * logs))
        numbers = vrt.sum(kids.h, axis="elements") + vrt.max(kids.h, axis="elements")
        self.scatter(h=h)
        self.push("weight", vrt.sum(weight))
        self.push("gates", vrt.sum(gates))
        self.push("inner", vrt.sum(vrt.sum(inner, axis="elements")))
        self.push("log", vrt.logsumexp(self.u @ kids.h, axis="children"))
        self.push("numbers", vrt.sum(numbers * vrt.mean(kids.h, axis="elements")))
        self.push("each", vrt.sum(vrt.logsumexp(kids.h, axis="elements")))
        self.push("h", h)
        self.push("loss", vrt.sum(h * h))


@pytest.mark.parametrize("name", WAYS)
def test_attention_by_softmax_over_the_children(name: str) -> None:
    if "shim" in name and not shim.available():
        pytest.skip("no C++ compiler")
    net, oracle = WAYS[name].compile(Attention()), Way().compile(Attention())
    got = evaluate(net, batch())
    assert_same(got, evaluate(oracle, batch()), 1e-10)
    count = np.array([sum(c >= 0 for c in kids) for kids in CHILDREN])
    np.testing.assert_allclose(got.outputs["weight"], count > 0, atol=1e-12)
    np.testing.assert_allclose(got.outputs["gates"], np.tile(count > 0, (H, 1)).T, atol=1e-12)
    np.testing.assert_allclose(got.outputs["inner"], count, atol=1e-12)


def test_sums_of_exponentials_of_states() -> None:
    net = Way().compile(Attention())
    got, u = net(batch()), net.parameters["u"]
    for v, kids in enumerate(CHILDREN):
        h = got["h"][[c for c in kids if c >= 0]]
        want = np.log(np.exp(h @ u.T).sum(0)) if len(h) else np.zeros(H)  # no children: zeros
        np.testing.assert_allclose(got["log"][v], want, rtol=1e-12)
        each = np.log(np.exp(h).sum(1)).sum()
        np.testing.assert_allclose(got["each"][v], each, rtol=1e-12)
        numbers = ((h.sum(1) + h.max(1, initial=-np.inf)) * h.mean(1)).sum() if len(h) else 0.0
        np.testing.assert_allclose(got["numbers"][v], numbers, rtol=1e-12)


def test_gradients_by_differences() -> None:
    net = Way().compile(Attention())
    assert_output_gradients(net, batch())
    assert_loss_gradients(net, batch())


class Scores(vrt.VertexFunction):
    """Attention whose scores are given, so that they can be as large as they like."""

    def __init__(self, reduce: Callable[[vrt.VertexFunction], object]) -> None:
        super().__init__(state={"s": 1})
        self.scale = vrt.Parameter((1,), init=vrt.init.ones)
        self.reduce = reduce

    def forward(self) -> None:
        self.scatter(s=self.pull("x", shape=(1,)) * self.scale)
        out = self.push("out", self.reduce(self))
        self.push("loss", vrt.sum(out))


@pytest.mark.parametrize("device", ["reference", "cpu"])
def test_the_largest_may_be_infinite(device: str) -> None:
    """The reference gave zero for an infinity, as for a vertex without children."""
    x = np.array([[np.inf], [-np.inf], [1.0], [0.0], [0.0], [0.0]])
    lists = [[], [], [], [0, 2], [1, -1], [1, 2]]
    graph = vrt.InputGraph.from_children(lists, {"x": x})
    net = vrt.compile(Scores(lambda f: vrt.max(f.gather_all().s)), device=device)
    out = net(vrt.GraphBatch.from_graphs([graph]))["out"]
    np.testing.assert_array_equal(out[:, 0], [0.0, 0.0, 0.0, np.inf, -np.inf, 1.0])


@pytest.mark.parametrize("level", [1e4, -1e4])
def test_large_scores_and_empty_slots(level: float) -> None:
    """Scores far from zero: what an empty slot reads, zero, is far above or below them."""
    values = {"x": np.array([[level], [level], [0.0]])}
    graph = vrt.InputGraph.from_children([[], [], [-1, 0, 1]], values)
    one = vrt.GraphBatch.from_graphs([graph])

    def halves(f: vrt.VertexFunction) -> object:
        return vrt.sum(
            vrt.softmax(f.gather_all().s, axis="children") * f.pull("x", shape=(1,)) + 1.0
        )

    for reduce, want in (
        (halves, 2.0),
        (lambda f: vrt.logsumexp(f.gather_all().s, axis="children"), level + np.log(2.0)),
    ):
        net = vrt.compile(Scores(reduce), device="reference", dtype="float64")
        run = net.record(one)
        np.testing.assert_allclose(run.outputs["out"][2], [want], rtol=1e-12)
        gradients = run.backward({"out": np.ones((3, 1))})
        assert np.isfinite(gradients.parameters["scale"]).all()
