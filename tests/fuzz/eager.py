"""The public names of vertexrt that drawn networks use, in PyTorch float64, one vertex at a time.

The same class bodies work with vertexrt and with this module: `def build(vrt): ...`. Nothing of
vertexrt is imported; what a name means is written here again, from its documentation, and gradients
are those of PyTorch's eager autograd.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

REAL = torch.float64
CLOSE = 1e-4  # two numbers that are compared are further apart, or rounding decides


class Watch:
    """Notes whether rounding may decide something in what is evaluated now."""

    unclear = False

    @classmethod
    def see(cls, difference: Tensor) -> None:
        """Look at a difference whose sign decides."""
        if difference.numel() and float(difference.detach().abs().min()) < CLOSE:
            cls.unclear = True


class Value:
    """A value of a vertex, or with `rows` one for each child.

    Attributes:
        index: the number, where it is an integer that was pulled (of rows, one each).
    """

    __slots__ = ("index", "rows", "t")

    def __init__(self, t: Tensor, rows: bool = False, index: Any = None) -> None:
        self.t, self.rows, self.index = t, rows, index

    def _with(self, other: Any, op: Callable[[Tensor, Tensor], Tensor]) -> Value:
        a, b = lift(self), lift(other)
        x, y = a.t, b.t
        deep_x, deep_y = x.dim() - a.rows, y.dim() - b.rows
        if a.rows and deep_x < deep_y:
            x = x.unsqueeze(-1)
        if b.rows and deep_y < deep_x:
            y = y.unsqueeze(-1)
        return Value(op(x, y), a.rows or b.rows)

    def __add__(self, other: Any) -> Value:
        return self._with(other, torch.add)

    def __sub__(self, other: Any) -> Value:
        return self._with(other, torch.sub)

    def __mul__(self, other: Any) -> Value:
        return self._with(other, torch.mul)

    def __rsub__(self, other: Any) -> Value:
        return lift(other) - self

    __radd__, __rmul__ = __add__, __mul__

    def __gt__(self, other: Any) -> Value:
        def above(x: Tensor, y: Tensor) -> Tensor:
            Watch.see(x - y)
            return (x > y).to(REAL)

        return self._with(other, above)


class Parameter:
    """An array of the network; `t` is its value in what is evaluated now."""

    t: Tensor

    def __init__(self, shape: Sequence[int], trainable: bool = True) -> None:
        self.shape, self.trainable = tuple(shape), trainable

    def __matmul__(self, x: Any) -> Value:
        value = lift(x)
        return Value(value.t @ self.t.T if value.rows else self.t @ value.t, value.rows)

    def __mul__(self, x: Any) -> Value:
        return lift(self) * x

    def __add__(self, x: Any) -> Value:
        return lift(self) + x

    __radd__, __rmul__ = __add__, __mul__


def lift(x: Any) -> Value:
    """Return a value of one, of a parameter or of a number."""
    if isinstance(x, Value):
        return x
    return Value(x.t if isinstance(x, Parameter) else torch.tensor(float(x), dtype=REAL))


def _map(op: Callable[[Tensor], Tensor]) -> Callable[[Any], Value]:
    def apply(x: Any) -> Value:
        value = lift(x)
        return Value(op(value.t), value.rows)

    return apply


tanh, sigmoid = _map(torch.tanh), _map(torch.sigmoid)


def embed(table: Parameter, number: Value) -> Value:
    """Look up rows; zeros for -1."""
    if number.rows:
        none = torch.zeros(table.shape[1], dtype=REAL)
        each = [table.t[k] if k >= 0 else none for k in number.index]
        return Value(torch.stack(each) if each else number.t.new_zeros(0, table.shape[1]), True)
    zero = torch.zeros(table.shape[1:], dtype=REAL)
    return Value(table.t[number.index] if number.index >= 0 else zero)


def sum(x: Any, axis: str = "") -> Value:
    """Add up over children, if there is a row for each, else over elements."""
    value = lift(x)
    if value.rows and axis != "elements":
        return Value(value.t.sum(0))
    return Value(value.t.sum(-1), value.rows)


def mean(x: Any, axis: str = "") -> Value:
    """Average; 0 over no children."""
    value = lift(x)
    if value.rows and axis != "elements":
        return Value(value.t.sum(0) / builtin_max(1, len(value.t)))
    return Value(value.t.mean(-1), value.rows)


def max(x: Any, axis: str = "") -> Value:
    """Take the largest over children; 0 over none."""
    value = lift(x)
    assert value.rows
    if not len(value.t):
        return Value(value.t.new_zeros(value.t.shape[1:]))
    if len(value.t) > 1:
        two = value.t.topk(2, 0).values
        Watch.see(two[0] - two[1])
    return Value(value.t.amax(0))


builtin_max = __builtins__["max"] if isinstance(__builtins__, dict) else __builtins__.max


def softmax(x: Any, axis: str = "children") -> Value:
    """Softmax over children."""
    value = lift(x)
    assert value.rows
    assert axis == "children"
    return Value(value.t.softmax(0) if len(value.t) else value.t, True)


def dot(x: Any, y: Any) -> Value:
    """Multiply and add up over the elements."""
    product = lift(x) * y
    return Value(product.t.sum(-1), product.rows)


def straight_through(x: Any, value: Any) -> Value:
    """Have the value of one and the gradient of the other."""

    class Through(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, kept: Tensor, given: Tensor) -> Tensor:
            return given.clone()

        @staticmethod
        def backward(ctx: Any, d: Tensor) -> tuple[Tensor, None]:
            return d, None

    return Value(Through.apply(lift(x).t, lift(value).t.detach()), lift(x).rows)


# Losses.


def cross_entropy(
    logits: Any, label: Value, label_smoothing: float = 0.0, weights: Any = None
) -> Value:
    """Return PyTorch's, 0 where the label is absent."""
    if label.index < 0:
        return lift(0.0)
    t, target = lift(logits).t, torch.tensor(label.index)
    weight = None if weights is None else torch.tensor(weights, dtype=t.dtype)
    return Value(
        torch.nn.functional.cross_entropy(  # "mean" would divide by the weight of the label
            t, target, weight, reduction="sum", label_smoothing=label_smoothing
        )
    )


