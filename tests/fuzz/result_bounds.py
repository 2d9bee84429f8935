"""Bounds on the results of elementwise ops, so that no number of a random function grows large."""

from __future__ import annotations

import math
from collections.abc import Callable

# From those of the operands.
BOUNDS: dict[str, Callable[..., float]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a + b,
    "mul": lambda a, b: a * b,
    "floordiv": lambda a, b: a + 1.0,
    "mod": lambda a, b: b,
    "floor": lambda a: a + 1.0,
    "div": lambda a, b: 1.5 * a,  # divisors are at least 0.7
    "square": lambda a: a * a,
    "exp": math.exp,
    "log": lambda a: 1.0 + math.log(1.0 + a),
    "sqrt": lambda a: 1.0 + a,
    "sigmoid": lambda a: 1.0,
    "tanh": lambda a: 1.0,
    "maximum": max,
    "minimum": max,
    "where": lambda mask, a, b: max(a, b),
    "softplus": lambda a: a + 1.0,
    "elu": lambda a: a + 1.0,
    "clip": lambda a, low, high: 0.7,
    "straight_through": lambda a, b: b,
}
