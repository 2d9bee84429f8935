"""What all vertices share, read in several ways; shares of a batch that meet other kinds."""

from __future__ import annotations

import numpy as np
import pytest

import vertexrt as vrt
from tests.devices import require
from tests.runs import Way, assert_loss_gradients, assert_output_gradients
from vertexrt.engine.variant import Passes


class OnEdgesAndInProducts(vrt.VertexFunction):
    """A parameter that is an operand of a product per vertex and read on every edge."""

    def __init__(self) -> None:
        super().__init__(state={"h": 8})
        self.b = vrt.Parameter((8,))
        self.w = vrt.Parameter((2, 8))

    def forward(self) -> None:
        a = vrt.sum(vrt.sum(self.gather_all().h + self.b))
        self.scatter(h=self.b)
        self.push("loss", a + vrt.losses.squared_error(self.w @ self.b, 0.3))


def forest() -> vrt.GraphBatch:
    graphs = [[[], [0, 0]], [[1], []]]
    return vrt.GraphBatch.from_graphs([vrt.InputGraph.from_children(g) for g in graphs])


@pytest.mark.parametrize("segment", [True, False])
@pytest.mark.parametrize("engine", ["batched", "persistent"])
@pytest.mark.parametrize("device", ["reference", "cpu"])
def test_a_parameter_on_edges_and_in_a_product(device: str, engine: str, segment: bool) -> None:
    require(device)
    processors = None if engine == "batched" else 2
    passes = Passes(segment=segment)
    way = Way(device, engine=engine, processors=processors, threads=2, passes=passes)
    assert_loss_gradients(way.compile(OnEdgesAndInProducts()), forest())


class Pulls(vrt.VertexFunction):
    """A sum of what is pulled, weighted."""

    def __init__(self) -> None:
        super().__init__(arity=1, state={"h": 3})
        self.w = vrt.Parameter((3,))

    def forward(self) -> None:
        h = vrt.tanh(self.pull("x", (3,)) * self.w + self.gather(0).h)
        self.scatter(h=h)
        self.push("loss", vrt.sum(h))


@pytest.mark.parametrize(("engine", "processors"), [("batched", None), ("persistent", 1)])
def test_the_second_share_of_a_batch_has_kinds_that_the_first_has_not(
    engine: str, processors: int | None
) -> None:
    """The memory of the first share was planned when the variant knew fewer kinds and tensors."""
    x = np.random.default_rng(0).normal(size=(4, 3))
    index = np.array([-1, -1, 1, 3], np.int32)
    graph_ptr, child_ptr, child = [0, 2, 4], [0, 0, 1, 1, 2], [0, 2]
    batch = vrt.GraphBatch.from_arrays(graph_ptr, child_ptr, child, {"x": vrt.Rows(x, index)})
    net = Way(threads=2, engine=engine, processors=processors).compile(Pulls())
    assert_output_gradients(net, batch)
    assert_loss_gradients(net, batch)


class MaxOfConstant(vrt.VertexFunction):
    """A maximum over children that is a constant where a pull is absent."""

    def __init__(self) -> None:
        super().__init__(state={"h": 4})
        self.w = vrt.Parameter((4, 4))

    def forward(self) -> None:
        x = self.pull("x", (4,))
        self.scatter(h=x)
        best = vrt.max(vrt.sigmoid(self.gather_all().h * (self.w @ x)))
        self.push("best", best)
        self.push("loss", vrt.sum(best))


@pytest.mark.parametrize("device", ["reference", "cpu"])
def test_the_largest_of_a_constant_over_children(device: str) -> None:
    require(device)
    x = vrt.Rows(np.ones((1, 4)), np.array([0, 0, -1], np.int32))
    graph = vrt.InputGraph.from_children([[], [], [0, 1]], {"x": x})
    net = Way(device).compile(MaxOfConstant())
    best = net(vrt.GraphBatch.from_graphs([graph]))["best"]
    np.testing.assert_array_equal(best, [[0.0] * 4, [0.0] * 4, [0.5] * 4])


class SharedLogits(vrt.VertexFunction):
    """Logits that are a parameter: their gradient is a row a vertex all the same."""

    def __init__(self) -> None:
        super().__init__(arity=2, state={})
        self.b = vrt.Parameter((7,))

    def forward(self) -> None:
        self.push("loss", vrt.losses.cross_entropy(self.b, self.pull("label")))


@pytest.mark.parametrize("segment", [True, False])
@pytest.mark.parametrize("device", ["reference", "cpu"])
def test_logits_that_all_vertices_share(device: str, segment: bool) -> None:
    require(device)
    graph = vrt.InputGraph.from_children([[], [], []], {"label": [3, 5, -1]})
    way = Way(device, engine="persistent", processors=2, passes=Passes(segment=segment))
    net = way.compile(SharedLogits())
    assert_loss_gradients(net, vrt.GraphBatch.from_graphs([graph]))


class LogOfChildren(vrt.VertexFunction):
    """What an empty slot makes is not finite: log(0) per edge, multiplied and added to."""

    def __init__(self) -> None:
        super().__init__(arity=2, state={"h": 3})
        self.w = vrt.Parameter((3,))
        self.u = vrt.Parameter((2, 3))

    def forward(self) -> None:
        kids = self.gather_all().h
        each = vrt.log(kids * (self.w * self.w))
        self.scatter(h=1.5 + vrt.sigmoid(self.pull("x", (3,)) + self.gather(0).h))
        self.push("y", vrt.sum(vrt.tanh(self.u @ each)))
        self.push("loss", vrt.sum(vrt.sum(each)))


@pytest.mark.parametrize("device", ["reference", "cpu"])
def test_gradients_of_parameters_do_not_count_empty_slots(device: str) -> None:
    require(device)
    x = np.random.default_rng(1).normal(size=(5, 3))
    graph = vrt.InputGraph.from_children([[], [], [0, 1], [-1, 1], [2, -1]], {"x": x})
    batch = vrt.GraphBatch.from_graphs([graph])
    net = Way(device).compile(LogOfChildren())
    assert_output_gradients(net, batch)
    assert_loss_gradients(net, batch)
