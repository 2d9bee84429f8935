"""The table of optimizers: an update rule is one row, in the language of the op table.

A row says what the paper says: options with their ranges, state slots, and what becomes of each
slot and of the value, in this order. Names in an expression:

    value     the parameter's element; with decoupled decay it has been multiplied by
              1 - lr * weight_decay
    g         its gradient, clipped; without decoupled decay, weight_decay * value has been added
    lr, t     learning rate, and number of the step (1 is the first)
    others    options, slots (old until they are set, then new) and what earlier lines have set

What is made of options, lr and t alone is worked out once a step, on the host in float64 (`**` may
be used there), and rounded once: `rules` takes it out of the expressions. Renderers print the rest
as one loop for each rule, so that a row is all that a new optimizer needs.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

Lines = tuple[tuple[str, str], ...]  # what is set, and its expression


class Range(NamedTuple):
    """The numbers that an option may be: from `least` on or above it, and below `end`."""

    text: str
    least: float
    open: bool = False
    end: float = float("inf")

    def holds(self, value: float) -> bool:
        """Tell whether a number is in the range."""
        return (value > self.least if self.open else value >= self.least) and value < self.end


NOT_NEGATIVE = Range(">= 0", 0.0)
ABOVE_ZERO = Range("> 0", 0.0, open=True)
BELOW_ONE = Range("in [0, 1)", 0.0, end=1.0)


class Option(NamedTuple):
    """A number, or a tuple of them, that users set.

    Attributes:
        parts: what expressions call the numbers of a tuple; none for a single number.
        optional: it may be None.
    """

    name: str
    range: Range
    parts: tuple[str, ...] = ()
    optional: bool = False


class StateSlot(NamedTuple):
    """A number that is kept for each element of the parameters from step to step; at first 0.

    Attributes:
        squares: it is never negative.
        option, without: where this option is 0 there is no slot, and its name stands for the
            expression `without`.
    """

    name: str
    squares: bool = False
    option: str = ""
    without: str = ""


@dataclass(frozen=True, slots=True)
class OptimizerRow:
    """An optimizer.

    Attributes:
        title: name of its class, which has defaults, meanings and source; in small letters, of the
            command line.
        lr: the usual learning rate.
        lines: the update, in order.
        decoupled: see `value` and `g` above.
    """

    title: str
    lr: float
    options: tuple[Option, ...]
    state: tuple[StateSlot, ...]
    lines: Lines
    decoupled: bool = False

    @property
    def name(self) -> str:
        """Name on the command line."""
        return self.title.lower()

    def names(self) -> tuple[str, ...]:
        """Return what expressions call the numbers of the options, in order."""
        return tuple(n for option in self.options for n in option.parts or (option.name,))


@dataclass(frozen=True, slots=True, eq=False)
class UpdateRule:
    """What kernels compute: a row, with or without the slots that belong to options.

    Attributes:
        lines: over value, g, slots, names that were set before, and s0, s1, ...: the scalars.
        scalars: expressions of options, lr and t.
    """

    name: str
    state: tuple[StateSlot, ...]
    lines: Lines
    scalars: tuple[str, ...]


MOMENTUM = Option("momentum", BELOW_ONE)
BETAS = Option("betas", BELOW_ONE, ("beta1", "beta2"))
EPS = Option("eps", ABOVE_ZERO)

OPTIMIZERS = (
    OptimizerRow(
        title="SGD",
        lr=0.05,
        options=(MOMENTUM,),
        state=(StateSlot("velocity", option="momentum", without="g"),),
        lines=(
            ("velocity", "momentum * velocity + g"),
            ("value", "value - lr * velocity"),
        ),
    ),
    OptimizerRow(
        title="Adagrad",
        lr=0.05,
        options=(EPS,),
        state=(StateSlot("sum", squares=True),),
        lines=(
            ("sum", "sum + g * g"),
            ("value", "value - lr * g / (sqrt(sum) + eps)"),
        ),
    ),
    ADAM := OptimizerRow(
        title="Adam",
        lr=1e-3,
        options=(BETAS, EPS),
        state=(StateSlot("m"), StateSlot("v", squares=True)),
        lines=(
            ("m", "beta1 * m + (1 - beta1) * g"),
            ("v", "beta2 * v + (1 - beta2) * (g * g)"),
            (
                "value",
                "value - lr / (1 - beta1**t) * m / (sqrt(v) * (1 / sqrt(1 - beta2**t)) + eps)",
            ),
        ),
    ),
    replace(ADAM, title="AdamW", decoupled=True),
    OptimizerRow(
        title="RMSprop",
        lr=1e-3,
        options=(Option("alpha", BELOW_ONE), EPS, MOMENTUM),
        state=(
            StateSlot("square", squares=True),
            StateSlot("velocity", option="momentum", without="g / (sqrt(square) + eps)"),
        ),
        lines=(
            ("square", "alpha * square + (1 - alpha) * (g * g)"),
            ("velocity", "momentum * velocity + g / (sqrt(square) + eps)"),
            ("value", "value - lr * velocity"),
        ),
    ),
    OptimizerRow(
        title="Lion",
        lr=1e-4,
        options=(BETAS,),
        state=(StateSlot("m"),),
        lines=(
            ("c", "beta1 * m + (1 - beta1) * g"),
            ("value", "value - lr * (0.0 if c == 0.0 else (1.0 if c > 0.0 else -1.0))"),
            ("m", "beta2 * m + (1 - beta2) * g"),
        ),
        decoupled=True,
    ),
)


class _HostScalars(ast.NodeTransformer):
    """Put s0, s1, ... in the place of what is made of options, lr and t alone."""

    def __init__(self, known: frozenset[str]) -> None:
        self.known = known
        self.texts: list[str] = []

    def visit(self, node: ast.AST) -> ast.AST:
        """Return what stands for a node."""
        inside = [*ast.walk(node)]
        called = {ast.unparse(n.func) for n in inside if isinstance(n, ast.Call)}
        used = {n.id for n in inside if isinstance(n, ast.Name)} - called
        if not (isinstance(node, ast.expr) and used and used <= self.known):
            return self.generic_visit(node)
        text = ast.unparse(node)
        if text not in self.texts:
            self.texts.append(text)
        return ast.Name(f"s{self.texts.index(text)}", ast.Load())


@cache
def _rule(row: OptimizerRow, kept: tuple[StateSlot, ...]) -> UpdateRule:
    same = (row.state, row.lines, row.names())
    first = next(r for r in OPTIMIZERS if (r.state, r.lines, r.names()) == same)
    if first is not row:
        return _rule(first, kept)
    host = _HostScalars(frozenset(("lr", "t", *row.names())))
    without = {slot.name: slot.without for slot in row.state if slot not in kept}
    lines = tuple(
        (name, ast.unparse(host.visit(ast.parse(without.get(name, made), mode="eval").body)))
        for name, made in row.lines
    )
    options = [slot.option for slot in kept if slot.option]
    return UpdateRule("_".join([row.name, *options]), kept, lines, tuple(host.texts))


def rule_of(row: OptimizerRow, chosen: Mapping[str, float]) -> UpdateRule:
    """Return the rule of a row for options by name; rows that differ in decay alone share it."""
    return _rule(row, tuple(s for s in row.state if not s.option or chosen[s.option] != 0.0))


# All rules, each once, in the order of the table.
RULES: tuple[UpdateRule, ...] = tuple(
    dict.fromkeys(
        rule_of(row, dict(zip(row.names(), chosen, strict=True)))
        for row in OPTIMIZERS
        for chosen in itertools.product((0.0, 0.5), repeat=len(row.names()))
    )
)
