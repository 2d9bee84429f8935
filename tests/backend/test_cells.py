"""Cells compute what their equations say: NumPy a vertex at a time, and PyTorch's own cells."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import vertexrt as vrt
from tests import model_evaluations as by_hand
from tests.runs import Way, assert_output_gradients
from tests.strategies import one_chain
from vertexrt import nn
from vertexrt.graph import GraphBatch

INPUT, H, LENGTH, HEADS = 3, 4, 5, 2
Cells = dict[str, Callable[[], nn.Cell]]

CHAINS: Cells = {
    "rnn": lambda: nn.RNNCell(INPUT, H),
    "rnn-relu": lambda: nn.RNNCell(INPUT, H, bias=False, nonlinearity="relu"),
    "lstm": lambda: nn.LSTMCell(INPUT, H),
    "lstm-peephole": lambda: nn.LSTMCell(INPUT, H, peephole=True),
    "lstm-norm": lambda: nn.LSTMCell(INPUT, H, layer_norm=True, peephole=True),
    "gru": lambda: nn.GRUCell(INPUT, H),
    "gru-before": lambda: nn.GRUCell(INPUT, H, reset_after=False),
    "slstm": lambda: nn.SLSTMCell(INPUT, H),
    "slstm-sigmoid": lambda: nn.SLSTMCell(INPUT, H, forget="sigmoid"),
    "slstm-heads": lambda: nn.SLSTMCell(INPUT, H, heads=HEADS),
}
STEPS = {"rnn": by_hand.rnn, "gru": by_hand.gru, "lstm": by_hand.lstm, "slstm": by_hand.slstm}


def step_of(name: str) -> tuple[by_hand.Step, str]:
    """Return the equations of a cell, and its form."""
    kind, _, form = name.partition("-")
    return STEPS[kind], form


class Chain(vrt.VertexFunction):
    """A cell along a chain; the input is pulled."""

    def __init__(self, name: str) -> None:
        super().__init__(arity=1, state=dict.fromkeys(by_hand.FIELDS[step_of(name)[0]], H))
        self.cell: Any = CHAINS[name]()

    def forward(self) -> None:
        before = self.gather(0)
        state = tuple(getattr(before, name) for name in self.state)
        x = self.pull("x", shape=INPUT)
        found = self.cell(x, state if len(state) > 1 else state[0])
        after = found if len(state) > 1 else (found,)
        self.scatter(**dict(zip(self.state, after, strict=True)))
        self.push("h", after[0])


def chain() -> GraphBatch:
    x = np.random.default_rng(1).standard_normal((LENGTH, INPUT))
    return one_chain(LENGTH, {"x": x})


@pytest.mark.parametrize("name", CHAINS)
def test_chains_follow_their_equations(name: str) -> None:
    batch = chain()
    net = Way("cpu").compile(Chain(name))
    p = {key.removeprefix("cell."): value for key, value in net.parameters.items()}
    assert all(key.startswith("cell.") for key in net.parameters)
    step, form = step_of(name)
    state = [np.zeros(H)] * len(by_hand.FIELDS[step])
    want = []
    for x in np.asarray(batch.pulls["x"]):
        state = step(p, x, state, form)
        want.append(state[0])
    np.testing.assert_allclose(net(batch)["h"], want, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", CHAINS)
def test_gradients_of_cells_are_central_differences(name: str) -> None:
    assert_output_gradients(Way().compile(Chain(name)), chain())
