"""Run a kernel in NumPy, statement by statement for all rows: the oracle of what prints kernels.

It works in the arena itself, so a place that is read before it is written, or that two values
share, gives here what it would give on a device: temporaries hold NaN before a launch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from vertexrt.kernels.layout import Array, Buffers
from vertexrt.kernels.reference.expressions import (
    Elements,
    Evaluator,
    LaunchedRows,
    LoopValues,
    Points,
    reduced,
)
from vertexrt.lower.expressions import Expression
from vertexrt.lower.kernel import (
    AddLookups,
    Choose,
    Compute,
    Fill,
    FromParents,
    KernelIR,
    MatrixProduct,
    Outer,
    Reduce,
    RowLoop,
    Step,
    SumEdges,
    SumRows,
)
from vertexrt.lower.places import OwnPart, Span, Spans, ValuePlace

# Gets values as they are made, and the points that they are made for; none, where a sum over all.
Seen = Callable[[Array, Points | None], None]


class Interpreter:
    """One kernel at work on one launch.

    Args:
        arena, gradients: the memory that it reads and writes.

    Attributes:
        seen: gets all values, where they are watched.
    """

    def __init__(
        self,
        kernel: KernelIR,
        launch: LaunchedRows,
        buffers: Buffers,
        arena: Elements,
        gradients: Elements,
    ) -> None:
        self.launch, self.buffers, self.gradients = launch, buffers, gradients
        self.steps = kernel.segments[launch.segment]
        self.values = Evaluator(kernel, launch, buffers, arena)
        self.seen: Seen | None = None
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
            at = self.values.points(step.edges)
            self.values.loop = LoopValues()
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
                self._write(to, at, j, value(j))

    def _write(self, to: ValuePlace, at: Points, j: Array, value: Array) -> None:
        self.values.write(to, at, j, value)
        if self.seen:
            self.seen(value, at)

    def _make_number(self, number: int, at: Points, value: Array) -> None:
        self.values.loop.numbers[number] = value.astype(self.values.dtype)
        if self.seen:
            self.seen(value, at)

    def _add_gradient(self, param: int, elements: Array, value: Array) -> None:
        at = int(self.buffers.param_at[param]) + elements
        self.gradients.store(at, self.gradients.load(at) + value)
        if self.seen:
            self.seen(value, None)

    # Statements.

    def _fill(self, fill: Fill, at: Points) -> None:
        if fill.child >= 0:
            at = at.of(self.values.child(fill.child, at) >= 0)
        self._fill_from(fill.to, fill.spans, at, lambda j: self.values.values(fill.value, at, j))

    def _compute(self, statement: Compute, at: Points) -> None:
        value = self.values.values(statement.value, at, np.zeros(1, np.int64))
        self._make_number(statement.number, at, value)

    def _reduce(self, statement: Reduce, at: Points) -> None:
        x = self.values.read(statement.source, at, np.arange(statement.source.size))
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
        self.values.loop.chosen[choose.number] = choose

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
            return self.values.from_parents(source, sums.to.size, at, j)
        children, owner = self.values.children_of(at, sums.relation)
        how = np.maximum if sums.total is None else np.add
        return reduced(how, self.values.values(source, children, j), owner, len(at.row))

    def _sum_rows(self, sums: SumRows, at: Points) -> None:
        first, end = (x * sums.each for x in self._bounds(sums.span))
        j = np.arange(first, end)
        value = self.values.values(sums.value, at, j)
        self._add_gradient(sums.param, j, value.sum(axis=0, dtype=np.float64))

    # All rows at once.

    def _product(self, p: MatrixProduct, at: Points) -> None:
        begin = int(self.buffers.param_at[p.param])
        w = self.buffers.params[begin : begin + p.m * p.n].reshape(p.m, p.n)
        w = w if p.transposed else w.T
        inner, outer = w.shape
        x = self.values.read(p.x.place, at, np.arange(p.each * inner)).reshape(-1, inner)
        for first, end in map(self._bounds, p.spans):
            y = (x @ w[:, first:end]).reshape(len(at.row), p.each * (end - first))
            self._write(p.y.place, at, _columns(p.each, outer, first, end), y)

    def _outer(self, outer: Outer, at: Points) -> None:
        first, end = self._bounds(outer.span)
        own = _columns(outer.each, outer.m, first, end)
        rows = len(at.row) * outer.each
        d = self.values.read(outer.d.place, at, own).reshape(rows, end - first)
        x = self.values.read(outer.x.place, at, np.arange(outer.each * outer.n))
        elements = np.arange(first * outer.n, end * outer.n)
        value = d.T @ x.reshape(rows, outer.n)
        self._add_gradient(outer.param, elements, value.reshape(-1))

    def _add_lookups(self, step: AddLookups, at: Points) -> None:
        (first, end), columns = self._bounds(step.words), np.arange(*self._bounds(step.columns))
        word = self.values.integer(step.pull, at, step.edges)[:, 0]
        own = (first <= word) & (word < end)
        if own.any():
            x, word = self.values.read(step.source, at.of(own), columns), word[own]
            order = np.argsort(word, kind="stable")
            words, starts = np.unique(word[order], return_index=True)
            value = np.add.reduceat(x[order], starts, axis=0)
            self._add_gradient(step.param, words[:, None] * step.size + columns, value)


def _columns(each: int, width: int, first: int, end: int) -> Array:
    """Return the elements of columns `first .. end` of `each` rows that lie side by side."""
    return (np.arange(each)[:, None] * width + np.arange(first, end)).reshape(-1)
