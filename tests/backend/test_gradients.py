"""Gradients against the oracle and central differences in float64: functions, compositions."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vertexrt as vrt
from tests.agreement import agree, compare
from tests.functions import FUNCTIONS, MARK, E, H, table, vector
from tests.runs import Way, assert_loss_gradients, assert_output_gradients, train
from tests.strategies import full_batches, pulls_for
from vertexrt.api.network import Network

EPSILON = 1e-6


@functools.cache
def net(name: str) -> Network:
    return Way().compile(FUNCTIONS[name][0]())


@pytest.mark.parametrize("name", FUNCTIONS)
@settings(max_examples=3)
@given(data=st.data())
def test_gradients_of_parameters_and_pulls(name: str, data: st.DataObject) -> None:
    """On chains, trees, forests and DAGs with empty slots and absent pulls of every kind."""
    batch = data.draw(full_batches(FUNCTIONS[name][1], max_vertices=7, max_graphs=2))
    assert_output_gradients(net(name), batch)
    assert_loss_gradients(net(name), batch)
    if name != "dropout":
        compare(net(name), FUNCTIONS[name][0](), batch)


def test_reductions_of_the_loss() -> None:
    """`graph` divides by the graphs, `vertex` by the vertices with a loss, `sum` not at all."""
    pulls = {"word": [0, 1, -1], "label": [-1, 2, 0]}
    graph = vrt.InputGraph.from_children([[], [], [0, 1]], pulls)
    batch = vrt.GraphBatch.from_graphs([graph] * 3)
    losses, gradients = {}, {}
    for reduction in ("sum", "mean_graphs", "mean_vertices"):
        made = vrt.compile(
            FUNCTIONS["tree-lstm"][0](), device="reference", dtype="float64", reduction=reduction
        )
        result = train(made, batch)
        losses[reduction], gradients[reduction] = result.loss, result.parameters["u_f"]
    assert losses["mean_graphs"] == pytest.approx(losses["sum"] / 3)
    assert losses["mean_vertices"] == pytest.approx(losses["sum"] / 6)
    np.testing.assert_allclose(gradients["mean_vertices"], gradients["sum"] / 6, rtol=1e-12)


# Composition: one function pulls what another pushed.


class Lower(vrt.VertexFunction):
    """A recurrent net over characters: pushes its state."""

    def __init__(self) -> None:
        super().__init__(arity=1, state={"h": MARK})
        self.embedding = table()
        self.w = vrt.Parameter((MARK, E))
        self.u = vrt.Parameter((MARK, MARK))

    def forward(self) -> None:
        x = vrt.embed(self.embedding, self.pull("word"))
        h = vrt.tanh(self.w @ x + self.u @ self.gather(0).h)
        self.scatter(h=h)
        self.push("h", h)


class Upper(vrt.VertexFunction):
    """A tree over words: each word pulls the state of its last character."""

    def __init__(self) -> None:
        super().__init__(state={"h": H})
        self.w = vrt.Parameter((H, MARK))
        self.u = vrt.Parameter((H, H))
        self.b = vector(H)

    def forward(self) -> None:
        mark = self.pull("mark", shape=(MARK,))
        h = vrt.tanh(self.w @ mark + self.u @ vrt.sum(self.gather_all().h) + self.b)
        self.scatter(h=h)
        self.push("loss", vrt.losses.squared_error(h, 0.2))


def characters() -> vrt.GraphBatch:
    graphs = [vrt.InputGraph.chain(n, {"word": np.arange(n) % 7}) for n in (3, 1, 4)]
    return vrt.GraphBatch.from_graphs(graphs)


LAST = np.array([2, 3, 7, 2, -1, -1], np.int32)  # of each word: two share one, two have none


def words(values: np.ndarray) -> vrt.GraphBatch:
    pulls = {"mark": vrt.Rows(values, LAST)}
    graph = vrt.InputGraph.from_children([[], [], [], [0, 1], [2, 3], [4, 4]], pulls)
    return vrt.GraphBatch.from_graphs([graph])


@pytest.mark.parametrize("threads", [1, 2])
def test_gradients_flow_through_two_functions(threads: int) -> None:
    lower, upper = Way(threads=threads).compile(Lower()), Way(threads=threads).compile(Upper())
    batch = characters()

    def loss() -> float:
        h = lower(batch)["h"]
        return float(upper(words(h))["loss"].sum())

    run = lower.record(batch)
    h = run.outputs["h"]
    out = upper.record(words(h))
    above = out.backward({"loss": np.ones_like(out.outputs["loss"])})
    d_h = above.pulled["mark"]
    assert d_h.shape == h.shape
    assert (d_h[[0, 1, 4, 5, 6]] == 0).all()  # no word ends there
    below = run.backward({"h": d_h})
    rng = np.random.default_rng(2)
    for net_, gradients in ((lower, below.parameters), (upper, above.parameters)):
        for name, gradient in gradients.items():
            start = net_.parameters[name]
            d = rng.standard_normal(start.shape)
            ends = []
            for sign in (1, -1):
                net_.parameters[name] = start + sign * EPSILON * d
                ends.append(loss())
            net_.parameters[name] = start
            want = (ends[0] - ends[1]) / (2 * EPSILON)
            assert (gradient * d).sum() == pytest.approx(want, rel=1e-7, abs=1e-8), name


FORMS = {  # absent rows have no gradient, shared rows add up, each form gets its shape back
    "plain": np.arange(6.0).reshape(3, 2),
    "table": vrt.Rows(np.arange(6.0).reshape(3, 2)),
    "index": vrt.Rows(np.arange(8.0).reshape(4, 2), np.array([3, -1, 3], np.int32)),
}


@pytest.mark.parametrize("form", FORMS)
def test_gradients_of_forms_of_a_pull(form: str) -> None:
    pulls = {"mark": FORMS[form], "gain": np.ones(3)}
    graph = vrt.InputGraph.from_children([[], [0], [1]], pulls)
    agree(FUNCTIONS["marks"][0], vrt.GraphBatch.from_graphs([graph]), Way())


def test_a_gradient_of_nothing_is_zero() -> None:
    graph = vrt.InputGraph.from_children([[], [0]], pulls_for(2, 1))
    run = Way().compile(FUNCTIONS["oddments"][0]()).record(vrt.GraphBatch.from_graphs([graph]))
    assert not any(value.any() for value in run.backward({}).parameters.values())
