"""Values of the oracle: what is computed at one vertex, recorded so that gradients can go back.

A value has one row (per vertex) or a row for each child (from `gather_all`), and a shape per row.
Its vjp takes the gradient of the value and returns the gradient of each input; `propagate` walks
the tape from its end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tests.fuzz.bounded import Array, Bounded, choose, exact

Shape = tuple[int, ...]
Vjp = Callable[[Bounded], Sequence[Bounded]]
Children = tuple[int, ...]


class Tape:
    """Values in the order in which they were made.

    Attributes:
        closest: the least ratio of a gap between two compared numbers to the bound on its error. A
            run in a type whose rounding error is near it may take another side.
        tied: two numbers that were rounded are equal. They have the same bits in most runs, but not
            in all; then another of the two gets the gradient.
        lookups: tables, and the rows (or -1) that were looked up.
        drops: dropout was asked for, which the oracle leaves out.
    """

    def __init__(self) -> None:
        self.values: list[Value] = []
        self.lookups: list[tuple[Value, list[int]]] = []
        self.closest = np.inf
        self.tied = False
        self.drops = False

    def compared(self, first: Bounded, second: Bounded, jumps: bool = False) -> None:
        """Note how far apart two compared numbers are; equal ones may be exact.

        Args:
            jumps: what follows is not continuous, so that equal numbers do not count as tied.
        """
        gap = np.abs(first.value - second.value)
        error = np.broadcast_to(first.error + second.error, gap.shape)
        tied = (gap == 0.0) & (error > 0.0)
        self.tied |= bool(tied.any())
        counted = (error > 0.0) & (jumps | ~tied)
        ratios = gap[counted] / error[counted]
        self.closest = min(self.closest, float(np.min(ratios, initial=np.inf)))


class Leaf(Protocol):
    """What stands for a value of the tape in an expression: a parameter."""

    leaf: Value


class Operators:
    """Python's operators of values and parameters; comparisons are 1.0 or 0.0 for each element."""

    __hash__ = object.__hash__

    def __eq__(self, other: Any) -> Value:  # type: ignore[override]
        return _comparison(np.equal, self, other)

    def __ne__(self, other: Any) -> Value:  # type: ignore[override]
        return _comparison(np.not_equal, self, other)

    def __lt__(self, other: Any) -> Value:
        return _comparison(np.less, self, other)

    def __le__(self, other: Any) -> Value:
        return _comparison(np.less_equal, self, other)

    def __gt__(self, other: Any) -> Value:
        return _comparison(np.greater, self, other)

    def __ge__(self, other: Any) -> Value:
        return _comparison(np.greater_equal, self, other)

    def __add__(self, other: Any) -> Value:
        return elementwise(lambda x, y: x + y, lambda g, x, y: (g, g), self, other)

    def __radd__(self, other: Any) -> Value:
        return lift(other, lift(self).tape) + self

    def __sub__(self, other: Any) -> Value:
        return elementwise(lambda x, y: x - y, lambda g, x, y: (g, -g), self, other)

    def __rsub__(self, other: Any) -> Value:
        return lift(other, lift(self).tape) - self

    def __mul__(self, other: Any) -> Value:
        return elementwise(lambda x, y: x * y, lambda g, x, y: (g * y, g * x), self, other)

    def __rmul__(self, other: Any) -> Value:
        return lift(other, lift(self).tape) * self

    def __truediv__(self, other: Any) -> Value:
        def vjp(g: Bounded, x: Bounded, y: Bounded) -> Sequence[Bounded]:
            return g / y, -(g * x / (y * y))

        return elementwise(lambda x, y: x / y, vjp, self, other)

    def __rtruediv__(self, other: Any) -> Value:
        return lift(other, lift(self).tape) / self

    def __floordiv__(self, other: Any) -> Value:
        found = self / other
        near = Bounded(np.round(found.number.value), np.zeros(found.number.shape))
        exactly = found.number.value == near.value
        error = Bounded(found.number.value, np.where(exactly, 0.0, found.number.error))
        found.tape.compared(error, near, jumps=True)
        return Value(found.tape, exact(np.floor(found.number.value)), found.shape, found.children)

    def __mod__(self, other: Any) -> Value:
        return lift(self) - (self // other) * other

    def __pow__(self, exponent: int) -> Value:
        found = lift(self)
        for _ in range(abs(exponent) - 1):
            found = found * self
        return found if exponent > 0 else 1.0 / found

    def __neg__(self) -> Value:
        return elementwise(lambda x: -x, lambda g, x: (-g,), self)

    def __getitem__(self, key: int | slice | Value) -> Value:
        """Take elements of a vector, or rows of a parameter."""
        x = lift(self)
        if isinstance(key, Value):
            return _named(x, key)
        places = np.arange(x.shape[0])[key]

        def vjp(g: Bounded) -> Sequence[Bounded]:
            whole = exact(np.zeros(x.number.shape))
            whole.value[:, places], whole.error[:, places] = g.value, g.error
            return (whole,)

        shape = (*np.shape(places), *x.shape[1:])
        return Value(x.tape, x.number[:, places], shape, x.children, (x,), vjp)

    def reshape(self, *shape: int) -> Value:
        """Return the same elements in another shape."""
        x = lift(self)
        back = x.number.shape
        return Value(
            x.tape,
            x.number.reshape(1, *shape),
            shape,
            None,
            (x,),
            lambda g: (g.reshape(*back),),
        )

    @property
    def T(self) -> Value:
        """The transpose of a matrix."""
        x = lift(self)
        matrix = x.number[0].transposed.reshape(1, *x.shape[::-1])
        return Value(x.tape, matrix, x.shape[::-1], None, (x,), lambda g: (g[0].transposed[None],))

    def __matmul__(self, x: Any) -> Value:
        """Multiply a matrix and a vector, or a vector and a matrix that is computed."""
        w, v = together(self, x)
        if w.inputs or len(w.shape) == 1:
            return _product_of_values(w, v)
        matrix = w.number[0]

        def vjp(g: Bounded) -> Sequence[Bounded]:
            return (g.transposed @ v.number)[None], g @ matrix

        product = v.number @ matrix.transposed
        return Value(v.tape, product, w.shape[:1], v.children, (w, v), vjp)


class Value(Operators):
    """Numbers of one vertex.

    Attributes:
        number: [rows, *shape]; one row, or one for each child.
        children: the vertex behind each row of a value per child; None for a value per vertex.
        gradient: of the same shape as `number`, once `propagate` has been here.
        index: of a pull, as an integer; -1 where it is absent. Of edges an array, a number each.
    """

    __slots__ = ("children", "gradient", "index", "inputs", "number", "shape", "tape", "vjp")

    def __init__(
        self,
        tape: Tape,
        number: Bounded,
        shape: Shape,
        children: Children | None = None,
        inputs: Sequence[Value] = (),
        vjp: Vjp | None = None,
    ) -> None:
        rows = 1 if children is None else len(children)
        assert number.shape == (rows, *shape), (number.shape, rows, shape)
        self.tape, self.number, self.shape, self.children = tape, number, shape, children
        self.inputs, self.vjp = tuple(inputs), vjp
        self.gradient: Bounded | None = None
        self.index: Any = -1
        tape.values.append(self)

    def receive(self, gradient: Bounded) -> None:
        """Add a gradient, summed over the axes along which this was repeated."""
        if len(gradient.value) != len(self.number.value):
            gradient = gradient.sum(0, keepdims=True)
        extra = tuple(range(self.number.value.ndim, gradient.value.ndim))
        gradient = gradient.sum(extra) if extra else gradient
        assert gradient.shape == self.number.shape, (gradient.shape, self.number.shape)
        self.gradient = gradient if self.gradient is None else self.gradient + gradient


def lift(x: Any, tape: Tape | None = None) -> Value:
    """Return a value, a parameter's leaf, or a constant on the tape of the others."""
    if isinstance(x, Value):
        return x
    if isinstance(x, Operators):
        return x.leaf  # type: ignore[attr-defined, no-any-return]
    assert tape is not None, f"{x!r} is not a value"
    return Value(tape, exact([float(x)]), ())


def together(*operands: Any) -> list[Value]:
    """Lift the operands of one operation, numbers onto the tape of the others."""
    tape = next(lift(x).tape for x in operands if isinstance(x, Operators))
    return [lift(x, tape) for x in operands]


def common(values: Sequence[Value]) -> tuple[Shape, Children | None]:
    """Return the shape and the children of an elementwise result; assert that they agree."""
    shapes = {v.shape for v in values if v.shape}
    rows = {v.children for v in values if v.children is not None}
    assert len(shapes) <= 1, f"shapes {shapes}"
    assert len(rows) <= 1, f"children {rows}"
    return next(iter(shapes), ()), next(iter(rows), None)


def elementwise(
    function: Callable[..., Bounded], vjp: Callable[..., Sequence[Bounded]], *operands: Any
) -> Value:
    """Apply a function to each element; numbers are repeated along vectors, rows along children."""
    values = together(*operands)
    shape, children = common(values)
    rows = 1 if children is None else len(children)
    aligned = [
        (v.number if v.shape else v.number.reshape(-1, *[1] * len(shape))).broadcast((rows, *shape))
        for v in values
    ]
    return Value(
        values[0].tape, function(*aligned), shape, children, values, lambda g: vjp(g, *aligned)
    )


def whole(x: Value | Leaf) -> int:
    """Return an integer: a pull's, or one that is computed; -1 where it is none."""
    (number,) = lift(x).number.value.reshape(-1)
    return int(number) if number == int(number) else -1


def taken(x: Value, places: npt.NDArray[np.int_], shape: Shape) -> Value:
    """Return elements of a row that lies flat, in another shape; some of them several times."""
    flat = x.number.reshape(len(x.number.value), int(np.prod(x.shape)))

    def vjp(g: Bounded) -> Sequence[Bounded]:
        whole = exact(np.zeros(flat.shape))
        each = g.reshape(len(flat.value), len(places))
        for to, given in ((whole.value, each.value), (whole.error, each.error)):
            np.add.at(to, (slice(None), places), given)
        terms = np.zeros(flat.shape)
        np.add.at(terms, (slice(None), places), np.abs(each.value))
        return (Bounded(whole.value, whole.error + terms).reshape(*x.number.shape),)

    number = flat[:, places].reshape(len(flat.value), *shape)
    return Value(x.tape, number, shape, x.children, (x,), vjp)


def _product_of_values(x: Value, y: Value) -> Value:
    """Add up the rows of a matrix, or its columns, times the elements of a vector."""
    left = len(x.shape) == 2
    matrix, vector = (x, y) if left else (y, x)
    rows, columns = matrix.shape
    row, column = np.divmod(np.arange(rows * columns), columns)
    terms = matrix * taken(vector, column if left else row, matrix.shape)
    count, axis = len(terms.number.value), 2 if left else 1

    def vjp(g: Bounded) -> Sequence[Bounded]:
        kept = g.reshape(count, rows, 1) if left else g.reshape(count, 1, columns)
        return (kept.broadcast(terms.number.shape),)

    shape = (rows,) if left else (columns,)
    return Value(x.tape, terms.number.sum(axis), shape, terms.children, (terms,), vjp)


def _named(x: Value, index: Value) -> Value:
    """Return the element of each row that an integer names; 0 where it names none."""
    (length,) = x.shape
    children = x.children if index.children is None else index.children
    rows = 1 if children is None else len(children)
    named = np.broadcast_to(index.number.value, (rows,))[:, None] == np.arange(length)
    chosen = x.number.broadcast((rows, length))

    def vjp(g: Bounded) -> Sequence[Bounded]:
        zero = exact(np.zeros((rows, length)))
        spread = g.reshape(rows, 1).broadcast((rows, length))
        return choose(named, spread, zero), exact(np.zeros(index.number.shape))

    number = choose(named, chosen, exact(np.zeros((rows, length)))).sum(1)
    return Value(x.tape, number, (), children, (x, index), vjp)


def _comparison(compare: np.ufunc, *operands: Any) -> Value:
    """Compare elementwise; the result has no gradient."""
    tape = together(*operands)[0].tape

    def forward(x: Bounded, y: Bounded) -> Bounded:
        tape.compared(x, y, jumps=True)
        return exact(compare(x.value, y.value))

    def vjp(g: Bounded, *operands: Bounded) -> Sequence[Bounded]:
        return [exact(np.zeros(x.shape)) for x in operands]

    return elementwise(forward, vjp, *operands)


def selected(
    mask: np.ndarray[Any, Any], first: Bounded, second: Bounded
) -> tuple[Bounded, Callable[[Bounded], tuple[Bounded, Bounded]]]:
    """Return a choice between two numbers, and what parts its gradient in two."""

    def part(g: Bounded) -> tuple[Bounded, Bounded]:
        zero = exact(np.zeros(g.shape))
        return choose(mask, g, zero), choose(mask, zero, g)

    return choose(mask, first, second), part


def propagate(tape: Tape, seeds: Sequence[tuple[Value, Array]]) -> None:
    """Give every value of a tape its gradient.

    Args:
        seeds: values and their own gradients [rows, *shape].
    """
    for value in tape.values:
        value.gradient = None
    for value, seed in seeds:
        value.receive(exact(seed))
    for value in reversed(tape.values):
        if value.gradient is not None and value.vjp is not None:
            for x, gradient in zip(value.inputs, value.vjp(value.gradient), strict=True):
                x.receive(gradient)
