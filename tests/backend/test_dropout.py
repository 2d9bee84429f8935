"""What dropout drops depends on seed, step, vertex and element: on nothing else, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

import vertexrt as vrt
from tests.runs import DRAWS, Way
from vertexrt.engine.variant import Passes
from vertexrt.scheduler import POLICIES

SIZE = 5
PUSHES = ("own", "below")


class Dropped(vrt.VertexFunction):
    """Pushes what is left of a vector, and of the children's, in numbers that sum exactly."""

    def __init__(self) -> None:
        super().__init__(state={"x": SIZE})
        self.w = vrt.Parameter((SIZE,))

    def forward(self) -> None:
        x = self.pull("x", shape=(SIZE,))
        self.scatter(x=x)
        own = self.push("own", vrt.dropout(x, 0.5))
        below = self.push("below", vrt.sum(vrt.dropout(self.gather_all().x, 0.5)))
        self.push("loss", vrt.sum(self.w * vrt.dropout(own + below, 0.25)))


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
    *(Way(device, dtype, threads=n) for device in ("reference", "cpu") for n in (1, 2, 3)
      for dtype in ("float32", "float64")),
    *(Way("cpu", policy=policy, threads=2) for policy in POLICIES),
    *(Way("cpu", threads=n, engine="persistent", processors=p)
      for n, p in ((1, 1), (2, 1), (2, 2), (3, 1))),
    Way("reference", threads=2, engine="persistent", processors=1),
    Way("cpu", passes=Passes(specialise=False, fuse=False)),
    Way("shim"),
    Way("shim", "float32", engine="persistent", processors=2),
]  # fmt: skip


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_the_same_elements_are_dropped_everywhere(way: Way) -> None:
    """With two threads, and with two groups, other elements were dropped than with one."""
    found = []
    for each in (Way(), way):
        net, optimizer = each.compile(Dropped()), vrt.SGD(0.0)
        net.set_random_state(DRAWS)
        losses = [net.step(batch(), optimizer, outputs=PUSHES)]
        pushed = net.outputs
        losses.append(net.step(batch(), optimizer, outputs=PUSHES))
        found.append((pushed, losses, net.sync()))
    (want, losses, last), (got, others, other_last) = found
    for name in PUSHES:
        np.testing.assert_array_equal(got[name], want[name], err_msg=name)
    assert 0.3 < (want["own"] == 0.0).mean() < 0.7
    assert set(np.unique(want["own"] / batch().pulls["x"])) == {0.0, 2.0}  # 1 / (1 - p)
    assert other_last == pytest.approx(last, rel=1e-5)
    if way.device != "shim":  # which is a step behind
        assert others == pytest.approx(losses, rel=1e-5)
    assert losses[0] != losses[1]


@pytest.mark.parametrize("way", [Way(), Way(threads=2, engine="persistent", processors=1)], ids=str)
def test_a_forward_pass_drops_what_a_step_drops(way: Way) -> None:
    net = way.compile(Dropped())
    net.set_random_state(DRAWS)
    net.step(batch(), vrt.SGD(0.0), outputs=PUSHES)
    want = net.outputs
    net.set_random_state(DRAWS)
    got = net.forward(batch(), train=True)
    for name in PUSHES:
        np.testing.assert_array_equal(got[name], want[name], err_msg=name)
