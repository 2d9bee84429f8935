"""The CPU's own exponential of float32, over all of its range."""

from __future__ import annotations

import numpy as np
import pytest

import vertexrt as vrt

WIDTH = 64


class Exponential(vrt.VertexFunction):
    """Push exp, sigmoid and tanh of what is pulled."""

    def __init__(self) -> None:
        super().__init__(arity=None, state={"h": WIDTH})

    def forward(self) -> None:
        """Compute one vertex."""
        x = self.pull("x", shape=(WIDTH,), dtype="float")
        self.scatter(h=x)
        self.push("exp", vrt.exp(x))
        self.push("sigmoid", vrt.sigmoid(x))
        self.push("tanh", vrt.tanh(x))


def outputs(x: np.ndarray) -> dict[str, np.ndarray]:
    rows = x.astype(np.float32).reshape(-1, WIDTH)
    graphs = [vrt.InputGraph.from_children([[] for _ in rows], {"x": rows})]
    batch = vrt.GraphBatch.from_graphs(graphs)
    net = vrt.compile(Exponential(), device="cpu")
    return {name: value.reshape(-1) for name, value in net(batch).items()}


@pytest.mark.parametrize(("low", "high"), [(-87.3, -80.0), (-10.0, 10.0), (80.0, 88.72)])
def test_it_is_within_a_few_units_of_the_last_place(low: float, high: float) -> None:
    x = np.linspace(low, high, 100 * WIDTH).astype(np.float32)
    exact = np.exp(x.astype(np.float64))
    error = np.abs(outputs(x)["exp"] - exact) / exact
    assert error.max() < 3e-7


def test_it_overflows_where_float32_does() -> None:
    x = np.full(WIDTH, 88.72)
    x[1:] = 88.73
    x[2], x[3] = 1000.0, np.inf
    found = outputs(x)["exp"]
    assert np.isfinite(found[0])
    assert np.isinf(found[1:]).all()


def test_what_is_small_is_nothing() -> None:
    x = np.full(WIDTH, -1000.0)
    x[0] = -np.inf
    found = outputs(x)
    assert (found["exp"] == 0.0).all()
    assert (found["sigmoid"] == 0.0).all()
    assert (found["tanh"] == -1.0).all()
    other = outputs(-x)
    assert (other["sigmoid"] == 1.0).all()
    assert (other["tanh"] == 1.0).all()
