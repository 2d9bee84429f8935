"""Run a kernel in NumPy, statement by statement for all rows: the oracle of what prints kernels.

It works in the arena itself, so a place that is read before it is written, or that two values
share, gives here what it would give on a device: temporaries hold NaN before a launch.

A value is [n, k]: elements k of each of n rows (or edges), or what broadcasts to that. Every
operation rounds to the dtype of the arena, as compiled kernels do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from vertexrt.ir.expressions import draws, evaluate_arrays
from vertexrt.ir.program import ABOVE
from vertexrt.kernels.layout import PAD, Array, Buffers
from vertexrt.lower.kernel import (
    AddLookups,
    Apply,
    Choose,
    Compute,
    Constant,
    Expression,
    Fill,
    FromParents,
    Index,
    KernelIR,
    Leaf,
    MatrixProduct,
    Memory,
    Number,
    Outer,
    OwnPart,
    Picked,
    PlaceRows,
    RandomDraw,
    ReadElement,
    Reduce,
    RowLoop,
    Span,
    Spans,
    Step,
    SumEdges,
    SumRows,
    ValuePlace,
)
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


@dataclass
class Elements:
    """Memory, of which elements are read and set by their numbers."""

    array: Array

    def load(self, at: Array) -> Array:
        """Return elements."""
        return self.array.take(at)

    def store(self, at: Array, value: Any) -> None:
        """Set elements."""
        self.array[at] = value


# Gets values as they are made, and the points that they are made for; none, where a sum over all.
Seen = Callable[[Array, Points | None], None]


def reduced(how: np.ufunc, value: Array, owner: Array, count: int) -> Array:
    """Reduce the rows of each owner, which ascend; zeros for one without rows: [count, k]."""
    out = np.zeros((count, value.shape[1]))
    sizes = np.bincount(owner, minlength=count)
    has = sizes > 0
    if len(owner):
        starts = (np.cumsum(sizes) - sizes)[has]
        out[has] = how.reduceat(value.astype(np.float64), starts, axis=0)
    return out


class Interpreter:
    """One kernel at work on one launch.

    Args:
        arena, gradients: the memory that it reads and writes.

    Attributes:
        seen: gets all values, where they are watched.
        numbers: of the open loop, [iterations, 1]; scratch: [iterations, size]; chosen: what has to
            be added up where it is read.
    """

    def __init__(
        self,
        kernel: KernelIR,
        launch: LaunchedRows,
        buffers: Buffers,
        arena: Elements,
        gradients: Elements,
    ) -> None:
        self.kernel, self.launch, self.b = kernel, launch, buffers
        self.arena, self.gradients = arena, gradients
        self.s, self.dtype = buffers.schedule, buffers.arena.dtype
        self.steps = kernel.segments[launch.segment]
        self.seen: Seen | None = None
        self.numbers: dict[int, Array] = {}
        self.scratch: dict[int, Array] = {}
        self.chosen: dict[int, Choose] = {}
        self._do: dict[type, Callable[[Any, Points], None]] = {
            Fill: self._fill,
            Compute: self._compute,
            Reduce: self._reduce,
            SumEdges: self._sum_edges,
            Choose: self._choose,
            SumRows: self._sum_rows,
            MatrixProduct: self._product,
            Outer: self._outer,
            AddLookups: self._add_lookups,
        }

    def run(self) -> None:
        """Run all steps of the segment."""
        for step in self.steps:
            self.step(step)

    def step(self, step: Step) -> None:
        """Run one step."""
        with np.errstate(all="ignore"):  # what empty slots make may be anything
            at = self.points(step.edges)
            self.numbers, self.scratch, self.chosen = {}, {}, {}
            for statement in step.body if isinstance(step, RowLoop) else (step,):
                self._do[type(statement)](statement, at)

    def _bounds(self, span: Span) -> tuple[int, int]:
        """Return the first and end element of a range, or of this processor's part of one."""
        if not isinstance(span, OwnPart):
            return span
        whole, (part, parts) = span.of or span.size, (self.launch.part, self.launch.parts)
        ends = (whole * part // parts, whole * (part + 1) // parts)
        if span.of:
            first, end = (min(max(x - span.begin, 0), span.size) for x in ends)
            return span.start + first, span.start + end
        return span.start + ends[0], span.start + ends[1]

    # What is made.

    def _fill_from(
        self, to: ValuePlace, spans: Spans, at: Points, value: Callable[[Array], Array]
    ) -> None:
        """Write elements of a place.

        Args:
            value: elements -> what they are.
        """
        for first, end in map(self._bounds, spans):
            j = np.arange(first, end)
            if len(j):
                self.write(to, at, j, value(j))

    def _make_number(self, number: int, at: Points, value: Array) -> None:
        self.numbers[number] = value.astype(self.dtype)
        if self.seen:
            self.seen(value, at)

    def _add_gradient(self, param: int, elements: Array, value: Array) -> None:
        at = int(self.b.param_at[param]) + elements
        self.gradients.store(at, self.gradients.load(at) + value)
        if self.seen:
            self.seen(value, None)

    # Statements.

    def _fill(self, fill: Fill, at: Points) -> None:
        if fill.child >= 0:
            at = at.of(self.child(fill.child, at) >= 0)
        self._fill_from(fill.to, fill.spans, at, lambda j: self.values(fill.value, at, j))

    def _compute(self, statement: Compute, at: Points) -> None:
        value = self.values(statement.value, at, np.zeros(1, np.int64))
        self._make_number(statement.number, at, value)

    def _reduce(self, statement: Reduce, at: Points) -> None:
        x = self.read(statement.source, at, np.arange(statement.source.size))
        top = x.max(axis=1, keepdims=True)
        if statement.how == "reduce_max":
            found = top
        elif statement.how == "reduce_sum":
            found = x.sum(axis=1, keepdims=True)
        else:
            shift = np.where(np.isfinite(top), top, 0.0)
            found = shift + np.log(np.exp(x - shift).sum(axis=1, keepdims=True))
        self._make_number(statement.number, at, found)

    def _choose(self, choose: Choose, at: Points) -> None:
        self.chosen[choose.number] = choose

    def _sum_edges(self, sums: SumEdges, at: Points) -> None:
        def value(j: Array) -> Array:
            parts = [self._summed(sums, source, at, j) for source in sums.sources]
            found: Array = np.sum(parts, axis=0)
            return found

        self._fill_from(sums.to, sums.spans, at, value)

    def _summed(
        self, sums: SumEdges, source: Expression | FromParents, at: Points, j: Array
    ) -> Array:
        if isinstance(source, FromParents):
            return self.from_parents(source, sums.to.size, at, j)
        children, owner = self.children_of(at, sums.relation)
        if sums.order is not None:
            key, after = sums.order
            sign = -1 if after else 1
            other, own = self.values(key, children, j), self.values(key, at, j)[owner]
            tied = (sign * children.edge < sign * at.edge[owner])[:, None] & (other == own)
            before = (sign * other > sign * own) | tied
            value = np.where(before, self.values(source, children, j), 0.0)
            return reduced(np.add, value, owner, len(at.row))
        how = np.maximum if sums.total is None else np.add
        return reduced(how, self.values(source, children, j), owner, len(at.row))

    def _sum_rows(self, sums: SumRows, at: Points) -> None:
        first, end = (x * sums.each for x in self._bounds(sums.span))
        j = np.arange(first, end)
        value = self.values(sums.value, at, j)
        self._add_gradient(sums.param, j, value.sum(axis=0, dtype=np.float64))

    # All rows at once.

    def _product(self, p: MatrixProduct, at: Points) -> None:
        begin = int(self.b.param_at[p.param])
        w = self.b.params[begin : begin + p.m * p.n].reshape(p.m, p.n)
        w = w if p.transposed else w.T
        inner, outer = w.shape
        x = self.read(p.x.place, at, np.arange(p.each * inner)).reshape(-1, inner)
        for first, end in map(self._bounds, p.spans):
            y = (x @ w[:, first:end]).reshape(len(at.row), p.each * (end - first))
            self.write(p.y.place, at, _columns(p.each, outer, first, end), y)

    def _outer(self, outer: Outer, at: Points) -> None:
        first, end = self._bounds(outer.span)
        own = _columns(outer.each, outer.m, first, end)
        rows = len(at.row) * outer.each
        d = self.read(outer.d.place, at, own).reshape(rows, end - first)
        x = self.read(outer.x.place, at, np.arange(outer.each * outer.n))
        elements = np.arange(first * outer.n, end * outer.n)
        # OpenBLAS adds up all rows of small results one by one, at least on AVX-512.
        value = np.matmul(d.T, x.reshape(rows, outer.n), dtype=np.float64)
        self._add_gradient(outer.param, elements, value.reshape(-1))

    def _add_lookups(self, step: AddLookups, at: Points) -> None:
        (first, end), columns = self._bounds(step.words), np.arange(*self._bounds(step.columns))
        word = self.integer(step.pull, at, step.edges)[:, 0]
        own = (first <= word) & (word < end)
        if own.any():
            x, word = self.read(step.source, at.of(own), columns), word[own]
            order = np.argsort(word, kind="stable")
            words, starts = np.unique(word[order], return_index=True)
            value = np.add.reduceat(x[order], starts, axis=0)
            self._add_gradient(step.param, words[:, None] * step.size + columns, value)

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
        if place.memory == Memory.TENSOR:
            base = int(self.b.base[place.number])
        else:
            t, launch = self.kernel.temporaries[place.number], self.launch
            rows, edges = (-(-count // PAD) * PAD for count in (launch.rows, launch.edges))
            base = launch.temporary + t.once + rows * t.rows + edges * t.edges
        return base + self._row(place, at).astype(np.int64) * place.step + place.start

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
            row = self.scratch[place.number]
            return np.asarray(row[at.turn[:, None], place.start + index])
        if place.memory == Memory.CHOSEN:
            chosen = self.chosen[place.number]
            return self.from_parents(chosen.source, chosen.size, at, place.start + index)
        return self.arena.load(self.start(place, at)[:, None] + index)

    def write(self, place: ValuePlace, at: Points, j: Array, value: Array) -> None:
        """Set elements j of a place."""
        if place.memory == Memory.SCRATCH:
            size, scratch = (len(at.turn), place.step), self.scratch
            row = scratch.setdefault(place.number, np.full(size, np.nan, self.dtype))
            row[at.turn[:, None], place.start + j] = value
        else:
            self.arena.store(self.start(place, at)[:, None] + j, value)
        if self.seen:
            self.seen(value, at)

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
                return self.numbers[e.value][at.turn]
            case Constant():
                return e.value
            case ReadElement(index=index):
                found = _elements(index, j)
                if not index.terms:
                    return self.read(e.place, at, found)
                terms = np.arange(index.terms) * index.step + index.start
                found = self.read(e.place, at, (found[:, None] * index.stride + terms).reshape(-1))
                return found.reshape(-1, len(j), index.terms).sum(axis=2).astype(self.dtype)
            case Picked():
                return self.read(e.row, at, np.maximum(self.integer(e.pull, at), 0))
            case Apply():
                return self._apply(e, at, j)
            case Leaf():
                return self._leaf(e, at, _elements(e.index, j))

    def values(self, e: Expression, at: Points, j: Array) -> Array:
        """Return elements j of an expression for every point: [n, len(j)]."""
        return np.broadcast_to(self.element(e, at, j), (len(at.row), len(j)))

    def _apply(self, e: Apply, at: Points, j: Array) -> Array:
        names = {f"x{k}": self.element(x, at, j) for k, x in enumerate(e.operands)}
        if e.draw is not None:
            names["draw"] = self._drawn(e.draw, at, _elements(e.index, j)).astype(self.dtype)
        return np.asarray(evaluate_arrays(e.expression, names), self.dtype)

    def _real_row(self, e: Leaf, at: Points) -> Array:
        """Return the rows of a real pull that the vertices have; -1 for none."""
        return np.asarray(self.b.float_index[e.number][self.pulled(at, e.edges)])

    def _leaf(self, e: Leaf, at: Points, index: Array) -> Any:
        """Return elements of an input of the function."""
        b, begin = self.b, 0
        load: Callable[[Array], Array]
        match e.op:
            case "arange":
                return index.astype(self.dtype)
            case "param":
                return b.params[int(b.param_at[e.number]) + index]
            case "integer":
                return self.integer(e.number, at, e.edges)
            case "is_index":
                return np.equal(index, self.integer(e.number, at)).astype(self.dtype)
            case "loss_scale":
                return b.loss_scale
            case "weight":
                return self.s.weight[at.row][:, None].astype(self.dtype)
            case "degree":
                _, owner = self.children_of(at, e.relation)
                count = np.maximum(np.bincount(owner, minlength=len(at.row)), 1)
                return count[:, None].astype(self.dtype)
            case "present" | "has_child":
                return (self.child(e.slot, at, e.relation) >= 0)[:, None].astype(self.dtype)
            case "has_integer":
                return (self.integer(e.number, at) >= 0).astype(self.dtype)
            case "has_real":
                return (self._real_row(e, at) >= 0)[:, None].astype(self.dtype)
            case "gather":
                row = self.child(e.slot, at, e.relation)
                load, begin = self.arena.load, int(b.base[e.number])
            case "embed":
                row = self.integer(e.pull, at, e.edges)[:, 0]
                load, begin = b.params.take, int(b.param_at[e.number])
            case "pull":
                row, load = self._real_row(e, at), b.floats[e.number].take
            case _:
                assert e.op == "seed", e.op
                row, load = self.vertex(at), b.d_pushes[e.number].take
        has = row >= 0
        found = load(begin + row[has].astype(np.int64)[:, None] * e.size + index)
        value = np.zeros((len(row), len(index)), found.dtype)  # for row -1
        value[has] = found
        return value

    def _drawn(self, wanted: RandomDraw, at: Points, index: Array) -> Array:
        vertex = self.vertex(at) if wanted.by < 0 else self.integer(wanted.by, at)[:, 0]
        counter = (self.b.user_edge if wanted.edges else self.b.user_vertex)[vertex]
        if wanted.edges:
            counter = counter + at.edge - self.s.every_ptr[at.row]
        return draws(self.b.random_seed, wanted.key, wanted.p, counter, index)


def _columns(each: int, width: int, first: int, end: int) -> Array:
    """Return the elements of columns `first .. end` of `each` rows that lie side by side."""
    return (np.arange(each)[:, None] * width + np.arange(first, end)).reshape(-1)


def _elements(index: Index, j: Array) -> Array:
    if not index.repeats:
        return j + index.shift if index.moves else np.array([index.shift])
    for first, each, size in index.repeats:
        j = (j + first) // each % size
    return j + index.shift
