"""Comparisons of traced values: 1.0 where they hold, else 0.0, on every backend, with no gradient.

`==` was identity once: `vrt.where(relation == 1, a, b)` compiled, and took b for all vertices.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vertexrt as vrt
from tests.runs import Way, assert_loss_gradients, assert_same, evaluate, train
from tests.shim import build as shim
from vertexrt.engine.variant import Passes

H = 3

# Compiling takes seconds for each kind of vertex, and the batch has six: one way specialises none.
ONE_KIND = Passes(specialise=False)
WAYS = {
    "reference": Way(),
    "reference-persistent": Way(engine="persistent", processors=2, threads=2),
    "cpu": Way(device="cpu"),
    "cpu-persistent": Way("cpu", engine="persistent", processors=2, threads=2, passes=ONE_KIND),
    "shim": Way(device="shim"),
    "shim-persistent": Way(device="shim", engine="persistent", processors=2),
}


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> Way:
    if "shim" in request.param and not shim.available():
        pytest.skip("no C++ compiler")
    return WAYS[request.param]


class Compared(vrt.VertexFunction):
    """All six comparisons: of reals, of parameters, of integer pulls; in `where` and in sums."""

    def __init__(self) -> None:
        super().__init__(arity=2, state={"h": H})
        self.rows = vrt.Parameter((5, H))
        self.u = vrt.Parameter((H, H))
        self.b = vrt.Parameter((H,))

    def forward(self) -> None:
        relation, other = self.pull_index("relation"), self.pull("other")
        x = self.pull("x", shape=(H,))
        looked = vrt.embed(self.rows, other)
        below = self.u @ (self.gather(0).h + self.gather(1).h)
        h = vrt.where(relation == 1, below + self.b, 0.5 * below + looked)
        h = h + (x > 0) * (self.b != x) * below + (relation >= 1) * looked
        h = h + 0.1 * (x < self.b) + 0.2 * (x <= 0.5) * (other != relation) + (x >= 1) * x
        h = vrt.tanh(h)
        self.scatter(h=h)
        either = -1.0 * (relation == other)
        self.push("integers", vrt.where(relation > 1, 1.0 * (other < 2), either))
        self.push("reals", (x == 0) + 2.0 * (x != 0) + 4.0 * (x < 0) + 8.0 * (x > 0))
        self.push("loss", vrt.sum(h * h))


RELATION = np.array([1, -1, 0, 2, 1, 3])
OTHER = np.array([4, 0, -1, 1, 1, 2])
X = np.array([[0, -1, 2], [1, 0, 0.5], [-2, 3, 0], [0.25, 0.5, 1], [0, 0, 0], [-1, -1, 4]])


def batch() -> vrt.GraphBatch:
    children: list[list[int]] = [[], [], [0, 1], [2], [3, 2], []]
    pulls = {"relation": RELATION, "other": OTHER, "x": X}
    return vrt.GraphBatch.from_graphs([vrt.InputGraph.from_children(children, pulls)])


def test_comparisons_hold_and_let_gradients_of_other_factors_through(way: Way) -> None:
    net, oracle = way.compile(Compared()), Way().compile(Compared())
    got = train(net, batch())
    integers = np.where(RELATION > 1, OTHER < 2, -1.0 * (RELATION == OTHER))
    np.testing.assert_array_equal(got.outputs["integers"], integers)
    reals = (X == 0) + 2.0 * (X != 0) + 4.0 * (X < 0) + 8.0 * (X > 0)
    np.testing.assert_array_equal(got.outputs["reals"], reals)
    assert_same(got, train(oracle, batch()), 1e-10)


@pytest.mark.parametrize("engine", ["batched", "persistent"])
def test_comparisons_have_no_gradient(engine: str) -> None:
    net = Way(engine=engine, processors=1 if engine == "persistent" else None).compile(Compared())
    assert_loss_gradients(net, batch())
    assert_same(evaluate(net, batch()), evaluate(Way().compile(Compared()), batch()), 1e-10)


class Body(vrt.VertexFunction):
    """A vertex function whose forward is given, and pushes what it returns."""

    def __init__(self, body: Any) -> None:
        super().__init__(arity=1, state={"h": H})
        self.body = body
        self.b = vrt.Parameter((H,), init=vrt.init.ones)

    def forward(self) -> None:
        out = self.body(self)
        self.scatter(h=self.b * 1.0)
        self.push("out", out)


NUMBERS = [np.float32(2), np.float64(2), np.int64(2), np.array(2.0), np.uint8(2), 2, True + 1]


@pytest.mark.parametrize("two", NUMBERS, ids=lambda n: type(n).__name__)
def test_numbers_of_numpy_are_numbers(two: Any) -> None:
    """On either side of an operator, as operands of functions, and beside integers."""
    body = Body(
        lambda f: (
            two * f.b
            + f.b * two
            + (two - f.b) / two
            + vrt.maximum(f.b, two)
            + (two == f.b * two) * (f.b < two) * (two > f.b)
            + (f.pull_index("i") == two)
            + (two == f.pull_index("i"))
        )
    )
    graph = vrt.InputGraph.from_children([[]], {"i": np.array([2])})
    out = vrt.compile(body, device="reference")(vrt.GraphBatch.from_graphs([graph]))
    np.testing.assert_array_equal(out["out"], np.full((1, H), 2 + 2 + 0.5 + 2 + 1 + 1 + 1.0))


def test_hashes_are_those_of_identity() -> None:
    parameter = vrt.Parameter((H,))
    assert {parameter: 1}[parameter] == 1
    assert parameter in [parameter]
    found: list[Any] = []
    Body(lambda f: found.extend(({f.b * 1.0, f.b * 1.0}, {f.b, f.b})) or f.b).trace()
    assert [len(s) for s in found] == [2, 1]


def test_a_number_that_is_not_a_number_is_unequal_to_itself() -> None:
    body = Body(lambda f: (f.gather(0).h == f.gather(0).h) + 2.0 * (f.b * f.pull("x") != f.b))
    graph = vrt.InputGraph.from_children([[]], {"x": np.array([np.nan])})
    net = vrt.compile(body, device="reference")
    out = net(vrt.GraphBatch.from_graphs([graph]))["out"]
    np.testing.assert_array_equal(out, np.full((1, H), 3.0))
