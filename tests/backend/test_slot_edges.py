"""What the edge to one child carries is a value of the vertex, with a gradient of the edge."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

import vertexrt as vrt
from tests.devices import require
from tests.edge_models import rows_of
from tests.judged_ways import WAYS, assert_slope
from tests.runs import Way, train
from vertexrt.errors import PullError, TraceError
from vertexrt.graph import GraphBatch, InputGraph

N, KINDS = 4, 3


class Weighed(vrt.VertexFunction):
    """A tree whose edges to the left and to the right have a kind and a vector each."""

    def __init__(self) -> None:
        super().__init__(arity=2, state={"h": N})
        self.kinds, self.w = vrt.Parameter((KINDS, N)), vrt.Parameter((N, N))
        self.b = vrt.Parameter((N,))

    def forward(self) -> None:
        total = self.b
        for slot in range(2):
            kind, x = self.edge("kind", relation=slot), self.edge("x", N, relation=slot)
            child = self.gather(slot).h
            total = total + (self.w @ child + vrt.embed(self.kinds, kind)) * x
        h = vrt.tanh(total)
        self.scatter(h=h)
        self.push("h", h)
        self.push("loss", vrt.losses.squared_error(h, 0.1))


def tree() -> GraphBatch:
    """Return two graphs; a slot may be empty, and an edge without values."""
    rng, graphs = np.random.default_rng(4), []
    for lists in ([[], [], [0, 1], [-1, 2], [3, 2]], [[], [0, 0]]):
        slots = sum(map(len, lists))
        index = np.where(rng.random(slots) < 0.8, np.arange(slots), -1)
        values = {
            "kind": rng.integers(-1, KINDS, slots),
            "x": vrt.Rows(rng.standard_normal((slots, N)), index),
        }
        graphs.append(InputGraph.from_children(lists, {}, values))
    return GraphBatch.from_graphs(graphs)


def states(values: Any, batch: GraphBatch) -> Any:
    """Compute the states of `Weighed`, vertex by vertex: [V, N]."""
    kinds, x = np.asarray(batch.edge_pulls["kind"]), rows_of(batch.edge_pulls["x"])
    found = np.zeros((batch.num_vertices, N))
    for v in range(batch.num_vertices):
        total = values["b"] + 0.0
        for e in range(*batch.child_ptr[v : v + 2]):
            if batch.child[e] >= 0:
                each = values["w"] @ found[batch.child[e]]
                each = each + (values["kinds"][kinds[e]] if kinds[e] >= 0 else 0.0)
                total = total + each * x[e]
        found[v] = np.tanh(total)
    return found


@pytest.mark.parametrize("way", WAYS)
def test_a_tree_with_values_of_edges(way: Way) -> None:
    require(way.device)
    batch, net = tree(), way.compile(Weighed())
    found = net.record(batch)
    np.testing.assert_allclose(
        found.outputs["h"], states(net.parameters, batch), rtol=0, atol=1e-12
    )
    d, pull = (
        np.random.default_rng(2).standard_normal((2, *found.outputs["h"].shape)),
        batch.edge_pulls["x"],
    )
    gradients = found.backward({"h": d[0]})
    assert isinstance(pull, vrt.Rows)

    def total(values: Any, x: Any) -> float:
        moved = replace(batch, edge_pulls={**batch.edge_pulls, "x": vrt.Rows(x, pull.index)})
        return float((states(values, moved) * d[0]).sum())

    values = net.parameters
    for name, gradient in gradients.parameters.items():
        loss = partial(lambda x, n: total({**values, n: x}, pull.table), n=name)
        assert_slope(name, gradient, values[name], loss)
    assert_slope("x", gradients.pulled["x"], pull.table, lambda x: total(values, x))
    assert gradients.pulled.keys() == {"x"}


def test_a_slot_has_one_name() -> None:
    """However its number is written, as `gather` takes it."""
    found = []
    _traced(lambda f: found.extend(f.edge("x", N, relation=of) for of in (1, "1", "01")))
    assert len({value.index for value in found}) == 1


def test_identical_vertices_are_merged_by_their_edges_too() -> None:
    """Where gradients are not given, as in a step."""
    batch = tree()
    want, got = (train(way.compile(Weighed()), batch) for way in (Way(), Way("cpu")))
    for name, value in want.parameters.items():
        np.testing.assert_allclose(got.parameters[name], value, rtol=0, atol=1e-12)


def test_one_name_of_all_children_and_of_one() -> None:
    """The gradient of what edges carry is the sum of both."""

    class Both(vrt.VertexFunction):
        def __init__(self) -> None:
            super().__init__(arity=2, state={"h": 1})
            self.w = vrt.Parameter((1,))

        def forward(self) -> None:
            every, first = self.edge("x", relation="children"), self.edge("x", relation=0)
            h = self.w * (vrt.sum(every * 2.0) + first * 3.0 + self.gather(1).h)
            self.scatter(h=h)
            self.push("h", h)

    graph = InputGraph.from_children([[], [0, 0]], {}, {"x": np.array([0.5, -1.0])})
    net = Way("cpu").compile(Both())
    found = net.record(GraphBatch.from_graphs([graph]))
    (w,) = net.parameters["w"]
    np.testing.assert_allclose(found.outputs["h"][1], w * (2.0 * -0.5 + 3.0 * 0.5), rtol=1e-12)
    gradient = found.backward({"h": np.ones((2, 1))}).pulled["x"]
    np.testing.assert_allclose(gradient, [5.0 * w, 2.0 * w], rtol=1e-12)


def test_values_of_edges_that_do_not_fit() -> None:
    net, batch = Way().compile(Weighed()), tree()
    wrong = np.asarray(batch.edge_pulls["kind"]).copy()
    wrong[0] = KINDS
    for values, text in (
        (
            {"kind": wrong},
            "'kind' of the edge in '0' of vertex 2 of graph 0 is 3; 0 to 2, the rows",
        ),
        ({"kind": wrong * 1.0}, "'kind' is float64 of shape .*reads an integer per edge"),
        ({"x": np.ones(len(wrong))}, "reads real numbers of shape .4. per edge"),
    ):
        with pytest.raises(PullError, match=text):
            net(replace(batch, edge_pulls={**batch.edge_pulls, **values}))
    with pytest.raises(PullError, match="Weighed pulls 'kind' of edges, which the batch does not"):
        net(replace(batch, edge_pulls={}))


def _traced(body: Any) -> None:
    class Body(Weighed):
        def forward(self) -> None:
            body(self)
            Weighed.forward(self)

    Body().trace()


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (lambda f: f.edge("x", N, relation=2), r"\[edge\] slot 2 at .*declares slots 0..1"),
        (lambda f: f.edge("x", N, relation=None), r"\[edge\] slot None at .*pass the number"),
        (lambda f: f.edge("x", 3, relation=0), "it was pulled before with shape .3."),
        (lambda f: f.edge("x", relation="left"), "of a function that stands alone"),
        (lambda f: f.pull("x", N), "'x' of vertices and of edges"),
    ],
)
def test_mistakes(body: Any, text: str) -> None:
    with pytest.raises(TraceError, match=text):
        _traced(body)


def test_two_functions_agree_whose_a_name_is() -> None:
    class OfVertex(vrt.VertexFunction):
        def forward(self) -> None:
            h = vrt.ones(1) * self.pull("weight")
            self.scatter(h=h)
            self.push("h", h)

    class OfEdge(vrt.VertexFunction):
        def forward(self) -> None:
            h = self.gather("before").h * self.edge("weight", relation="before")
            self.scatter(h=h)
            self.push("h", h)

    model = vrt.Model()
    model.first, model.second = OfVertex(state={"h": 1}), OfEdge(state={"h": 1})
    with pytest.raises(TraceError, match="'weight' is of vertices in first, of edges in second"):
        model.trace()


class Summed(vrt.VertexFunction):
    """Reads the kinds of all edges to its children."""

    def __init__(self) -> None:
        super().__init__(state={"h": N})
        self.kinds = vrt.Parameter((KINDS, N))

    def forward(self) -> None:
        of_edges = vrt.embed(self.kinds, self.edge_index("kind", relation="children"))
        h = vrt.sum(self.gather_all().h + of_edges, axis="children")
        self.scatter(h=h)
        self.push("h", h)


def test_a_batch_without_edges_has_no_values_of_them() -> None:
    """What lay in memory before is not read in place of them."""
    net, count = vrt.compile(Summed(), device="reference"), 5
    leaf = InputGraph.from_children([[]], {}, {"kind": np.zeros(0, np.int32)})
    batch = GraphBatch.from_graphs([leaf] * count)
    for _ in range(4):
        before = [np.full((1, count), KINDS, np.int32) for _ in range(9)]
        del before
        assert not net(batch, outputs=["h"])["h"].any()
