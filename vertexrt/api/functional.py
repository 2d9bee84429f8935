"""Functions on traced values: what a vertex function computes with. Shapes are per vertex."""

from __future__ import annotations

import zlib
from typing import Any

from vertexrt.api.parameter import Parameter
from vertexrt.api.trace import as_index, current_builder
from vertexrt.errors import TraceError, message
from vertexrt.ir.builder import Builder, Value, user_line
from vertexrt.ir.program import Domain

Operand = Any  # Value | Parameter | float


def _emit(op: str, *operands: Operand, **attrs: Any) -> Value:
    return current_builder().emit(op, *operands, **attrs)


def _value(x: Operand) -> Value:
    return current_builder().lift(x)


def sigmoid(x: Operand) -> Value:
    """Return 1 / (1 + exp(-x)), elementwise."""
    return _emit("sigmoid", x)


def tanh(x: Operand) -> Value:
    """Return the hyperbolic tangent, elementwise."""
    return _emit("tanh", x)


def relu(x: Operand) -> Value:
    """Return max(x, 0), elementwise; its derivative at 0 is 0."""
    return _emit("relu", x)


def exp(x: Operand) -> Value:
    """Return e to the x, elementwise."""
    return _emit("exp", x)


def log(x: Operand) -> Value:
    """Return the natural logarithm, elementwise."""
    return _emit("log", x)


def sqrt(x: Operand) -> Value:
    """Return the square root, elementwise."""
    return _emit("sqrt", x)


def maximum(x: Operand, y: Operand) -> Value:
    """Return the larger of two values, elementwise; at a tie the gradient goes to x."""
    return _emit("maximum", x, y)


def minimum(x: Operand, y: Operand) -> Value:
    """Return the smaller of two values, elementwise; at a tie the gradient goes to y."""
    return _emit("minimum", x, y)


def where(mask: Operand, x: Operand, y: Operand) -> Value:
    """Return x where the mask is not zero, else y, elementwise."""
    return _emit("where", mask, x, y)


def embed(table: Parameter, index: Value) -> Value:
    """Look up a row of a parameter [N, E]: [E]; zeros where the index is absent.

    Only the rows that a batch looks up are updated by the optimizer.
    """
    return _emit("embed", table, as_index(_value(index)))


def split(x: Operand, parts: int) -> list[Value]:
    """Cut a vector [N] into equal parts [N / parts].

    Raises: TraceError, when the parts are not equal.
    """
    value = _value(x)
    length = value.type.size
    if len(value.shape) != 1 or parts < 1 or length % parts:
        raise TraceError(
            message(
                "split",
                f"shape {list(value.shape)} in {parts} parts at {user_line()}",
                "a vector whose length is a multiple of the parts",
                "slice it: x[:k], x[k:]",
            )
        )
    step = length // parts
    return [value[k * step : (k + 1) * step] for k in range(parts)]


def concat(*values: Operand) -> Value:
    """Join vectors: [N1], [N2], ... to [N1 + N2 + ...]."""
    parts = [_value(v) for v in values]
    length = 0
    for part in parts:
        if len(part.shape) != 1:
            raise TraceError(
                message(
                    "concat",
                    f"an operand of shape {list(part.shape)} at {user_line()}",
                    "vectors",
                    "pass vectors only",
                )
            )
        length += part.shape[0]
    return _emit("concat", *parts, shape=(length,))


def _reduces_children(value: Value) -> bool:
    return value.type.domain == Domain.EDGE


def sum(x: Operand) -> Value:
    """Sum over the children of a value from `gather_all`; else over the elements of a vector.

    A vertex without children gets zeros.
    """
    value = _value(x)
    return _emit("segment_sum" if _reduces_children(value) else "reduce_sum", value)


def max(x: Operand) -> Value:
    """Take the largest over the children of a value from `gather_all`; else over the elements.

    A vertex without children gets zeros; tied elements share the gradient.
    """
    value = _value(x)
    return _emit("segment_max" if _reduces_children(value) else "reduce_max", value)


def mean(x: Operand) -> Value:
    """Average over the children of a value from `gather_all`; else over the elements."""
    value = _value(x)
    if _reduces_children(value):
        builder: Builder = value.builder
        degree = builder.emit("degree", slot=_slot(value))
        return builder.emit("segment_sum", value) / degree
    return sum(value) * (1.0 / value.type.size)


def _slot(value: Value) -> int:
    """Find the slot number that stands for all children, on the gather under a value."""
    for node in value.builder.nodes:
        if node.op == "gather_all":
            return int(node["slot"])
    raise AssertionError("a value per child without gather_all")


def dropout(x: Operand, p: float) -> Value:
    """Zero each element with probability p in training and scale the others by 1 / (1 - p).

    The mask depends on the seed, the step, the number of the vertex in the batch and the element:
    it is the same on every device and engine, with any number of threads. In inference the value
    passes unchanged.

    Raises: TraceError, when p is not in [0, 1).
    """
    if not 0.0 <= p < 1.0:
        raise TraceError(
            message(
                "dropout", f"p is {p} at {user_line()}", "0 <= p < 1", "pass the share of zeros"
            )
        )
    value = _value(x)
    if p == 0.0:
        return value
    key = zlib.crc32(f"dropout {len(value.builder.nodes)}".encode())
    return _emit("dropout", value, p=float(p), key=key)


def logsumexp(x: Operand) -> Value:
    """Return log(sum(exp(x))) of a vector without overflow: a scalar."""
    return _emit("logsumexp", x)


def softmax(x: Operand) -> Value:
    """Return exp(x) / sum(exp(x)) of a vector."""
    value = _value(x)
    return exp(value - logsumexp(value))


def log_softmax(x: Operand) -> Value:
    """Return the logarithm of the softmax of a vector."""
    value = _value(x)
    return value - logsumexp(value)


def cross_entropy(logits: Operand, label: Value) -> Value:
    """Return -log softmax(logits)[label], a scalar; 0 where the label is absent (-1).

    Args:
        logits: [C].
        label: a pull, 0 to C - 1.
    """
    value = _value(logits)
    return _emit("nll", value, as_index(_value(label)), logsumexp(value))


def squared_error(x: Operand, y: Operand) -> Value:
    """Return the sum of (x - y) squared over the elements: a scalar."""
    difference = _value(x) - y
    square = difference * difference
    return square if square.shape == () else _emit("reduce_sum", square)
