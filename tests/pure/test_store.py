"""Where values lie that another stage reads: one decision, on which keeps and reads agree."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import vertexrt as vrt
from tests.agreement import agree
from tests.declared import Declared
from tests.runs import Way
from vertexrt.engine.variant import Passes

H = 4


class NestedParts(
    Declared, arity=1, state={"h": H}, w1=(2 * H, H), w2=(2 * H, H), b=(2 * H,), c=(H,)
):
    """Gradients that are parts of a concat that is itself only stored as a part of a concat."""

    def forward(self) -> None:
        h = self.gather(0).h + self.pull("x", shape=(H,))
        first, second = self.w1 @ h, self.w2 @ h + self.b
        self.scatter(h=vrt.tanh(first[:H] + second[:H] + self.c))
        self.push("loss", vrt.losses.squared_error(h, 0.3))


class SeenWhenAbsent(Declared, arity=1, state={"h": H}, w=(2, H), u=(2, H)):
    """A concat of the path, of which a lazy stage reads a part alone where a pull is absent."""

    def forward(self) -> None:
        h = self.gather(0).h + self.pull("x", shape=(H,))
        both = vrt.concat(self.w @ h, self.u @ h)
        self.scatter(h=vrt.tanh(both))
        y = (both + self.pull("y", shape=(H,)))[:2]
        self.push("loss", vrt.sum(y * y))


class BothWays(Declared, arity=2, state={"h": H}, u=(H, H), wide=(H, 2 * H), b=(H,)):
    """The same two states as the rows of one weight's products, and as one vector of another's."""

    def forward(self) -> None:
        left, right = self.gather(0).h, self.gather(1).h
        x, y = vrt.tanh(left + self.b), vrt.tanh(right - self.b)
        both = self.wide @ vrt.concat(x, y)
        h = vrt.tanh(both + vrt.sigmoid(self.u @ x) * (self.u @ y) + self.b)
        self.scatter(h=h)
        self.push("loss", vrt.sum(h * h))


def batch(lists: list[list[int]], pulls: tuple[str, ...]) -> vrt.GraphBatch:
    rng = np.random.default_rng(2)
    found = {}
    for name in pulls:
        index = np.arange(len(lists), dtype=np.int32)
        index[1::2] = -1 if name == "y" else index[1::2]
        found[name] = vrt.Rows(rng.normal(size=(len(lists), H)), index)
    return vrt.GraphBatch.from_graphs([vrt.InputGraph.from_children(lists, found)])


@pytest.mark.parametrize("make", [NestedParts, SeenWhenAbsent, BothWays])
@pytest.mark.parametrize(
    "passes",
    [Passes(), Passes(stack=False), Passes(specialise=False)],
    ids=["all", "no-stack", "no-specialise"],
)
def test_gradients_of_values_that_several_stages_read(
    make: Callable[[], vrt.VertexFunction], passes: Passes
) -> None:
    """Gradients of slices, and sums of them, that lie in concats of concats."""
    graphs = batch(
        [children[: make().arity] for children in ([], [], [0, 1], [2, 0], [])], ("x", "y")
    )
    agree(make, graphs, Way(passes=passes))
