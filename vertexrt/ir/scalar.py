"""Evaluate scalar expressions of the tables of ops and of update rules on Python numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from types import CodeType


def _sigmoid(x: float) -> float:
    return 1.0 / (1.0 + math.exp(-x)) if x >= 0 else math.exp(x) / (1.0 + math.exp(x))


FUNCTIONS = {
    "exp": math.exp,
    "log": math.log,
    "sqrt": math.sqrt,
    "tanh": math.tanh,
    "floor": math.floor,
    "sigmoid": _sigmoid,
}
_GLOBALS = {"__builtins__": {}, **FUNCTIONS}


@cache
def _code(expression: str) -> CodeType:
    return compile(expression, "<op table>", "eval")


@cache
def _tuple_code(expressions: tuple[str, ...]) -> CodeType:
    return _code(f"({''.join(f'{each}, ' for each in expressions)})")


def evaluate(expression: str, operands: Sequence[float]) -> float | None:
    """Return the value of an expression of the op table, or None where it is not a finite number.

    Args:
        expression: in x0, x1, ...; random ops (`draw`) have no constant value.
    """
    if "draw" in expression:
        return None
    names = {f"x{k}": x for k, x in enumerate(operands)}
    try:
        out = float(eval(_code(expression), _GLOBALS, names))
    except (ArithmeticError, ValueError):
        return None
    return out if math.isfinite(out) else None


def evaluate_all(expressions: tuple[str, ...], names: Mapping[str, float]) -> tuple[float, ...]:
    """Return the values of expressions over names; `**` may be used in them."""
    return eval(_tuple_code(expressions), _GLOBALS, names)  # type: ignore[no-any-return]
