"""Evaluate the scalar expression of an op on Python numbers, to fold constants."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from types import CodeType


def _sigmoid(x: float) -> float:
    return 1.0 / (1.0 + math.exp(-x)) if x >= 0 else math.exp(x) / (1.0 + math.exp(x))


FUNCTIONS = {
    "exp": math.exp,
    "log": math.log,
    "sqrt": math.sqrt,
    "tanh": math.tanh,
    "sigmoid": _sigmoid,
}


@cache
def _code(expression: str) -> CodeType:
    return compile(expression, "<op table>", "eval")


def evaluate(expression: str, operands: Sequence[float]) -> float | None:
    """Return the value of an expression of the op table, or None where it is not a finite number.

    Args:
        expression: in x0, x1, ...; random ops (`keep`) have no constant value.
    """
    if "keep" in expression:
        return None
    names = {f"x{k}": x for k, x in enumerate(operands)}
    try:
        out = float(eval(_code(expression), {"__builtins__": {}, **FUNCTIONS}, names))
    except (ArithmeticError, ValueError):
        return None
    return out if math.isfinite(out) else None
