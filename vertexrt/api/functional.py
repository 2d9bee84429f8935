"""Functions on traced values: what a vertex function computes with. Shapes are per vertex."""

from __future__ import annotations

import builtins
from typing import Any

from vertexrt.api.elementwise import emit, exp, log, maximum, stop_gradient, where
from vertexrt.api.parameter import Matrix
from vertexrt.api.trace import current_builder
from vertexrt.checks import is_whole, read_shape
from vertexrt.errors import TraceError
from vertexrt.ir.builder import Value
from vertexrt.ir.program import Domain, related
from vertexrt.ir.user_line import user_line

Operand = Any  # Value | Parameter | float

CHILDREN, ELEMENTS = "children", "elements"  # axes of a reduction


def _value(x: Operand) -> Value:
    return current_builder().lift(x)


def embed(table: Matrix, index: Value) -> Value:
    """Look up a row of a parameter [N, E]: [E]; zeros where the index is absent.

    Only the rows that a batch looks up are updated by the optimizer. An index that is computed, as
    `vrt.argmax(x)` and `label + 1` are, takes a product of the whole table, and one without a row
    reads zeros; so does a table that is a part of a parameter.

    Args:
        index: an integer pull, or a number that is computed.
    """
    return current_builder().look_up(_value(table), _value(index))


def argmax(x: Operand) -> Value:
    """Return the number of the largest element of a vector, the first of equal ones; no gradient.

    It is an index (`vrt.embed`, `x[index]`, a label of `vrt.losses.cross_entropy`) and a number;
    for a value per child, one for each.

    Raises: TraceError, when x is no vector.
    """
    value = _value(x)
    top = emit("reduce_max", value)
    order = emit("arange", shape=value.shape)
    last = where(top > value, -float(value.type.size), -order)  # nan is not above nan
    return stop_gradient(-emit("reduce_max", last))


def split(x: Operand, parts: int) -> list[Value]:
    """Cut a vector [N] into equal parts [N / parts].

    Raises: TraceError, when the parts are not equal.
    """
    value = _value(x)
    length = value.type.size
    if len(value.shape) != 1 or not is_whole(parts) or parts < 1 or length % parts:
        raise TraceError.at(
            "split",
            f"shape {list(value.shape)} in {parts!r} parts at {user_line()}",
            "a vector whose length is a multiple of the parts",
            "slice it: x[:k], x[k:]",
        )
    step = length // parts
    return [value[k * step : (k + 1) * step] for k in range(parts)]


def concat(*values: Operand) -> Value:
    """Join vectors: [N1], [N2], ... to [N1 + N2 + ...].

    Raises: TraceError for anything else.
    """
    for value in values:
        if isinstance(value, (list, tuple)):
            raise _no_vectors(f"a {type(value).__name__}")
    parts = [_value(value) for value in values]
    shapes = [list(part.shape) for part in parts]
    if not parts or builtins.any(len(shape) != 1 for shape in shapes):
        raise _no_vectors(f"operands of shapes {shapes}")
    return emit("concat", *parts, shape=(builtins.sum(shape[0] for shape in shapes),))


def stack(*numbers: Operand) -> Value:
    """Put numbers into a vector: [], [], ... to [n].

    Raises: TraceError, when one is no number.
    """
    parts = [_value(number) for number in numbers]
    shapes = [list(part.shape) for part in parts]
    if not parts or builtins.any(shapes):
        raise TraceError.at(
            "stack",
            f"operands of shapes {shapes} at {user_line()}",
            "one number or more",
            "vrt.concat joins vectors",
        )
    return concat(*(emit("spread", part, shape=(1,)) for part in parts))


def full(shape: tuple[int, ...] | int, value: float) -> Value:
    """Return a constant of a shape, equal in every element.

    Raises: TraceError, when the shape is not of positive integers, or the value not finite.
    """
    builder, extents = current_builder(), read_shape(shape)
    if extents is None:
        raise TraceError.at(
            "full",
            f"shape {shape!r} at {user_line()}",
            "a tuple of positive integers",
            "write full(n, 1.0)",
        )
    return builder.const(builder.number(value), extents)


def zeros(shape: tuple[int, ...] | int) -> Value:
    """Return zeros of a shape. Raises: as `full`."""
    return full(shape, 0.0)


def ones(shape: tuple[int, ...] | int) -> Value:
    """Return ones of a shape. Raises: as `full`."""
    return full(shape, 1.0)


def dot(x: Operand, y: Operand) -> Value:
    """Return the dot product of two vectors: [N], [N] to a number; a number per child, of those.

    Raises: TraceError, when they are no vectors of one length.
    """
    left, right = _value(x), _value(y)
    if len(left.shape) != 1 or left.shape != right.shape:
        raise TraceError.at(
            "dot",
            f"shapes {list(left.shape)} and {list(right.shape)} at {user_line()}",
            "two vectors of one length",
            "slice one of them",
        )
    return sum(left * right, axis=ELEMENTS)


def block_diagonal(weights: Matrix, x: Operand) -> Value:
    """Multiply parts of a vector, each by a matrix of its own: [B, M, N] and [B N] to [B M].

    Args:
        weights: a parameter of three axes.
    Raises: TraceError for other shapes.
    """
    value, found = _value(x), weights.shape if isinstance(weights, Matrix) else ()
    if len(found) != 3 or value.shape != (found[0] * found[2],):
        raise TraceError.at(
            "block_diagonal",
            f"shapes {list(found)} and {list(value.shape)} at {user_line()}",
            "a vrt.Parameter of shape [B, M, N] times a vector of shape [B N]",
            "write w.reshape(B, M, N)",
        )
    parts = split(value, found[0])
    return concat(*(weights[k] @ part for k, part in enumerate(parts)))


