"""Render a kernel as LLVM: one function, which runs it for the rows of a launch.

What belongs to a row, such as where its elements lie, is made once a row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import IntEnum
from functools import partial

from vertexrt.ir.expressions import translate
from vertexrt.ir.program import ABOVE
from vertexrt.kernels.cpu.arithmetic import Arithmetic, draw
from vertexrt.kernels.layout import PAD
from vertexrt.lower.kernel import (
    FIRST,
    ROWS_A_SUM,
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
    Operand,
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
    Statement,
    Step,
    SumEdges,
    SumRows,
    ValuePlace,
    expressions_in,
)
from vertexrt.native.code import Code, Register, module_of, once

FUNCTION, ROW, EDGE = range(3)  # scopes of `once`

# A task program's function; `segment`, `part` and `parts` are for processors that share it.
ARGUMENTS = "segment part parts n lo at m elo temporary ptr*context"
NONE = Register("ptr", "@none", "index")

# What kernels read of a minibatch, their context: positions in an array of int64. Addresses of
# arrays; of arrays of addresses (FLOATS, SEEDS); how many vertices there are, the bits of a float64
# (SCALE), and 32 bits (SEED).
Field = IntEnum(
    "Field",
    "ORDER EDGE_PTR CHILD_ROW EDGE_ROW PARENT_PTR PARENT_EDGE ROWS ARENA OFFSETS PARAMS GRADIENTS "
    "PARAM_AT WEIGHT USER_VERTEX USER_EDGE INTS FLOAT_INDEX FLOATS SEEDS VERTICES SCALE SEED "
    "EVERY_PTR EDGE_ORDER RELATION_PTR ABOVE_EDGE",
    start=0,
)


# What the arrays are of that are not of indices; "" for reals.
TYPES = {
    Field.ARENA: "",
    Field.PARAMS: "",
    Field.GRADIENTS: "",
    Field.WEIGHT: "",
    Field.OFFSETS: "i64",
    Field.PARAM_AT: "i64",
    Field.FLOATS: "ptr",
    Field.SEEDS: "ptr",
}


def render(kernel: KernelIR, real: str, name: str) -> str:
    """Return the module of a kernel.

    Args:
        real: `float` or `double`.
        name: of its function.
    """
    code = _KernelCode(kernel, real, name)
    zeros = f"[{max(code.widest, 1)} x {real}] zeroinitializer, align 64"
    none = "@none = internal constant i32 -1"
    return module_of([code], f"@zeros = internal constant {zeros}", none)


class _KernelCode(Code):
    """The function of one kernel under construction.

    Attributes:
        row, local: the number of the open loop's row, and its number in the launch.
        edge: of the open loop over edges; every: the first edge of each row that has them.
        numbers: of the row, in registers; chosen: elements of the arena that `Choose` found.
        widest: elements of the zeros that stand for what is absent.
        nested: the row and its element that are made, of what is repeated.
    """

    def __init__(self, kernel: KernelIR, real: str, name: str) -> None:
        super().__init__(name, ARGUMENTS, real)
        segment, self.part, self.parts, self.count, self.lo, *more = self.arguments
        self.list_from, self.edges, self.edge_lo, self.scratch, self.context = more
        self.kernel = kernel
        self.every = Field.EVERY_PTR if kernel.splits_edges else Field.EDGE_PTR
        self.math = Arithmetic(self)
        self.row = self.local = self.edge = self.value(0)
        self.numbers: dict[int, Register] = {}
        self.chosen: dict[int, Register] = {}
        self.widest = 0
        self.over_edges = False
        self.nested: tuple[Register, Register] | None = None
        self._writers: dict[type, Callable[..., None]] = {
            RowLoop: self._loop,
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
        for number, steps in enumerate(kernel.segments):
            if len(kernel.segments) == 1:
                self._steps(steps)
            else:
                with self.when(segment.equals(number)):
                    self._steps(steps)

    # What is the same for a launch.

    @once(FUNCTION)
    def array_of(self, field: Field) -> Register:
        """Return the address of an array of the minibatch."""
        return self.context[field].to(TYPES.get(field, "index") or self.real)

    @once(FUNCTION)
    def array_in(self, field: Field, number: int) -> Register:
        """Return the address of one of several arrays: of indices, a row of a matrix."""
        lists = self.array_of(field)
        if field in (Field.FLOATS, Field.SEEDS):
            return lists[number].to(self.real)
        vertices = self.context.to("i64")[Field.VERTICES]
        return lists + vertices * number

    @once(FUNCTION)
    def tensor(self, number: int) -> Register:
        """Return the address of a tensor's row 0."""
        return self.array_of(Field.ARENA) + self.array_of(Field.OFFSETS)[number]

    @once(FUNCTION)
    def param(self, number: int, field: Field = Field.PARAMS) -> Register:
        """Return the address of a parameter, or of its gradient."""
        return self.array_of(field) + self.array_of(Field.PARAM_AT)[number]

    @once(FUNCTION)
    def temporary(self, number: int) -> Register:
        """Return the address of a temporary of this launch."""
        arena, t = self.array_of(Field.ARENA), self.kernel.temporaries[number]
        at = self.scratch + t.once
        for count, each in ((self.count, t.rows), (self.edges, t.edges)):
            if each:
                at += (count + (PAD - 1) & -PAD) * each
        return arena + at

    def bounds(self, span: Span) -> tuple[Register, Register]:
        """Return the first and the end element of a span."""
        if isinstance(span, OwnPart):
            return self._bound(span, 0), self._bound(span, 1)
        return self.value(span[0]), self.value(span[1])

    @once(FUNCTION)
    def _bound(self, span: OwnPart, after: int) -> Register:
        """Return where this processor's part of a span begins, or the next one's."""
        at = (self.part + after) * (span.of or span.size) // self.parts
        if span.of:
            at = self.least(self.most(at + -span.begin, 0), span.size)
        return at + span.start

    # What belongs to a row.

    def base(self, place: ValuePlace) -> Register:
        """Return the address of row 0 of a place."""
        if place.memory == Memory.TENSOR:
            return self.tensor(place.number)
        return self.temporary(place.number)

    def start(self, place: ValuePlace) -> Register:
        """Return the address of the first element of a place in this row."""
        if place.memory == Memory.CHOSEN:
            return self.chosen[place.number]
        if place.rows == PlaceRows.ONE:
            return self.base(place) + place.start
        of_edge = place.rows in (PlaceRows.EDGE, PlaceRows.LOCAL_EDGE)
        alike = place.part(0, 0)  # however many there are
        return self._start(alike, scope=EDGE if of_edge else ROW)

    @once(ROW)
    def _start(self, place: ValuePlace) -> Register:
        base = self.base(place)
        match place.rows:
            case PlaceRows.ROW:
                row = self.row
            case PlaceRows.LOCAL:
                row = self.local
            case PlaceRows.EDGE:
                row = self.edge
            case PlaceRows.LOCAL_EDGE:
                row = self.edge - self.edge_lo
            case _:
                row = self.in_row(Field.EDGE_PTR) + place.slot
        return base + (row * place.step + place.start)

    @once(ROW)
    def in_row(self, field: Field, after: int = 0) -> Register:
        """Return the row's element of an array, or one after it."""
        array = self.array_of(field)
        return array[self.row + after]

    @once(ROW)
    def _relation(self, number: int) -> Register:
        array = self.array_of(Field.RELATION_PTR)
        return array[self.row * self.kernel.relations + number]

    def edges_of(self, relation: int) -> tuple[Register, Register]:
        """Return the row's first and end edge in a relation that is read whole."""
        if self.kernel.relations == 1:
            return self.in_row(self.every), self.in_row(self.every, 1)
        return self._relation(relation), self._relation(relation + 1)

    def child(self, slot: int, relation: int = 0) -> Register:
        """Return the row of the child in a slot, or of the edge's; -1 where there is none."""
        if slot < 0:
            return self._child_of_edge(relation if self.kernel.relations > 1 else 0)
        return self._child_in_slot(slot)

    @once(EDGE)
    def _child_of_edge(self, relation: int) -> Register:
        children, edge = self.array_of(Field.CHILD_ROW), self.edge
        if self.kernel.relations == 1:
            return children[edge]
        first, end = self.edges_of(relation)
        found = children + edge
        found = self.select(edge < end, found, NONE)
        return self.select(edge >= first, found, NONE)[0]

    @once(ROW)
    def _child_in_slot(self, slot: int) -> Register:
        children = self.array_of(Field.CHILD_ROW)
        first, end = self.in_row(Field.EDGE_PTR), self.in_row(Field.EDGE_PTR, 1)
        at = first + slot
        found = children + at
        return self.select(at < end, found, NONE)[0]

    @once(ROW)
    def given(self, field: Field, number: int) -> Register:
        """Return what this vertex has in one of several arrays of indices; -1 for nothing."""
        return self.array_in(field, number)[self.in_row(Field.ORDER)]

    @once(EDGE)
    def given_to_edge(self, field: Field, number: int) -> Register:
        """Return what this edge has in one of several arrays of indices; -1 for nothing."""
        return self.array_in(field, number)[self.array_of(Field.EDGE_ORDER)[self.edge]]

    # Expressions.

    def element(self, expression: Expression, j: Register) -> Register:
        """Return element j of an expression."""
        match expression:
            case Number():
                return self.numbers[expression.value]
            case Constant(value=int(value)):
                return self.value(value)
            case Constant():
                return self.const(expression.value)
            case ReadElement(index=index):
                at, start = self._index(index, j), self.start(expression.place)
                if not index.terms:
                    return start[at]
                first, total = (
                    start + (at * index.stride + index.start),
                    self.variable(self.const(0.0)),
                )
                with self.loop(0, index.terms) as term:
                    total[0] = self.math.add(total[0], first[term * index.step])
                return total[0]
            case Picked():
                at = self.most(self.given(Field.INTS, expression.pull), 0)
                return self.start(expression.row)[at]
            case Leaf():
                return self._leaf(expression, j)
            case Apply():
                operands = enumerate(expression.operands)
                names = {f"x{k}": self.element(x, j) for k, x in operands}
                if expression.draw is not None:
                    names["draw"] = self._drawn(expression.draw, self._index(expression.index, j))
                return translate(expression.expression, names, self.math)

    def _index(self, index: Index, j: Register) -> Register:
        if not index.repeats:
            return j + index.shift if index.moves else self.value(index.shift)
        if self.nested is not None:
            outer, inner = self.nested
            ((_, each, size),) = index.repeats
            return (outer % size if each > 1 else inner) + index.shift
        for first, each, size in index.repeats:
            j = (j + first) // each % size
        return j + index.shift

    def _drawn(self, wanted: RandomDraw, j: Register) -> Register:
        """Return the factor of dropout: 0, or what keeps the mean; or a number between 0 and 1."""
        field = Field.USER_EDGE if wanted.edges else Field.USER_VERTEX
        counter = self._counter(field, wanted.by)
        if wanted.edges:
            counter += self.edge - self.in_row(self.every)
        bits = draw(self, self._seed(), wanted.key, counter, j)
        if wanted.p is None:
            high = self.convert(bits >> 9, self.real)
            return translate("(high + 0.5) * 1.1920928955078125e-07", {"high": high}, self.math)
        kept = bits >= min(int(wanted.p * 2**32), 2**32 - 1)
        return self.select(kept, self.const(1.0 / (1.0 - wanted.p)), self.const(0.0))

    @once(ROW)
    def _counter(self, field: Field, by: int) -> Register:
        vertex = self.in_row(Field.ORDER) if by < 0 else self.given(Field.INTS, by)
        return self.array_of(field)[vertex]

    @once(FUNCTION)
    def _seed(self) -> Register:
        return self.context.to("u32")[2 * Field.SEED]

    # Leaves.

    def _leaf(self, leaf: Leaf, j: Register) -> Register:
        """Return an input of the function."""
        match leaf.op:
            case "integer" if leaf.edges:
                return self.given_to_edge(Field.INTS, leaf.number)
            case "integer":
                return self.given(Field.INTS, leaf.number)
            case "arange":
                index = self.convert(self._index(leaf.index, j), "i32")
                return self.convert(index, self.real)
            case "is_index":
                return self._truth(self.given(Field.INTS, leaf.number).equals(j))
            case "present" | "has_child":
                return self._truth(self.child(leaf.slot, leaf.relation) >= 0)
            case "has_integer":
                return self._truth(self.given(Field.INTS, leaf.number) >= 0)
            case "has_real":
                return self._truth(self.given(Field.FLOAT_INDEX, leaf.number) >= 0)
            case "degree":
                return self._degree(leaf.relation)
            case "loss_scale":
                return self._loss_scale()
            case "weight":
                return self.in_row(Field.WEIGHT)
            case "param":
                begin = self.param(leaf.number)
            case _:
                of_edge = leaf.slot < 0 if leaf.op == "gather" else leaf.edges
                alike = replace(leaf, index=FIRST)
                begin = self._begin(alike, scope=EDGE if of_edge else ROW)
        return begin[self._index(leaf.index, j)]

    def _truth(self, test: Register) -> Register:
        return self.select(test, self.const(1.0), self.const(0.0))

    @once(ROW)
    def _begin(self, leaf: Leaf) -> Register:
        """Return the address of the row that a leaf reads, or of zeros, where there is none."""
        given = self.given_to_edge if leaf.edges else self.given
        match leaf.op:
            case "seed":
                array, vertex = self.array_in(Field.SEEDS, leaf.number), self.in_row(Field.ORDER)
                return array + vertex * leaf.size
            case "pull":
                array = self.array_in(Field.FLOATS, leaf.number)
                row = given(Field.FLOAT_INDEX, leaf.number)
            case "embed":
                row = given(Field.INTS, leaf.pull)
                array = self.param(leaf.number)
            case _:
                assert leaf.op == "gather", leaf.op
                row = self.child(leaf.slot, leaf.relation)
                array = self.tensor(leaf.number)
        self.widest = max(self.widest, leaf.size)
        found = array + row * leaf.size
        return self.select(row >= 0, found, Register("ptr", "@zeros"))

    @once(ROW)
    def _degree(self, relation: int) -> Register:
        given = [self.array_of(Field.CHILD_ROW), *self.edges_of(relation)]
        count = self.call("i64", "vrt_count_children", given)
        return self.math.as_real(self.most(count, 1))

    @once(FUNCTION)
    def _loss_scale(self) -> Register:
        return self.convert(self.context.to("double")[Field.SCALE], self.real)

    # Loops over rows.

    def _steps(self, steps: Sequence[Step | Statement]) -> None:
        for step in steps:
            self._writers[type(step)](step)

    def _loop(self, loop: RowLoop) -> None:
        self.numbers, self.chosen = {}, {}
        self.over_edges = loop.edges
        owners = self.array_of(Field.EDGE_ROW) if loop.edges else None
        with self.loop(0, self.count if owners is None else self.edges) as i:
            if owners is None:
                self.row, self.local = self._row(i), i
            else:
                self.edge = i + self.edge_lo
                self.row = owners[self.edge]
                self.local = self.row - self.lo
            with self.scope():
                self._steps(loop.body)

    def _row(self, i: Register) -> Register:
        """Return the number of row i of the launch."""
        after = i + self.lo
        if not self.kernel.listed:
            return after
        listed, rows = self._is_listed(), self.array_of(Field.ROWS)
        at = self.select(listed, rows + (i + self.list_from), NONE)
        return self.select(listed, at[0], after)

    @once(FUNCTION)
    def _is_listed(self) -> Register:
        return self.lo < 0

    def _elements(
        self, to: ValuePlace, spans: Spans, value: Callable[[Register], Register]
    ) -> None:
        start = self.start(to)
        for span in spans:
            with self.loop(*self.bounds(span), independent=True) as j:
                start[j] = value(j)

    def _fill(self, fill: Fill) -> None:
        if isinstance(fill.value, ReadElement) and fill.value.index.step > 1 and fill.child < 0:
            self._add_rows(fill, fill.value)
            return
        read = (e.index for e in expressions_in(fill.value) if isinstance(e, ReadElement | Leaf))
        maps = {(len(x.repeats), *x.repeats[0]) for x in read if x.repeats}
        rows = {each if each > 1 else size for _, _, each, size in maps}
        plain = all((count, first) == (1, 0) for count, first, _, _ in maps) and fill.child < 0
        if len(rows) == 1 and plain and fill.spans == ((0, fill.to.size),):
            (row,) = rows
            if fill.to.size % row == 0:
                self._fill_rows(fill, row)
                return

        def value(j: Register) -> Register:
            return self.math.as_real(self.element(fill.value, j))

        if fill.child < 0:
            self._elements(fill.to, fill.spans, value)
            return
        with self.when(self.child(fill.child) >= 0):
            self._elements(fill.to, fill.spans, value)

    def _add_rows(self, fill: Fill, read: ReadElement) -> None:
        """Add up rows that lie one after the other, whole rows at a time."""
        to, index, source = self.start(fill.to), read.index, self.start(read.place)
        first = replace(index, terms=0)

        def term(j: Register, row: Register) -> Register:
            return source[self._index(first, j) + (row * index.step + index.start)]

        self._elements(fill.to, fill.spans, lambda j: self.const(0.0))
        with self.loop(0, index.terms) as row:
            self._elements(fill.to, fill.spans, lambda j: to[j] + term(j, row))

    def _fill_rows(self, fill: Fill, size: int) -> None:
        """Fill rows of what is repeated, without a division for each element."""
        start = self.start(fill.to)
        with self.loop(0, fill.to.size // size) as outer, self.loop(0, size, True) as inner:
            j = outer * size + inner
            self.nested = outer, inner
            start[j] = self.math.as_real(self.element(fill.value, j))
            self.nested = None

    def _compute(self, statement: Compute) -> None:
        found = self.element(statement.value, self.value(0))
        self.numbers[statement.number] = self.math.as_real(found)

    def _reduce(self, statement: Reduce) -> None:
        source = statement.source
        start = self.start(source)

        def over(initial: Register, combine: Callable[[Register, Register], Register]) -> Register:
            total = self.variable(initial)
            with self.loop(0, source.size) as j:
                x = start[j]
                total[0] = combine(total[0], x)
            return total[0]

        if statement.how == "reduce_sum":
            found = over(self.const(0.0), self.math.add)
        else:
            found = top = over(start[0], self.math.larger)
        if statement.how == "logsumexp":
            shift = translate("top if top - top == 0.0 else 0.0", {"top": top}, self.math)

            def exponential(x: Register) -> Register:
                return self.math.call("exp", [x - shift])

            total = over(self.const(0.0), lambda sum, x: self.math.add(sum, exponential(x)))
            found = shift + self.math.call("log", [total])
        self.numbers[statement.number] = found

    # Sums over edges.

    def _choose(self, choose: Choose) -> None:
        first, end = self._parents(choose.source)
        count = end - first
        to = self.variable(self.array_of(Field.ARENA))  # the row of zeros
        with self.when(count.equals(1)):
            edge = self.array_of(Field.PARENT_EDGE)[first]
            to[0] = self.tensor(choose.source.tensor) + edge * choose.size
        with self.when(count > 1):
            self._sum_edges(choose.several)
            to[0] = self.start(choose.several.to)
        self.chosen[choose.number] = to[0].to(self.real)

    def _sum_before(self, sums: SumEdges, key: Expression, after: bool) -> None:
        """Add up what the edges before each edge have, or those after it."""
        assert sums.total is not None
        own, to, kept = self.edge, self.start(sums.to), self.start(sums.total)
        (value,) = sums.sources
        assert not isinstance(value, FromParents)
        self._elements(sums.to, sums.spans, lambda j: self.const(0.0))
        self._elements(sums.total, sums.spans, lambda j: self.math.as_real(self.element(key, j)))
        with self.loop(*self.edges_of(sums.relation)) as edge, self.scope():
            self.edge = edge
            with self.when(self.child(-1, sums.relation) >= 0):
                for span in sums.spans:
                    with self.loop(*self.bounds(span), independent=True) as j:
                        x, mine = self.math.as_real(self.element(key, j)), kept[j]
                        first = mine > x if after else x > mine
                        tied = x.equals(mine) & (edge > own if after else edge < own)
                        new = self.math.as_real(self.element(value, j))
                        to[j] = to[j] + self.select(first | tied, new, self.const(0.0))
        self.edge = own

    def _sum_edges(self, sums: SumEdges) -> None:
        if sums.order is not None:
            self._sum_before(sums, *sums.order)
            return
        added = self.variable(self.value(0))
        for source in sums.sources:
            if isinstance(source, FromParents):
                edges, base = self.array_of(Field.PARENT_EDGE), self.tensor(source.tensor)
                with self.loop(*self._parents(source)) as p:
                    start = base + edges[p] * sums.to.size
                    self._take(sums, added, partial(self.load, start))
                continue
            with self.loop(*self.edges_of(sums.relation)) as edge, self.scope():
                self.edge = edge
                with self.when(self.child(-1, sums.relation) >= 0):
                    self._take(sums, added, partial(self.element, source))
        count = added[0]
        if sums.total is not None:
            with self.when(count >= ROWS_A_SUM):
                rest = self._in_sum(count).differs(0)
                self._add(sums, sums.to, sums.total, rest)
        with self.when(count.equals(0)):
            self._elements(sums.to, sums.spans, lambda j: self.const(0.0))

    def _in_sum(self, count: Register) -> Register:
        return count & (ROWS_A_SUM - 1)

    def _parents(self, source: FromParents) -> tuple[Register, Register]:
        """Return the first and the end of a row's parents, among the edges to parents."""
        ptr = self.array_of(Field.PARENT_PTR)
        first = ptr[self.row]
        end = ptr[self.row + 1]
        if not source.parents:
            return first, end
        edges = self.array_of(Field.PARENT_EDGE)
        above = self.array_of(Field.ABOVE_EDGE)[source.layer]
        middle = self.variable(first)  # those of the own layer come first
        with self.loop(first, end) as p, self.when(edges[p] < above):
            middle[0] = p + 1
        found = middle[0]
        return (found, end) if source.parents == ABOVE else (first, found)

    def _take(self, sums: SumEdges, added: Register, new: Callable[[Register], Register]) -> None:
        """Add a row: the first of a sum is copied."""
        count = added[0]
        fresh = count if sums.total is None else self._in_sum(count)
        is_first = fresh.equals(0)
        start = self.start(sums.to)

        def both(j: Register) -> Register:
            old, x = start[j], new(j)
            return self.math.larger(old, x) if sums.total is None else old + x

        with self.when(is_first):
            self._elements(sums.to, sums.spans, new)
        with self.when(fresh.differs(0)):
            self._elements(sums.to, sums.spans, both)
        count += 1
        added[0] = count
        if sums.total is not None:
            with self.when(self._in_sum(count).equals(0)):
                self._add(sums, sums.total, sums.to, count.differs(ROWS_A_SUM))

    def _add(self, sums: SumEdges, to: ValuePlace, source: ValuePlace, more: Register) -> None:
        """Add a row to another; where `more` does not hold, copy it there."""
        at, new = self.start(to), self.start(source)

        def value(j: Register) -> Register:
            x = new[j]
            return self.select(more, at[j] + x, x)

        self._elements(to, sums.spans, value)

    # Sums over rows.

    def _sum_rows(self, sums: SumRows) -> None:
        first, end = (x * sums.each for x in self.bounds(sums.span))
        total = self.start(sums.total)
        edges = self.over_edges
        number = self.edge - self.edge_lo if edges else self.local
        place = self._in_sum(number)
        with self.when(place.equals(0)), self.loop(first, end, independent=True) as j:
            total[j] = self.const(0.0)
        with self.loop(first, end, independent=True) as j:
            new = self.math.as_real(self.element(sums.value, j))
            total[j] = total[j] + new
        full = place.equals(ROWS_A_SUM - 1)
        last = (number + 1).equals(self.edges if edges else self.count)
        gradient = self.param(sums.param, Field.GRADIENTS)
        with self.when(full | last), self.loop(first, end, independent=True) as j:
            new = total[j]
            gradient[j] = gradient[j] + new

    # All rows at once.

    def _packed(self, operand: Operand, is_result: bool = False) -> Register:
        """Return the address of contiguous rows: of a copy, where a launch has a list."""
        place = operand.place
        first = self.base(place)
        if place.memory != Memory.TEMPORARY:
            first += (self.lo if place.rows == PlaceRows.ROW else self.edge_lo) * place.step
        if operand.packed is None:
            return first
        listed = self._is_listed()
        packed = self.temporary(operand.packed.number)
        if not is_result:
            self._copy("vrt_pack", operand, packed, listed)
        return self.select(listed, packed, first)

    def _copy(self, function: str, operand: Operand, packed: Register, listed: Register) -> None:
        place = operand.place
        base, rows = self.base(place), self.array_of(Field.ROWS)
        with self.when(listed):
            self.do(function, [base, place.step, rows, self.list_from, self.count, packed])

    def _product(self, product: MatrixProduct) -> None:
        x, y = self._packed(product.x), self._packed(product.y, is_result=True)
        rows = (self.edges if product.edges else self.count) * product.each
        function, limits = "vrt_product_transposed", [product.tiled]
        if not product.transposed:
            function, limits = "vrt_product", [product.tiled, product.strips]
        weight = self.param(product.param)
        for span in product.spans:
            sizes = rows, product.m, product.n, *self.bounds(span)
            self.do(function, [weight, x, y, *sizes, *limits])
        if product.y.packed is not None:
            listed = self._is_listed()
            self._copy("vrt_unpack", product.y, self.temporary(product.y.packed.number), listed)

    def _outer(self, outer: Outer) -> None:
        d, x = self._packed(outer.d), self._packed(outer.x)
        rows = (self.edges if outer.edges else self.count) * outer.each
        gradient = self.param(outer.param, Field.GRADIENTS)
        sizes = rows, outer.m, outer.n, *self.bounds(outer.span)
        self.do("vrt_outer", [gradient, d, x, *sizes, outer.tiled])

    def _add_lookups(self, step: AddLookups) -> None:
        place, array = step.source, self.array_of
        order, first, count = Field.ORDER, self.lo, self.count
        if step.edges:
            order, first, count = Field.EDGE_ORDER, self.edge_lo, self.edges
        arguments: list[Register | int] = [
            self.param(step.param, Field.GRADIENTS), step.size, *self.bounds(step.words),
            *self.bounds(step.columns), self.base(place) + place.start, place.step,
            self.array_in(Field.INTS, step.pull), array(order), first, array(Field.ROWS),
            self.list_from, count,
            self.const(place.rows in (PlaceRows.LOCAL, PlaceRows.LOCAL_EDGE), "i1"),
        ]  # fmt: skip
        self.do("vrt_add_lookups", arguments)
