"""Schedules of the learning rate: against their formulas, and against a plateau of PyTorch's."""

from __future__ import annotations

import copy
import json
import math
import pickle
from typing import Any

import numpy as np
import pytest

import vertexrt as vrt
from tests.declared import Declared
from tests.messages import refused, table
from vertexrt.engine.lazy import Loss
from vertexrt.errors import CheckpointError, UsageError

of = vrt.schedules
# Schedules, and their formulas, which are those of PyTorch.
RATES = table(__file__, "RATES")
METRICS = [3.0, 2.0, 2.0, 1.9999, 2.5, 1.0, math.nan, np.float32("nan"), 1.1, 1.2, 0.5, *[0.6] * 9]


class Sum(Declared, arity=1, state={"h": 2}, w=(2,), b=(2,)):
    """The gradient of each element is 1."""

    def forward(self) -> None:
        self.scatter(h=self.w * 1.0)
        self.push("loss", vrt.sum(self.w + self.b))


def network() -> tuple[vrt.Network, vrt.GraphBatch]:
    net = vrt.compile(Sum(), device="reference", dtype="float64")
    return net, vrt.GraphBatch.from_graphs([vrt.InputGraph.chain(1, {})])


@pytest.mark.parametrize("code", RATES)
def test_each_update_has_the_rate_of_its_number(code: str) -> None:
    schedule, (net, batch) = eval(code), network()
    wanted = [eval(RATES[code], {"n": n, "math": math}) for n in range(25)]
    np.testing.assert_allclose([schedule(n) for n in range(25)], wanted, rtol=1e-12)
    optimizer = vrt.SGD(schedule)
    for rate in wanted[:6]:
        assert optimizer.lr == pytest.approx(rate)
        before = net.parameters["w"].copy()
        net.step(batch, optimizer)
        np.testing.assert_allclose(before - net.parameters["w"], rate, rtol=1e-12)


def test_an_update_of_ones_own_has_the_rate_of_its_number() -> None:
    class Own(vrt.Optimizer):
        def update(self, store: Any) -> None:
            store.value("w")[...] -= self.lr

    net, batch = network()
    optimizer, before = Own(of.linear(0.0, 0.5, steps=5)), net.parameters["w"].copy()
    for _ in range(3):
        net.step(batch, optimizer)
    np.testing.assert_allclose(before - net.parameters["w"], 0.0 + 0.1 + 0.2)
    assert optimizer.steps == 3


@pytest.mark.parametrize("mode", ["min", "max"])
def test_plateaus_are_those_of_pytorch(mode: str) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is an optional extra")
    judge = torch.optim.SGD([torch.zeros(1)], lr=0.3)
    options = {"mode": mode, "factor": 0.5, "patience": 2}
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(judge, min_lr=0.05, **options)
    ours = of.Plateau(0.3, least=0.05, **options)
    optimizer = vrt.SGD(ours)
    for metric in METRICS:
        schedule.step(metric)
        ours.observe(metric)
        assert optimizer.lr == judge.param_groups[0]["lr"]


def test_a_plateau_reduces_the_rate() -> None:
    plateau = of.Plateau(0.8, factor=0.5, patience=1, least=0.15)
    found = []
    for metric in (Loss(2.0), 1.0, 1.0, 1.0, 0.9, math.nan, np.float32("inf"), 0.9, 0.9, 0.9, 0.9):
        plateau.observe(metric)
        found.append(plateau(0))
    assert found == [0.8, 0.8, 0.8, 0.4, 0.4, 0.4, 0.2, 0.2, 0.15, 0.15, 0.15]
    assert plateau.best == 0.9
    assert plateau.bad == 0
    assert repr(plateau) == "Plateau(0.8; 0.15 now)"


def test_a_plateau_continues() -> None:
    whole, first, again = (of.Plateau(0.3, patience=1) for _ in range(3))
    for k, metric in enumerate(METRICS):
        if k == 6:
            again.load_state(json.loads(json.dumps(first.state())))
        for each in (whole, first if k < 6 else again):
            each.observe(metric)
    assert whole.rate == again.rate < 0.3
    assert whole.state() == again.state()


@pytest.mark.parametrize(
    ("lr", "group", "rates"),
    [
        (of.linear(0.0, 0.4, steps=2), 0.1, [0.0, 0.0, 0.2, 0.05, 0.4, 0.1]),
        (lambda n: 0.4 / (1 + n), 0.1, [0.4, 0.1, 0.2, 0.05]),
        (of.Plateau(0.4), 0.1, [0.4, 0.1] * 2),
        (0.4, of.linear(0.0, 0.4, steps=2), [0.4, 0.0, 0.4, 0.2]),
        (of.linear(0.0, 0.4, steps=2), lambda n: 0.3, [0.0, 0.3, 0.2, 0.3]),
    ],
)
def test_rates_of_groups_change_in_proportion_or_by_themselves(
    lr: Any, group: Any, rates: list[float]
) -> None:
    """Of `b`, which is in none, and of `w`, step by step."""
    optimizer = vrt.SGD(lr, groups={"w": {"lr": group}})
    net, batch = network()
    for wanted in np.reshape(rates, (-1, 2)):
        before = {name: value.copy() for name, value in net.parameters.items()}
        net.step(batch, optimizer)
        found = [before[name][0] - net.parameters[name][0] for name in ("b", "w")]
        np.testing.assert_allclose(found, wanted, atol=1e-15)


def test_an_optimizer_says_its_rate_of_now() -> None:
    optimizer = vrt.SGD(of.step(0.4, every=1), groups={"w": {"lr": of.constant(0.1)}})
    assert optimizer.describe()["lr"] == 0.4
    assert optimizer.describe()["groups"] == {"w": {"lr": 0.1}}
    optimizer.lr = 0.2
    assert optimizer.lr == 0.2
    optimizer.lr = of.constant(0.1)
    assert optimizer.lr == 0.1
    for copied in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        assert copied.describe() == optimizer.describe()
    assert repr(of.cosine(0.3, steps=9, least=0.02)) == "cosine(0.3, 9, 0.02)"


# What is written, and its error.
MISTAKES = table(__file__, "MISTAKES")


@pytest.mark.parametrize("code", MISTAKES)
def test_mistakes(code: str) -> None:
    refused(lambda: eval(code), MISTAKES[code])


def test_a_rate_that_becomes_wrong_ends_a_step_that_changes_nothing() -> None:
    net, batch = network()
    optimizer = vrt.Adam(lambda n: 0.1 - n)
    net.step(batch, optimizer)
    before = net.parameters["w"].copy()
    with pytest.raises(UsageError, match=r"^\[Adam\] lr\(1\)=-0.9; lr\(1\) >= 0"):
        net.step(batch, optimizer)
    np.testing.assert_array_equal(net.parameters["w"], before)
    assert optimizer.steps == 1


def test_what_is_no_state_is_refused() -> None:
    plateau = of.Plateau(0.1)
    for state in ({}, {"rate": -1.0, "best": None, "bad": 0}, {**plateau.state(), "x": 1}):
        with pytest.raises(CheckpointError, match=r"^\[schedule\]"):
            plateau.load_state(state)
    assert plateau.rate == 0.1
