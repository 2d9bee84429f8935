"""Functions that read all children of several relations agree with NumPy, vertex by vertex."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import vertexrt as vrt
from tests import relation_models as related
from tests.devices import require
from tests.judged_ways import PERSISTENT, WAYS, assert_slope
from tests.runs import Way, evaluate, train
from vertexrt.graph import GraphBatch, InputGraph


@pytest.mark.parametrize("way", WAYS)
def test_a_convolution_over_relations(way: Way) -> None:
    require(way.device)
    batch, net = related.relational(), way.compile(related.RelationalDag())
    found = net(batch)["h"]
    want = related.convolved(net.parameters, batch)
    np.testing.assert_allclose(found, want, rtol=0, atol=1e-12)
    gradients = train(net, batch).parameters

    def loss(values: related.Values) -> float:
        return float(((related.convolved(values, batch) - 0.1) ** 2).sum()) / batch.num_graphs

    for name, value in net.parameters.items():
        assert_slope(
            name, gradients[name], value, lambda x, n=name: loss({**net.parameters, n: x}), RTOL
        )


RTOL = 1e-7  # of slopes
GATES = (related.Gate, related.TickingGate)


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("way", WAYS)
def test_attention_over_one_relation_and_a_weighted_sum_over_another(
    way: Way, gate: type[related.Gate]
) -> None:
    require(way.device)
    batch, net = related.circuits(), way.compile(related.Circuit(gate))
    gates = batch.of_type("gate")
    for given in (batch, batch.take([2, 0, 2])):
        found = net(given)["h"][given.of_type("gate")]
        states, _ = related.circuit_states(net.parameters, given)
        np.testing.assert_allclose(found, states[given.of_type("gate")], rtol=0, atol=1e-12)
    assert len(gates) == 12
    run = net.record(batch, outputs=["loss"])
    gradients = run.backward({"loss": np.ones(batch.num_vertices)})

    def loss(values: related.Values) -> float:
        return related.circuit_states(values, batch)[1]

    for name, value in net.parameters.items():
        slope = gradients.parameters[name]
        assert_slope(name, slope, value, lambda x, n=name: loss({**net.parameters, n: x}), RTOL)
    pull = batch.edge_pulls["weight"]
    assert isinstance(pull, vrt.Rows)

    def loss_of_weights(x: np.ndarray) -> float:
        moved = {**batch.edge_pulls, "weight": vrt.Rows(x, pull.index)}
        return related.circuit_states(net.parameters, replace(batch, edge_pulls=moved))[1]

    assert_slope("weight", gradients.pulled["weight"], pull.table, loss_of_weights, RTOL)


def test_values_of_edges_that_nobody_reads_have_no_gradient() -> None:
    """They had what happened to be in memory, where a function read slots as well."""
    batch = related.circuits()
    net = Way("cpu").compile(related.Circuit())
    found = evaluate(net, batch).pulled["weight"]
    types, pull = batch.types, batch.edge_pulls["weight"]
    assert types is not None
    assert isinstance(pull, vrt.Rows)
    assert pull.index is not None
    clocks = pull.index[types.of_edge == types.relations.index("clock")]
    assert len(clocks) == 7
    assert (found[clocks] == 0.0).all()
    others = np.delete(found, clocks)
    assert (others != 0.0).sum() > 20


class Twins(vrt.VertexFunction):
    """Tells which of its children are in which relation."""

    def __init__(self) -> None:
        super().__init__(state={"h": 2})
        self.table, self.w = vrt.Parameter((3, 2)), vrt.Parameter((2, 2))

    def forward(self) -> None:
        a, b = (vrt.sum(self.gather_all(name).h) for name in ("a", "b"))
        h = self.w @ vrt.embed(self.table, self.pull("word")) + vrt.tanh(a) - vrt.sigmoid(b)
        self.scatter(h=h)
        self.push("h", h)
        self.push("loss", vrt.sum(h))


def test_vertices_with_the_same_children_in_other_relations_are_not_merged() -> None:
    edges = {("node", "a", "node"): [(0, 1), (0, 2)], ("node", "b", "node"): [(0, 2), (0, 1)]}
    edges["node", "a", "node"] += [(1, 3), (1, 4), (2, 4)]
    edges["node", "b", "node"] += [(2, 3)]
    words = {"node": {"word": np.array([1, -1, -1, -1, -1])}}
    graph = vrt.InputGraph.from_types({"node": 5}, edges, words)
    model = vrt.Model()
    model.node = Twins()
    net = Way("cpu").compile(model)
    loss = net.step(GraphBatch.from_graphs([graph]), vrt.SGD(0.0), outputs=["h"])
    h = loss.outputs["h"]
    np.testing.assert_array_equal(h[1], h[2])
    assert not np.allclose(h[3], h[4])
    values = net.parameters["node.w"] @ net.parameters["node.table"][1]
    first = values - 0.5
    np.testing.assert_allclose(h[0], first, atol=1e-12)
    second = np.tanh(first) - 1.0 / (1.0 + np.exp(-first))
    np.testing.assert_allclose(h[1], second, atol=1e-12)
    np.testing.assert_allclose(h[3], np.tanh(second) - 1 / (1 + np.exp(-second)), atol=1e-12)
    np.testing.assert_allclose(h[4], np.tanh(2 * second) - 0.5, atol=1e-12)


@pytest.mark.parametrize("way", WAYS)
def test_dropout_of_values_per_child_is_of_each_edge(way: Way) -> None:
    """Both engines drop the same: by the number of the edge, among those of all relations."""
    require(way.device)
    want = train(Way().compile(_dropping()), related.relational())
    assert (np.abs(want.outputs["h"]) > 0).any()
    found = train(way.compile(_dropping()), related.relational())
    for name, value in want.parameters.items():
        np.testing.assert_allclose(found.parameters[name], value, rtol=0, atol=1e-12)


def _dropping() -> vrt.Model:
    class Dropping(related.Convolved):
        def forward(self) -> None:
            total = vrt.embed(self.table, self.pull("word")) + self.w0 @ vrt.zeros(related.N)
            for name in related.RELATIONS:
                total = total + self.w[name] @ vrt.sum(
                    vrt.random.dropout(self.gather_all(name).h, 0.5)
                )
            h = vrt.tanh(total)
            self.scatter(h=h)
            self.push("h", h)
            self.push("loss", vrt.losses.squared_error(h, 0.1))

    model = vrt.Model()
    model.node = Dropping()
    return model


class Spelt(vrt.VertexFunction):
    """A word among others than those of its type's name, above edges of some kinds."""

    def __init__(self, rows: int, below: vrt.VertexFunction | None = None) -> None:
        super().__init__(state={"h": 2}, inputs={} if below is None else {"of": below})
        self.table, self.kinds = vrt.Parameter((rows, 2)), vrt.Parameter((3, 2))

    def forward(self) -> None:
        h = vrt.embed(self.table, self.pull("word"))
        if self.inputs:
            kind = self.edge_index("kind", relation="of")
            h = h + vrt.sum(self.gather_all("of").h + vrt.embed(self.kinds, kind))
        self.scatter(h=h)
        self.push("h", h)


