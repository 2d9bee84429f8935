"""The table of optimizers: its rows, and what is made of them without a kernel."""

import inspect

import pytest

import vertexrt as vrt
from vertexrt.api.optim import OPTIMIZERS as CLASSES
from vertexrt.engine.finite import reach_of
from vertexrt.ir.updates import OPTIMIZERS, RULES, OptimizerRow, rule_of, scalars_of
from vertexrt.kernels.cuda.rules import struct_of

BETAS = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8}

every_row = pytest.mark.parametrize("row", OPTIMIZERS, ids=lambda row: row.name)


def row_of(title: str) -> OptimizerRow:
    return next(row for row in OPTIMIZERS if row.title == title)


@every_row
def test_a_row_is_a_class_of_the_package(row: OptimizerRow) -> None:
    made = getattr(vrt, row.title)
    assert made is CLASSES[row.title]
    assert row.title in vrt.__all__
    parameters = list(inspect.signature(made).parameters)
    names = [option.name for option in row.options]
    assert parameters == ["lr", *names, "weight_decay", "clip_norm"]
    assert row.source in str(made.__doc__)
    assert all(expression in str(made.__doc__) for _, expression in row.lines)
    assert made(row.lr).describe()["class"] == row.title


def test_what_the_host_knows_is_taken_out() -> None:
    rule = rule_of(row_of("Adam"), {})
    assert dict(rule.lines) == {
        "m": "s0 * m + s1 * g",
        "v": "s2 * v + s3 * (g * g)",
        "value": "value - s4 * m / (sqrt(v) * s5 + s6)",
    }
    first = scalars_of(rule, {**BETAS, "t": 1})
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
    numbers = [n for o in row.options for n in (o.default if o.parts else (o.default,))]  # type: ignore[union-attr]
    chosen = dict(zip(row.names(), numbers, strict=True))
    for momentum in (0.0, 0.9) if "momentum" in chosen else (0.0,):
        options = {**chosen, **({"momentum": momentum} if "momentum" in chosen else {})}
        for itemsize in (4, 8):
            named = {"lr": row.lr, "t": 1, **options}
            assert reach_of(rule_of(row, options), named, 0.01, 1.0, itemsize) is not None
