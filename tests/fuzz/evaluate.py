"""Run a function of the oracle on a batch, and go back with gradients of what it pushed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tests.fuzz import oracle
from tests.fuzz.bounded import Array, Bounded, exact
from tests.fuzz.tape import Shape, Tape, Value, propagate

ChildLists = Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True)
class PulledRows:
    """A pull of a batch.

    Attributes:
        table: rows of reals [N, *shape]; None where the pull is an integer.
        index: int [V], the row, or the integer itself; -1 where a vertex has none. Of edges [E].
    """

    table: Array | None
    index: npt.NDArray[np.int32]


@dataclass(slots=True)
class OracleVertex:
    """One vertex, as `oracle.Vertex` describes it.

    Attributes:
        relations: of each slot, None where it is read by its number alone.
    """

    tape: Tape
    number: int
    slots: Sequence[int]
    relations: Sequence[str | None]
    first_slot: int
    states: Mapping[int, Mapping[str, Value]]
    pulls: Mapping[str, PulledRows]
    pushed: dict[str, Value] = field(default_factory=dict)
    scattered: dict[str, Value] = field(default_factory=dict)
    pulled: dict[str, Value] = field(default_factory=dict)
    pulled_of: dict[tuple[str, str | int], Value] = field(default_factory=dict)  # of whose edges

    def constant(self, value: Array) -> Value:
        """Return a value of the tape without inputs."""
        return Value(self.tape, exact(value), value.shape[1:])

    def pull(self, name: str) -> Value:
        """Return the pulled value, one and the same for each call."""
        if name not in self.pulled:
            self.pulled[name] = self._row(name, int(self.pulls[name].index[self.number]))
        return self.pulled[name]

    def _row(self, name: str, index: int) -> Value:
        """Return one row of a pull."""
        table = self.pulls[name].table
        if table is None:
            row = np.array(float(index))
        else:
            row = table[index] if index >= 0 else np.zeros(table.shape[1:])
        found = self.constant(np.asarray(row)[None])
        found.index = index
        return found

    def slot_edge(self, name: str, slot: int) -> Value:
        """Return what the edge in a place (-1: none) pulls, the same for each call."""
        key = name, slot
        if key not in self.pulled_of:
            index = int(self.pulls[name].index[self.first_slot + slot]) if slot >= 0 else -1
            self.pulled_of[key] = self._row(name, index)
        return self.pulled_of[key]

    def edge(self, name: str, relation: str) -> Value:
        """Return what the edges to all children pull, a row each, the same for each call."""
        key = name, relation
        if key not in self.pulled_of:
            rows, given = self.pulls[name], enumerate(zip(self.slots, self.relations, strict=True))
            present = [s for s, (c, of) in given if c >= 0 and of == relation]
            index = rows.index[[self.first_slot + s for s in present]]
            if rows.table is None:
                values = index.astype(np.float64)
            else:
                values = rows.table[np.maximum(index, 0)]
                values = np.where(index.reshape(-1, *[1] * (values.ndim - 1)) >= 0, values, 0.0)
            children = tuple(self.slots[s] for s in present)
            self.pulled_of[key] = Value(self.tape, exact(values), values.shape[1:], children)
            self.pulled_of[key].index = index
        return self.pulled_of[key]


@dataclass(frozen=True, slots=True)
class OracleGradients:
    """Gradients of parameters, and of the tables of real pulls, by name."""

    parameters: dict[str, Bounded]
    pulled: dict[str, Bounded]


class OracleRun:
    """A batch, evaluated.

    Args:
        function: made with the oracle in place of vertexrt; or that of each vertex.
        children: of each vertex of the batch, -1 in an empty slot.
        pulls: by name.
        parameters: by name.
        relations: of each slot of each vertex; None where all are of `gather_all()`.
        named: the parameters by name, where functions have several.
    """

    def __init__(
        self,
        function: oracle.VertexFunction | Sequence[oracle.VertexFunction],
        children: ChildLists,
        pulls: Mapping[str, PulledRows],
        parameters: Mapping[str, Array],
        relations: Sequence[Sequence[str | None]] | None = None,
        named: Mapping[str, oracle.Parameter] | None = None,
    ) -> None:
        self.tape = Tape()
        self._pulls = pulls
        self._leaves: dict[str, Value] = {}
        if isinstance(function, oracle.VertexFunction):
            named, function = function.parameters(), [function] * len(children)
        assert named is not None
        self._trained = [name for name, p in named.items() if p.trainable]
        for name, parameter in named.items():
            number = exact(np.asarray(parameters[name])[None])
            self._leaves[name] = parameter.leaf = Value(self.tape, number, parameter.shape)
        states: dict[int, dict[str, Value]] = {}
        self._vertices: dict[int, OracleVertex] = {}
        first_slot = np.cumsum([0, *map(len, children)]).tolist()
        for v in children_first(children):
            of = relations[v] if relations is not None else ["children"] * len(children[v])
            vertex = OracleVertex(self.tape, v, children[v], of, first_slot[v], states, pulls)
            function[v].vertex = oracle.VertexFunction.at = vertex
            function[v].forward()  # type: ignore[attr-defined]
            states[v], self._vertices[v] = vertex.scattered, vertex

    @property
    def closest(self) -> float:
        """Return how close a comparison came to the other side; see `Tape`."""
        return self.tape.closest

    @property
    def pushes(self) -> tuple[str, ...]:
        """Return the names of what is pushed."""
        return tuple(dict.fromkeys(n for v in self._vertices.values() for n in v.pushed))

    @property
    def read(self) -> set[str]:
        """Return the names of what is pulled, of vertices and of edges."""
        found = {name for vertex in self._vertices.values() for name in vertex.pulled}
        return found | {n for vertex in self._vertices.values() for n, _ in vertex.pulled_of}

    def looked_up(self, name: str) -> set[int]:
        """Return the rows of a parameter that are looked up."""
        leaf = self._leaves[name]
        return {row for table, rows in self.tape.lookups if table is leaf for row in rows} - {-1}

    def push(self, name: str, shape: Shape = ()) -> Bounded:
        """Return a push of all vertices: [V, *shape]; zeros of those that do not push it.

        Args:
            shape: where none does.
        """
        there = {v: x.pushed[name].number for v, x in self._vertices.items() if name in x.pushed}
        none = exact(np.zeros(next((x.shape for x in there.values()), (1, *shape))))
        found = [there.get(v, none) for v in range(len(self._vertices))]
        return Bounded(
            np.concatenate([f.value for f in found]), np.concatenate([f.error for f in found])
        )

    def gradients(self, d_pushes: Mapping[str, Array]) -> OracleGradients:
        """Go back.

        Args:
            d_pushes: gradients of pushes, [V, *shape].
        """
        seeds = [
            (vertex.pushed[name], np.asarray(gradient[v])[None])
            for name, gradient in d_pushes.items()
            for v, vertex in self._vertices.items()
            if name in vertex.pushed
        ]
        propagate(self.tape, seeds)
        parameters = {name: _gradient(self._leaves[name])[0] for name in self._trained}
        return OracleGradients(parameters, self._pulled_gradients())

    def _pulled_gradients(self) -> dict[str, Bounded]:
        found = {
            name: exact(np.zeros(rows.table.shape))
            for name, rows in self._pulls.items()
            if rows.table is not None
        }
        for vertex in self._vertices.values():
            read = [*vertex.pulled.items(), *((n, v) for (n, _), v in vertex.pulled_of.items())]
            for name, value in read:
                for k, row in enumerate(np.atleast_1d(value.index)):
                    if name in found and row >= 0:
                        total = found[name][row] + _gradient(value)[k]
                        found[name].value[row] = total.value
                        found[name].error[row] = total.error
        return found


def _gradient(value: Value) -> Bounded:
    return exact(np.zeros(value.number.shape)) if value.gradient is None else value.gradient


def children_first(children: ChildLists) -> list[int]:
    """Order vertices so that each comes after its children."""
    waiting = [len({c for c in slots if c >= 0}) for slots in children]
    parents: list[list[int]] = [[] for _ in children]
    for v, slots in enumerate(children):
        for child in {c for c in slots if c >= 0}:
            parents[child].append(v)
    order = [v for v, count in enumerate(waiting) if not count]
    for v in order:
        for parent in parents[v]:
            waiting[parent] -= 1
            if not waiting[parent]:
                order.append(parent)
    assert len(order) == len(children), "a cycle"
    return order
