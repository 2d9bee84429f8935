"""The public names of vertexrt, evaluated eagerly at one vertex after another, in NumPy float64.

The same class body works with vertexrt and with this module: `def build(vrt): ...`. Nothing of
vertexrt is imported; what a name means is written here a second time, from its documentation.
`evaluate` runs a function made so on a batch.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar, Protocol

import numpy as np
from scipy.special import expit

from tests.fuzz.bounded import Array, Bounded, exact, join
from tests.fuzz.tape import Operators, Shape, Value, elementwise, lift, selected, together

Operand = Any  # Value | Parameter | float

# Units in the last place that an implementation of a function may be off.
FUNCTION_ROUNDINGS = 4.0


class Parameter(Operators):
    """A trained array; `leaf` is its value in the batch that is being evaluated."""

    leaf: Value

    def __init__(self, shape: Shape) -> None:
        self.shape = tuple(shape)

    @property
    def T(self) -> Transposed:
        """The transpose, to multiply by."""
        return Transposed(self)

    def __matmul__(self, x: Operand) -> Value:
        w, v = together(self, x)
        matrix = w.number[0]

        def vjp(g: Bounded) -> Sequence[Bounded]:
            d_w = g.transposed @ v.number
            return d_w.reshape(1, *w.shape), g @ matrix

        product = v.number @ matrix.transposed
        return Value(v.tape, product, (self.shape[0],), v.children, (w, v), vjp)


class Transposed:
    """The transpose of a parameter."""

    def __init__(self, parameter: Parameter) -> None:
        self.parameter = parameter

    def __matmul__(self, x: Operand) -> Value:
        w, v = together(self.parameter, x)
        matrix = w.number[0]

        def vjp(g: Bounded) -> Sequence[Bounded]:
            d_w = v.number.transposed @ g
            return d_w.reshape(1, *w.shape), g @ matrix.transposed

        return Value(v.tape, v.number @ matrix, (w.shape[1],), v.children, (w, v), vjp)


# Elementwise functions.


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


def silu(x: Operand) -> Value:
    """Return x sigmoid(x)."""
    return lift(x) * sigmoid(x)


def gelu(x: Operand) -> Value:
    """Return the tanh form of the Gaussian error linear unit."""
    v = lift(x)
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
    v = lift(x)
    return v + stop_gradient(value - v)


def where(mask: Operand, x: Operand, y: Operand) -> Value:
    """Return x where the mask is not zero, else y; the mask has no gradient."""
    tape = together(mask, x, y)[0].tape

    def forward(m: Bounded, a: Bounded, b: Bounded) -> Bounded:
        tape.compared(m, exact(np.zeros(m.shape)), jumps=True)
        return selected(m.value != 0.0, a, b)[0]

    def vjp(g: Bounded, m: Bounded, a: Bounded, b: Bounded) -> Sequence[Bounded]:
        return exact(np.zeros(m.shape)), *selected(m.value != 0.0, a, b)[1](g)

    return elementwise(forward, vjp, mask, x, y)


def dropout(x: Operand, p: float) -> Value:
    """Return the value: the oracle knows inference only."""
    v = lift(x)
    v.tape.drops |= p > 0.0
    return v * 1.0


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


def full(shape: Any, value: float) -> Value:
    """Return a constant of a shape."""
    extents = (shape,) if isinstance(shape, int) else tuple(shape)
    return VertexFunction.at.constant(np.full((1, *extents), value))


def zeros(shape: Any) -> Value:
    """Return zeros."""
    return full(shape, 0.0)


def ones(shape: Any) -> Value:
    """Return ones."""
    return full(shape, 1.0)


def dot(x: Operand, y: Operand) -> Value:
    """Return the dot product, for each child if per child."""
    first, second = together(x, y)
    return sum(first * second, over="elements")


# Over children, or over the elements of a vector.


def _axes(x: Value, over: str | None) -> tuple[int, ...]:
    """Return the axis of the children, the default where there are some, or those of a row."""
    children = over == "children" or (over is None and x.children is not None)
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


def sum(x: Operand, *, over: str | None = None) -> Value:
    """Add up over the children of a value per child, else over the elements."""
    v = lift(x)
    axes = _axes(v, over)
    return _reduced(v, axes, v.number.sum(axes), lambda g: g.broadcast(v.number.shape))


def mean(x: Operand, *, over: str | None = None) -> Value:
    """Average as `sum` adds up; zeros without children."""
    v = lift(x)
    count = int(np.prod([v.number.shape[axis] for axis in _axes(v, over)]))
    return sum(v, over=over) / float(builtins.max(count, 1))


def max(x: Operand, *, over: str | None = None) -> Value:
    """Take the largest as `sum` adds up; tied elements share the gradient."""
    v = lift(x)
    (axis,) = _axes(v, over)
    if not v.number.shape[axis]:
        return sum(v, over=over)
    index = np.expand_dims(v.number.value.argmax(axis), axis)
    top = Bounded(
        np.take_along_axis(v.number.value, index, axis),
        np.take_along_axis(v.number.error, index, axis),
    )
    _compare_others(v, top, index, axis)
    hit = (v.number.value == top.value).astype(np.float64)
    share = exact(hit / hit.sum(axis, keepdims=True))
    return _reduced(v, (axis,), top, lambda g: g * share)


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


def logsumexp(x: Operand, *, over: str | None = None) -> Value:
    """Return log(sum(exp(x))) over the elements, or the children; zeros without children."""
    v = lift(x)
    (axis,) = _axes(v, over)
    if not v.number.shape[axis]:
        return sum(v, over=over)
    share, total = _partition(v, axis)
    return _reduced(v, (axis,), total, lambda g: g * share)


def _partition(v: Value, axis: int) -> tuple[Bounded, Bounded]:
    """Return the softmax along an axis, and the logarithm of the partition sum."""
    number = v.number
    top = number.value.max(axis, keepdims=True)
    powers = np.exp(number.value - top)
    total = powers.sum(axis, keepdims=True)
    share = powers / total
    value = top + np.log(total)
    deep = np.sqrt(number.shape[axis])
    moved = (share * number.error).sum(axis, keepdims=True)
    error = moved + FUNCTION_ROUNDINGS * (np.abs(value) + deep)
    beside = number.error + error + np.abs(number.value) + np.abs(value) + FUNCTION_ROUNDINGS
    return Bounded(share, share * beside), Bounded(value, error)


def softmax(x: Operand, *, over: str | None = None) -> Value:
    """Return exp(x) / sum(exp(x)) over the elements, or the children."""
    v = lift(x)
    (axis,) = _axes(v, over)
    if not v.number.shape[axis]:
        return v * 1.0
    share, _ = _partition(v, axis)

    def vjp(g: Bounded) -> Sequence[Bounded]:
        return (share * (g - (g * share).sum(axis, keepdims=True)),)

    return Value(v.tape, share, v.shape, v.children, (v,), vjp)


def log_softmax(x: Operand, *, over: str | None = None) -> Value:
    """Return the logarithm of the softmax."""
    return lift(x) - logsumexp(x, over=over)


def cross_entropy(logits: Operand, label: Value) -> Value:
    """Return -log softmax(logits)[label]; 0 where the label is absent."""
    v = lift(logits)
    if label.index < 0:
        return sum(v * 0.0)
    return logsumexp(v) - v[label.index]


def squared_error(x: Operand, y: Operand) -> Value:
    """Return the sum of squared differences over the elements, for each child if per child."""
    first, second = together(x, y)
    difference = first - second
    square = difference * difference
    if not square.shape:
        return square
    total = square.number.sum(tuple(range(1, square.number.value.ndim)))

    def vjp(g: Bounded) -> Sequence[Bounded]:
        rows = g.reshape(-1, *[1] * len(square.shape))
        return (rows.broadcast(square.number.shape),)

    return Value(square.tape, total, (), square.children, (square,), vjp)


def embed(table: Parameter, index: Value) -> Value:
    """Look up a row; zeros where the index is absent."""
    leaf, row = lift(table), index.index
    width = leaf.shape[1]

    def vjp(g: Bounded) -> Sequence[Bounded]:
        whole = exact(np.zeros((1, *leaf.shape)))
        if row >= 0:
            whole.value[0, row], whole.error[0, row] = g.value[0], g.error[0]
        return (whole,)

    number = exact(np.zeros((1, width))) if row < 0 else leaf.number[:, row]
    return Value(leaf.tape, number, (width,), None, (leaf,), vjp)


class Vertex(Protocol):
    """What `evaluate` gives a function at one vertex."""

    slots: Sequence[int]
    states: Mapping[int, Mapping[str, Value]]
    pushed: dict[str, Value]
    scattered: dict[str, Value]

    def constant(self, value: Array) -> Value:
        """Return a value of the tape without inputs."""

    def pull(self, name: str) -> Value:
        """Return the pulled value of the vertex; zeros with the index -1 where it is absent."""


class VertexFunction:
    """F; `vertex` is where it is evaluated, `at` where any function is."""

    vertex: Vertex
    at: ClassVar[Vertex]

    def __init__(
        self,
        *,
        arity: int | None = None,
        state: Mapping[str, int],
        initial: Mapping[str, Parameter] | None = None,
    ) -> None:
        self.arity, self.state, self.initial = arity, dict(state), dict(initial or {})

    def parameters(self) -> dict[str, Parameter]:
        """Return the parameters by attribute name; those of lists and dicts are numbered."""

        def visit(name: str, value: object) -> Iterator[tuple[str, Parameter]]:
            if isinstance(value, Parameter):
                yield name, value
            elif isinstance(value, (list, tuple, dict)):
                items = value.items() if isinstance(value, dict) else enumerate(value)
                for key, item in items:
                    yield from visit(f"{name}.{key}", item)

        named = {n: v for n, v in vars(self).items() if n not in ("initial", "vertex")}
        return dict(found for name, value in named.items() for found in visit(name, value))

    def gather(self, slot: int) -> Any:
        """Read the child in a slot; the initial state, or zeros, where it is absent."""
        slots = self.vertex.slots
        if slot < len(slots) and slots[slot] >= 0:
            return SimpleNamespace(**self.vertex.states[slots[slot]])
        fields = {
            name: lift(self.initial[name])
            if name in self.initial
            else self.vertex.constant(np.zeros((1, size)))
            for name, size in self.state.items()
        }
        return SimpleNamespace(**fields)

    def gather_all(self, relation: str = "children") -> Any:
        """Read the state of all children, a row each; empty slots are no children."""
        present = tuple(child for child in self.vertex.slots if child >= 0)

        def stack(name: str, size: int) -> Value:
            parts = [self.vertex.states[child][name] for child in present]
            none = self.vertex.constant(np.zeros((1, size)))
            number = join([none.number[:0], *(p.number for p in parts)], 0)

            def vjp(g: Bounded) -> Sequence[Bounded]:
                return [g[k : k + 1] for k in range(len(parts))]

            return Value(none.tape, number, (size,), present, parts, vjp)

        return SimpleNamespace(**{name: stack(name, n) for name, n in self.state.items()})

    def scatter(self, **state: Operand) -> None:
        """Publish the state."""
        for name, value in state.items():
            assert lift(value).shape == (self.state[name],), name
            self.vertex.scattered[name] = lift(value)

    def pull(self, name: str, shape: Shape | None = None, dtype: str | None = None) -> Value:
        """Read an external value."""
        found = self.vertex.pull(name)
        assert found.shape == tuple(shape or ()), (name, found.shape, shape)
        return found

    def present(self, what: int | str) -> Value:
        """Return 1.0 where there is a child in a slot, or a pulled value."""
        if isinstance(what, str):
            has = self.vertex.pull(what).index >= 0
        else:
            has = what < len(self.vertex.slots) and self.vertex.slots[what] >= 0
        return self.vertex.constant(np.array([float(has)]))

    def push(self, name: str, value: Operand) -> Value:
        """Write a value to the outside and return it."""
        self.vertex.pushed[name] = lift(value)
        return self.vertex.pushed[name]
