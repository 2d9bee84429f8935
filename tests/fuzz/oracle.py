"""The public names of vertexrt, evaluated eagerly at one vertex after another, in NumPy float64.

The same class body works with vertexrt and with this module: `def build(vrt): ...`. Nothing of
vertexrt is imported; what a name means is written here a second time, from its documentation.
`evaluate` runs a function made so on a batch.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np

from tests.fuzz.bounded import Bounded, join
from tests.fuzz.oracle_elementwise import *  # noqa: F403 - the names of vertexrt
from tests.fuzz.oracle_functional import *  # noqa: F403
from tests.fuzz.oracle_functional import concat, embed
from tests.fuzz.tape import Operators, Shape, Value, lift

Operand = Any  # Value | Parameter | float


class Parameter(Operators):
    """A trained or frozen array; `leaf` is its value in the batch that is being evaluated."""

    leaf: Value

    def __init__(self, shape: Shape, trainable: bool = True) -> None:
        self.shape = tuple(shape)
        self.trainable = trainable

    def __getitem__(self, key: Any) -> Any:
        return (
            embed(self, key) if isinstance(key, Value) and len(self.shape) > 1 else lift(self)[key]
        )


class VertexFunction:
    """F; `vertex` is where it is evaluated, `at` where any function is."""

    vertex: Any  # `OracleVertex` of `evaluate`
    at: ClassVar[Any]
    inputs: dict[str, Any]

    def __init__(
        self,
        *,
        arity: int | None = None,
        state: Mapping[str, int],
        initial: Mapping[str, Parameter] | None = None,
        inputs: Mapping[str, Any] | None = None,
    ) -> None:
        self.arity, self.state, self.initial = arity, dict(state), dict(initial or {})
        self.inputs = dict(inputs or {})

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

    def _sources(self, relation: int | str) -> Sequence[VertexFunction]:
        """Return the functions whose state a relation reads; all have the same fields."""
        of = self.inputs.get(str(relation), self)
        return of if isinstance(of, (list, tuple)) else [of]

    def _place(self, slot: int | str) -> int:
        """Return which edge leads to the child in a slot, or of a relation that has one; -1."""
        for k, (child, of) in enumerate(zip(self.vertex.slots, self.vertex.relations, strict=True)):
            if child >= 0 and (of == str(slot) or (of == "children" and k == slot)):
                return k
        return -1

    def gather(self, slot: int | str) -> Any:
        """Read the child in a slot; the initial state, or zeros, where it is absent."""
        if isinstance(slot, str):
            self._slots = {slot, *vars(self).get("_slots", ())}
        at = self._place(slot)
        if at >= 0:
            return SimpleNamespace(**self.vertex.states[self.vertex.slots[at]])
        sources = self._sources(slot)
        initial = self.initial if any(source is self for source in sources) else {}
        fields = {
            name: lift(initial[name])
            if name in initial
            else self.vertex.constant(np.zeros((1, size)))
            for name, size in sources[0].state.items()
        }
        return SimpleNamespace(**fields)

    def gather_all(self, relation: str = "children") -> Any:
        """Read the state of all children, a row each; empty slots are no children."""
        given = zip(self.vertex.slots, self.vertex.relations, strict=True)
        present = tuple(child for child, of in given if child >= 0 and of == relation)

        def stack(name: str, size: int) -> Value:
            parts = [self.vertex.states[child][name] for child in present]
            none = self.vertex.constant(np.zeros((1, size)))
            number = join([none.number[:0], *(p.number for p in parts)], 0)

            def vjp(g: Bounded) -> Sequence[Bounded]:
                return [g[k : k + 1] for k in range(len(parts))]

            return Value(none.tape, number, (size,), present, parts, vjp)

        sizes = self._sources(relation)[0].state
        return SimpleNamespace(**{name: stack(name, n) for name, n in sizes.items()})

    def scatter(self, **state: Operand) -> None:
        """Publish the state."""
        for name, value in state.items():
            assert lift(value).shape == (self.state[name],), name
            self.vertex.scattered[name] = lift(value)

    def pull(self, name: str, shape: int | Shape | None = None, dtype: str | None = None) -> Value:
        """Read an external value."""
        found = self.vertex.pull(name)
        assert found.shape == _shape(shape), (name, found.shape, shape)
        return found

    def pull_index(self, name: str) -> Value:
        """Read an external integer."""
        return self.pull(name)

    def edge(
        self,
        name: str,
        shape: int | Shape | None = None,
        dtype: str | None = None,
        relation: int | str = "children",
    ) -> Value:
        """Read an external value of the edge to each child, or to the one in a slot."""
        if isinstance(relation, int) or relation in vars(self).get("_slots", ()):
            found = self.vertex.slot_edge(name, self._place(relation))
        else:
            found = self.vertex.edge(name, relation)
        assert found.shape == _shape(shape), (name, found.shape, shape)
        return found

    def edge_index(self, name: str, relation: int | str = "children") -> Value:
        """Read an external integer of the edge to each child, or to the one in a slot."""
        return self.edge(name, relation=relation)

    def present(self, what: int | str) -> Value:
        """Return 1.0 where there is a child in a slot, or a pulled value."""
        if isinstance(what, int) or what in vars(self).get("_slots", ()):
            has = self._place(what) >= 0
        else:
            has = self.vertex.pull(what).index >= 0
        return self.vertex.constant(np.array([float(has)]))

    @property
    def training(self) -> Value:
        """Return 0.0: the oracle knows inference only."""
        return self.vertex.constant(np.zeros(1))

    def count_children(self, relation: str = "children") -> Value:
        """Count the children, of which empty slots are none."""
        given = zip(self.vertex.slots, self.vertex.relations, strict=True)
        count = len([child for child, of in given if child >= 0 and of == relation])
        return self.vertex.constant(np.array([float(count)]))

    def push(self, name: str, value: Operand) -> Value:
        """Write a value to the outside and return it."""
        self.vertex.pushed[name] = lift(value)
        return self.vertex.pushed[name]


class Model:
    """Holds the functions of types as attributes."""


def _shape(given: int | Shape | None) -> Shape:
    return (given,) if isinstance(given, int) else tuple(given or ())


def full(shape: Any, value: float) -> Value:
    """Return a constant of a shape."""
    return VertexFunction.at.constant(np.full((1, *_shape(shape)), value))


def block_diagonal(weights: Parameter, x: Operand) -> Value:
    """Multiply parts of a vector, each by a matrix of its own."""
    count, _, inner = weights.shape
    parts = [lift(x)[k * inner : (k + 1) * inner] for k in range(count)]
    return concat(*(weights[k] @ part for k, part in enumerate(parts)))


def uniform(shape: Any, low: Operand = 0.0, high: Operand = 1.0) -> Value:
    """Return the mean of what would be drawn: what is drawn in tests is clipped to one number."""
    return full(shape, 0.5) * (high - low) + low


def normal(shape: Any, mean: Operand = 0.0, std: Operand = 1.0) -> Value:
    """Return the mean of what would be drawn."""
    return full(shape, 0.0) * std + mean


def zeros(shape: Any) -> Value:
    """Return zeros."""
    return full(shape, 0.0)


def ones(shape: Any) -> Value:
    """Return ones."""
    return full(shape, 1.0)


losses = random = nn = sys.modules[__name__]  # namespaces of vertexrt
