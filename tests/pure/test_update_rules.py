"""The table of optimizers: its rows, their options, and what is made of them without a kernel."""

import inspect
import math
import re
from typing import Any

import pytest

import vertexrt as vrt
from tests.messages import table, text_of
from vertexrt.api.optim import OPTIMIZERS as CLASSES
from vertexrt.engine.update import reach_of
from vertexrt.errors import UsageError
from vertexrt.ir.updates import (
    OPTIMIZERS,
    RULES,
    OptimizerRow,
    StateSlot,
    UpdateRule,
    rule_of,
)
from vertexrt.kernels.cuda.step_end import struct_of

every_row = pytest.mark.parametrize("row", OPTIMIZERS, ids=lambda row: row.name)


def row_of(title: str) -> OptimizerRow:
    return next(row for row in OPTIMIZERS if row.title == title)


@every_row
def test_a_row_is_a_class_whose_text_has_the_update_and_ranges(row: OptimizerRow) -> None:
    made = getattr(vrt, row.title)
    assert made is CLASSES[row.title]
    assert made.row is row
    assert row.title in vrt.__all__
    parameters = inspect.signature(made).parameters
    names = [option.name for option in row.options]
    assert [*parameters] == ["lr", *names, "weight_decay", "clip_norm", "clip_value", "groups"]
    usual = inspect.Parameter.empty if row.title in ("SGD", "Adagrad") else row.lr
    assert parameters["lr"].default == usual
    assert made(row.lr).describe()["class"] == row.title
    for name, parameter in parameters.items():
        known = ("Rate", "float", "float | None", "tuple[float, float]", "Groups | None")
        assert parameter.annotation in known
        assert f"    {name}: " in made.__doc__
    assert all(f"        {name} = {expression}\n" in made.__doc__ for name, expression in row.lines)
    for option in row.options:
        assert re.search(
            rf"    {option.name}: .* \({re.escape(option.range.text)}\)\.", made.__doc__
        )
    assert ("- lr * weight_decay" in made.__doc__) == row.decoupled


def test_rows_that_differ_in_decay_share_a_rule() -> None:
    assert rule_of(row_of("Adam"), {}) is rule_of(row_of("AdamW"), {})


def test_names_of_rules_are_their_own() -> None:
    assert len({rule.name for rule in RULES}) == len(RULES)
    assert len({struct_of(rule) for rule in RULES}) == len(RULES)


@every_row
def test_usual_options_need_no_trial(row: OptimizerRow) -> None:
    """Else each step would run its update twice."""
    usual = getattr(vrt, row.title)(row.lr).describe()
    chosen = {"lr": row.lr, "t": 1}
    for option in row.options:
        given = usual[option.name]
        chosen |= zip(option.parts, given, strict=True) if option.parts else {option.name: given}
    for momentum in (0.0, 0.9) if "momentum" in chosen else (0.0,):
        options = {**chosen, **({"momentum": momentum} if "momentum" in chosen else {})}
        for itemsize in (4, 8):
            assert reach_of(rule_of(row, options), options, 0.01, 1.0, itemsize) is not None


def test_adadelta_has_no_bound() -> None:
    """Whatever its mean of squared updates is held to, one step can nearly double it."""
    slots = (StateSlot("s", squares=True), StateSlot("u", squares=True))
    lines = (
        ("s", "s0 * s + s1 * (g * g)"),
        ("d", "g * (sqrt(u + s2) / sqrt(s + s2))"),
        ("u", "s0 * u + s1 * (d * d)"),
        ("value", "value - s3 * d"),
    )
    rule = UpdateRule("adadelta", slots, lines, ("rho", "1 - rho", "eps", "lr"))
    rho, eps = 0.9, 1e-6
    for itemsize in (4, 8):
        options = {"lr": 1.0, "t": 1.0, "rho": rho, "eps": eps}
        assert reach_of(rule, options, 0.0, 1.0, itemsize) is None
    for held in (1e-6, 1.0, 1e30):
        names = {"g": 1e9, "s": 0.0, "u": held, "value": 0.0, "sqrt": math.sqrt}
        names |= {"s0": rho, "s1": 1 - rho, "s2": eps, "s3": 1.0}
        for name, expression in lines:
            names[name] = eval(expression, names)
        assert names["u"] == pytest.approx((1 + rho) * held + eps)


# Options: what is refused, when they are given or set later, and how an optimizer tells them.


class Own(vrt.Optimizer):
    """An optimizer with an update and an option of its own."""

    def __init__(self) -> None:
        super().__init__(0.1)
        self.warm = 3

    def update(self, store: Any) -> None:
        """Change nothing."""


# A call, and an option that is set later -> how the error begins.
REFUSED = table(__file__, "REFUSED")


@pytest.mark.parametrize("row", REFUSED)
def test_options_are_refused_whenever_they_are_set(row: str) -> None:
    """Issue 52; the optimizer stays as it was."""
    call, _, setting = row.partition(": ")
    names: dict[str, Any] = {**vars(vrt), "Own": Own}

    def make_and_set() -> None:
        names["made"] = eval(call, names)
        names["before"] = names["made"].describe()
        exec(f"made.{setting}", names)

    assert text_of(UsageError, make_and_set).startswith(REFUSED[row])
    assert not setting or names["made"].describe() == names["before"]


def test_an_optimizer_describes_its_options_also_those_set_later() -> None:
    usual = {"lr": 0.1, "momentum": 0.5, "weight_decay": 0.0, "clip_norm": 5.0}
    assert vrt.SGD(0.1, 0.5, clip_norm=5.0).describe() == {"class": "SGD", **usual}
    optimizer = vrt.AdamW(groups={"*": {"lr": 0.1}})
    found = optimizer.describe()
    assert (found["betas"], found["weight_decay"], found["clip_norm"]) == ([0.9, 0.999], 0.01, None)
    optimizer.betas, optimizer.clip_norm, optimizer.weight_decay = [0.5, 0.6], 2, 0.1
    found = optimizer.describe()
    assert (found["betas"], found["clip_norm"], found["weight_decay"]) == ([0.5, 0.6], 2.0, 0.1)
    with pytest.raises(TypeError):
        optimizer.groups["*"]["lr"] = 0.2
    own = Own()
    own.warm = 4
    assert own.warm == 4
