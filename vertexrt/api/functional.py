"""Functions on traced values: what a vertex function computes with. Shapes are per vertex.

Those of one element come first; then those of vectors, and of values per child.
"""

from __future__ import annotations

import builtins
import math
from typing import Any

from vertexrt.api.trace import Matrix, current_builder, flag_of
from vertexrt.checks import is_real, is_whole, read_shape
from vertexrt.ir.builder import Value
from vertexrt.ir.program import Domain, related
from vertexrt.ir.user_line import refuse

Operand = Any  # Value | Parameter | float

CHILDREN, ELEMENTS = "children", "elements"  # axes of a reduction
MOST_LARGEST = 64  # of children: each is a sum over all


def value_of(x: Operand) -> Value:
    """Return what stands for a number, a parameter or a value in the function that is traced."""
    return current_builder().lift(x)


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


def sin(x: Operand) -> Value:
    """Return the sine of radians, elementwise."""
    return emit("sin", x)


def cos(x: Operand) -> Value:
    """Return the cosine of radians, elementwise."""
    return emit("cos", x)


def erf(x: Operand) -> Value:
    """Return the error function, elementwise."""
    return emit("erf", x)


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


def gelu(x: Operand, approximate: str = "none") -> Value:
    """Return the Gaussian error linear unit, elementwise: x times the share of normals below x.

    Args:
        approximate: as PyTorch has it: "none", or "tanh", a form that is within 1e-3.
    Raises: TraceError for another form.

    Source: Hendrycks and Gimpel 2016.
    """
    value = value_of(x)
    if not isinstance(approximate, str) or approximate not in ("none", "tanh"):
        refuse("gelu", f"approximate is {approximate!r}", "'none' or 'tanh'", "choose one of them")
    if approximate == "none":
        return 0.5 * value * (1.0 + erf(math.sqrt(0.5) * value))
    inner = math.sqrt(2.0 / math.pi) * (value + 0.044715 * (value * value * value))
    return 0.5 * value * (1.0 + tanh(inner))


def elu(x: Operand, alpha: float = 1.0) -> Value:
    """Return x where it is positive, else alpha (exp(x) - 1), elementwise (Clevert et al. 2016)."""
    value = value_of(x)
    below = _number("elu", "alpha", alpha) * (exp(minimum(value, 0.0)) - 1.0)
    return where(value > 0.0, value, below)


def leaky_relu(x: Operand, slope: float = 0.01) -> Value:
    """Return x where it is not negative, else slope x, elementwise."""
    value = value_of(x)
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


def embed(table: Matrix, index: Value) -> Value:
    """Look up a row of a parameter [N, E]: [E]; zeros where the index is absent.

    Only the rows that a batch looks up are updated by the optimizer. An index that is computed, as
    `vrt.argmax(x)` and `label + 1` are, takes a product of the whole table, and one without a row
    reads zeros; so does a table that is a part of a parameter.

    Args:
        index: an integer pull, or a number that is computed.
    """
    return current_builder().look_up(value_of(table), value_of(index))


def argmax(x: Operand) -> Value:
    """Return the number of the largest element of a vector, the first of equal ones; no gradient.

    It is an index (`vrt.embed`, `x[index]`, a label of `vrt.losses.cross_entropy`) and a number;
    for a value per child, one for each.

    Raises: TraceError, when x is no vector.
    """
    value = value_of(x)
    _over_children("argmax", value, ELEMENTS)
    top = emit("reduce_max", value)
    order = emit("arange", shape=value.shape)
    last = where(top > value, -float(value.type.size), -order)  # nan is not above nan
    return stop_gradient(-emit("reduce_max", last))


def split(x: Operand, parts: int) -> list[Value]:
    """Cut a vector [N] into equal parts [N / parts].

    Raises: TraceError, when the parts are not equal.
    """
    value = value_of(x)
    length = value.type.size
    if len(value.shape) != 1 or not is_whole(parts) or parts < 1 or length % parts:
        refuse(
            "split",
            f"shape {list(value.shape)} in {parts!r} parts",
            "a vector whose length is a multiple of the parts",
            "slice it: x[:k], x[k:]",
        )
    step = length // parts
    return [value[k * step : (k + 1) * step] for k in range(parts)]