def _no_vectors(got: str) -> TraceError:
    return TraceError.at(
        "concat",
        f"{got} at {user_line()}",
        "one vector or more",
        "write vrt.concat(x, y[k : k + 1]): a slice of one element is a vector",
    )


def sum(x: Operand, *, axis: str | None = None) -> Value:
    """Sum over the children of a value from `gather_all`; else over the elements of a vector.

    Args:
        x: [N], or a value per child of any shape.
        axis: "children", the default of a value per child, or "elements", which leaves a number
            per child there.
    Returns: over children, the shape of x, zeros for a vertex without any; else a number.
    Raises: TraceError for a value per vertex over "children", and for a number over "elements".
    """
    value = _value(x)
    return emit("segment_sum" if _over_children("sum", value, axis) else "reduce_sum", value)


def max(x: Operand, *, axis: str | None = None) -> Value:
    """Take the largest over the children of a value from `gather_all`; else over the elements.

    Ties share the gradient.

    Args, Returns, Raises: as those of `sum`; a vertex without children gets zeros.
    """
    value = _value(x)
    return emit("segment_max" if _over_children("max", value, axis) else "reduce_max", value)


def mean(x: Operand, *, axis: str | None = None) -> Value:
    """Average over the children of a value from `gather_all`; else over the elements.

    Args, Returns, Raises: as those of `sum`; a vertex without children gets zeros.
    """
    value = _value(x)
    if _over_children("mean", value, axis):
        readers = [n for n in value.builder.nodes if n.op in ("gather_all", "edge_pull")]
        slot = int(readers[0]["slot"])  # which stands for all children
        degree = value.builder.emit("degree", slot=slot, **_relation_of(value))
        return value.builder.emit("segment_sum", value) / degree
    return emit("reduce_sum", value) * (1.0 / value.type.size)


def _over_children(
    where: str, value: Value, axis: str | None, default: str | None = CHILDREN
) -> bool:
    """Tell whether a function goes over the children of each vertex, not over a value's elements.

    Args:
        axis: what the user wrote.
        default: of a value per child; None where the user has to say it.
    """
    per_child = value.type.domain == Domain.EDGE
    chosen = axis if isinstance(axis, str) else None
    if axis is None:
        chosen = default if per_child else ELEMENTS
    if chosen == ELEMENTS or (chosen == CHILDREN and per_child):
        return chosen == CHILDREN
    if axis is None:
        got, expected = "a value per child", "axis='children' or axis='elements'"
        action = f"write vrt.{where}(x, axis='children') for attention over the children"
    elif chosen == CHILDREN:
        got, expected = "axis='children' of a value per vertex", "a value per child"
        action = "read the children by gather_all, or leave axis out"
    else:
        got, expected = f"axis={axis!r}", "'children' or 'elements'"
        action = "choose one of them"
    raise TraceError.at(where, f"{got} at {user_line()}", expected, action)


def _relation_of(value: Value) -> dict[str, int]:
    """Return the attributes of a node that is of the same children."""
    return related(value.builder.relation_of(value))


def logsumexp(x: Operand, *, axis: str | None = None) -> Value:
    """Return log(sum(exp(x))) without overflow.

    Args:
        x: [N], or a value per child.
        axis: "elements", the default of a value per vertex, or "children"; a value per child has
            no default.
    Returns: over elements, a number; over children, the shape of x per vertex, where a vertex
        without children gets zeros, as from `sum` and `max` (the limit, -inf, would poison what
        is computed from it).
    Raises: TraceError for a value per child without `axis`, and as `sum`.
    """
    value = _value(x)
    if not _over_children("logsumexp", value, axis, None):
        return emit("logsumexp", value)
    top, total = _children_exp(value)[1:]
    return top + log(total)


def softmax(x: Operand, *, axis: str | None = None) -> Value:
    """Return exp(x) / sum(exp(x)).

    Attention over children: `vrt.sum(vrt.softmax(score, axis="children") * kids.h)`, with a score
    [] for each child. A vertex without children has no rows, and the sum of none is zero.

    Args:
        x: [N], or a value per child.
        axis: "elements", the default of a value per vertex; "children", for each element of x by
            itself. A value per child has no default.
    Returns: the shape of x.
    Raises: as `logsumexp`.
    """
    value = _value(x)
    if not _over_children("softmax", value, axis, None):
        return exp(value - emit("logsumexp", value))
    each, _, total = _children_exp(value)
    return each / total


def log_softmax(x: Operand, *, axis: str | None = None) -> Value:
    """Return the logarithm of the softmax. Args, Returns, Raises: as those of `softmax`."""
    value = _value(x)
    if not _over_children("log_softmax", value, axis, None):
        return value - emit("logsumexp", value)
    return value - logsumexp(value, axis=CHILDREN)


def _children_exp(value: Value) -> tuple[Value, Value, Value]:
    """Return exp(x - top) for each child, the largest x as `top`, and the sum of the former.

    The result of a softmax does not depend on the shift, so no gradient goes through it. The sum is
    at least 1 where there are children, since the largest term is; without children it is 1. An
    empty slot is in no sum, but what it reads may be larger than all children's.
    """
    top = stop_gradient(emit("segment_max", value))
    below = where(value.builder.emit("has_child", **_relation_of(value)), value - top, 0.0)
    each = exp(below)
    return each, top, maximum(emit("segment_sum", each), 1.0)
