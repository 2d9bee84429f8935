"""Render a kernel as LLVM: one function, which runs it for the rows of a launch."""

from __future__ import annotations

from collections.abc import Callable

from vertexrt.ir.expressions import translate
from vertexrt.ir.program import ABOVE
from vertexrt.kernels.cpu.context import Field
from vertexrt.kernels.cpu.expressions import (
    ARGUMENTS,
    AT,
    COUNT,
    EDGE_LO,
    EDGES,
    LO,
    SEGMENT,
    Expressions,
)
from vertexrt.lower.expressions import Expression
from vertexrt.lower.kernel import (
    ROWS_A_SUM,
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
    Step,
    SumEdges,
    SumRows,
)
from vertexrt.lower.places import Rows, Spans, ValuePlace
from vertexrt.native.code import Code, Register, int64, module_of


def render(kernel: KernelIR, real: str, name: str) -> str:
    """Return the module of a kernel.

    Args:
        real: `float` or `double`.
        name: of its function.
    """
    code = Code(name, ARGUMENTS, real)
    rendered = _Rendered(code, kernel)
    rendered.run()
    zeros = f"[{max(rendered.values.widest, 1)} x {real}] zeroinitializer, align 64"
    none = "@none = internal constant i32 -1"
    return module_of([code], f"@zeros = internal constant {zeros}", none)