def concat(*values: Operand) -> Value:
    """Join vectors: [N1], [N2], ... to [N1 + N2 + ...].

    Raises: TraceError for anything else.
    """
    lists = [type(value).__name__ for value in values if isinstance(value, (list, tuple))]
    parts = [] if lists else [value_of(value) for value in values]
    shapes = [list(part.shape) for part in parts]
    if not parts or builtins.any(len(shape) != 1 for shape in shapes):
        got = f"a {lists[0]}" if lists else f"operands of shapes {shapes}"
        refuse(
            "concat",
            got,
            "one vector or more",
            "write vrt.concat(x, y[k : k + 1]): a slice of one element is a vector",
        )
    return emit("concat", *parts, shape=(builtins.sum(shape[0] for shape in shapes),))


def stack(*numbers: Operand) -> Value:
    """Put numbers into a vector: [], [], ... to [n].

    Raises: TraceError, when one is no number.
    """
    parts = [value_of(number) for number in numbers]
    shapes = [list(part.shape) for part in parts]
    if not parts or builtins.any(shapes):
        refuse(
            "stack",
            f"operands of shapes {shapes}",
            "one number or more",
            "vrt.concat joins vectors",
        )
    return concat(*(emit("spread", part, shape=(1,)) for part in parts))


def repeat(x: Operand, times: int) -> Value:
    """Repeat each element: [N] to [N times], x1 x1 x2 x2 x3 x3.

    Raises: TraceError for what is no vector, and for no number of times.
    """
    value = _to_repeat("repeat", x, times)
    return emit("repeat", value, shape=(value.type.size * times,), each=int(times))


def tile(x: Operand, times: int) -> Value:
    """Repeat a vector as a whole: [N] to [times N], x1 x2 x3 x1 x2 x3. Raises: as `repeat`."""
    value = _to_repeat("tile", x, times)
    return emit("repeat", value, shape=(value.type.size * times,), each=1)


def _to_repeat(where_: str, x: Operand, times: int) -> Value:
    if not is_whole(times) or times < 1:
        refuse(where_, f"{times!r} times", "a positive whole number", "pass a number")
    return _vector(where_, x)


def outer(x: Operand, y: Operand) -> Value:
    """Return the outer product of two vectors: [N] and [M] to [N, M].

    `m @ x` and `x @ m` multiply it by a vector; `vrt.reshape(m, N * M)` is what `scatter` takes.

    Raises: TraceError for what are no vectors.
    """
    left, right = _vector("outer", x), _vector("outer", y)
    shape = left.type.size, right.type.size
    rows = emit("repeat", left, shape=shape, each=shape[1])
    return rows * emit("repeat", right, shape=shape, each=1)


def reshape(x: Operand, *shape: int) -> Value:
    """Return the same elements, row after row, in another shape of one or two axes.

    Raises: TraceError, when it has other elements.
    """
    value, extents = value_of(x), read_shape(shape)
    size = math.prod(value.shape)
    if extents is None or len(extents) not in (1, 2) or math.prod(extents) != size:
        refuse(
            "reshape",
            f"shape {list(value.shape)} as {list(shape)}",
            f"one or two positive numbers whose product is {size}",
            "write vrt.reshape(x, rows, columns)",
        )
    return emit("slice", value, start=0, shape=extents)


def cumsum(x: Operand, *, axis: str | None = None) -> Value:
    """Add up the elements before each, and it; or the children, in the order of their slots.

    Args:
        x: [N], or a value per child.
        axis: as of `softmax`.
    Returns: the shape of x.
    Raises: as `softmax`, and for what is no vector.
    """
    value = value_of(x)
    if _over_children("cumsum", value, axis, None):
        return value + _before(value, 0.0 * value)
    value, step = _vector("cumsum", value), 1
    while step < value.type.size:
        value = value + concat(zeros(step), value[:-step])
        step *= 2
    return value


def sort(x: Operand, *, descending: bool = False) -> Value:
    """Return the elements of a vector in ascending order, or in descending order.

    It compares all pairs. Raises: TraceError for what is no vector.
    """
    value = _vector("sort", x)
    down = flag_of("sort", "descending", descending)
    found = top_k(value if down else -value, value.type.size, axis=ELEMENTS)
    return found if down else -found


