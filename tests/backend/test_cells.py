"""Cells compute what their equations say: NumPy a vertex at a time, and PyTorch's own cells."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import vertexrt as vrt
from tests.runs import Way, assert_output_gradients
from vertexrt import nn
from vertexrt.graph import GraphBatch, InputGraph

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
FIELDS = {"lstm": ("h", "c"), "slstm": ("h", "c", "n", "m")}


def fields_of(name: str) -> tuple[str, ...]:
    return FIELDS.get(name.partition("-")[0], ("h",))


class Chain(vrt.VertexFunction):
    """A cell along a chain; the input is pulled."""

    def __init__(self, name: str) -> None:
        super().__init__(arity=1, state=dict.fromkeys(fields_of(name), H))
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
    return GraphBatch.from_graphs([InputGraph.chain(LENGTH, {"x": x})])


def sigmoid(x: Any) -> Any:
    return 1.0 / (1.0 + np.exp(-x))


def normed(p: Any, name: str, x: Any) -> Any:
    moved = x - x.mean()
    return moved / np.sqrt(x.var() + 1e-5) * p[f"{name}.weight"] + p[f"{name}.bias"]


def recurrent(weight: Any) -> Any:
    """Return the matrix of all gates; that of heads has blocks of each gate on the diagonal."""
    if weight.ndim == 2:
        return weight
    whole, each = np.zeros((4 * H, H)), H // HEADS
    for head, gate in itertools.product(range(HEADS), range(4)):
        at = head * each
        block = weight[head, gate * each : (gate + 1) * each]
        whole[gate * H + at : gate * H + at + each, at : at + each] = block
    return whole


def step(name: str, p: Any, x: Any, state: list[Any]) -> list[Any]:
    """Take one step of a cell, from the equations of its paper."""
    kind, _, form = name.partition("-")
    given = p["weight_ih"] @ x + p.get("bias_ih", 0.0)
    h = state[0]
    if kind == "gru":
        h_part = p["weight_hh"] @ h + p["bias_hh"]
        r, z = (sigmoid(given[k * H : k * H + H] + h_part[k * H : k * H + H]) for k in (0, 1))
        if form:
            n = np.tanh(given[2 * H :] + p["weight_hn"] @ (r * h) + p["bias_hn"])
        else:
            n = np.tanh(given[2 * H :] + r * h_part[2 * H :])
        return [(1 - z) * n + z * h]
    before = recurrent(p["weight_hh"]) @ h + p.get("bias_hh", 0.0)
    if kind == "rnn":
        return [np.maximum(given + before, 0.0) if form else np.tanh(given + before)]
    if kind == "slstm":
        i, f, z, o = np.split(given + before, 4)
        _, c, n, m = state
        f = (-np.logaddexp(0.0, -f) if form == "sigmoid" else f) + m
        top = np.maximum(f, i)
        c = np.exp(f - top) * c + np.exp(i - top) * np.tanh(z)
        n = np.exp(f - top) * n + np.exp(i - top)
        return [sigmoid(o) * c / n, c, n, top]
    if form == "norm":
        given, before = normed(p, "norm_ih", given), normed(p, "norm_hh", before)
    i, f, g, o = np.split(given + before, 4)
    c = state[1]
    if form:
        i, f = i + p["weight_ci"] * c, f + p["weight_cf"] * c
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    o = o + p["weight_co"] * c if form else o
    return [sigmoid(o) * np.tanh(normed(p, "norm_c", c) if form == "norm" else c), c]


@pytest.mark.parametrize("name", CHAINS)
def test_chains_follow_their_equations(name: str) -> None:
    batch = chain()
    net = Way("cpu").compile(Chain(name))
    p = {key.removeprefix("cell."): value for key, value in net.parameters.items()}
    assert all(key.startswith("cell.") for key in net.parameters)
    state = [np.zeros(H) for _ in fields_of(name)]
    want = []
    for x in np.asarray(batch.pulls["x"]):
        state = step(name, p, x, state)
        want.append(state[0])
    np.testing.assert_allclose(net(batch)["h"], want, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", CHAINS)
def test_gradients_of_cells_are_central_differences(name: str) -> None:
    assert_output_gradients(Way().compile(Chain(name)), chain())