class _Rendered:
    """The function of one kernel under construction."""

    def __init__(self, code: Code, kernel: KernelIR) -> None:
        self.code, self.kernel = code, kernel
        self.values = Expressions(code, kernel)
        self.math = self.values.math
        self.over_edges = False
        self._writers: dict[type, Callable[..., None]] = {
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
        """Append all segments."""
        for number, steps in enumerate(self.kernel.segments):
            if len(self.kernel.segments) == 1:
                self._steps(steps)
            else:
                with self.code.when(self.code.compare("eq", SEGMENT, number)):
                    self._steps(steps)

    def _steps(self, steps: tuple[Step, ...]) -> None:
        for step in steps:
            if isinstance(step, RowLoop):
                self._loop(step)
            else:
                self._writers[type(step)](step)

    # Loops over rows.

    def _loop(self, loop: RowLoop) -> None:
        code, values = self.code, self.values
        values.numbers, values.chosen = {}, {}
        self.over_edges = loop.edges
        owners = values.array(Field.EDGE_ROW) if loop.edges else None
        with code.loop(0, COUNT if owners is None else EDGES) as i:
            if owners is None:
                values.row, values.local = self._row(i), i
            else:
                values.edge = code.add(i, EDGE_LO)
                values.row = code.load_index(owners, values.edge)
                values.local = code.integer("sub", values.row, LO)
            with code.scope():
                for statement in loop.body:
                    self._writers[type(statement)](statement)

    def _row(self, i: Register) -> Register:
        """Return the number of row i of the launch."""
        code = self.code
        after = code.add(i, LO)
        if not self.kernel.listed:
            return after
        listed, rows = self._is_listed(), self.values.array(Field.ROWS)
        at = code.select(listed, code.at(rows, code.add(i, AT), "i32"), Register("ptr", "@none"))
        return code.select(listed, code.load_index(at), after)

    def _is_listed(self) -> Register:
        return self.code.once(0, "listed", lambda: self.code.compare("slt", LO, 0))

    def _elements(
        self, to: ValuePlace, spans: Spans, value: Callable[[Register], Register]
    ) -> None:
        start = self.values.start(to)
        for span in spans:
            first, end = self.values.bounds(span)
            with self.code.loop(first, end, independent=True) as j:
                self.code.store(value(j), start, j, independent=True)

    def _fill(self, fill: Fill) -> None:
        def value(j: Register) -> Register:
            return self.math.as_real(self.values.element(fill.value, j, independent=True))

        if fill.child < 0:
            self._elements(fill.to, fill.spans, value)
            return
        there = self.values.is_there(self.values.child(fill.child))
        with self.code.when(there):
            self._elements(fill.to, fill.spans, value)

    def _compute(self, statement: Compute) -> None:
        found = self.math.as_real(self.values.element(statement.value, int64(0)))
        self.values.numbers[statement.number] = found

    def _reduce(self, statement: Reduce) -> None:
        code, source = self.code, statement.source
        start = self.values.start(source)

        def over(initial: Register, combine: Callable[[Register, Register], Register]) -> Register:
            total = code.variable(initial)
            with code.loop(0, source.size) as j:
                x = code.load(code.real, start, j)
                code.store(combine(code.load(code.real, total), x), total)
            return code.load(code.real, total)

        if statement.how == "reduce_sum":
            found = over(code.const(0.0), self.math.add)
        else:
            found = top = over(code.load(code.real, start), self.math.larger)
        if statement.how == "logsumexp":
            shift = translate("top if top - top == 0.0 else 0.0", {"top": top}, self.math)

            def exponential(x: Register) -> Register:
                return self.math.call("exp", [self.math.binary("-", x, shift)])

            total = over(code.const(0.0), lambda sum, x: self.math.add(sum, exponential(x)))
            found = self.math.binary("+", shift, self.math.call("log", [total]))
        self.values.numbers[statement.number] = found

    # Sums over edges.

    def _choose(self, choose: Choose) -> None:
        code, values = self.code, self.values
        first, end = self._parents(choose.source)
        count = code.integer("sub", end, first)
        to = code.variable(values.array(Field.ARENA))  # the row of zeros
        with code.when(code.compare("eq", count, 1)):
            edge = code.load_index(values.array(Field.PARENT_EDGE), first)
            tensor = values.tensor(choose.source.tensor)
            code.store(code.at(tensor, code.mul(edge, choose.size), code.real), to)
        with code.when(code.compare("sgt", count, 1)):
            self._sum_edges(choose.several)
            code.store(values.start(choose.several.to), to)
        values.chosen[choose.number] = code.load("ptr", to)

    def _sum_edges(self, sums: SumEdges) -> None:
        code = self.code
        added = code.variable(int64(0))
        for source in sums.sources:
            if isinstance(source, FromParents):
                self._over_parents(sums, source, added)
            else:
                self._over_children(sums, source, added)
        count = code.load("i64", added)
        if sums.total is not None:
            with code.when(code.compare("sge", count, ROWS_A_SUM)):
                rest = code.compare("ne", self._in_sum(count), 0)
                self._add(sums, sums.to, sums.total, rest)
        with code.when(code.compare("eq", count, 0)):
            self._elements(sums.to, sums.spans, lambda j: code.const(0.0))

    def _in_sum(self, count: Register) -> Register:
        return self.code.integer("and", count, ROWS_A_SUM - 1)

    def _parents(self, source: FromParents) -> tuple[Register, Register]:
        """Return the first and the end of a row's parents, among the edges to parents."""
        code, values = self.code, self.values
        ptr = values.array(Field.PARENT_PTR)
        first = code.load_index(ptr, values.row)
        end = code.load_index(ptr, code.add(values.row, 1))
        if not source.parents:
            return first, end
        edges = values.array(Field.PARENT_EDGE)
        above = code.load_index(values.array(Field.ABOVE_EDGE), source.layer)
        middle = code.variable(first)  # those of the own layer come first
        with code.loop(first, end) as p:
            is_own = code.compare("slt", code.load_index(edges, p), above)
            with code.when(is_own):
                code.store(code.add(p, 1), middle)
        found = code.load("i64", middle)
        return (found, end) if source.parents == ABOVE else (first, found)

    def _over_parents(self, sums: SumEdges, source: FromParents, added: Register) -> None:
        code, values = self.code, self.values
        edges, base = values.array(Field.PARENT_EDGE), values.tensor(source.tensor)
        with code.loop(*self._parents(source)) as p:
            start = code.at(base, code.mul(code.load_index(edges, p), sums.to.size), code.real)
            self._take(sums, added, lambda j: code.load(code.real, start, j, independent=True))

    def _over_children(self, sums: SumEdges, source: Expression, added: Register) -> None:
        code, values = self.code, self.values
        with code.loop(*values.edges_of(sums.relation)) as e, code.scope():
            values.edge = e
            with code.when(values.is_there(values.child(-1, sums.relation))):
                self._take(sums, added, lambda j: values.element(source, j, independent=True))

    def _take(self, sums: SumEdges, added: Register, new: Callable[[Register], Register]) -> None:
        """Add a row: the first of a sum is copied."""
        code, real = self.code, self.code.real
        count = code.load("i64", added)
        fresh = count if sums.total is None else self._in_sum(count)
        is_first = code.compare("eq", fresh, 0)
        start = self.values.start(sums.to)

        def both(j: Register) -> Register:
            old = code.load(real, start, j, independent=True)
            combine = self.math.larger if sums.total is None else self._plain_sum
            return combine(old, new(j))

        with code.when(is_first):
            self._elements(sums.to, sums.spans, new)
        with code.when(code.compare("ne", fresh, 0)):
            self._elements(sums.to, sums.spans, both)
        count = code.add(count, 1)
        code.store(count, added)
        if sums.total is not None:
            with code.when(code.compare("eq", self._in_sum(count), 0)):
                self._add(sums, sums.total, sums.to, code.compare("ne", count, ROWS_A_SUM))

    def _plain_sum(self, a: Register, b: Register) -> Register:
        return self.math.binary("+", a, b)

    def _add(self, sums: SumEdges, to: ValuePlace, source: ValuePlace, more: Register) -> None:
        """Add a row to another; where `more` does not hold, copy it there."""
        code, real = self.code, self.code.real
        at, new = self.values.start(to), self.values.start(source)

        def value(j: Register) -> Register:
            x = code.load(real, new, j, independent=True)
            return code.select(
                more, self._plain_sum(code.load(real, at, j, independent=True), x), x
            )

        self._elements(to, sums.spans, value)

    # Sums over rows.

    def _sum_rows(self, sums: SumRows) -> None:
        code, values = self.code, self.values
        first, end = (code.mul(x, sums.each) for x in values.bounds(sums.span))
        total = values.start(sums.total)
        edges = self.over_edges
        number = code.integer("sub", values.edge, EDGE_LO) if edges else values.local
        place = self._in_sum(number)
        with code.when(code.compare("eq", place, 0)), code.loop(first, end, independent=True) as j:
            code.store(code.const(0.0), total, j, independent=True)
        with code.loop(first, end, independent=True) as j:
            new = self.math.as_real(values.element(sums.value, j, independent=True))
            old = code.load(code.real, total, j, independent=True)
            code.store(self._plain_sum(old, new), total, j, independent=True)
        full = code.compare("eq", place, ROWS_A_SUM - 1)
        last = code.compare("eq", code.add(number, 1), EDGES if edges else COUNT)
        gradient = values.param(sums.param, Field.GRADIENTS)
        with (
            code.when(code.op("i1", f"or {full}, {last.name}")),
            code.loop(first, end, independent=True) as j,
        ):
            new = code.load(code.real, total, j, independent=True)
            old = code.load(code.real, gradient, j, independent=True)
            code.store(self._plain_sum(old, new), gradient, j, independent=True)

    # All rows at once.

    def _rows(self, edges: bool, each: int) -> Register:
        return self.code.mul(EDGES if edges else COUNT, each)

    def _packed(self, operand: Operand, is_result: bool = False) -> Register:
        """Return the address of contiguous rows: of a copy, where a launch has a list."""
        code, values, place = self.code, self.values, operand.place
        first = values.first_row(place)
        if operand.packed is None:
            return first
        listed = self._is_listed()
        packed = values.temporary(operand.packed.number)
        if not is_result:
            self._copy("vrt_pack", operand, packed, listed)
        return code.select(listed, packed, first)

    def _copy(self, function: str, operand: Operand, packed: Register, listed: Register) -> None:
        code, place = self.code, operand.place
        base, rows = self.values.base(place), self.values.array(Field.ROWS)
        with code.when(listed):
            code.do(function, [base, int64(place.step), rows, AT, COUNT, packed])

    def _product(self, product: MatrixProduct) -> None:
        code, values = self.code, self.values
        x, y = self._packed(product.x), self._packed(product.y, is_result=True)
        rows = self._rows(product.edges, product.each)
        function, limits = "vrt_product_transposed", [int64(product.tiled)]
        if not product.transposed:
            function, limits = "vrt_product", [*limits, int64(product.strips)]
        weight, m, n = values.param(product.param), int64(product.m), int64(product.n)
        for span in product.spans:
            code.do(function, [weight, x, y, rows, m, n, *values.bounds(span), *limits])
        if product.y.packed is not None:
            listed = self._is_listed()
            self._copy("vrt_unpack", product.y, values.temporary(product.y.packed.number), listed)

    def _outer(self, outer: Outer) -> None:
        values = self.values
        d, x = self._packed(outer.d), self._packed(outer.x)
        rows = self._rows(outer.edges, outer.each)
        gradient = values.param(outer.param, Field.GRADIENTS)
        m, n, tiled = int64(outer.m), int64(outer.n), int64(outer.tiled)
        self.code.do("vrt_outer", [gradient, d, x, rows, m, n, *values.bounds(outer.span), tiled])

    def _looked_up(self, edges: bool) -> list[Register]:
        """Return the launch's rows (or edges) with the places of what they look up."""
        order, array = Field.EDGE_ORDER if edges else Field.ORDER, self.values.array
        first, count = (EDGE_LO, EDGES) if edges else (LO, COUNT)
        return [array(order), first, array(Field.ROWS), AT, count]

    def _add_lookups(self, step: AddLookups) -> None:
        code, values, place = self.code, self.values, step.source
        size = int64(step.size)
        arguments = [
            values.param(step.param, Field.GRADIENTS), size, *values.bounds(step.words),
            *values.bounds(step.columns), code.at(values.base(place), place.start, code.real),
            int64(place.step), values.array_in(Field.INTS, step.pull),
            *self._looked_up(step.edges),
            Register("i1", "true" if place.rows in (Rows.LOCAL, Rows.LOCAL_EDGE) else "false"),
        ]  # fmt: skip
        code.do("vrt_add_lookups", arguments)