def top_k(x: Operand, k: int, *, axis: str | None = None) -> Value:
    """Return the k largest over the children of a value per child; else over the elements.

    It compares all pairs; of equal ones the first comes first.

    Args:
        axis: as of `sum`.
    Returns: [k], the largest first; over children of vectors [k, N], each element by itself, and
        zeros for children that there are not.
    Raises: as `sum`, and for a vector of less than k elements.
    """
    value = value_of(x)
    if _over_children("top_k", value, axis):
        if not is_whole(k) or not 1 <= k <= MOST_LARGEST:
            refuse("top_k", f"k is {k!r}", f"1 to {MOST_LARGEST}, of children", "take fewer")
        rank = _before(0.0 * value + 1.0, value)
        every = [sum(where(rank == float(n), value, 0.0), axis=CHILDREN) for n in range(k)]
        return reshape(concat(*every), k, value.type.size) if value.shape else stack(*every)
    value = _vector("top_k", value)
    n = value.type.size
    if not is_whole(k) or not 1 <= k <= n:
        refuse("top_k", f"k is {k!r}, of {n} elements", f"1 to {n}", "take fewer")

    def spread(y: Value, rows: int, each: int) -> Value:
        return emit("repeat", y, shape=(rows, n), each=each)

    place, other, own = emit("arange", shape=(n,)), spread(value, n, 1), spread(value, n, n)
    earlier = spread(place, n, 1) < spread(place, n, n)
    before = where(other > own, 1.0, where(other == own, earlier, 0.0))
    rank = emit("sum_repeated", before, shape=(n,), each=n)
    chosen = spread(rank, k, 1) == spread(emit("arange", shape=(k,)), k, n)
    kept = where(chosen, spread(value, k, 1), 0.0)
    return emit("sum_repeated", kept, shape=(int(k),), each=n)


def _before(value: Value, key: Value) -> Value:
    """Sum over the children before each: of larger keys, or of its key and in earlier slots."""
    whose = related(value.builder.relation_of(key))
    return emit("segment_before", value, key, after=False, **whose)


def _vector(where_: str, x: Operand) -> Value:
    value = value_of(x)
    if len(value.shape) != 1:
        refuse(where_, f"shape {list(value.shape)}", "a vector", "write vrt.reshape(x, size)")
    return value


