"""The table of optimizers: its rows, and what is made of them without a kernel."""

import inspect
import math
import re
from pathlib import Path

import pytest

import vertexrt as vrt
from vertexrt.api.optim import OPTIMIZERS as CLASSES
from vertexrt.engine.update import reach_of
from vertexrt.ir.expressions import evaluate_all
from vertexrt.ir.updates import (
    OPTIMIZERS,
    RULES,
    OptimizerRow,
    StateSlot,
    UpdateRule,
    rule_of,
)
from vertexrt.kernels.cuda.rules import struct_of

BETAS = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8}

every_row = pytest.mark.parametrize("row", OPTIMIZERS, ids=lambda row: row.name)


def row_of(title: str) -> OptimizerRow:
    return next(row for row in OPTIMIZERS if row.title == title)


@every_row
def test_a_row_is_a_class_of_the_package(row: OptimizerRow) -> None:
    made = getattr(vrt, row.title)
    assert made is CLASSES[row.title]
    assert made.row is row
    assert row.title in vrt.__all__
    parameters = list(inspect.signature(made).parameters)
    names = [option.name for option in row.options]
    assert parameters == ["lr", *names, "weight_decay", "clip_norm", "clip_value", "groups"]
    usual = inspect.Parameter.empty if row.title in ("SGD", "Adagrad") else row.lr
    assert inspect.signature(made).parameters["lr"].default == usual
    assert made(row.lr).describe()["class"] == row.title


@every_row
def test_a_class_has_types_and_its_text_the_update_and_ranges(row: OptimizerRow) -> None:
    made = getattr(vrt, row.title)
    for name, parameter in inspect.signature(made).parameters.items():
        known = ("Rate", "float", "float | None", "tuple[float, float]", "Groups | None")
        assert parameter.annotation in known
        assert f"    {name}: " in made.__doc__
    assert all(f"        {name} = {expression}\n" in made.__doc__ for name, expression in row.lines)
    for option in row.options:
        assert re.search(
            rf"    {option.name}: .* \({re.escape(option.range.text)}\)\.", made.__doc__
        )
    assert ("- lr * weight_decay" in made.__doc__) == row.decoupled


USER = """
import vertexrt as vrt

optimizer = vrt.Adam(1e-3, betas=(0.9, 0.99), clip_norm=None)
rate: float = optimizer.lr
base: vrt.Optimizer = optimizer
vrt.Adam(beta=0.9)
vrt.SGD()
vrt.SGD("0.1")
vrt.Lion(betas=0.9)
vrt.Adamm()
"""
WRONG = {
    7: 'Unexpected keyword argument "beta" for "Adam"',
    8: 'Missing positional argument "lr" in call to "SGD"',
    9: 'incompatible type "str"; expected "float | Callable[[int], float]"',
    10: 'incompatible type "float"; expected "tuple[float, float]"',
    11: 'has no attribute "Adamm"',
}


def test_mypy_checks_the_options_that_users_give(tmp_path: Path) -> None:
    api = pytest.importorskip("mypy.api", reason="no mypy (extra `dev`)")
    (tmp_path / "user.py").write_text(USER)
    printed, _, _ = api.run(["--strict", "--no-pretty", str(tmp_path / "user.py")])
    lines = [line for line in printed.splitlines() if "user.py:" in line and " error: " in line]
    found = {int(line.split(":")[1]): line for line in lines}
    assert found.keys() == WRONG.keys(), printed
    assert all(text in found[line] for line, text in WRONG.items()), printed


def test_what_the_host_knows_is_taken_out() -> None:
    rule = rule_of(row_of("Adam"), {})
    assert dict(rule.lines) == {
        "m": "s0 * m + s1 * g",
        "v": "s2 * v + s3 * (g * g)",
        "value": "value - s4 * m / (sqrt(v) * s5 + s6)",
    }
    first = evaluate_all(rule.scalars, {**BETAS, "t": 1})
    assert first == (0.9, 1 - 0.9, 0.999, 1 - 0.999, 1e-3 / (1 - 0.9), 1 / (1 - 0.999) ** 0.5, 1e-8)


def test_rows_that_differ_in_decay_share_a_rule() -> None:
    assert rule_of(row_of("Adam"), {}) is rule_of(row_of("AdamW"), {})


def test_a_slot_of_an_option_is_there_with_it() -> None:
    sgd = row_of("SGD")
    plain, momentum = (rule_of(sgd, {"momentum": m}) for m in (0.0, 0.9))
    assert (plain.name, len(plain.state)) == ("sgd", 0)
    assert (momentum.name, [slot.name for slot in momentum.state]) == ("sgd_momentum", ["velocity"])
    assert plain.lines[0] == ("velocity", "g")


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
