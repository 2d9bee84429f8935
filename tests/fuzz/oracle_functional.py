"""Functions of the oracle on whole values: parts, reductions, losses; see `tests.fuzz.oracle`."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tests.fuzz.bounded import Bounded, exact, join
from tests.fuzz.oracle_elementwise import exp, log, relu, softplus
from tests.fuzz.tape import Value, lift, taken, together, whole

Operand = Any  # Value | Parameter | float


# Rearrangements.


def split(x: Operand, parts: int) -> list[Value]:
    """Cut a vector into equal parts."""
    step = lift(x).shape[0] // parts
    return [x[k * step : (k + 1) * step] for k in range(parts)]


def concat(*values: Operand) -> Value:
    """Join vectors; one per vertex is repeated for each child of another."""
    parts = together(*values)
    children = next((p.children for p in parts if p.children is not None), None)
    rows = 1 if children is None else len(children)
    ends = np.cumsum([p.shape[0] for p in parts])

    def vjp(g: Bounded) -> Sequence[Bounded]:
        return [g[:, end - p.shape[0] : end] for p, end in zip(parts, ends, strict=True)]

    number = join([p.number.broadcast((rows, *p.shape)) for p in parts], 1)
    return Value(parts[0].tape, number, (int(ends[-1]),), children, parts, vjp)


def stack(*numbers: Operand) -> Value:
    """Put numbers into a vector."""
    parts = together(*numbers)
    children = next((p.children for p in parts if p.children is not None), None)
    rows = 1 if children is None else len(children)

    def vjp(g: Bounded) -> Sequence[Bounded]:
        return [g[:, k] for k in range(len(parts))]

    number = join([p.number.broadcast((rows,)).reshape(rows, 1) for p in parts], 1)
    return Value(parts[0].tape, number, (len(parts),), children, parts, vjp)


def repeat(x: Operand, times: int) -> Value:
    """Repeat each element."""
    v = lift(x)
    return taken(v, np.repeat(np.arange(v.shape[0]), times), (v.shape[0] * times,))


def tile(x: Operand, times: int) -> Value:
    """Repeat the whole."""
    v = lift(x)
    return taken(v, np.tile(np.arange(v.shape[0]), times), (v.shape[0] * times,))


def outer(x: Operand, y: Operand) -> Value:
    """Return all products of two elements."""
    first, second = together(x, y)
    shape = first.shape[0], second.shape[0]
    return reshape(repeat(first, shape[1]) * tile(second, shape[0]), *shape)


def reshape(x: Operand, *shape: int) -> Value:
    """Return the same elements in another shape."""
    v = lift(x)
    return taken(v, np.arange(np.prod(v.shape)), shape)


def cumsum(x: Operand, *, axis: str | None = None) -> Value:
    """Add up the elements before each, or the children, and it."""
    v = lift(x)
    along = 0 if axis == "children" else 1
    count = v.number.shape[along]
    lower = np.tril(np.ones((count, count)))

    def summed(number: Bounded, back: bool) -> Bounded:
        given = [np.moveaxis(part, along, 0) for part in (number.value, number.error)]
        weights = lower.T if back else lower
        value, error = (np.tensordot(weights, part, 1) for part in given)
        terms = np.tensordot(weights, np.abs(given[0]), 1) * np.sqrt(builtins.max(count, 1))
        return Bounded(np.moveaxis(value, 0, along), np.moveaxis(error + terms, 0, along))

    number = summed(v.number, False)
    return Value(v.tape, number, v.shape, v.children, (v,), lambda g: (summed(g, True),))


def sort(x: Operand, *, descending: bool = False) -> Value:
    """Return the elements in order."""
    found = top_k(x if descending else -lift(x), lift(x).shape[0], axis="elements")
    return found if descending else -found


def top_k(x: Operand, k: int, *, axis: str | None = None) -> Value:
    """Return the largest elements, or the largest of children; zeros where there are none."""
    v = lift(x)
    (along,) = _axes(v, axis)
    given, error = (np.moveaxis(part, along, 0) for part in (v.number.value, v.number.error))
    order = np.argsort(-given, 0, kind="stable")
    ordered = Bounded(np.take_along_axis(given, order, 0), np.take_along_axis(error, order, 0))
    v.tape.compared(ordered[1:], ordered[:-1])
    none = exact(np.zeros((builtins.max(k - len(order), 0), *order.shape[1:])))
    found = join([ordered[:k], none], 0)

    def vjp(g: Bounded) -> Sequence[Bounded]:
        whole = [np.zeros(given.shape), np.zeros(given.shape)]
        for part, each in zip(whole, (g.value, g.error), strict=True):
            each = each.reshape(k, *order.shape[1:]) if along == 0 else np.moveaxis(each, 1, 0)
            np.put_along_axis(part, order[:k], each[: len(order)], 0)
        return (Bounded(*(np.moveaxis(part, 0, along) for part in whole)),)

    if along == 0:
        return Value(v.tape, found.reshape(1, k, *v.shape), (k, *v.shape), None, (v,), vjp)
    number = Bounded(found.value.T, found.error.T)
    return Value(v.tape, number, (k,), v.children, (v,), vjp)


def dot(x: Operand, y: Operand) -> Value:
    """Return the dot product, for each child if per child."""
    first, second = together(x, y)
    return sum(first * second, axis="elements")


# Over children, or over the elements of a vector.


def _axes(x: Value, axis: str | None) -> tuple[int, ...]:
    """Return the axis of the children, the default where there are some, or those of a row."""
    children = axis == "children" or (axis is None and x.children is not None)
    assert not children or x.children is not None, "children of a value per vertex"
    return (0,) if children else tuple(range(1, x.number.value.ndim))


def _reduced(
    x: Value, axes: tuple[int, ...], number: Bounded, vjp: Callable[[Bounded], Bounded]
) -> Value:
    """Return a reduction over axes; `vjp` gets a gradient of length 1 along them."""
    kept = tuple(1 if k in axes else n for k, n in enumerate(x.number.shape))
    shape, children = (x.shape, None) if axes == (0,) else ((), x.children)
    rows = 1 if children is None else len(children)
    return Value(
        x.tape,
        number.reshape(rows, *shape),
        shape,
        children,
        (x,),
        lambda g: (vjp(g.reshape(*kept)),),
    )


def sum(x: Operand, *, axis: str | None = None) -> Value:
    """Add up over the children of a value per child, else over the elements."""
    v = lift(x)
    axes = _axes(v, axis)
    return _reduced(v, axes, v.number.sum(axes), lambda g: g.broadcast(v.number.shape))


def prod(x: Operand, *, axis: str | None = None) -> Value:
    """Multiply as `sum` adds up; ones without children."""
    v = lift(x)
    (along,) = _axes(v, axis)
    x_ = np.moveaxis(v.number.value, along, 0)
    count = len(x_)
    others = [np.prod(np.delete(x_, k, 0), 0) for k in range(count)]
    # Over children it is computed by logarithms, which are that much off.
    size = np.abs(np.where(x_ == 0.0, 1.0, x_))
    off = 4.0 * count + (4.0 * np.abs(np.log(size)).sum(0) if along == 0 else 0.0)
    error = np.moveaxis(v.number.error, along, 0)
    moved = builtins.sum((abs(o) * e for o, e in zip(others, error, strict=True)), start=0.0 * off)
    whole = np.prod(x_, 0)
    out = Bounded(np.expand_dims(whole, along), np.expand_dims(moved + off * np.abs(whole), along))
    share = np.stack([np.abs(o) for o in others]) if others else x_
    relative = np.sum(error / size, 0) + off
    slope = Bounded(
        np.moveaxis(np.stack(others) if others else x_, 0, along),
        np.moveaxis(share * relative, 0, along),
    )
    return _reduced(v, (along,), out, lambda g: g * slope)


def mean(x: Operand, *, axis: str | None = None) -> Value:
    """Average as `sum` adds up; zeros without children."""
    v = lift(x)
    count = int(np.prod([v.number.shape[k] for k in _axes(v, axis)]))
    return sum(v, axis=axis) / float(builtins.max(count, 1))


def max(x: Operand, *, axis: str | None = None) -> Value:
    """Take the largest as `sum` adds up; tied elements share the gradient."""
    v = lift(x)
    (along,) = _axes(v, axis)
    if not v.number.shape[along]:
        return sum(v, axis=axis)
    index = np.expand_dims(v.number.value.argmax(along), along)
    top = Bounded(
        np.take_along_axis(v.number.value, index, along),
        np.take_along_axis(v.number.error, index, along),
    )
    _compare_others(v, top, index, along)
    hit = (v.number.value == top.value).astype(np.float64)
    share = exact(hit / hit.sum(along, keepdims=True))
    return _reduced(v, (along,), top, lambda g: g * share)


def _compare_others(v: Value, top: Bounded, index: np.ndarray[Any, Any], axis: int) -> None:
    """Compare the largest with all others, but not a child with itself in another slot."""
    number = v.number
    others = np.ones(number.shape, np.bool_)
    np.put_along_axis(others, index, False, axis)
    if axis == 0:
        children = np.array(v.children).reshape(-1, *[1] * len(v.shape))
        others &= children != children.reshape(-1)[index]
    whole = top.broadcast(number.shape)
    v.tape.compared(number[others], whole[others])


def _below(v: Value, axis: str | None) -> tuple[Value, Bounded]:
    """Return what is subtracted before powers are taken, and it, of length 1 along the axis."""
    (along,) = _axes(v, axis)
    top = exact(v.number.value.max(along, keepdims=True, initial=0.0))
    whole = Value(v.tape, top.broadcast(v.number.shape), v.shape, v.children)
    return v - whole, top


def logsumexp(x: Operand, *, axis: str | None = None) -> Value:
    """Return log(sum(exp(x))) over the elements, or the children; zeros without children."""
    v = lift(x)
    less, top = _below(v, axis)
    total = sum(exp(less), axis=axis)
    if not v.number.value.size:
        return total
    shift = Value(v.tape, top.reshape(*total.number.shape), total.shape, total.children)
    return log(total) + shift


def softmax(x: Operand, *, axis: str | None = None) -> Value:
    """Return exp(x) / sum(exp(x)) over the elements, or the children."""
    powers = exp(_below(lift(x), axis)[0])
    return powers / sum(powers, axis=axis)


def log_softmax(x: Operand, *, axis: str | None = None) -> Value:
    """Return the logarithm of the softmax."""
    return lift(x) - logsumexp(x, axis=axis)


def argmax(x: Operand) -> Value:
    """Return the number of the largest element, the first of equal ones."""
    v = lift(x)
    (length,) = v.shape
    index = v.number.value.argmax(1)[:, None]
    top = Bounded(
        *(np.take_along_axis(part, index, 1) for part in (v.number.value, v.number.error))
    )
    others = np.arange(length) != index
    v.tape.compared(v.number[others], top.broadcast(v.number.shape)[others], jumps=True)
    return Value(v.tape, exact(index[:, 0].astype(float)), (), v.children)


def cross_entropy(
    logits: Operand,
    label: Value,
    label_smoothing: float = 0.0,
    weights: Sequence[float] | None = None,
) -> Value:
    """Return -log softmax(logits)[label], each class by its weight; 0 where the label is absent."""
    v = lift(logits)
    number, count = whole(label), v.shape[0]
    if not 0 <= number < count:
        return sum(v * 0.0)
    each = [(logsumexp(v) - v[k]) * float(weights[k] if weights else 1.0) for k in range(count)]
    every = builtins.sum(each[1:], start=each[0]) / float(count)
    return (1.0 - label_smoothing) * each[number] + label_smoothing * every


def multi_margin_loss(scores: Operand, label: Value, margin: float = 1.0) -> Value:
    """Return the mean over the classes of what they fall short of the margin."""
    v = lift(scores)
    number, count = whole(label), v.shape[0]
    if not 0 <= number < count:
        return sum(v * 0.0)
    short = [relu(v[k] - v[number] + margin) for k in range(count) if k != number]
    return builtins.sum(short, start=v[number] * 0.0) / float(count)


def binary_cross_entropy_with_logits(x: Operand, target: Operand) -> Value:
    """Return the sum of -t log sigmoid(x) - (1 - t) log sigmoid(-x)."""
    first, second = together(x, target)
    return _added(second * softplus(-first) + (1.0 - second) * softplus(first))


def hinge_loss(x: Operand, target: Operand, margin: float = 1.0) -> Value:
    """Return the sum of what is missing to the margin."""
    first, second = together(x, target)
    return _added(relu(margin - first * second))


def squared_error(x: Operand, y: Operand) -> Value:
    """Return the sum of squared differences over the elements, for each child if per child."""
    first, second = together(x, y)
    difference = first - second
    return _added(difference * difference)


def _added(x: Value) -> Value:
    return sum(x, axis="elements") if x.shape else x


def embed(table: Operand, index: Value) -> Value:
    """Look up a row; zeros where the index is absent."""
    leaf = lift(table)
    count, width = leaf.shape
    named = index.number.value.reshape(-1)  # of a value per child, of each
    rows = [int(n) if n == int(n) and n < count else -1 for n in named]
    leaf.tape.lookups.append((leaf, rows))

    def vjp(g: Bounded) -> Sequence[Bounded]:
        whole = exact(np.zeros((1, *leaf.shape)))
        for k, row in enumerate(rows):
            if row >= 0:
                total = whole[0, row] + g[k]
                whole.value[0, row], whole.error[0, row] = total.value, total.error
        return (whole,)

    found = [leaf.number[:, row] if row >= 0 else exact(np.zeros((1, width))) for row in rows]
    number = join([exact(np.zeros((0, width))), *found], 0)
    return Value(leaf.tape, number, (width,), index.children, (leaf,), vjp)