def full(shape: tuple[int, ...] | int, value: float) -> Value:
    """Return a constant of a shape, equal in every element.

    Raises: TraceError, when the shape is not of positive integers, or the value not finite.
    """
    builder, extents = current_builder(), read_shape(shape)
    if extents is None:
        refuse("full", f"shape {shape!r}", "a tuple of positive integers", "write full(n, 1.0)")
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
    left, right = value_of(x), value_of(y)
    if len(left.shape) != 1 or left.shape != right.shape:
        refuse(
            "dot",
            f"shapes {list(left.shape)} and {list(right.shape)}",
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
    value, found = value_of(x), weights.shape if isinstance(weights, Matrix) else ()
    if len(found) != 3 or value.shape != (found[0] * found[2],):
        refuse(
            "block_diagonal",
            f"shapes {list(found)} and {list(value.shape)}",
            "a vrt.Parameter of shape [B, M, N] times a vector of shape [B N]",
            "write w.reshape(B, M, N)",
        )
    parts = split(value, found[0])
    return concat(*(weights[k] @ part for k, part in enumerate(parts)))


def sum(x: Operand, *, axis: str | None = None) -> Value:
    """Sum over the children of a value from `gather_all`; else over the elements of a vector.

    Args:
        x: [N], or a value per child of any shape.
        axis: "children", the default of a value per child, or "elements", which leaves a number
            per child there.
    Returns: over children, the shape of x, zeros for a vertex without any; else a number.
    Raises: TraceError for a value per vertex over "children", and for a number over "elements".
    """
    value = value_of(x)
    return emit("segment_sum" if _over_children("sum", value, axis) else "reduce_sum", value)


def prod(x: Operand, *, axis: str | None = None) -> Value:
    """Multiply over the children of a value from `gather_all`; else over the elements.

    Over children it is computed by logarithms.

    Args, Returns, Raises: as those of `sum`; a vertex without children gets ones.
    """
    value = value_of(x)
    if not _over_children("prod", value, axis):
        if len(value.shape) == 2:
            value = reshape(value, value.type.size)
        while value.type.size > 1:  # halves, so that gradients divide by nothing
            half = value.type.size // 2
            rest = [value[2 * half :]] if value.type.size % 2 else []
            value = concat(value[:half] * value[half : 2 * half], *rest)
        return value[0]
    zero = value == 0.0
    factor = where(zero, 1.0, value)
    sign = cos(math.pi * sum(value < 0.0, axis=CHILDREN))
    found = stop_gradient(sign * exp(sum(log(abs(factor)), axis=CHILDREN)))
    zeros_of = sum(zero, axis=CHILDREN)
    # The product of the other children: of all, but for the one zero; nothing beside two.
    others = where(zeros_of == zero, found / factor, 0.0)
    slope = sum(stop_gradient(others) * value, axis=CHILDREN)
    return straight_through(slope, where(zeros_of == 0.0, found, 0.0))


def max(x: Operand, *, axis: str | None = None) -> Value:
    """Take the largest over the children of a value from `gather_all`; else over the elements.

    Ties share the gradient.

    Args, Returns, Raises: as those of `sum`; a vertex without children gets zeros.
    """
    value = value_of(x)
    return emit("segment_max" if _over_children("max", value, axis) else "reduce_max", value)


def mean(x: Operand, *, axis: str | None = None) -> Value:
    """Average over the children of a value from `gather_all`; else over the elements.

    Args, Returns, Raises: as those of `sum`; a vertex without children gets zeros.
    """
    value = value_of(x)
    if _over_children("mean", value, axis):
        readers = [n for n in value.builder.nodes if n.op in ("gather_all", "edge_pull")]
        slot = int(readers[0]["slot"])  # which stands for all children
        whose = related(value.builder.relation_of(value))
        degree = value.builder.emit("degree", slot=slot, **whose)
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
    number = chosen == ELEMENTS and not value.shape
    if not number and (chosen == ELEMENTS or (chosen == CHILDREN and per_child)):
        return chosen == CHILDREN
    if number:
        got, expected = "a number", "a vector, or a value per child"
        action = "leave it out, or stack numbers: vrt.stack(a, b)"
    elif axis is None:
        got, expected = "a value per child", "axis='children' or axis='elements'"
        action = f"write vrt.{where}(x, axis='children') for attention over the children"
    elif chosen == CHILDREN:
        got, expected = "axis='children' of a value per vertex", "a value per child"
        action = "read the children by gather_all, or leave axis out"
    else:
        got, expected = f"axis={axis!r}", "'children' or 'elements'"
        action = "choose one, or leave axis out: values are of one vertex and have no batch axis"
    refuse(where, got, expected, action)


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
    value = value_of(x)
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
    value = value_of(x)
    if not _over_children("softmax", value, axis, None):
        return exp(value - emit("logsumexp", value))
    each, _, total = _children_exp(value)
    return each / total


def log_softmax(x: Operand, *, axis: str | None = None) -> Value:
    """Return the logarithm of the softmax. Args, Returns, Raises: as those of `softmax`."""
    value = value_of(x)
    over = CHILDREN if _over_children("log_softmax", value, axis, None) else ELEMENTS
    return value - logsumexp(value, axis=over)


def _children_exp(value: Value) -> tuple[Value, Value, Value]:
    """Return exp(x - top) for each child, the largest x as `top`, and the sum of the former.

    The result of a softmax does not depend on the shift, so no gradient goes through it. The sum is
    at least 1 where there are children, since the largest term is; without children it is 1. An
    empty slot is in no sum, but what it reads may be larger than all children's.
    """
    top = stop_gradient(emit("segment_max", value))
    whose = related(value.builder.relation_of(value))
    below = where(value.builder.emit("has_child", **whose), value - top, 0.0)
    each = exp(below)
    return each, top, maximum(emit("segment_sum", each), 1.0)


def _number(where_: str, name: str, value: object) -> float:
    if not is_real(value):
        refuse(where_, f"{name} is {value!r}", "a number", "pass a number")
    return builtins.float(value)