class TwoVocabularies(vrt.Model):
    """Two types that pull one name with bounds of their own."""

    def __init__(self) -> None:
        self.low = Spelt(8)
        self.high = Spelt(5, self.low)


@pytest.mark.parametrize("word", [4, 5])
def test_bounds_of_types_are_those_of_vertices_where_edges_have_integers(word: int) -> None:
    key = "low", "of", "high"
    graph = InputGraph.from_types(
        {"low": 2, "high": 1},
        {key: [(0, 0), (1, 0)]},
        {"low": {"word": np.array([7, 1])}, "high": {"word": np.array([word])}},
        {key: {"kind": np.array([0, 2])}},
    )
    net = vrt.compile(TwoVocabularies(), device="reference", dtype="float64")
    batch = GraphBatch.from_graphs([graph])
    if word > 4:
        with pytest.raises(vrt.errors.VertexrtError, match="word"):
            net(batch)
        return
    values = net.parameters
    below = values["low.table"][[7, 1]].sum(0) + values["high.kinds"][[0, 2]].sum(0)
    assert np.allclose(net(batch)["h"][2], values["high.table"][4] + below)


def test_explain_names_the_relations() -> None:
    net = Way("cpu").compile(related.Circuit())
    net(related.circuits())
    text = net.explain()
    assert "gate: reads clock of gate, all plain of wire or gate, all inverted of wire" in text
    assert "gather_all() field=wire.h relation=1 slot=1 : edge float[5]" in text


