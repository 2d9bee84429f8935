"""Options of calls and records: dropout, seed and pulls; other pulls of a batch."""

from __future__ import annotations

import numpy as np
import pytest

import vertexrt as vrt
from vertexrt.errors import UsageError

SIZE = 40


class Masked(vrt.VertexFunction):
    """Half of w x + y, drawn anew for each vertex."""

    def __init__(self) -> None:
        super().__init__(state={"x": SIZE})
        self.w = vrt.Parameter((SIZE,), vrt.init.constant(2.0))

    def forward(self) -> None:
        x, y = self.pull("x", shape=(SIZE,)), self.pull("y", shape=(SIZE,))
        self.scatter(x=x)
        self.push("loss", vrt.sum(self.push("out", vrt.random.dropout(self.w * x + y, 0.5))))


def batch(scale: float = 1.0) -> vrt.GraphBatch:
    x = scale * np.ones((3, SIZE))
    return vrt.GraphBatch.from_arrays([0, 1, 3], [0, 0, 0, 1], [1], {"x": x, "y": 0.0 * x})


@pytest.fixture(params=["cpu", "reference"])
def net(request: pytest.FixtureRequest) -> vrt.Network:
    return vrt.compile(Masked(), device=request.param, dtype="float64")


def test_gradients_without_dropout(net: vrt.Network) -> None:
    given = net.record(batch(3.0), dropout=False)
    assert np.array_equal(given.outputs["out"], np.full((3, SIZE), 6.0))
    found = given.backward({"loss": np.ones(3)})
    assert np.array_equal(found.parameters["w"], np.full(SIZE, 9.0))
    assert np.array_equal(found.pulled["x"], np.full((3, SIZE), 2.0))


@pytest.mark.parametrize("train", [False, True])
def test_a_seed_repeats_what_is_drawn_and_leaves_the_networks_own(
    net: vrt.Network, train: bool
) -> None:
    state = net.state()["random"]

    def drawn(**seed: int) -> np.ndarray:
        given = net.record(batch(), **seed).outputs if train else net(batch(), dropout=True, **seed)
        return given["out"]

    a, b, c = (drawn(seed=n) for n in (7, 7, 8))
    assert np.array_equal(a, b)
    assert not np.array_equal(a, c)
    assert net.state()["random"] == state
    assert not np.array_equal(*(drawn() for _ in "ab"))


def test_gradients_of_some_pulls_and_none_added_up(net: vrt.Network) -> None:
    run = net.record(batch(), pulls=["y"], dropout=False)
    found = run.backward({"loss": np.ones(3)}, accumulate=False)
    assert list(found.pulled) == ["y"]
    assert np.array_equal(found.pulled["y"], np.ones((3, SIZE)))
    assert net.gradients.passes == 0
    with pytest.raises(UsageError, match=r"pulls is \['z'\]; the real pulls are x, y"):
        net.record(batch(), pulls=["z"])
    with pytest.raises(TypeError, match="pulls"):
        net(batch(), pulls=["y"])  # type: ignore[call-arg]
    with pytest.raises(UsageError, match=r"seed=-1; a whole number below 2\*\*32"):
        net(batch(), seed=-1)
