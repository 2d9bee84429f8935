"""Evaluate expressions of the kernel IR in NumPy, for all rows of a loop at once.

A value is [n, k]: elements k of each of n rows (or edges), or what broadcasts to that. Every
operation rounds to the dtype of the arena, as compiled kernels do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from vertexrt.ir.numpy_arithmetic import draws, evaluate_arrays
from vertexrt.ir.program import ABOVE
from vertexrt.kernels.layout import PAD, Array, Buffers
from vertexrt.lower.expressions import (
    Apply,
    Constant,
    Expression,
    Index,
    Leaf,
    Number,
    Picked,
    RandomDraw,
    ReadElement,
)
from vertexrt.lower.kernel import Choose, FromParents, KernelIR
from vertexrt.lower.places import Memory, PlaceRows, ValuePlace
from vertexrt.script.verify import ranges


@dataclass(frozen=True, slots=True)
class LaunchedRows:
    """The rows and edges of a launch, and which part of its work is done.

    Attributes:
        rows: how many; first: of them, or -1 where they are listed from `listed` on.
        edges: how many; first_edge: of them.
        temporary: element at which temporaries start.
        segment, part, parts: of a task program that processors share.
    """

    rows: int
    first: int
    listed: int
    edges: int
    first_edge: int
    temporary: int
    segment: int = 0
    part: int = 0
    parts: int = 1


@dataclass(frozen=True, slots=True)
class Points:
    """Where expressions are evaluated, side by side: rows or edges, [n] each.

    Attributes:
        row: execution rows; local: their numbers in the launch.
        edge: of the points, nothing in a loop over rows.
        turn: iteration of the loop, which has made their numbers and scratch rows.
    """

    row: Array
    local: Array
    edge: Array
    turn: Array

    def of(self, chosen: Array) -> Points:
        """Return some of them."""
        edge = self.edge[chosen] if len(self.edge) else self.edge
        return Points(self.row[chosen], self.local[chosen], edge, self.turn[chosen])


class Elements(NamedTuple):
    """Memory, by what reads elements of it and what sets them; both take numbers of elements."""

    load: Callable[[Array], Array]
    store: Callable[[Array, Any], None]


@dataclass(slots=True)
class LoopValues:
    """What the open loop has made so far: a row for each of its iterations.

    Attributes:
        numbers: [turns, 1]; scratch: [turns, size].
        chosen: what has to be added up where it is read.
    """

    numbers: dict[int, Array] = field(default_factory=dict)
    scratch: dict[int, Array] = field(default_factory=dict)
    chosen: dict[int, Choose] = field(default_factory=dict)


def reduced(how: np.ufunc, value: Array, owner: Array, count: int) -> Array:
    """Reduce the rows of each owner, which ascend; zeros for one without rows: [count, k]."""
    out = np.zeros((count, value.shape[1]))
    sizes = np.bincount(owner, minlength=count)
    has = sizes > 0
    if len(owner):
        starts = (np.cumsum(sizes) - sizes)[has]
        out[has] = how.reduceat(value.astype(np.float64), starts, axis=0)
    return out


class Evaluator:
    """The expressions and places of one kernel at work on one launch.

    Args:
        arena: what tensors and temporaries are read from and written to.
    """

    def __init__(self, kernel: KernelIR, launch: LaunchedRows, b: Buffers, arena: Elements) -> None:
        self.kernel, self.launch, self.b, self.arena = kernel, launch, b, arena
        self.s, self.dtype = b.schedule, b.arena.dtype
        self.loop = LoopValues()

    # Where.

    def points(self, edges: bool) -> Points:
        """Return the rows of the launch, or its edges."""
        launch, count = self.launch, self.launch.edges if edges else self.launch.rows
        turn = np.arange(count)
        if edges:
            edge = launch.first_edge + turn
            row = self.s.edge_row[edge]
            return Points(row, row - launch.first, edge, turn)
        listed = self.b.rows[launch.listed : launch.listed + count]
        return Points(launch.first + turn if launch.first >= 0 else listed, turn, turn[:0], turn)

    def edges_of(self, at: Points, relation: int) -> tuple[Array, Array]:
        """Return the first and the end edge of rows in a relation that is read whole."""
        if self.kernel.relations == 1:
            return self.s.every_ptr[at.row], self.s.every_ptr[at.row + 1]
        number = at.row.astype(np.int64) * self.kernel.relations + relation
        return self.s.relation_ptr[number], self.s.relation_ptr[number + 1]

    def children_of(self, at: Points, relation: int) -> tuple[Points, Array]:
        """Return the edges of rows that hold a child in a relation, and which row each is of."""
        first, end = self.edges_of(at, relation)
        edge, owner = ranges(first, end - first)
        has = self.s.child_row[edge] >= 0
        edge, owner = edge[has], owner[has]
        return Points(at.row[owner], at.local[owner], edge, at.turn[owner]), owner

    def vertex(self, at: Points) -> Array:
        """Return the user's vertices."""
        return np.asarray(self.s.order[at.row])

    def child(self, slot: int, at: Points, relation: int = 0) -> Array:
        """Return the row of the child in a slot, or of the edge for slot -1; -1 for none."""
        if slot < 0:
            first, end = self.edges_of(at, relation)
            mine = (first <= at.edge) & (at.edge < end)
            return np.where(mine, self.s.child_row[at.edge], -1)
        edge = self.s.edge_ptr[at.row] + slot
        has = edge < self.s.edge_ptr[at.row + 1]
        found = np.full(len(edge), -1)
        found[has] = self.s.child_row[edge[has]]
        return found

    def pulled(self, at: Points, edges: bool) -> Array:
        """Return where the pulled values of the user's vertices (or of edges) are."""
        return np.asarray(self.s.edge_order[at.edge]) if edges else self.vertex(at)

    def integer(self, pull: int, at: Points, edges: bool = False) -> Array:
        """Return what an integer pull is, [n, 1]."""
        return np.asarray(self.b.ints[pull][self.pulled(at, edges)][:, None])

    # Places.

    def start(self, place: ValuePlace, at: Points) -> Array:
        """Return the first element of rows of memory."""
        row = self._row(place, at).astype(np.int64)
        return self._base(place) + row * place.step + place.start

    def _base(self, place: ValuePlace) -> int:
        if place.memory == Memory.TENSOR:
            return int(self.b.base[place.number])
        t, launch = self.kernel.temporaries[place.number], self.launch
        rows, edges = (-(-count // PAD) * PAD for count in (launch.rows, launch.edges))
        return launch.temporary + t.once + rows * t.rows + edges * t.edges

    def _row(self, place: ValuePlace, at: Points) -> Array:
        match place.rows:
            case PlaceRows.ROW:
                return at.row
            case PlaceRows.EDGE:
                return at.edge
            case PlaceRows.LOCAL_EDGE:
                return at.edge - self.launch.first_edge
            case PlaceRows.SLOT:
                return np.asarray(self.s.edge_ptr[at.row] + place.slot)
        assert place.rows == PlaceRows.LOCAL, f"{place} has no rows in memory"
        return at.local

    def read(self, place: ValuePlace, at: Points, index: Array) -> Array:
        """Return elements of a place, [n, k].

        Args:
            index: [k], or [n, 1].
        """
        if place.memory == Memory.SCRATCH:
            row = self.loop.scratch[place.number]
            return np.asarray(row[at.turn[:, None], place.start + index])
        if place.memory == Memory.CHOSEN:
            chosen = self.loop.chosen[place.number]
            return self.from_parents(chosen.source, chosen.size, at, place.start + index)
        return self.arena.load(self.start(place, at)[:, None] + index)

    def write(self, place: ValuePlace, at: Points, j: Array, value: Array) -> None:
        """Set elements j of a place."""
        if place.memory != Memory.SCRATCH:
            self.arena.store(self.start(place, at)[:, None] + j, value)
            return
        scratch = self.loop.scratch
        if place.number not in scratch:
            scratch[place.number] = np.full((len(at.turn), place.step), np.nan, self.dtype)
        scratch[place.number][at.turn[:, None], place.start + j] = value

    def from_parents(self, source: FromParents, size: int, at: Points, index: Array) -> Array:
        """Sum what the parents of rows left on the edges to them; zeros for a row without."""
        first = self.s.parent_ptr[at.row]
        entry, owner = ranges(first, self.s.parent_ptr[at.row + 1] - first)
        edge = self.s.parent_edge[entry].astype(np.int64)
        if source.parents:
            counts = (edge >= self.s.above_edge[source.layer]) == (source.parents == ABOVE)
            edge, owner = edge[counts], owner[counts]
        start = self.b.base[source.tensor] + edge * size
        left = self.arena.load(start[:, None] + index)
        return reduced(np.add, left, owner, len(at.row)).astype(self.dtype)

    # Expressions.

    def element(self, e: Expression, at: Points, j: Array) -> Any:
        """Return elements j of an expression."""
        match e:
            case Number():
                return self.loop.numbers[e.value][at.turn]
            case Constant():
                return e.value
            case ReadElement():
                return self.read(e.place, at, _elements(e.index, j))
            case Picked():
                return self.read(e.row, at, np.maximum(self.integer(e.pull, at), 0))
            case Apply():
                return self._apply(e, at, j)
            case Leaf():
                return LEAVES[e.op](self, e, at, _elements(e.index, j))

    def values(self, e: Expression, at: Points, j: Array) -> Array:
        """Return elements j of an expression for every point: [n, len(j)]."""
        return np.broadcast_to(self.element(e, at, j), (len(at.row), len(j)))

    def _apply(self, e: Apply, at: Points, j: Array) -> Array:
        names = {f"x{k}": self.element(x, at, j) for k, x in enumerate(e.operands)}
        if e.draw is not None:
            names["draw"] = self._drawn(e.draw, at, _elements(e.index, j)).astype(self.dtype)
        return np.asarray(evaluate_arrays(e.expression, names), self.dtype)

    def _drawn(self, wanted: RandomDraw, at: Points, index: Array) -> Array:
        vertex = self.vertex(at) if wanted.by < 0 else self.integer(wanted.by, at)[:, 0]
        counter = (self.b.user_edge if wanted.edges else self.b.user_vertex)[vertex]
        if wanted.edges:
            counter = counter + at.edge - self.s.every_ptr[at.row]
        return draws(self.b.random_seed, wanted.key, wanted.p, counter, index)


def _elements(index: Index, j: Array) -> Array:
    return j + index.shift if index.moves else np.array([index.shift])


# Leaves.


def _rows(load: Callable[[Array], Array], begin: int, row: Array, size: int, index: Array) -> Array:
    """Read rows of memory that begins at an element; zeros for row -1."""
    has = row >= 0
    found = load(begin + row[has].astype(np.int64)[:, None] * size + index)
    value = np.zeros((len(row), len(index)), found.dtype)
    value[has] = found
    return value


def _gather(v: Evaluator, e: Leaf, at: Points, index: Array) -> Array:
    begin = int(v.b.base[e.number])
    return _rows(v.arena.load, begin, v.child(e.slot, at, e.relation), e.size, index)


def _embed(v: Evaluator, e: Leaf, at: Points, index: Array) -> Array:
    begin, row = int(v.b.param_at[e.number]), v.integer(e.pull, at, e.edges)[:, 0]
    return _rows(v.b.params.take, begin, row, e.size, index)


def _pull(v: Evaluator, e: Leaf, at: Points, index: Array) -> Array:
    return _rows(v.b.floats[e.number].take, 0, _real_row(v, e, at), e.size, index)


def _seed(v: Evaluator, e: Leaf, at: Points, index: Array) -> Array:
    return _rows(v.b.seeds[e.number].take, 0, v.vertex(at), e.size, index)


def _param(v: Evaluator, e: Leaf, at: Points, index: Array) -> Array:
    return np.asarray(v.b.params[int(v.b.param_at[e.number]) + index])


def _real_row(v: Evaluator, e: Leaf, at: Points) -> Array:
    """Return the rows of a real pull that the vertices have; -1 for none."""
    return np.asarray(v.b.float_index[e.number][v.pulled(at, e.edges)])


def _degree(v: Evaluator, e: Leaf, at: Points, index: Array) -> Array:
    _, owner = v.children_of(at, e.relation)
    return np.maximum(np.bincount(owner, minlength=len(at.row)), 1)[:, None].astype(v.dtype)


def _weight(v: Evaluator, e: Leaf, at: Points, index: Array) -> Array:
    return np.asarray(v.s.weight[at.row][:, None], v.dtype)


def _is_index(v: Evaluator, e: Leaf, at: Points, index: Array) -> Array:
    return np.equal(index, v.integer(e.number, at)).astype(v.dtype)


def _tells(found: Callable[[Evaluator, Leaf, Points], Array]) -> Callable[..., Array]:
    """Make a leaf that is 1 where a number is not negative, else 0."""
    return lambda v, e, at, index: (found(v, e, at).reshape(-1, 1) >= 0).astype(v.dtype)


LEAVES: dict[str, Callable[[Evaluator, Leaf, Points, Array], Any]] = {
    "gather": _gather,
    "arange": lambda v, e, at, index: index.astype(v.dtype),
    "param": _param,
    "embed": _embed,
    "pull": _pull,
    "seed": _seed,
    "integer": lambda v, e, at, index: v.integer(e.number, at, e.edges),
    "is_index": _is_index,
    "present": _tells(lambda v, e, at: v.child(e.slot, at)),
    "has_child": _tells(lambda v, e, at: v.child(-1, at, e.relation)),
    "has_integer": _tells(lambda v, e, at: v.integer(e.number, at)),
    "has_real": _tells(_real_row),
    "degree": _degree,
    "loss_scale": lambda v, e, at, index: v.b.loss_scale,
    "weight": _weight,
}
