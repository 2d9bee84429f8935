"""However a function runs, it gives the same outputs and gradients, on any graph.

The reference device is judged by the oracle and by central differences, the others by its plainest
way: one vertex a task, every pass off. Compiled code takes seconds for each kind of vertex, so
kinds are specialised on the reference and on a GPU, and on graphs of two kinds.
"""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import vertexrt as vrt
from tests.agreement import agree, compare
from tests.functions import FUNCTIONS, LSTMChain
from tests.runs import (
    SERIAL,
    TOLERANCE,
    Way,
    assert_loss_gradients,
    assert_output_gradients,
    assert_same,
    evaluate,
    train,
)
from tests.strategies import CLASSES, WORDS, full_batches, one_graph, pulls_for
from vertexrt.api.network import Network
from vertexrt.engine.variant import Passes
from vertexrt.models import TreeLSTM
from vertexrt.scheduler import POLICIES

# Vectors longer than a tile of a product. The products of an LSTM read rows of children, and write
# to edges, without copies.
WIDE = {
    "wide tree-lstm": (lambda: TreeLSTM(WORDS, 36, 44, CLASSES), 2),
    "wide lstm": (lambda: LSTMChain(WORDS, 36, 44), 1),
}
ALL = FUNCTIONS | WIDE


@functools.cache
def net(name: str, way: Way) -> Network:
    """Compile once for all batches, as training does: kinds appear one after another."""
    return way.compile(ALL[name][0]())


@pytest.mark.parametrize("name", FUNCTIONS)
@settings(max_examples=3)
@given(data=st.data())
def test_the_reference_is_right(name: str, data: st.DataObject) -> None:
    """On chains, trees, forests and DAGs with empty slots and absent pulls of every kind."""
    batch = data.draw(full_batches(FUNCTIONS[name][1], max_vertices=7, max_graphs=2))
    assert_output_gradients(net(name, Way()), batch)
    assert_loss_gradients(net(name, Way()), batch)
    if name != "dropout":
        compare(net(name, Way()), FUNCTIONS[name][0](), batch)


SINGLE = Way(dtype="float32")
UNSPECIALISED = Way("cpu", passes=Passes(specialise=False))
ROWS = {  # names -> ways in which they run
    tuple(FUNCTIONS): [SINGLE, Way("cuda"), Way("cuda", "float32")],
    tuple(n for n in FUNCTIONS if n != "dropout"): [Way(threads=2)],  # which draws by share
    # What the code generator does differently: slots, edges, views, pulls, reductions.
    ("gru", "max-mean", "tied", "pass-on", "both", "elementwise"): [UNSPECIALISED],
    ("attention", "oddments", "marks"): [UNSPECIALISED, Way("shim")],
    ("tree-lstm", "dropout"): [Way("shim")],
    tuple(WIDE): [Way("shim", "float32")],
}


@pytest.mark.parametrize(
    ("name", "way"), [(n, way) for names, each in ROWS.items() for n in names for way in each]
)
@settings(max_examples=4, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_every_way_agrees(name: str, way: Way, data: st.DataObject) -> None:
    batch = data.draw(full_batches(ALL[name][1], max_vertices=9, max_graphs=3))
    if way.device == "cpu":
        way = replace(way, policy=data.draw(st.sampled_from(POLICIES)))
    rounded = None
    for run in (evaluate, train):
        if way.dtype == "float32":  # where sums cancel
            rounded = run(net(name, replace(SERIAL, dtype="float32")), batch)
        want = run(net(name, SERIAL), batch)
        assert_same(run(net(name, way), batch), want, TOLERANCE[way.dtype], rounded)


# Gradients: what the loss is divided by, through two networks, of each form of a pull.


FORMS = {  # absent rows have no gradient, shared rows add up, each form gets its shape back
    "plain": np.arange(6.0).reshape(3, 2),
    "table": vrt.Rows(np.arange(6.0).reshape(3, 2)),
    "index": vrt.Rows(np.arange(8.0).reshape(4, 2), np.array([3, -1, 3], np.int32)),
}


@pytest.mark.parametrize("form", FORMS)
def test_gradients_of_forms_of_a_pull(form: str) -> None:
    pulls = {"mark": FORMS[form], "gain": np.ones(3)}
    agree(FUNCTIONS["marks"][0], one_graph([[], [0], [1]], pulls), Way())


def test_a_gradient_of_nothing_is_zero() -> None:
    run = Way().compile(FUNCTIONS["oddments"][0]()).record(one_graph([[], [0]], pulls_for(2, 1)))
    assert not any(value.any() for value in run.backward({}).parameters.values())
