"""Elementwise functions on traced values, as a vertex function computes with them."""

from __future__ import annotations

import builtins
import math
from typing import Any

from vertexrt.api.trace import current_builder
from vertexrt.checks import is_real
from vertexrt.errors import TraceError
from vertexrt.ir.builder import Value
from vertexrt.ir.user_line import user_line

Operand = Any  # Value | Parameter | float


def emit(op: str, *operands: Operand, **attrs: Any) -> Value:
    """Append a node to the function that is traced."""
    return current_builder().emit(op, *operands, **attrs)


def sigmoid(x: Operand) -> Value:
    """Return 1 / (1 + exp(-x)), elementwise."""
    return emit("sigmoid", x)


def tanh(x: Operand) -> Value:
    """Return the hyperbolic tangent, elementwise."""
    return emit("tanh", x)


def relu(x: Operand) -> Value:
    """Return max(x, 0), elementwise; its derivative at 0 is 0."""
    return emit("relu", x)


def exp(x: Operand) -> Value:
    """Return e to the x, elementwise."""
    return emit("exp", x)


def log(x: Operand) -> Value:
    """Return the natural logarithm, elementwise."""
    return emit("log", x)


def sqrt(x: Operand) -> Value:
    """Return the square root, elementwise."""
    return emit("sqrt", x)


def maximum(x: Operand, y: Operand) -> Value:
    """Return the larger of two values, elementwise; at a tie the gradient goes to x."""
    return emit("maximum", x, y)


def minimum(x: Operand, y: Operand) -> Value:
    """Return the smaller of two values, elementwise; at a tie the gradient goes to y."""
    return emit("minimum", x, y)


def where(mask: Operand, x: Operand, y: Operand) -> Value:
    """Return x where the mask is not zero, else y, elementwise."""
    return emit("where", mask, x, y)


def abs(x: Operand) -> Value:
    """Return the absolute value, elementwise; its derivative at 0 is 0."""
    return emit("abs", x)


def floor(x: Operand) -> Value:
    """Return the largest whole number that is not above x, elementwise; its derivative is 0."""
    return emit("floor", x)


def softplus(x: Operand) -> Value:
    """Return log(1 + exp(x)), elementwise, exact for large and for small x."""
    return emit("softplus", x)


def silu(x: Operand) -> Value:
    """Return x sigmoid(x), elementwise (Elfwing et al. 2018; swish)."""
    return emit("mul", x, sigmoid(x))


def gelu(x: Operand) -> Value:
    """Return the Gaussian error linear unit in its tanh form, elementwise.

    PyTorch's `gelu(x, approximate="tanh")`. Source: Hendrycks and Gimpel 2016.
    """
    value = current_builder().lift(x)
    inner = math.sqrt(2.0 / math.pi) * (value + 0.044715 * (value * value * value))
    return 0.5 * value * (1.0 + tanh(inner))


def elu(x: Operand, alpha: float = 1.0) -> Value:
    """Return x where it is positive, else alpha (exp(x) - 1), elementwise (Clevert et al. 2016)."""
    value = current_builder().lift(x)
    below = _number("elu", "alpha", alpha) * (exp(minimum(value, 0.0)) - 1.0)
    return where(value > 0.0, value, below)


def leaky_relu(x: Operand, slope: float = 0.01) -> Value:
    """Return x where it is not negative, else slope x, elementwise."""
    value = current_builder().lift(x)
    return where(value >= 0.0, value, _number("leaky_relu", "slope", slope) * value)


def clip(x: Operand, low: Operand, high: Operand) -> Value:
    """Return x, or the nearer bound where it is outside of them; no gradient goes through there."""
    return minimum(maximum(x, low), high)


def stop_gradient(x: Operand) -> Value:
    """Return the value, through which no gradient goes."""
    return straight_through(0.0, x)


def straight_through(x: Operand, value: Operand) -> Value:
    """Return `value`, whose gradient goes to x as if it were x (Bengio et al. 2013).

    `vrt.straight_through(p, p > 0.5)` decides, and trains p.
    """
    return emit("straight_through", x, value)


def _number(where_: str, name: str, value: object) -> float:
    if not is_real(value):
        raise TraceError.at(
            where_, f"{name} is {value!r} at {user_line()}", "a number", "pass a number"
        )
    return builtins.float(value)
