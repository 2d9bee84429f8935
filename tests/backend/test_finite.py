"""A step whose loss, gradients or update are not finite changes nothing, and says where they arise.

Whichever of the three is not finite first: on every device and engine, for every optimizer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import vertexrt as vrt
from tests.declared import Declared
from tests.optimizers import OPTIMIZERS, squares_of, state_of
from tests.runs import Way, assert_bits
from vertexrt.api.network import Network
from vertexrt.api.optimizer import Optimizer
from vertexrt.engine.variant import Passes
from vertexrt.errors import NumericError
from vertexrt.graph import GraphBatch, InputGraph

SINGLE = Way(dtype="float32")
CPU = replace(SINGLE, device="cpu")
ALONE = replace(CPU, engine="persistent", processors=1)
SHIM = replace(SINGLE, device="shim")
WAYS = [
    SINGLE,
    replace(ALONE, device="reference"),
    CPU,
    replace(CPU, passes=Passes(loop=False)),
    replace(CPU, threads=2),
    ALONE,
    replace(ALONE, threads=2),
    replace(ALONE, threads=2, processors=2),
    SHIM,
    replace(ALONE, device="shim", processors=2),
]
every_way = pytest.mark.parametrize("way", WAYS)
every_optimizer = pytest.mark.parametrize("name", OPTIMIZERS)


class Chain(Declared, arity=1, state={"h": 2}, w=(2, 2), table=(5, 2)):
    """What the functions below have: a state, a matrix and a table."""


class Masked(Chain):
    """Takes the square root of what may be negative, and drops it there."""

    def forward(self) -> None:
        word = vrt.embed(self.table, self.pull("word"))
        x = self.w @ self.pull("x", shape=(2,)) + word * word + 0.5 * self.gather(0).h
        h = vrt.where(self.pull("m", shape=(2,)), vrt.sqrt(x), 0.0)
        self.scatter(h=h)
        self.push("loss", vrt.sum(h))


class Linear(Chain):
    """Has what it pulls for a gradient."""

    def forward(self) -> None:
        word = vrt.embed(self.table, self.pull("word"))
        x = self.pull("x", shape=(2,))
        h = self.w @ x + word * x + self.gather(0).h
        self.scatter(h=h)
        self.push("loss", vrt.sum(h))


def batch_of(x: float, others: float = 0.25) -> GraphBatch:
    """Return three chains, of which vertex 1 of graph 1 pulls a number."""
    graphs = []
    for k in range(3):
        pulled = np.full((3, 2), others)
        if k == 1:
            pulled[1] = x
        words = np.arange(k, k + 3, dtype=np.int32)
        pulls = {"x": pulled, "m": (pulled >= 0.0).astype(float), "word": words}
        graphs.append(InputGraph.chain(3, pulls))
    return GraphBatch.from_graphs(graphs)


def network(way: Way, function: vrt.VertexFunction) -> Network:
    net = way.compile(function)
    net.parameters.update(
        {name: np.full(value.shape, 0.5) for name, value in net.parameters.items()}
    )
    return net


def step_and_wait(net: Network, batch: GraphBatch, optimizer: Optimizer) -> None:
    """Step; a GPU says at the next call how it went."""
    net.step(batch, optimizer)
    net.sync()


def assert_refused(net: Network, optimizer: Optimizer, good: GraphBatch, bad: GraphBatch) -> str:
    """Step, step in vain, and step again as if the step between had not been."""
    with np.errstate(all="ignore"):
        net.step(good, optimizer)
        net.sync()
        start = dict(net.parameters)
        state = state_of(optimizer)
        with pytest.raises(NumericError) as caught:
            step_and_wait(net, bad, optimizer)
        assert_bits(start, net.parameters)
        assert_bits(state, state_of(optimizer))
        net.step(good, optimizer)
        net.sync()
    assert optimizer.steps == 2
    return str(caught.value)


def assert_continues(
    make: Callable[[], Network],
    name: str,
    options: dict[str, Any],
    bad: GraphBatch,
    good: GraphBatch | None = None,
) -> str:
    """Check that a refused step leaves no trace: the next one has the bits of a run without it."""
    good = good or batch_of(0.25)
    net, optimizer = make(), OPTIMIZERS[name](**options)
    text = assert_refused(net, optimizer, good, bad)
    other, without = make(), OPTIMIZERS[name](**options)
    for _ in range(2):
        other.step(good, without)
    other.sync()
    assert_bits(net.parameters, other.parameters)
    assert_bits(optimizer.state(), state_of(without))
    return text


@every_way
@every_optimizer
def test_a_gradient_that_is_not_finite_changes_nothing(way: Way, name: str) -> None:
    """Gradients are clipped in every second case: with each way, and with each optimizer."""
    bad = batch_of(-8.0)
    odd = WAYS.index(way) + list(OPTIMIZERS).index(name)
    clip = 1.0 if odd % 2 else None
    text = assert_continues(lambda: network(way, Masked()), name, {"clip_norm": clip}, bad)
    assert text.startswith("[gradient] the gradient of 'w' is nan at [0, 0], though the loss is")
    assert "of vertex 1 of graph 1, in the derivative of test_finite.py:" in text
    assert "in F, sqrt of vertex 1 of graph 1, at test_finite.py:" in text
    assert "finite gradients; nothing was changed; guard the operand" in text


@every_way
def test_gradients_whose_sum_overflows_change_nothing(way: Way) -> None:
    def make() -> Network:
        net = network(way, Linear())
        net.parameters.update({n: np.zeros(v.shape) for n, v in net.parameters.items()})
        return net

    text = assert_continues(make, "sgd", {}, batch_of(3e38, 3e38), batch_of(1e-4, 1e-4))
    assert text.startswith("[gradient] the gradient of 'w' is inf at [0, 0], though the loss is")


@every_way
@pytest.mark.parametrize("clip", [None, 1e30])
def test_an_update_that_overflows_is_refused_at_once(way: Way, clip: float | None) -> None:
    """A rate of 1e30 was reported one step late, with the parameters lost."""
    net = network(way, Linear())
    optimizer = vrt.SGD(0.1, clip_norm=clip)
    good = batch_of(0.25)
    net.step(good, optimizer)
    net.sync()
    start = dict(net.parameters)
    optimizer.lr = 1e39
    with np.errstate(all="ignore"), pytest.raises(NumericError) as caught:
        step_and_wait(net, good, optimizer)
    assert str(caught.value).startswith("[SGD.update] the update of 'w' at [0, 0] makes its value")
    assert "and the gradient " in str(caught.value)
    assert_bits(start, net.parameters)
    optimizer.lr = 0.1
    assert np.isfinite(float(net.step(good, optimizer)))


@every_way
@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if squares_of(name)])
def test_squares_that_overflow_are_refused(way: Way, name: str) -> None:
    text = assert_continues(lambda: network(way, Linear()), name, {}, batch_of(1e22))
    (moment,), kind = squares_of(name), type(OPTIMIZERS[name]()).__name__
    assert text.startswith(f"[{kind}.update] the update of 'w' at [0, 0] makes its '{moment}' inf")


# Optimizers with an update of their own.


class Own:
    """An optimizer of somebody else."""

    def __init__(self, factor: float) -> None:
        self.factor, self.calls = factor, 0

    def update(self, store: Any) -> None:
        self.calls += 1
        for name in store.names:
            store.value(name)[...] *= self.factor


@pytest.mark.parametrize("way", [replace(CPU, threads=2), ALONE, SHIM])
def test_an_update_of_ones_own_gets_finite_gradients_only(way: Way) -> None:
    net, optimizer = network(way, Masked()), Own(1.0)
    with np.errstate(all="ignore"), pytest.raises(NumericError, match="the gradient of 'w' is nan"):
        net.step(batch_of(-8.0), optimizer)  # type: ignore[arg-type]
    assert optimizer.calls == 0
    net.step(batch_of(0.25), optimizer)  # type: ignore[arg-type]
    assert optimizer.calls == 1
    with pytest.raises(NumericError) as caught:
        net.step(batch_of(0.25), Own(np.inf))  # type: ignore[arg-type]
    assert str(caught.value) == (
        "[Own.update] it made 'w' at [0, 0] inf, from finite gradients; finite parameters; nothing "
        "was changed; correct the `update`."
    )
    assert np.isfinite(net.parameters["w"]).all()
