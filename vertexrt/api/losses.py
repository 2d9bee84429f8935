"""Losses on traced values: a number for each vertex."""

from __future__ import annotations

from typing import Any

from vertexrt.api.elementwise import emit
from vertexrt.api.trace import current_builder
from vertexrt.errors import TraceError
from vertexrt.ir.user_line import user_line
from vertexrt.ir.values import Operators, Value

Operand = Any  # Value | Parameter | float


def cross_entropy(logits: Operand, label: Value) -> Value:
    """Return -log softmax(logits)[label], a scalar; 0 where the label is absent (-1).

    Args:
        logits: [C].
        label: a pull, 0 to C - 1.
    """
    b = current_builder()
    value = b.lift(logits)
    return emit("nll", value, b.as_index(b.lift(label)), emit("logsumexp", value))


def squared_error(x: Operand, y: Operand) -> Value:
    """Return the sum of (x - y) squared over the elements: a scalar.

    Args:
        x, y: of one shape; either may be a plain number, which stands for all elements.
    Raises: TraceError, when the shapes differ: nothing is repeated to fit.
    """
    left, right = map(current_builder().lift, (x, y))
    both = isinstance(x, Operators) and isinstance(y, Operators)
    if both and left.shape != right.shape:
        raise TraceError.at(
            "squared_error",
            f"shapes {list(left.shape)} and {list(right.shape)} at {user_line()}",
            "two values of one shape, or a plain number as the target",
            "slice or pull a target of that shape",
        )
    difference = left - right
    square = difference * difference
    return square if square.shape == () else emit("reduce_sum", square)
