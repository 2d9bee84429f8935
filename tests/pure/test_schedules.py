"""Schedules of the learning rate: against PyTorch's, and against their formulas."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import vertexrt as vrt
from vertexrt.api.optimizer import Optimizer
from vertexrt.errors import CheckpointError, UsageError

STEPS = 25
Make = Callable[[Any, Any], Any]  # from the module of schedules and an optimizer


def sequence(of: Any, optimizer: Any) -> Any:
    parts = [of.LinearLR(optimizer, 0.1, total_iters=4), of.CosineAnnealingLR(optimizer, 12, 0.01)]
    return of.SequentialLR(optimizer, parts, milestones=[4])


MADE: dict[str, Make] = {
    "StepLR": lambda of, optimizer: of.StepLR(optimizer, 3, 0.5),
    "LinearLR": lambda of, optimizer: of.LinearLR(optimizer, 0.2, 0.8, total_iters=7),
    "CosineAnnealingLR": lambda of, optimizer: of.CosineAnnealingLR(optimizer, 9, eta_min=0.02),
    "LambdaLR": lambda of, optimizer: of.LambdaLR(optimizer, lambda n: 1.0 / (1.0 + n)),
    "SequentialLR": sequence,
}
EXPECTED: dict[str, Callable[[int], float]] = {
    "StepLR": lambda n: 0.3 * 0.5 ** (n // 3),
    "LinearLR": lambda n: 0.3 * (0.2 + 0.6 * min(n, 7) / 7),
    "CosineAnnealingLR": lambda n: 0.02 + 0.14 * (1 + math.cos(math.pi * n / 9)),
    "LambdaLR": lambda n: 0.3 / (1 + n),
    "SequentialLR": lambda n: (
        0.3 * (0.1 + 0.9 * n / 4)
        if n < 4
        else 0.01 + 0.145 * (1 + math.cos(math.pi * (n - 4) / 12))
    ),
}
METRICS = [
    3.0,
    2.0,
    2.0,
    1.9999,
    2.5,
    1.0,
    math.nan,
    np.float32("nan"),
    1.1,
    1.2,
    1.3,
    0.5,
    *[0.6] * 9,
]


def rates_of(schedule: Any, optimizer: Optimizer, steps: int = STEPS) -> list[float]:
    found = [optimizer.lr]
    for _ in range(steps):
        schedule.step()
        found.append(optimizer.lr)
    return found


@pytest.mark.parametrize("name", MADE)
def test_rates_follow_the_formula(name: str) -> None:
    optimizer = vrt.SGD(0.3)
    found = rates_of(MADE[name](vrt.schedules, optimizer), optimizer)
    np.testing.assert_allclose(found, [EXPECTED[name](n) for n in range(STEPS + 1)], rtol=1e-12)


@pytest.mark.filterwarnings("ignore")  # of PyTorch, about the order of calls
@pytest.mark.parametrize("name", MADE)
def test_rates_are_those_of_pytorch(name: str) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is an optional extra")
    theirs = torch.optim.SGD([torch.zeros(1)], lr=0.3)
    schedule, expected = MADE[name](torch.optim.lr_scheduler, theirs), []
    for _ in range(STEPS + 1):
        expected.append(theirs.param_groups[0]["lr"])
        schedule.step()
    optimizer = vrt.SGD(0.3)
    found = rates_of(MADE[name](vrt.schedules, optimizer), optimizer)
    np.testing.assert_allclose(found, expected, rtol=1e-10)


@pytest.mark.parametrize("mode", ["min", "max"])
def test_plateaus_are_those_of_pytorch(mode: str) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is an optional extra")
    theirs, ours = torch.optim.SGD([torch.zeros(1)], lr=0.3), vrt.SGD(0.3)
    options: dict[str, Any] = {"mode": mode, "factor": 0.5, "patience": 2, "min_lr": 0.05}
    judge = torch.optim.lr_scheduler.ReduceLROnPlateau(theirs, **options)
    schedule = vrt.schedules.ReduceLROnPlateau(ours, **options)
    for metric in METRICS:
        judge.step(metric)
        schedule.step(metric)
        assert ours.lr == theirs.param_groups[0]["lr"]


def test_a_plateau_reduces_the_rate() -> None:
    optimizer = vrt.SGD(0.8)
    schedule = vrt.schedules.ReduceLROnPlateau(optimizer, factor=0.5, patience=1, min_lr=0.15)
    found = []
    for metric in (2.0, 1.0, 1.0, 1.0, 0.9, math.nan, np.float32("inf"), 0.9, 0.9, 0.9, 0.9):
        schedule.step(metric)
        found.append(optimizer.lr)
    assert found == [0.8, 0.8, 0.8, 0.4, 0.4, 0.4, 0.2, 0.2, 0.15, 0.15, 0.15]
    assert schedule.best == 0.9
    assert schedule.bad_steps == 0


@pytest.mark.parametrize("name", MADE)
def test_a_state_continues_a_run(name: str) -> None:
    whole = vrt.SGD(0.3)
    expected = rates_of(MADE[name](vrt.schedules, whole), whole)
    first = vrt.SGD(0.3)
    schedule = MADE[name](vrt.schedules, first)
    rates_of(schedule, first, 11)
    again = vrt.SGD(0.3)
    continued = MADE[name](vrt.schedules, again)
    continued.load_state(json.loads(json.dumps(schedule.state)))
    assert rates_of(continued, again, STEPS - 11) == expected[11:]
    assert schedule.state == {"steps": 11, "initial_lr": 0.3}


def test_a_plateau_continues() -> None:
    optimizers = [vrt.SGD(0.3) for _ in range(3)]
    whole, first, again = (vrt.schedules.ReduceLROnPlateau(o, patience=1) for o in optimizers)
    for metric in METRICS[:6]:
        whole.step(metric)
        first.step(metric)
    again.load_state(json.loads(json.dumps(first.state)))
    for metric in METRICS[6:]:
        whole.step(metric)
        again.step(metric)
    assert optimizers[0].lr == optimizers[2].lr < 0.3
    assert whole.state == again.state


def test_rates_of_groups_change_in_proportion() -> None:
    optimizer = vrt.SGD(0.4, groups={"w": {"lr": 0.1}})
    schedule = vrt.schedules.StepLR(optimizer, 1, 0.5)
    schedule.step()
    net = vrt.compile(Sum(), device="reference", dtype="float64")
    net.step(vrt.GraphBatch.from_graphs([vrt.InputGraph.chain(1, {})]), optimizer)
    np.testing.assert_allclose(net.parameters["w"], -0.05)
    np.testing.assert_allclose(net.parameters["b"], -0.2)


class Sum(vrt.VertexFunction):
    """The gradient of each element is 1."""

    def __init__(self) -> None:
        super().__init__(arity=1, state={"h": 2})
        self.w, self.b = vrt.Parameter((2,)), vrt.Parameter((2,))

    def forward(self) -> None:
        self.scatter(h=self.w * 1.0)
        self.push("loss", vrt.sum(self.w + self.b))


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda s, o: s.StepLR(3, 1), "[StepLR] a int; an optimizer; pass an optimizer"),
        (lambda s, o: s.StepLR(o, 0), "[StepLR] step_size=0; step_size must be a whole number"),
        (lambda s, o: s.StepLR(o, 1, math.nan), "[StepLR] gamma=nan; gamma must be in [0, 1]"),
        (lambda s, o: s.LambdaLR(o, 3), "[LambdaLR] lr_lambda=3; lr_lambda must be a function"),
        (lambda s, o: s.LambdaLR(o, lambda n: -1.0), "[LambdaLR] lr_lambda(0)=-1.0; lr_lambda(0) "),
        (lambda s, o: s.CosineAnnealingLR(o, 1.5), "[CosineAnnealingLR] T_max=1.5; T_max must be"),
        (lambda s, o: s.SequentialLR(o, [3], []), "[SequentialLR] schedulers=[3]; schedulers must"),
        (
            lambda s, o: s.SequentialLR(o, [s.StepLR(o, 1)] * 3, [5, 4]),
            "[SequentialLR] milestones=[5, 4]; milestones must be whole numbers above 0 that rise",
        ),
        (
            lambda s, o: s.SequentialLR(o, [s.StepLR(vrt.SGD(0.1), 1)], []),
            "[SequentialLR] schedulers=[<vertexrt",
        ),
        (lambda s, o: s.ReduceLROnPlateau(o, "low"), "[ReduceLROnPlateau] mode='low'; mode must"),
        (
            lambda s, o: s.ReduceLROnPlateau(o).step("1"),
            "[ReduceLROnPlateau] metric='1'; metric must be a number",
        ),
    ],
)
def test_mistakes(make: Callable[[Any, Any], Any], text: str) -> None:
    with pytest.raises(UsageError) as found:
        make(vrt.schedules, vrt.SGD(0.1))
    assert str(found.value).startswith(text)


def test_what_is_no_state_is_refused() -> None:
    optimizer = vrt.SGD(0.1)
    schedule = vrt.schedules.StepLR(optimizer, 1)
    schedule.step()
    for state in ({}, {"steps": -1, "initial_lr": 1.0}, {"steps": 1, "initial_lr": 1.0, "x": 1}):
        with pytest.raises(CheckpointError, match=r"^\[schedule\]"):
            schedule.load_state(state)
    assert schedule.steps == 1
    assert optimizer.lr == pytest.approx(0.01)
