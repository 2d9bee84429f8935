"""What is drawn depends on seed, step, vertex and element: on nothing else, bit for bit."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest

import vertexrt as vrt
from tests.declared import Declared
from tests.runs import DRAWS, Way, assert_output_gradients
from tests.strategies import one_graph
from vertexrt.engine.variant import Passes
from vertexrt.scheduler import POLICIES

SIZE = 5
PUSHES = ("own", "below", "graph", "drawn", "even")


class Dropped(Declared, state={"x": SIZE}, w=(SIZE,)):
    """Pushes what is left of a vector, and of the children's, in numbers that sum exactly."""

    def forward(self) -> None:
        x = self.pull("x", shape=(SIZE,))
        self.scatter(x=x)
        own = self.push("own", vrt.random.dropout(x, 0.5))
        below = self.push("below", vrt.sum(vrt.random.dropout(self.gather_all().x, 0.5)))
        kept = self.push("graph", vrt.random.dropout(x, 0.5, per="graph"))
        below = below + vrt.sum(vrt.random.dropout(self.gather_all().x, 0.5, per="graph"))
        even = self.push("even", vrt.random.uniform(SIZE, -1.0, 1.0))
        self.push(
            "drawn", vrt.random.normal(SIZE) * (self.w == self.w) + 8.0 * vrt.random.uniform(())
        )
        self.push("loss", vrt.sum(self.w * vrt.random.dropout(own + below + kept * even, 0.25)))


def batch() -> vrt.GraphBatch:
    """Return trees of many sizes, so that shares have graphs from all over the batch."""
    rng, graphs = np.random.default_rng(4), []
    for size in (1, 7, 3, 12, 2, 5, 9):
        lists: list[list[int]] = [[] for _ in range(size)]
        for vertex in range(size - 1):
            lists[int(rng.integers(vertex + 1, min(size, vertex + 4)))].append(vertex)
        x = 2.0 ** (np.arange(size)[:, None] % 12 + np.zeros(SIZE))
        graphs.append(vrt.InputGraph.from_children(lists, {"x": x}))
    return vrt.GraphBatch.from_graphs(graphs)


WAYS = [
    Way("reference", "float32", threads=3),
    Way("reference", threads=2, engine="persistent", processors=1),
    Way("cpu", "float32"),
    Way("cpu", threads=3),
    *(Way("cpu", policy=policy, threads=2) for policy in POLICIES),
    Way("cpu", threads=2, engine="persistent", processors=2),
    Way("cpu", threads=3, engine="persistent", processors=1),
    Way("cpu", passes=Passes(specialise=False, fuse=False)),
    Way("shim"),
    Way("shim", "float32", engine="persistent", processors=2),
]


@pytest.mark.parametrize("way", WAYS)
def test_the_same_elements_are_dropped_everywhere(way: Way) -> None:
    """With two threads, and with two groups, other elements were dropped than with one."""
    found = []
    for each in (Way(), way):
        net, optimizer = each.compile(Dropped()), vrt.SGD(0.0)
        net.load_state({"random": DRAWS})
        losses = [net.step(batch(), optimizer, outputs=PUSHES) for _ in range(2)]
        net.load_state({"random": DRAWS})
        passed = net.record(batch()).outputs  # which drops what a step drops
        for name in PUSHES:
            np.testing.assert_array_equal(passed[name], losses[0].outputs[name], err_msg=name)
        found.append((losses[0].outputs, [float(loss) for loss in losses]))
    (want, losses), (got, others) = found
    for name in PUSHES:
        most = 1e-5 if name == "drawn" else 0.0  # logarithms differ by rounding
        np.testing.assert_allclose(got[name], want[name], rtol=0.0, atol=most, err_msg=name)
    assert 0.3 < (want["own"] == 0.0).mean() < 0.7
    assert set(np.unique(want["own"] / batch().pulls["x"])) == {0.0, 2.0}  # 1 / (1 - p)
    assert others == pytest.approx(losses, rel=1e-5)
    assert losses[0] != losses[1]


class Drawn(Declared, state={}, a=(64,), b=(64,)):
    """Draws of which the parameters are the bounds, the mean and the deviation."""

    def forward(self) -> None:
        plain = [vrt.random.uniform(64), vrt.random.normal(64)]
        for name, value in zip(("uniform", "normal"), plain, strict=True):
            self.push(name, value)
        moved = vrt.random.uniform(64, self.a, self.b) + vrt.random.normal(64, self.a, self.b)
        self.push("loss", vrt.sum(moved))


def quantile(p: np.ndarray) -> np.ndarray:
    """Return normal quantiles of the standard library, in double precision."""
    return np.vectorize(NormalDist().inv_cdf)(p)


def test_numbers_are_drawn_from_their_distributions_in_inference_too() -> None:
    graphs = [vrt.InputGraph.from_children([[] for _ in range(200)], {})]
    net = Way().compile(Drawn())
    net.load_state({"random": DRAWS})
    first, second = (net(vrt.GraphBatch.from_graphs(graphs)) for _ in range(2))
    for name in ("uniform", "normal"):
        assert (first[name] != second[name]).all()  # of another step
    ordered = np.sort(np.concatenate([first["uniform"], second["uniform"]], None))
    expected = (np.arange(len(ordered)) + 0.5) / len(ordered)
    assert np.abs(ordered - expected).max() < 1.63 / np.sqrt(len(ordered))  # Kolmogorov, 1 %
    drawn = np.sort(np.concatenate([first["normal"], second["normal"]], None))
    inside = (drawn > -2.5) & (drawn < 2.5)
    assert np.abs(drawn - quantile(expected))[inside].max() < 0.1
    assert drawn[0] > -6.0
    assert np.abs([drawn.mean(), drawn.std() - 1.0]).max() < 0.02


def test_normal_draws_are_quantiles_of_uniform_ones() -> None:
    """To the 7 digits of AS 241."""

    class Both(Declared, state={}, b=(4096,)):
        def forward(self) -> None:
            drawn = self.push("normal", vrt.random.normal(4096))
            self.push("loss", vrt.sum(drawn * self.b))

    batch = one_graph([[]], {})
    found = np.sort(Way().compile(Both())(batch)["normal"][0])
    middle = 0.5 * (1.0 + np.vectorize(math.erf)(found / np.sqrt(2.0)))
    numbers = middle * 2**23 - 0.5  # of 2**23 that may be drawn
    np.testing.assert_allclose(numbers, np.round(numbers), atol=0.25)


def test_gradients_go_to_what_draws_are_made_from() -> None:
    graphs = [vrt.InputGraph.from_children([[], []], {})]
    assert_output_gradients(Way().compile(Drawn()), vrt.GraphBatch.from_graphs(graphs))
