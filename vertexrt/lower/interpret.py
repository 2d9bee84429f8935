"""Run a kernel in NumPy, row by row: the oracle of the lowering, for every renderer.

It works in the arena itself, so a place that is read before it is written, or that two values
share, gives here what it would give on a device. It is slow, and says nothing about speed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from vertexrt.ir.numpy_arithmetic import dropout_factors, evaluate_arrays
from vertexrt.kernels.layout import PAD, Array, Buffers
from vertexrt.lower.expressions import (
    Apply,
    Constant,
    Expression,
    Index,
    Leaf,
    Number,
    Picked,
    RandomFactor,
    ReadElement,
)
from vertexrt.lower.kernel import (
    AddLookups,
    Choose,
    Compute,
    Fill,
    FromParents,
    KernelIR,
    MatrixProduct,
    Operand,
    Outer,
    Reduce,
    RowLoop,
    Statement,
    Step,
    SumEdges,
    SumRows,
)
from vertexrt.lower.places import Memory, OwnPart, Rows, Span, Spans, ValuePlace


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


def interpret(kernel: KernelIR, launch: LaunchedRows, buffers: Buffers) -> None:
    """Do what a kernel does for a launch."""
    run = _Run(kernel, launch, buffers)
    with np.errstate(all="ignore"):  # what empty slots make may be anything
        for step in kernel.segments[launch.segment]:
            run.step(step)


class _Run:
    """One kernel at work on one launch.

    Attributes:
        row, local, edge: where the open loops stand.
        numbers, chosen: of the row: numbers, and elements of the arena.
    """

    def __init__(self, kernel: KernelIR, launch: LaunchedRows, buffers: Buffers) -> None:
        self.kernel, self.launch, self.b = kernel, launch, buffers
        self.s = buffers.schedule
        self.row = self.local = self.edge = 0
        self.numbers: dict[int, float] = {}
        self.chosen: dict[int, int] = {}
        self.over_edges = False

    # Places.

    def _base(self, place: ValuePlace) -> int:
        if place.memory == Memory.TENSOR:
            return int(self.b.base[place.number])
        t, launch = self.kernel.temporaries[place.number], self.launch
        rows, edges = (-(-count // PAD) * PAD for count in (launch.rows, launch.edges))
        return launch.temporary + t.once + rows * t.rows + edges * t.edges

    def _start(self, place: ValuePlace) -> int:
        if place.memory == Memory.CHOSEN:
            return self.chosen[place.number]
        row = {
            Rows.ROW: self.row,
            Rows.LOCAL: self.local,
            Rows.EDGE: self.edge,
            Rows.LOCAL_EDGE: self.edge - self.launch.first_edge,
            Rows.SLOT: int(self.s.edge_ptr[self.row]) + place.slot,
            Rows.ONE: 0,
        }[place.rows]
        return self._base(place) + row * place.step + place.start

    def _bounds(self, span: Span) -> tuple[int, int]:
        if not isinstance(span, OwnPart):
            return span
        whole, (part, parts) = span.of or span.size, (self.launch.part, self.launch.parts)
        ends = (whole * part // parts, whole * (part + 1) // parts)
        if span.of:
            first, end = (min(max(x - span.begin, 0), span.size) for x in ends)
            return span.start + first, span.start + end
        return span.start + ends[0], span.start + ends[1]

    # Expressions.

    def element(self, e: Expression, j: Array) -> Any:
        """Return elements j of an expression."""
        match e:
            case Number():
                return self.numbers[e.value]
            case Constant():
                return e.value
            case ReadElement():
                return self.b.arena[self._start(e.place) + self._index(e.index, j)]
            case Picked():
                return self.b.arena[self._start(e.row) + max(self._integer(e.pull), 0)]
            case Apply():
                names = {f"x{k}": self.element(x, j) for k, x in enumerate(e.operands)}
                if e.draw is not None:
                    names["keep"] = self._keep(e.draw, self._index(e.index, j))
                return evaluate_arrays(e.expression, names)
            case Leaf():
                return self._leaf(e, j)

    def _index(self, index: Index, j: Array) -> Any:
        return j + index.shift if index.moves else index.shift

    def _keep(self, wanted: RandomFactor, j: Array) -> Array:
        v = self._vertex()
        counter = int((self.b.user_edge if wanted.edges else self.b.user_vertex)[v])
        if wanted.edges:
            counter += self.edge - int(self.s.edge_ptr[self.row])
        given = (self.b.random_seed, wanted.key, wanted.p, np.array([counter]), np.atleast_1d(j))
        return np.asarray(dropout_factors(*given)[0])

    def _vertex(self) -> int:
        return int(self.s.order[self.row])

    def _integer(self, pull: int) -> int:
        return int(self.b.ints[pull][self._vertex()])

    def _child(self, slot: int) -> int:
        if slot < 0:
            return int(self.s.child_row[self.edge])
        first, end = self.s.edge_ptr[self.row : self.row + 2].tolist()
        return int(self.s.child_row[first + slot]) if first + slot < end else -1

    def _from(self, array: Array, begin: int, row: int, leaf: Leaf, j: Array) -> Any:
        """Read a row of an array that begins at an element; zeros for row -1."""
        index = self._index(leaf.index, j)
        return array[begin + row * leaf.size + index] if row >= 0 else 0.0 * index

    def _leaf(self, e: Leaf, j: Array) -> Any:
        b = self.b
        read: dict[str, Callable[[], Any]] = {
            "gather": lambda: self._from(b.arena, int(b.base[e.number]), self._child(e.slot), e, j),
            "param": lambda: b.params[int(b.param_at[e.number]) + self._index(e.index, j)],
            "embed": lambda: self._from(
                b.params, int(b.param_at[e.number]), self._integer(e.pull), e, j
            ),
            "pull": lambda: self._from(b.floats[e.number], 0, self._real(e.number), e, j),
            "seed": lambda: self._from(b.seeds[e.number], 0, self._vertex(), e, j),
            "integer": lambda: self._integer(e.number),
            "is_index": lambda: 1.0 * (self._index(e.index, j) == self._integer(e.number)),
            "present": lambda: float(self._child(e.slot) >= 0),
            "has_child": lambda: float(self._child(-1) >= 0),
            "has_integer": lambda: float(self._integer(e.number) >= 0),
            "has_real": lambda: float(self._real(e.number) >= 0),
            "degree": self._degree,
            "loss_scale": lambda: b.loss_scale,
            "weight": lambda: self.s.weight[self.row],
        }
        return read[e.op]()

    def _real(self, pull: int) -> int:
        """Return the row of a real pull that the vertex has; -1 for none."""
        return int(self.b.float_index[pull][self._vertex()])

    def _degree(self) -> float:
        first, end = self.s.edge_ptr[self.row : self.row + 2]
        return max(1.0, float((self.s.child_row[first:end] >= 0).sum()))

    # Statements.

    def step(self, step: Step) -> None:
        """Do one step."""
        match step:
            case RowLoop():
                self._loop(step)
            case MatrixProduct():
                self._product(step)
            case Outer():
                rows = self._count(step.edges) * step.each
                d = self._rows(step.d, rows, step.m)
                x = self._rows(step.x, rows, step.n)
                first, end = self._bounds(step.span)
                to = self._gradient(step.param, step.m * step.n).reshape(step.m, step.n)
                to[first:end] += d[:, first:end].T @ x
            case AddLookups():
                self._add_lookups(step)

    def _count(self, edges: bool) -> int:
        return self.launch.edges if edges else self.launch.rows

    def _row_of(self, i: int) -> int:
        launch = self.launch
        return launch.first + i if launch.first >= 0 else int(self.b.rows[launch.listed + i])

    def _loop(self, loop: RowLoop) -> None:
        self.over_edges = loop.edges
        for i in range(self._count(loop.edges)):
            self.numbers, self.chosen = {}, {}
            if loop.edges:
                self.edge = self.launch.first_edge + i
                self.row = int(self.s.edge_row[self.edge])
                self.local = self.row - self.launch.first
            else:
                self.row, self.local = self._row_of(i), i
            for statement in loop.body:
                self._do(statement)

    def _do(self, statement: Statement) -> None:
        match statement:
            case Fill():
                if statement.child < 0 or self._child(statement.child) >= 0:
                    self._fill(statement.to, statement.spans, statement.value)
            case Compute():
                self.numbers[statement.number] = self._rounded(
                    self.element(statement.value, np.zeros(1, np.int64))
                )
            case Reduce():
                start = self._start(statement.source)
                x = self.b.arena[start : start + statement.source.size]
                top = x.max()
                found = {
                    "reduce_sum": x.sum(),
                    "reduce_max": top,
                    "logsumexp": top + np.log(np.exp(x - top).sum()),
                }[statement.how]
                self.numbers[statement.number] = self._rounded(found)
            case SumEdges():
                self._sum_edges(statement)
            case Choose():
                self._choose(statement)
            case SumRows():
                self._sum_rows(statement)

    def _rounded(self, value: Any) -> Any:
        return self.b.arena.dtype.type(np.asarray(value).reshape(-1)[0])

    def _fill(self, to: ValuePlace, spans: Spans, value: Expression) -> None:
        start = self._start(to)
        for first, end in map(self._bounds, spans):
            if first < end:
                j = np.arange(first, end)
                self.b.arena[start + first : start + end] = self.element(value, j)

    def _choose(self, choose: Choose) -> None:
        first, end = self.s.parent_ptr[self.row : self.row + 2].tolist()
        at = 0
        if end - first == 1:
            edge = int(self.s.parent_edge[first])
            at = int(self.b.base[choose.tensor]) + edge * choose.size
        elif end - first > 1:
            self._sum_edges(choose.several)
            at = self._start(choose.several.to)
        self.chosen[choose.number] = at

    def _sum_edges(self, sums: SumEdges) -> None:
        start, arena = self._start(sums.to), self.b.arena
        for first, end in map(self._bounds, sums.spans):
            j = np.arange(first, end)
            rows = [np.broadcast_to(x, j.shape) for x in self._summed(sums, j)]
            if not rows:
                arena[start + first : start + end] = 0.0
            elif sums.total is None:
                arena[start + first : start + end] = np.max(rows, axis=0)
            else:
                total = np.sum(rows, axis=0, dtype=np.float64)
                arena[start + first : start + end] = total

    def _summed(self, sums: SumEdges, j: Array) -> Any:
        for source in sums.sources:
            if isinstance(source, FromParents):
                begin, size = int(self.b.base[source.tensor]), sums.to.size
                first, end = self.s.parent_ptr[self.row : self.row + 2].tolist()
                for edge in self.s.parent_edge[first:end].tolist():
                    yield self.b.arena[begin + edge * size + j]
                continue
            outer = self.edge
            for edge in range(*self.s.edge_ptr[self.row : self.row + 2].tolist()):
                self.edge = edge
                if self._child(-1) >= 0:
                    yield self.element(source, j)
            self.edge = outer

    def _gradient(self, param: int, size: int) -> Array:
        begin = int(self.b.param_at[param])
        return self.b.gradients[begin : begin + size]

    def _sum_rows(self, sums: SumRows) -> None:
        first, end = (x * sums.each for x in self._bounds(sums.span))
        if first < end:
            to = self._gradient(sums.param, end)
            to[first:end] += self.element(sums.value, np.arange(first, end))

    # All rows at once.

    def _at(self, operand: Operand, rows: int, width: int) -> Array:
        """Return the elements of an operand's rows, [rows, width]."""
        place = operand.place
        if operand.packed is not None and self.launch.first < 0:
            listed = self.b.rows[self.launch.listed : self.launch.listed + self.launch.rows]
            starts = self._base(place) + listed.astype(np.int64) * place.step
            return (starts[:, None] + np.arange(place.step)).reshape(rows, width)
        first = {Rows.ROW: self.launch.first, Rows.EDGE: self.launch.first_edge}.get(place.rows, 0)
        begin = self._base(place) + first * place.step
        return begin + np.arange(rows * width).reshape(rows, width)

    def _rows(self, operand: Operand, rows: int, width: int) -> Array:
        found: Array = self.b.arena[self._at(operand, rows, width)]
        return found

    def _product(self, p: MatrixProduct) -> None:
        begin = int(self.b.param_at[p.param])
        w = self.b.params[begin : begin + p.m * p.n].reshape(p.m, p.n)
        rows = self._count(p.edges) * p.each
        inner, outer = (p.m, p.n) if p.transposed else (p.n, p.m)
        x, at = self._rows(p.x, rows, inner), self._at(p.y, rows, outer)
        y = x @ w if p.transposed else x @ w.T
        for first, end in map(self._bounds, p.spans):
            self.b.arena[at[:, first:end]] = y[:, first:end]

    def _add_lookups(self, step: AddLookups) -> None:
        (first_word, end_word), (first, end) = self._bounds(step.words), self._bounds(step.columns)
        begin, j = self._base(step.source) + step.source.start, np.arange(first, end)
        to = int(self.b.param_at[step.param])
        for i in range(self.launch.rows):
            self.row = self._row_of(i)
            word = self._integer(step.pull)
            if first_word <= word < end_word:
                row = i if step.source.rows == Rows.LOCAL else self.row
                x = self.b.arena[begin + row * step.source.step + j]
                self.b.gradients[to + word * step.size + j] += x
