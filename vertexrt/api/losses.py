"""Losses on traced values: a number for each vertex."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vertexrt.api.functional import emit, relu, softplus, stack, value_of, where
from vertexrt.api.trace import current_builder
from vertexrt.checks import is_real
from vertexrt.ir.builder import Operators, Value, is_computed
from vertexrt.ir.user_line import refuse

__all__ = [
    "binary_cross_entropy_with_logits",
    "cross_entropy",
    "hinge_loss",
    "multi_margin_loss",
    "squared_error",
]

Operand = Any  # Value | Parameter | float


def cross_entropy(
    logits: Operand,
    label: Value,
    label_smoothing: float = 0.0,
    *,
    weights: Operand | Sequence[float] | None = None,
) -> Value:
    """Return -log softmax(logits)[label], a scalar; 0 where the label is absent (-1).

    Args:
        logits: [C].
        label: a pull, 0 to C - 1; or a number that is computed, such as `vrt.argmax(x)`.
        label_smoothing: share of the target that all classes have in equal parts (Szegedy et al.
            2016).
        weights: [C], of each class: numbers, or a value. Terms are multiplied by that of their
            class, and not divided by the sum of weights.
    Raises: TraceError for other shapes, and a share outside of [0, 1].
    """
    b = current_builder()
    value, row = b.lift(logits), b.as_index(b.lift(label))
    if not is_real(label_smoothing) or not 0.0 <= label_smoothing <= 1.0:
        refuse(
            "cross_entropy",
            f"label_smoothing is {label_smoothing!r}",
            "0 to 1",
            "pass the share of all classes",
        )
    scale = None
    if weights is not None:
        scale = stack(*weights) if isinstance(weights, list | tuple) else b.lift(weights)
        if scale.shape != value.shape:
            refuse(
                "cross_entropy",
                f"weights of shape {list(scale.shape)}",
                f"one for each of the logits, {list(value.shape)}",
                "pass as many numbers as there are classes",
            )
    if label_smoothing == 0.0 and not is_computed(row):
        loss = emit("nll", value, row, emit("logsumexp", value))
        if scale is None:
            return loss
        return loss * emit("reduce_sum", b.one_hot(row, value.type.size) * scale)
    each = emit("logsumexp", value) - value
    if scale is not None:
        each = each * scale
    named, share = b.one_hot(row, value.type.size), float(label_smoothing) / value.type.size
    total = emit("reduce_sum", where(named, (1.0 - label_smoothing + share) * each, share * each))
    return total * emit("reduce_sum", named)


def squared_error(x: Operand, y: Operand) -> Value:
    """Return the sum of (x - y) squared over the elements: a scalar.

    Args:
        x, y: of one shape; either may be a plain number, which stands for all elements.
    Raises: TraceError, when the shapes differ: nothing is repeated to fit.
    """
    left, right = _pair("squared_error", x, y)
    difference = left - right
    return _total(difference * difference)


def binary_cross_entropy_with_logits(x: Operand, target: Operand) -> Value:
    """Return the sum of -log sigmoid(x) where the target is 1, -log(1 - sigmoid(x)) where it is 0.

    Targets between are shares of both. Exact for large x.

    Args, Returns, Raises: as those of `squared_error`.
    """
    logits, wanted = _pair("binary_cross_entropy_with_logits", x, target)
    return _total(softplus(logits) - wanted * logits)


def hinge_loss(x: Operand, target: Operand, margin: float = 1.0) -> Value:
    """Return the sum of max(0, margin - target x) over the elements, for targets of 1 and -1.

    Args, Returns, Raises: as those of `squared_error`.
    """
    score, wanted = _pair("hinge_loss", x, target)
    return _total(relu(margin - wanted * score))


def multi_margin_loss(scores: Operand, label: Value, margin: float = 1.0) -> Value:
    """Return the mean of max(0, margin - scores[label] + scores[k]), where k = label counts 0.

    PyTorch's `multi_margin_loss` (Crammer and Singer 2001). 0 where the label is absent.

    Args:
        scores: [C].
        label: as of `cross_entropy`.
    Raises: TraceError for other shapes.
    """
    b = current_builder()
    value = b.lift(scores)
    if len(value.shape) != 1:
        refuse(
            "multi_margin_loss",
            f"scores of shape {list(value.shape)}",
            "a vector",
            "pass a score for each class",
        )
    named = b.one_hot(b.lift(label), value.type.size)
    own = emit("reduce_sum", where(named, value, 0.0))
    missed = emit("reduce_sum", where(named, 0.0, relu(margin - own + value)))
    return missed * emit("reduce_sum", named) * (1.0 / value.type.size)


def _pair(name: str, x: Operand, y: Operand) -> tuple[Value, Value]:
    """Return two operands of one shape; either may be a plain number."""
    left, right = value_of(x), value_of(y)
    both = isinstance(x, Operators) and isinstance(y, Operators)
    if both and left.shape != right.shape:
        refuse(
            name,
            f"shapes {list(left.shape)} and {list(right.shape)}",
            "two values of one shape, or a plain number as the target",
            "slice or pull a target of that shape",
        )
    return left, right


def _total(each: Value) -> Value:
    """Sum over the elements, if there is more than a number."""
    return each if each.shape == () else emit("reduce_sum", each)