def multi_margin_loss(scores: Any, label: Value) -> Value:
    """Return PyTorch's, 0 where the label is absent."""
    if label.index < 0:
        return lift(0.0)
    t = lift(scores).t
    Watch.see(1.0 - t[label.index] + torch.cat([t[: label.index], t[label.index + 1 :]]))
    return Value(torch.nn.functional.multi_margin_loss(t[None], torch.tensor([label.index])))


def squared_error(x: Any, y: Any) -> Value:
    """Return the sum of the squares of the differences."""
    difference = lift(x) - y
    return sum(difference * difference)


def binary_cross_entropy_with_logits(x: Any, y: Any) -> Value:
    """Return PyTorch's, added up."""
    logits = lift(x).t
    target = lift(y).t.expand_as(logits)
    return Value(
        torch.nn.functional.binary_cross_entropy_with_logits(logits, target, reduction="sum")
    )


def hinge_loss(x: Any, y: Any) -> Value:
    """Return the sum of max(0, 1 - y x)."""
    missed = 1.0 - lift(y) * x
    Watch.see(missed.t)
    return Value(missed.t.clamp(min=0.0).sum())


class Vertex:
    """One vertex: what it reads, and what it has scattered and pushed.

    Args:
        pulls: of the vertex; edges: of the edges to its children in each relation.
        children: states of its children by relation, a dict of fields each.
    """

    def __init__(
        self,
        pulls: Mapping[str, Value],
        edges: Mapping[tuple[str, str], Value],
        children: Mapping[str, list[dict[str, Tensor]]],
    ) -> None:
        self.pulls, self.edges, self.children = pulls, edges, children
        self.state: dict[str, Tensor] = {}
        self.pushed: dict[str, Tensor] = {}


class VertexFunction:
    """What a class body of a drawn network calls."""

    at: Vertex

    def __init__(
        self, arity: int | None = None, state: Any = None, inputs: Mapping[str, Any] | None = None
    ) -> None:
        self.state, self.inputs = dict(state or {}), dict(inputs or {})

    def _fields(self, relation: str) -> dict[str, int]:
        source = self.inputs.get(relation, self)
        first = source[0] if isinstance(source, tuple) else source
        fields: dict[str, int] = first.state
        return fields

    def gather(self, relation: str) -> Any:
        """Return the state of the child, zeros where there is none."""
        (child,) = self.at.children[relation] or [None]
        return SimpleNamespace(
            **{
                name: Value(torch.zeros(n, dtype=REAL) if child is None else child[name])
                for name, n in self._fields(relation).items()
            }
        )

    def gather_all(self, relation: str) -> Any:
        """Return the states of the children, a row each."""
        children = self.at.children[relation]
        return SimpleNamespace(
            **{
                name: Value(
                    torch.stack([c[name] for c in children])
                    if children
                    else torch.zeros(0, n, dtype=REAL),
                    True,
                )
                for name, n in self._fields(relation).items()
            }
        )

    def pull(self, name: str, shape: Sequence[int] = (), dtype: str = "") -> Value:
        """Return what the vertex pulls."""
        return self.at.pulls[name]

    def pull_index(self, name: str) -> Value:
        """Return the integer that the vertex pulls."""
        return self.pull(name)

    def edge(
        self, name: str, shape: Sequence[int] = (), dtype: str = "", relation: str = ""
    ) -> Value:
        """Return what the edges pull."""
        return self.at.edges[relation, name]

    def edge_index(self, name: str, relation: str = "") -> Value:
        """Return the integers that the edges pull."""
        return self.edge(name, relation=relation)

    def scatter(self, **state: Any) -> None:
        """Keep the state."""
        self.at.state = {name: lift(value).t for name, value in state.items()}

    def push(self, name: str, value: Any) -> Value:
        """Keep a push."""
        found = lift(value)
        self.at.pushed[name] = found.t
        return found


class Model:
    """Holds vertex functions as attributes."""


losses = random = nn = sys.modules[__name__]  # namespaces of vertexrt
