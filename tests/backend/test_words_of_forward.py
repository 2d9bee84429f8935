"""What `forward` says besides ops: constants, training, several losses; and products by zeros.

Each is compared with NumPy, or with PyTorch in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import vertexrt as vrt
from tests.agreement import EVERYWHERE, agree
from tests.bodies import WithBody
from tests.runs import Way
from vertexrt.api.init import draw
from vertexrt.graph import GraphBatch

MATRIX = np.array([[1.0, 0.0, 2.0], [0.0, -1.0, 0.5]])
X = np.random.default_rng(3).standard_normal((4, 3))


def batch(**pulls: np.ndarray[Any, Any]) -> GraphBatch:
    """A vertex without children, one of three, one of an empty slot and a child."""
    lists = [[], [], [], [0, 1, 2], [-1, 3]]
    whole = {name: np.resize(x, (5, *x.shape[1:])) for name, x in ({"x": X} | pulls).items()}
    return GraphBatch.from_graphs([vrt.InputGraph.from_children(lists, whole)])


class Alone(vrt.VertexFunction):
    """A function without slots that computes `body`, and hands on what it pulls."""

    def __init__(self, body: Callable[[Any], Any]) -> None:
        super().__init__(state={"h": 3})
        self.body = body
        self.b = vrt.Parameter(3, vrt.init.constant([0.5, -1.0, 2.0]))

    def forward(self) -> None:
        self.x = self.pull("x", 3)
        self.scatter(h=self.x)
        self.push("out", self.body(self))


def compiled(way: Way, function: vrt.VertexFunction) -> vrt.Network:
    """Compile with the parameters as they are declared."""
    net = way.compile(function)
    for name, p in function.parameters().items():
        net.parameters[name] = draw(name, p.shape, p.init, 0)
    return net


@pytest.mark.parametrize("way", EVERYWHERE)
def test_arrays_of_numpy_are_constants(way: Way) -> None:
    """From both sides, twice the same one once; one that is equal everywhere is no parameter."""

    def body(f: Any) -> Any:
        x = f.x * np.arange(3) - np.float32(0.5) * np.ones(3)
        return MATRIX @ (np.arange(3.0) * x + np.array([1, 2, 3], np.int32))

    function = Alone(body)
    net = compiled(way, function)
    out = net(batch())["out"]
    x = X * np.arange(3) - 0.5
    expected = (np.arange(3) * x + [1, 2, 3]) @ MATRIX.T
    np.testing.assert_allclose(out[:4], expected, 1e-6, 1e-6)
    names = [f"arrays_in_forward.{k}" for k in range(3)]
    assert [name for name in net.parameters if name != "b"] == names
    assert [*way.compile(function).parameters] == [*net.parameters]  # traced again


def test_matrices_and_arrays_multiply_from_both_sides() -> None:
    def body(f: Any) -> Any:
        m = vrt.outer(f.x, f.x[:2])
        return m @ np.array([1.0, 3.0]) + m.shape[1] * (f.x @ nine)

    nine = np.outer(np.arange(3.0), np.arange(3.0))
    out = compiled(Way("cpu"), Alone(body))(batch())["out"][:4]
    expected = [np.outer(x, x[:2]) @ [1, 3] + 2 * (x @ nine) for x in X]
    np.testing.assert_allclose(out, expected, 1e-6)


def test_constants_of_types_have_names_of_their_types() -> None:
    model = vrt.Model()
    model.one = Alone(lambda f: f.x * np.arange(3))  # type: ignore[attr-defined]
    model.two = Alone(lambda f: f.x + np.arange(3))  # type: ignore[attr-defined]
    net = vrt.compile(model, device="cpu")
    assert {"one.arrays_in_forward.0", "two.arrays_in_forward.0"} < {*net.parameters}


@pytest.mark.parametrize("way", EVERYWHERE)
def test_children_are_counted(way: Way) -> None:
    out = compiled(way, Alone(lambda f: f.count_children() * f.b))(batch())["out"]
    np.testing.assert_allclose(out, np.outer([0, 0, 0, 3, 1], [0.5, -1.0, 2.0]), 1e-6)


@pytest.mark.parametrize("way", EVERYWHERE)
def test_elements_are_sorted_for_each_child_and_matrices_multiplied(way: Way) -> None:
    """What is said of a vector holds of one per child, and what is said of elements of a matrix."""

    class Sorts(vrt.VertexFunction):
        def __init__(self) -> None:
            super().__init__(state={"h": 3})
            self.b = vrt.Parameter(3)

        def forward(self) -> None:
            x = self.pull("x", 3)
            self.scatter(h=x)
            up, down = (vrt.sort(self.gather_all().h, descending=d) for d in (False, True))
            self.push("up", vrt.sum(up, axis="children"))
            self.push("down", vrt.sum(down, axis="children"))
            self.push("all", vrt.prod(vrt.outer(x, x + 2.0)))
            self.push("by", self.b @ vrt.outer(x, x))

    net = way.compile(Sorts())
    out, x = net(batch()), np.resize(X, (5, 3))
    ordered = [np.zeros(3)] * 3 + [np.sort(x[:3]).sum(0), np.sort(x[3])]
    np.testing.assert_allclose(out["up"], ordered, 1e-5, 1e-6)
    np.testing.assert_allclose(out["down"], np.array(ordered)[:, ::-1], 1e-5, 1e-6)
    by = (x @ net.parameters["b"])[:, None] * x
    np.testing.assert_allclose(out["by"], by, 1e-5, 1e-6)
    whole = [np.outer(each, each + 2.0).prod() for each in x]
    np.testing.assert_allclose(out["all"], whole, 1e-5, 1e-6)


class CountsOthers(vrt.VertexFunction):
    """A chain, each vertex of which counts its children of another relation, and reads none."""

    def __init__(self) -> None:
        super().__init__(state={"h": 4})
        self.inputs |= {"before": (self,), "others": (self,)}
        self.w = vrt.Parameter((4, 4))

    def forward(self) -> None:
        h = vrt.tanh(self.w @ self.gather("before").h + self.count_children("others"))
        self.scatter(h=h + self.pull("x", 4))
        self.push("h", h)
        self.push("loss", vrt.sum(h))


@pytest.mark.parametrize("way", EVERYWHERE)
def test_children_are_counted_beside_those_that_are_read(way: Way) -> None:
    x = np.random.default_rng(4).standard_normal((6, 4))
    edges = {"before": [(k, k + 1) for k in range(5)], "others": [(0, 2), (1, 2), (0, 5), (3, 5)]}

    def make() -> vrt.Model:
        model = vrt.Model()
        model.one = CountsOthers()  # type: ignore[attr-defined]
        return model

    keys = {("one", relation, "one"): pairs for relation, pairs in edges.items()}
    graph = vrt.InputGraph.from_types({"one": 6}, keys, {"one": {"x": x}})
    agree(make, GraphBatch.from_graphs([graph, graph]), way)


@pytest.mark.parametrize("way", EVERYWHERE)
def test_training_is_known_when_it_is_compiled(way: Way) -> None:
    net = way.compile(Alone(lambda f: vrt.where(f.training, f.x, f.b * f.training - f.x)))
    for found, sign in (
        (net(batch()), -1.0),
        (net(batch(), dropout=True), 1.0),
        (net.record(batch()).outputs, 1.0),
    ):
        np.testing.assert_allclose(found["out"][:4], sign * X, 1e-6)


def test_losses_that_are_pushed_add_up() -> None:
    def body(f: Any) -> None:
        assert f.push("loss", vrt.sum(f.b * f.b)).shape == ()
        f.push("loss", 2.0 * vrt.sum(f.b))

    net = vrt.compile(WithBody(body), device="reference", dtype="float64", reduction="sum")
    net.parameters["b"] = [1.0, 2.0, 3.0]
    leaf = GraphBatch.from_graphs([vrt.InputGraph.chain(1, {})])
    run = net.record(leaf)
    assert run.outputs["loss"] == 14.0 + 12.0  # the body's own loss is 0 without a child
    np.testing.assert_allclose(run.backward().parameters["b"], 2.0 * np.array([1, 2, 3]) + 2.0)


@pytest.mark.parametrize("way", EVERYWHERE)
@pytest.mark.parametrize("axis", ["children", "elements"])
def test_products_go_through_zeros(axis: str, way: Way) -> None:
    """Of children with no, one and two zeros: the derivative is the product of the others."""
    torch = pytest.importorskip("torch", reason="PyTorch is an optional extra")
    given = np.array([[2.0, 0.0, 0.0], [-3.0, 5.0, 0.0], [0.5, -2.0, 4.0], [0.0, 1.0, 1.0]])

    class Multiply(vrt.VertexFunction):
        def __init__(self) -> None:
            super().__init__(state={"h": 3})

        def forward(self) -> None:
            x = self.pull("x", 3)
            self.scatter(h=x)
            self.push("loss", vrt.sum(vrt.prod(self.gather_all().h, axis=axis)))

    net = way.compile(Multiply())
    graphs = batch(x=given)
    run = net.record(graphs)
    x = torch.tensor(graphs.pulls["x"], dtype=torch.float64, requires_grad=True)
    kids = [x[:3], x[3:4]]
    along = 0 if axis == "children" else 1
    losses = torch.stack([k.prod(along).sum() for k in kids])
    none = 3.0 if axis == "children" else 0.0  # of vertices without children
    np.testing.assert_allclose(run.outputs["loss"][3:], losses.detach(), 1e-6, 1e-6)
    np.testing.assert_allclose(run.outputs["loss"][:3], none)
    losses.sum().backward()
    pulled = run.backward({"loss": np.ones(5)}).pulled["x"]
    np.testing.assert_allclose(pulled, x.grad, 1e-6, 1e-6)
