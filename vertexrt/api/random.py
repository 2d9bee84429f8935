"""Random numbers in a vertex function: the same on every device and engine, for any threads.

Each is a hash of the seed, the step, the op, the number of the vertex in the batch and the element:
counter-based random numbers (Salmon et al., SC 2011).
"""

from __future__ import annotations

import zlib
from typing import Any

from vertexrt.api.functional import abs, log, sqrt, value_of, where
from vertexrt.api.trace import current_builder, current_trace
from vertexrt.checks import is_real, read_shape
from vertexrt.ir.builder import Value
from vertexrt.ir.ops import FIRST_OF_GRAPH
from vertexrt.ir.user_line import refuse

__all__ = ["dropout", "normal", "uniform"]

Operand = Any  # Value | Parameter | float

# Quantiles of the normal distribution: algorithm AS 241, PPND7 (Wichura 1988), to 7 digits.
CENTRE, CENTRE_ROOT = 0.425, 0.180625
CENTRAL = (
    (5.9109374720e1, 1.5929113202e2, 5.0434271938e1, 3.3871327179),
    (6.7187563600e1, 7.8757757664e1, 1.7895169469e1, 1.0),
)
TAIL = (
    (1.7023821103e-1, 1.3067284816, 2.7568153900, 1.4234372777),
    (1.2021132975e-1, 7.3700164250e-1, 1.0),
)


def dropout(x: Operand, p: float, per: str = "vertex") -> Value:
    """Zero each element with probability p in training and scale the others by 1 / (1 - p).

    In inference the value passes unchanged.

    Args:
        per: "vertex" (for a value per child, "vertex" means each child) draws for each by itself;
            "graph" once for all vertices of a graph, for the recurrent dropout of Gal and
            Ghahramani 2016.
    Raises: TraceError, when p is not in [0, 1), or for another `per`.
    """
    if not is_real(p) or not 0.0 <= p < 1.0:
        refuse("dropout", f"p is {p!r}", "0 <= p < 1", "pass the share of zeros")
    if not isinstance(per, str) or per not in ("vertex", "graph"):
        refuse("dropout", f"per is {per!r}", "'vertex' or 'graph'", "choose one of them")
    b = current_builder()
    value = b.lift(x)
    if p == 0.0:
        return value
    if per == "vertex":
        return b.emit("dropout", value, p=float(p), key=_key("dropout"))
    first = b.emit("pull", name=FIRST_OF_GRAPH, shape=(), dtype="int", auto=False)
    # Functions of a network have graphs in common, so their names count.
    key = _key(f"dropout {current_trace().name}")
    return b.emit("dropout_by", value, first, p=float(p), key=key)


def uniform(shape: tuple[int, ...] | int, low: Operand = 0.0, high: Operand = 1.0) -> Value:
    """Draw numbers between low and high, in training and in inference alike.

    Args:
        shape: per vertex.
        low, high: numbers, or values of that shape; gradients go to these.
    Raises: TraceError, when the shape is not of positive integers.
    """
    drawn, first = _standard("uniform", shape), value_of(low)
    span: Value = high - first
    return span * drawn + first


def normal(shape: tuple[int, ...] | int, mean: Operand = 0.0, std: Operand = 1.0) -> Value:
    """Draw normally distributed numbers, in training and in inference alike.

    `vrt.random.normal(n, mu, sigma)` of two vectors is the reparametrisation of Kingma and Welling
    2014.

    Args:
        shape: per vertex.
        mean, std: numbers, or values of that shape; gradients go to these.
    Raises: TraceError, when the shape is not of positive integers.
    """
    moved = _standard("normal", shape) - 0.5
    near, root = abs(moved), CENTRE_ROOT - moved * moved
    far = sqrt(-log(0.5 - near)) - 1.6
    tail = _quotient(TAIL, far)
    outside = where(moved > 0.0, tail, -tail)
    drawn = where(near <= CENTRE, moved * _quotient(CENTRAL, root), outside)
    spread: Value = std * drawn
    return spread + value_of(mean)


def _quotient(coefficients: tuple[tuple[float, ...], tuple[float, ...]], x: Value) -> Value:
    """Return a quotient of polynomials, highest powers first."""
    found: list[Value] = []
    for first, second, *others in coefficients:
        polynomial: Value = first * x + second
        for each in others:
            polynomial = polynomial * x + each
        found.append(polynomial)
    return found[0] / found[1]


def _standard(where: str, shape: tuple[int, ...] | int) -> Value:
    """Draw numbers between 0 and 1, of which none is either."""
    b, extents = current_builder(), read_shape(shape)
    if extents is None:
        refuse(
            where,
            f"shape {shape!r}",
            "a tuple of positive integers",
            f"write {where}(n): the shape comes first",
        )
    return b.emit("uniform", b.const(0.0, extents), key=_key("uniform"))


def _key(what: str) -> int:
    """Return the number of an op among those that draw."""
    return zlib.crc32(f"{what} {len(current_builder().nodes)}".encode())
