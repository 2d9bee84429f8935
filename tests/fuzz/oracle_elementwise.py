"""Elementwise functions of the oracle; see `tests.fuzz.oracle`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy.special import erf as scipy_erf
from scipy.special import expit

from tests.fuzz.bounded import Array, Bounded, exact
from tests.fuzz.tape import Value, elementwise, lift, selected, together

Operand = Any  # Value | Parameter | float

# Units in the last place that an implementation of a function may be off.
FUNCTION_ROUNDINGS = 4.0


def _smooth(
    function: Callable[[Array], Array], slope: Callable[[Bounded, Bounded], Bounded]
) -> Any:
    """Make a function from NumPy's and its derivative, given x and the result."""

    def apply(x: Operand) -> Value:
        def forward(number: Bounded) -> Bounded:
            return number.apply(
                function, slope(number, exact(function(number.value))).value, FUNCTION_ROUNDINGS
            )

        return elementwise(forward, lambda g, number: (g * slope(number, forward(number)),), x)

    return apply


_ONE = exact(1.0)

sigmoid = _smooth(expit, lambda x, out: out * (_ONE - out))
tanh = _smooth(np.tanh, lambda x, out: _ONE - out * out)
exp = _smooth(np.exp, lambda x, out: out)
log = _smooth(np.log, lambda x, out: _ONE / x)
sin = _smooth(np.sin, lambda x, out: exact(np.cos(x.value)))
cos = _smooth(np.cos, lambda x, out: exact(-np.sin(x.value)))
erf = _smooth(scipy_erf, lambda x, out: exact(2.0 / np.sqrt(np.pi) * np.exp(-(x.value * x.value))))
sqrt = _smooth(np.sqrt, lambda x, out: exact(0.5) / out)


softplus = _smooth(
    lambda x: np.logaddexp(0.0, x),
    lambda x, out: x.apply(expit, expit(x.value) * expit(-x.value), FUNCTION_ROUNDINGS),
)


def _either(mask: Callable[[Bounded, Bounded], Any], *operands: Operand) -> Value:
    """Take the first operand where a comparison holds, else the second."""
    tape = together(*operands)[0].tape

    def forward(x: Bounded, y: Bounded) -> Bounded:
        tape.compared(x, y)
        return selected(mask(x, y), x, y)[0]

    def vjp(g: Bounded, x: Bounded, y: Bounded) -> Sequence[Bounded]:
        return selected(mask(x, y), x, y)[1](g)

    return elementwise(forward, vjp, *operands)


def maximum(x: Operand, y: Operand) -> Value:
    """Return the larger; at a tie the gradient goes to x."""
    return _either(lambda a, b: a.value >= b.value, x, y)


def minimum(x: Operand, y: Operand) -> Value:
    """Return the smaller; at a tie the gradient goes to y."""
    return _either(lambda a, b: a.value < b.value, x, y)


def relu(x: Operand) -> Value:
    """Return max(x, 0), whose derivative at 0 is 0."""
    return _either(lambda a, b: a.value > b.value, x, 0.0)


def abs(x: Operand) -> Value:
    """Return the absolute value, whose derivative at 0 is 0."""
    tape = lift(x).tape

    def forward(number: Bounded) -> Bounded:
        tape.compared(number, exact(np.zeros(number.shape)))
        return number * exact(np.sign(number.value))

    return elementwise(forward, lambda g, number: (g * exact(np.sign(number.value)),), x)


def floor(x: Operand) -> Value:
    """Return the largest whole number that is not above x."""
    return lift(x) // 1.0


def silu(x: Operand) -> Value:
    """Return x sigmoid(x)."""
    return lift(x) * sigmoid(x)


def gelu(x: Operand, approximate: str = "none") -> Value:
    """Return the Gaussian error linear unit, or its tanh form."""
    v = lift(x)
    if approximate == "none":
        return v * (0.5 + 0.5 * erf(v / float(np.sqrt(2.0))))
    inner = float(np.sqrt(2.0 / np.pi)) * (v + 0.044715 * (v * v * v))
    return 0.5 * v * (1.0 + tanh(inner))


def elu(x: Operand, alpha: float = 1.0) -> Value:
    """Return x where it is positive, else alpha (exp(x) - 1)."""
    v = lift(x)
    return where(v > 0.0, v, alpha * (exp(minimum(v, 0.0)) - 1.0))


def leaky_relu(x: Operand, slope: float = 0.01) -> Value:
    """Return x where it is not negative, else slope x."""
    v = lift(x)
    return where(v >= 0.0, v, slope * v)


def clip(x: Operand, low: Operand, high: Operand) -> Value:
    """Return x, or the nearer bound."""
    return minimum(maximum(x, low), high)


def stop_gradient(x: Operand) -> Value:
    """Return the value as a constant."""
    v = lift(x)
    return Value(v.tape, v.number, v.shape, v.children)


def straight_through(x: Operand, value: Operand) -> Value:
    """Return `value` with the gradient of x."""

    def forward(v: Bounded, other: Bounded) -> Bounded:
        return exact(np.zeros(v.shape)) + other

    def vjp(g: Bounded, v: Bounded, other: Bounded) -> Sequence[Bounded]:
        return g, exact(np.zeros(other.shape))

    return elementwise(forward, vjp, x, value)


def where(mask: Operand, x: Operand, y: Operand) -> Value:
    """Return x where the mask is not zero, else y; the mask has no gradient."""
    tape = together(mask, x, y)[0].tape

    def forward(m: Bounded, a: Bounded, b: Bounded) -> Bounded:
        tape.compared(m, exact(np.zeros(m.shape)), jumps=True)
        return selected(m.value != 0.0, a, b)[0]

    def vjp(g: Bounded, m: Bounded, a: Bounded, b: Bounded) -> Sequence[Bounded]:
        return exact(np.zeros(m.shape)), *selected(m.value != 0.0, a, b)[1](g)

    return elementwise(forward, vjp, mask, x, y)


def dropout(x: Operand, p: float, per: str = "vertex") -> Value:
    """Return the value: the oracle knows inference only."""
    v = lift(x)
    v.tape.drops |= p > 0.0
    return v * 1.0