def test_a_timeline_has_their_instructions() -> None:
    net, batch = PERSISTENT.compile(related.Circuit()), related.circuits()
    with net.trace() as timeline:
        net(batch)
    assert any(event["name"].startswith("path") for event in timeline.events())


def test_json_lines_carry_them(tmp_path: Path) -> None:
    batch, net = related.circuits(), Way("cpu").compile(related.Circuit())
    file = tmp_path / "circuits.jsonl"
    vrt.data.write_jsonl(file, batch)
    again = vrt.data.read_jsonl(file, dtype="float64").batch
    got, want = (net(each)["h"] for each in (again, batch))
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-12)  # the order of children may differ


class Looking(vrt.VertexFunction):
    """Look up what the edges of two relations have under one name, in tables of two sizes."""

    def __init__(self) -> None:
        super().__init__(state={"h": 1})
        self.of_calls, self.of_owns = vrt.Parameter((3, 1)), vrt.Parameter((10, 1))

    def forward(self) -> None:
        h = self.pull("x", shape=(1,))
        for relation, table in (("calls", self.of_calls), ("owns", self.of_owns)):
            kind = self.edge_index("kind", relation=relation)
            h = h + vrt.sum(self.gather_all(relation).h + vrt.embed(table, kind))
        self.scatter(h=h)
        self.push("h", h)


class LookingDag(vrt.Model):
    """One function."""

    def __init__(self) -> None:
        self.v = Looking()


@pytest.mark.parametrize("planned", [False, True])
def test_a_number_is_bounded_by_the_table_of_its_own_relation(planned: bool) -> None:
    """Issue 52."""

    def batch(*kinds: int) -> vrt.GraphBatch:
        calls, owns = ("v", "calls", "v"), ("v", "owns", "v")
        edges = {calls: [(0, 1)], owns: [(0, 2), (1, 2)]}
        values = {calls: {"kind": kinds[:1]}, owns: {"kind": kinds[1:]}}
        pulls = {"v": {"x": np.zeros((3, 1))}}
        return vrt.GraphBatch.from_graphs(
            [vrt.InputGraph.from_types({"v": 3}, edges, pulls, values)]
        )

    net = vrt.compile(LookingDag(), device="reference", dtype="float64")
    net.parameters.update(
        {"v.of_calls": np.arange(3.0)[:, None], "v.of_owns": np.arange(10.0)[:, None]}
    )
    first = batch(0, 3, 4)
    plan = net.plan(first)

    def states(*kinds: int) -> list[float]:
        given = batch(*kinds)
        pulls = {"kind": given.edge_pulls["kind"]}
        found = plan(pulls) if planned else net(given)
        return list(found["h"].ravel())

    for _ in range(2):
        assert states(2, 7, 9) == [0.0, 2.0, 18.0]
    for kinds, most in (((3, 0, 0), 2), ((0, 0, 10), 9)):
        with pytest.raises(vrt.errors.VertexrtError, match=rf"is {max(kinds)}; 0 to {most}, rows"):
            states(*kinds)
