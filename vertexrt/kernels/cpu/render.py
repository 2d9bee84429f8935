"""Render a kernel as LLVM: one function, which runs it for the rows of a launch.

What belongs to a row, such as where its elements lie, is made once a row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vertexrt.ir.expressions import translate
from vertexrt.ir.program import ABOVE
from vertexrt.kernels.cpu.arithmetic import Arithmetic, draw
from vertexrt.kernels.cpu.context import Field
from vertexrt.kernels.layout import PAD
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
from vertexrt.lower.places import Memory, OwnPart, PlaceRows, Span, Spans, ValuePlace
from vertexrt.native.code import Code, Register, int64, module_of

FUNCTION, ROW, EDGE = range(3)  # scopes of `Code.once`

# A task program's function; `segment`, `part` and `parts` are for processors that share it.
ARGUMENTS = [
    *(Register("i64", f"%{name}") for name in ("segment", "part", "parts")),
    *(Register("i64", f"%{name}") for name in ("n", "lo", "at", "m", "elo")),
    Register("i64", "%temporary"),
    Register("ptr", "%context"),
]
SEGMENT, PART, PARTS, COUNT, LO, AT, EDGES, EDGE_LO, TEMPORARY, CONTEXT = ARGUMENTS


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
    """

    def __init__(self, kernel: KernelIR, real: str, name: str) -> None:
        super().__init__(name, ARGUMENTS, real)
        self.kernel = kernel
        self.every = Field.EVERY_PTR if kernel.splits_edges else Field.EDGE_PTR
        self.math = Arithmetic(self)
        self.row = self.local = self.edge = int64(0)
        self.numbers: dict[int, Register] = {}
        self.chosen: dict[int, Register] = {}
        self.widest = 0
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
        for number, steps in enumerate(kernel.segments):
            if len(kernel.segments) == 1:
                self._steps(steps)
            else:
                with self.when(self.compare("eq", SEGMENT, number)):
                    self._steps(steps)

    # What is the same for a launch.

    def array_of(self, field: Field) -> Register:
        """Return the address of an array of the minibatch."""
        return self.once(FUNCTION, field, lambda: self.load("ptr", CONTEXT, int64(field)))

    def array_in(self, field: Field, number: int) -> Register:
        """Return the address of one of several arrays: of indices, a row of a matrix."""
        lists = self.array_of(field)

        def make() -> Register:
            if field in (Field.FLOATS, Field.SEEDS):
                return self.load("ptr", lists, int64(number))
            vertices = self.load("i64", CONTEXT, int64(Field.VERTICES))
            return self.at(lists, self.integer("mul", vertices, number), "i32")

        return self.once(FUNCTION, (field, number), make)

    def tensor(self, number: int) -> Register:
        """Return the address of a tensor's row 0."""
        arena, offsets = self.array_of(Field.ARENA), self.array_of(Field.OFFSETS)
        return self.once(
            FUNCTION,
            ("tensor", number),
            lambda: self.at(arena, self.load("i64", offsets, int64(number)), self.real),
        )

    def param(self, number: int, field: Field = Field.PARAMS) -> Register:
        """Return the address of a parameter, or of its gradient."""
        store, offsets = self.array_of(field), self.array_of(Field.PARAM_AT)
        return self.once(
            FUNCTION,
            (field, "param", number),
            lambda: self.at(store, self.load("i64", offsets, int64(number)), self.real),
        )

    def temporary(self, number: int) -> Register:
        """Return the address of a temporary of this launch."""
        arena, t = self.array_of(Field.ARENA), self.kernel.temporaries[number]

        def padded(count: Register) -> Register:
            return self.integer("and", self.add(count, PAD - 1), -PAD)

        def make() -> Register:
            at = self.add(TEMPORARY, t.once)
            at = self.add(at, self.mul(padded(COUNT), t.rows)) if t.rows else at
            at = self.add(at, self.mul(padded(EDGES), t.edges)) if t.edges else at
            return self.at(arena, at, self.real)

        return self.once(FUNCTION, ("temporary", number), make)

    def bounds(self, span: Span) -> tuple[Register, Register]:
        """Return the first and the end element of a span."""
        if not isinstance(span, OwnPart):
            return int64(span[0]), int64(span[1])

        def cut(part: Register) -> Register:
            whole = span.of or span.size
            at = self.integer("sdiv", self.mul(part, whole), PARTS)
            if span.of:
                at = self.least(self.most(self.add(at, -span.begin), 0), span.size)
            return self.add(at, span.start)

        def first() -> Register:
            return cut(PART)

        def end() -> Register:
            return cut(self.add(PART, 1))

        return self.once(FUNCTION, (span, 0), first), self.once(FUNCTION, (span, 1), end)

    # What belongs to a row.

    def first_row(self, place: ValuePlace) -> Register:
        """Return the address of the first row of the launch, whose rows are contiguous."""
        base = self.base(place)
        if place.memory == Memory.TEMPORARY:
            return base
        first = LO if place.rows == PlaceRows.ROW else EDGE_LO
        return self.at(base, self.mul(first, place.step), self.real)

    def base(self, place: ValuePlace) -> Register:
        """Return the address of row 0 of a place."""
        if place.memory == Memory.TENSOR:
            return self.tensor(place.number)
        return self.temporary(place.number)

    def start(self, place: ValuePlace) -> Register:
        """Return the address of the first element of a place in this row."""
        if place.memory == Memory.CHOSEN:
            return self.chosen[place.number]
        base = self.base(place)

        def make() -> Register:
            at = self.add(self.mul(self._row_of(place), place.step), place.start)
            return self.at(base, at, self.real)

        key = (place.memory, place.number, place.rows, place.slot, place.start, place.step)
        if place.rows == PlaceRows.ONE:
            return self.at(base, place.start, self.real)
        of_edge = place.rows in (PlaceRows.EDGE, PlaceRows.LOCAL_EDGE)
        return self.once(EDGE if of_edge else ROW, key, make)

    def _row_of(self, place: ValuePlace) -> Register:
        """Return the number of the row that a place has now."""
        match place.rows:
            case PlaceRows.ROW:
                return self.row
            case PlaceRows.LOCAL:
                return self.local
            case PlaceRows.EDGE:
                return self.edge
            case PlaceRows.LOCAL_EDGE:
                return self.integer("sub", self.edge, EDGE_LO)
        return self.add(self.first_edge(Field.EDGE_PTR), place.slot)

    def per_row(self, key: Any, field: Field, index: Register, type: str = "i64") -> Register:
        """Return an element of an array, loaded once a row."""
        array = self.array_of(field)
        load = self.load_index if type == "i64" else lambda a, i: self.load(type, a, i)
        return self.once(ROW, key, lambda: load(array, index))

    def first_edge(self, field: Field) -> Register:
        """Return the row's first edge, of those that an array numbers."""
        return self.per_row(("first edge", field), field, self.row)

    def end_edge(self, field: Field) -> Register:
        """Return the edge after the row's last, of those that an array numbers."""
        array, key = self.array_of(field), ("end edge", field)
        return self.once(ROW, key, lambda: self.load_index(array, self.add(self.row, 1)))

    def edges_of(self, relation: int) -> tuple[Register, Register]:
        """Return the row's first and end edge in a relation that is read whole."""
        whole = self.kernel.relations
        if whole == 1:
            return self.first_edge(self.every), self.end_edge(self.every)
        array = self.array_of(Field.RELATION_PTR)

        def begin(of: int) -> Register:
            def make() -> Register:
                return self.load_index(array, self.add(self.mul(self.row, whole), of))

            return self.once(ROW, ("relation", of), make)

        return begin(relation), begin(relation + 1)

    def vertex(self) -> Register:
        """Return the user's number of the vertex."""
        return self.per_row("vertex", Field.ORDER, self.row)

    def child(self, slot: int, relation: int = 0) -> Register:
        """Return the row of the child in a slot, or of the edge's; -1 where there is none."""
        children, edge = self.array_of(Field.CHILD_ROW), self.edge
        if slot < 0 and self.kernel.relations == 1:
            return self.once(EDGE, "child", lambda: self.load_index(children, edge))
        if slot < 0:
            first, end = self.edges_of(relation)
        else:
            first, end = self.first_edge(Field.EDGE_PTR), self.end_edge(Field.EDGE_PTR)

        def make() -> Register:
            at = edge if slot < 0 else self.add(first, slot)
            none, found = Register("ptr", "@none"), self.at(children, at, "i32")
            found = self.select(self.compare("slt", at, end), found, none)
            if slot < 0:
                found = self.select(self.compare("sge", at, first), found, none)
            return self.load_index(found)

        return self.once(EDGE if slot < 0 else ROW, ("child", slot, relation), make)

    def given(self, field: Field, number: int) -> Register:
        """Return what this vertex has in one of several arrays of indices; -1 for nothing."""
        array, vertex = self.array_in(field, number), self.vertex()
        return self.once(ROW, ("given", field, number), lambda: self.load_index(array, vertex))

    def given_to_edge(self, field: Field, number: int) -> Register:
        """Return what this edge has in one of several arrays of indices; -1 for nothing."""
        array, order, edge = (
            self.array_in(field, number),
            self.array_of(Field.EDGE_ORDER),
            self.edge,
        )

        def make() -> Register:
            return self.load_index(array, self.load_index(order, edge))

        return self.once(EDGE, ("given", field, number), make)

    def is_there(self, index: Register) -> Register:
        """Return the truth of an index being one."""
        return self.compare("sge", index, 0)

    # Expressions.

    def element(self, expression: Expression, j: Register, independent: bool = False) -> Register:
        """Return element j of an expression.

        Args:
            independent: see `Code.load`.
        """
        match expression:
            case Number():
                return self.numbers[expression.value]
            case Constant(value=int(value)):
                return int64(value)
            case Constant():
                return self.const(expression.value)
            case ReadElement():
                at = self._index(expression.index, j)
                return self.load(self.real, self.start(expression.place), at, independent)
            case Picked():
                at = self.most(self.given(Field.INTS, expression.pull), 0)
                return self.load(self.real, self.start(expression.row), at)
            case Leaf():
                return self._leaf(expression, j, independent)
            case Apply():
                return self._apply(expression, j, independent)

    def _index(self, index: Index, j: Register) -> Register:
        return self.add(j, index.shift) if index.moves else int64(index.shift)

    def _apply(self, apply: Apply, j: Register, independent: bool) -> Register:
        names = {f"x{k}": self.element(x, j, independent) for k, x in enumerate(apply.operands)}
        if apply.draw is not None:
            names["draw"] = self._drawn(apply.draw, self._index(apply.index, j))
        return translate(apply.expression, names, self.math)

    def _drawn(self, wanted: RandomDraw, j: Register) -> Register:
        """Return the factor of dropout: 0, or what keeps the mean; or a number between 0 and 1."""
        vertex = self.vertex() if wanted.by < 0 else self.given(Field.INTS, wanted.by)
        field = Field.USER_EDGE if wanted.edges else Field.USER_VERTEX
        array = self.array_of(field)
        counter = self.once(
            ROW, ("counter", field, wanted.by), lambda: self.load_index(array, vertex)
        )
        if wanted.edges:
            counter = self.add(counter, self.integer("sub", self.edge, self.first_edge(self.every)))
        seed = self.once(FUNCTION, "seed", lambda: self.load("i32", CONTEXT, int64(2 * Field.SEED)))
        bits = draw(self, seed, wanted.key, counter, j)
        if wanted.p is None:
            high = self.op(self.real, f"uitofp {self.integer('lshr', bits, 9)} to {self.real}")
            return translate("(high + 0.5) * 1.1920928955078125e-07", {"high": high}, self.math)
        threshold = min(int(wanted.p * 2**32), 2**32 - 1)
        kept = self.compare("uge", bits, threshold)
        return self.select(kept, self.const(1.0 / (1.0 - wanted.p)), self.const(0.0))

    # Leaves.

    def _leaf(self, leaf: Leaf, j: Register, independent: bool) -> Register:
        """Return an input of the function."""
        match leaf.op:
            case "integer" if leaf.edges:
                return self.given_to_edge(Field.INTS, leaf.number)
            case "integer":
                return self.given(Field.INTS, leaf.number)
            case "arange":
                index = self.op("i32", f"trunc {self._index(leaf.index, j)} to i32")
                return self.op(self.real, f"sitofp {index} to {self.real}")
            case "is_index":
                return self._truth(self.compare("eq", self.given(Field.INTS, leaf.number), j))
            case "present" | "has_child" | "has_integer" | "has_real":
                return self._truth(self.is_there(self._asked(leaf)))
            case "degree":
                return self._degree(leaf.relation)
            case "loss_scale":
                return self._loss_scale()
            case "weight":
                return self.per_row("weight", Field.WEIGHT, self.row, self.real)
        return self.load(self.real, self._begin(leaf), self._index(leaf.index, j), independent)

    def _truth(self, test: Register) -> Register:
        return self.select(test, self.const(1.0), self.const(0.0))

    def _asked(self, leaf: Leaf) -> Register:
        """Return what is not negative where a child, or a value of a pull, is there."""
        if leaf.op in ("present", "has_child"):
            return self.child(leaf.slot, leaf.relation)
        return self.given(
            Field.INTS if leaf.op == "has_integer" else Field.FLOAT_INDEX, leaf.number
        )

    def _begin(self, leaf: Leaf) -> Register:
        """Return the address of the row that a leaf reads, or of zeros, where there is none."""
        key = (leaf.op, leaf.number)
        scope, given = (EDGE, self.given_to_edge) if leaf.edges else (ROW, self.given)
        match leaf.op:
            case "param":
                return self.param(leaf.number)
            case "seed":
                array, vertex = self.array_in(Field.SEEDS, leaf.number), self.vertex()
                return self.once(
                    ROW, key, lambda: self.at(array, self.mul(vertex, leaf.size), self.real)
                )
            case "pull":
                array = self.array_in(Field.FLOATS, leaf.number)
                row = given(Field.FLOAT_INDEX, leaf.number)
                return self._row_or_zeros(key, array, row, leaf.size, scope)
            case "embed":
                row = given(Field.INTS, leaf.pull)
                array = self.param(leaf.number)
                return self._row_or_zeros((*key, leaf.pull), array, row, leaf.size, scope)
        assert leaf.op == "gather", leaf.op
        scope, row = EDGE if leaf.slot < 0 else ROW, self.child(leaf.slot, leaf.relation)
        array = self.tensor(leaf.number)
        return self._row_or_zeros((*key, leaf.slot, leaf.relation), array, row, leaf.size, scope)

    def _row_or_zeros(
        self, key: Any, array: Register, row: Register, size: int, scope: int
    ) -> Register:
        zeros = Register("ptr", "@zeros")
        self.widest = max(self.widest, size)

        def make() -> Register:
            found = self.at(array, self.mul(row, size), self.real)
            return self.select(self.is_there(row), found, zeros)

        return self.once(scope, key, make)

    def _degree(self, relation: int) -> Register:
        children = self.array_of(Field.CHILD_ROW)
        first, end = self.edges_of(relation)

        def make() -> Register:
            count = self.call("i64", "vrt_count_children", [children, first, end])
            return self.math.as_real(self.most(count, 1))

        return self.once(ROW, ("degree", relation), make)

    def _loss_scale(self) -> Register:

        def make() -> Register:
            scale = self.load("double", CONTEXT, int64(Field.SCALE))
            return scale if self.real == "double" else self.op("float", f"fptrunc {scale} to float")

        return self.once(FUNCTION, "scale", make)

    # Steps.

    def _steps(self, steps: tuple[Step, ...]) -> None:
        for step in steps:
            if isinstance(step, RowLoop):
                self._loop(step)
            else:
                self._writers[type(step)](step)

    # Loops over rows.

    def _loop(self, loop: RowLoop) -> None:
        self.numbers, self.chosen = {}, {}
        self.over_edges = loop.edges
        owners = self.array_of(Field.EDGE_ROW) if loop.edges else None
        with self.loop(0, COUNT if owners is None else EDGES) as i:
            if owners is None:
                self.row, self.local = self._row(i), i
            else:
                self.edge = self.add(i, EDGE_LO)
                self.row = self.load_index(owners, self.edge)
                self.local = self.integer("sub", self.row, LO)
            with self.scope():
                for statement in loop.body:
                    self._writers[type(statement)](statement)

    def _row(self, i: Register) -> Register:
        """Return the number of row i of the launch."""
        after = self.add(i, LO)
        if not self.kernel.listed:
            return after
        listed, rows = self._is_listed(), self.array_of(Field.ROWS)
        at = self.select(listed, self.at(rows, self.add(i, AT), "i32"), Register("ptr", "@none"))
        return self.select(listed, self.load_index(at), after)

    def _is_listed(self) -> Register:
        return self.once(0, "listed", lambda: self.compare("slt", LO, 0))

    def _elements(
        self, to: ValuePlace, spans: Spans, value: Callable[[Register], Register]
    ) -> None:
        start = self.start(to)
        for span in spans:
            first, end = self.bounds(span)
            with self.loop(first, end, independent=True) as j:
                self.store(value(j), start, j, independent=True)

    def _fill(self, fill: Fill) -> None:
        def value(j: Register) -> Register:
            return self.math.as_real(self.element(fill.value, j, independent=True))

        if fill.child < 0:
            self._elements(fill.to, fill.spans, value)
            return
        there = self.is_there(self.child(fill.child))
        with self.when(there):
            self._elements(fill.to, fill.spans, value)

    def _compute(self, statement: Compute) -> None:
        found = self.math.as_real(self.element(statement.value, int64(0)))
        self.numbers[statement.number] = found

    def _reduce(self, statement: Reduce) -> None:
        source = statement.source
        start = self.start(source)

        def over(initial: Register, combine: Callable[[Register, Register], Register]) -> Register:
            total = self.variable(initial)
            with self.loop(0, source.size) as j:
                x = self.load(self.real, start, j)
                self.store(combine(self.load(self.real, total), x), total)
            return self.load(self.real, total)

        if statement.how == "reduce_sum":
            found = over(self.const(0.0), self.math.add)
        else:
            found = top = over(self.load(self.real, start), self.math.larger)
        if statement.how == "logsumexp":
            shift = translate("top if top - top == 0.0 else 0.0", {"top": top}, self.math)

            def exponential(x: Register) -> Register:
                return self.math.call("exp", [self.math.binary("-", x, shift)])

            total = over(self.const(0.0), lambda sum, x: self.math.add(sum, exponential(x)))
            found = self.math.binary("+", shift, self.math.call("log", [total]))
        self.numbers[statement.number] = found

    # Sums over edges.

    def _choose(self, choose: Choose) -> None:
        first, end = self._parents(choose.source)
        count = self.integer("sub", end, first)
        to = self.variable(self.array_of(Field.ARENA))  # the row of zeros
        with self.when(self.compare("eq", count, 1)):
            edge = self.load_index(self.array_of(Field.PARENT_EDGE), first)
            tensor = self.tensor(choose.source.tensor)
            self.store(self.at(tensor, self.mul(edge, choose.size), self.real), to)
        with self.when(self.compare("sgt", count, 1)):
            self._sum_edges(choose.several)
            self.store(self.start(choose.several.to), to)
        self.chosen[choose.number] = self.load("ptr", to)

    def _sum_edges(self, sums: SumEdges) -> None:
        added = self.variable(int64(0))
        for source in sums.sources:
            if isinstance(source, FromParents):
                self._over_parents(sums, source, added)
            else:
                self._over_children(sums, source, added)
        count = self.load("i64", added)
        if sums.total is not None:
            with self.when(self.compare("sge", count, ROWS_A_SUM)):
                rest = self.compare("ne", self._in_sum(count), 0)
                self._add(sums, sums.to, sums.total, rest)
        with self.when(self.compare("eq", count, 0)):
            self._elements(sums.to, sums.spans, lambda j: self.const(0.0))

    def _in_sum(self, count: Register) -> Register:
        return self.integer("and", count, ROWS_A_SUM - 1)

    def _parents(self, source: FromParents) -> tuple[Register, Register]:
        """Return the first and the end of a row's parents, among the edges to parents."""
        ptr = self.array_of(Field.PARENT_PTR)
        first = self.load_index(ptr, self.row)
        end = self.load_index(ptr, self.add(self.row, 1))
        if not source.parents:
            return first, end
        edges = self.array_of(Field.PARENT_EDGE)
        above = self.load_index(self.array_of(Field.ABOVE_EDGE), source.layer)
        middle = self.variable(first)  # those of the own layer come first
        with self.loop(first, end) as p:
            is_own = self.compare("slt", self.load_index(edges, p), above)
            with self.when(is_own):
                self.store(self.add(p, 1), middle)
        found = self.load("i64", middle)
        return (found, end) if source.parents == ABOVE else (first, found)

    def _over_parents(self, sums: SumEdges, source: FromParents, added: Register) -> None:
        edges, base = self.array_of(Field.PARENT_EDGE), self.tensor(source.tensor)
        with self.loop(*self._parents(source)) as p:
            start = self.at(base, self.mul(self.load_index(edges, p), sums.to.size), self.real)
            self._take(sums, added, lambda j: self.load(self.real, start, j, independent=True))

    def _over_children(self, sums: SumEdges, source: Expression, added: Register) -> None:
        with self.loop(*self.edges_of(sums.relation)) as e, self.scope():
            self.edge = e
            with self.when(self.is_there(self.child(-1, sums.relation))):
                self._take(sums, added, lambda j: self.element(source, j, independent=True))

    def _take(self, sums: SumEdges, added: Register, new: Callable[[Register], Register]) -> None:
        """Add a row: the first of a sum is copied."""
        real = self.real
        count = self.load("i64", added)
        fresh = count if sums.total is None else self._in_sum(count)
        is_first = self.compare("eq", fresh, 0)
        start = self.start(sums.to)

        def both(j: Register) -> Register:
            old = self.load(real, start, j, independent=True)
            combine = self.math.larger if sums.total is None else self._plain_sum
            return combine(old, new(j))

        with self.when(is_first):
            self._elements(sums.to, sums.spans, new)
        with self.when(self.compare("ne", fresh, 0)):
            self._elements(sums.to, sums.spans, both)
        count = self.add(count, 1)
        self.store(count, added)
        if sums.total is not None:
            with self.when(self.compare("eq", self._in_sum(count), 0)):
                self._add(sums, sums.total, sums.to, self.compare("ne", count, ROWS_A_SUM))

    def _plain_sum(self, a: Register, b: Register) -> Register:
        return self.math.binary("+", a, b)

    def _add(self, sums: SumEdges, to: ValuePlace, source: ValuePlace, more: Register) -> None:
        """Add a row to another; where `more` does not hold, copy it there."""
        real = self.real
        at, new = self.start(to), self.start(source)

        def value(j: Register) -> Register:
            x = self.load(real, new, j, independent=True)
            return self.select(
                more, self._plain_sum(self.load(real, at, j, independent=True), x), x
            )

        self._elements(to, sums.spans, value)

    # Sums over rows.

    def _sum_rows(self, sums: SumRows) -> None:
        first, end = (self.mul(x, sums.each) for x in self.bounds(sums.span))
        total = self.start(sums.total)
        edges = self.over_edges
        number = self.integer("sub", self.edge, EDGE_LO) if edges else self.local
        place = self._in_sum(number)
        with self.when(self.compare("eq", place, 0)), self.loop(first, end, independent=True) as j:
            self.store(self.const(0.0), total, j, independent=True)
        with self.loop(first, end, independent=True) as j:
            new = self.math.as_real(self.element(sums.value, j, independent=True))
            old = self.load(self.real, total, j, independent=True)
            self.store(self._plain_sum(old, new), total, j, independent=True)
        full = self.compare("eq", place, ROWS_A_SUM - 1)
        last = self.compare("eq", self.add(number, 1), EDGES if edges else COUNT)
        gradient = self.param(sums.param, Field.GRADIENTS)
        with (
            self.when(self.op("i1", f"or {full}, {last.name}")),
            self.loop(first, end, independent=True) as j,
        ):
            new = self.load(self.real, total, j, independent=True)
            old = self.load(self.real, gradient, j, independent=True)
            self.store(self._plain_sum(old, new), gradient, j, independent=True)

    # All rows at once.

    def _rows(self, edges: bool, each: int) -> Register:
        return self.mul(EDGES if edges else COUNT, each)

    def _packed(self, operand: Operand, is_result: bool = False) -> Register:
        """Return the address of contiguous rows: of a copy, where a launch has a list."""
        place = operand.place
        first = self.first_row(place)
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
            self.do(function, [base, int64(place.step), rows, AT, COUNT, packed])

    def _product(self, product: MatrixProduct) -> None:
        x, y = self._packed(product.x), self._packed(product.y, is_result=True)
        rows = self._rows(product.edges, product.each)
        function, limits = "vrt_product_transposed", [int64(product.tiled)]
        if not product.transposed:
            function, limits = "vrt_product", [*limits, int64(product.strips)]
        weight, m, n = self.param(product.param), int64(product.m), int64(product.n)
        for span in product.spans:
            self.do(function, [weight, x, y, rows, m, n, *self.bounds(span), *limits])
        if product.y.packed is not None:
            listed = self._is_listed()
            self._copy("vrt_unpack", product.y, self.temporary(product.y.packed.number), listed)

    def _outer(self, outer: Outer) -> None:
        d, x = self._packed(outer.d), self._packed(outer.x)
        rows = self._rows(outer.edges, outer.each)
        gradient = self.param(outer.param, Field.GRADIENTS)
        m, n, tiled = int64(outer.m), int64(outer.n), int64(outer.tiled)
        self.do("vrt_outer", [gradient, d, x, rows, m, n, *self.bounds(outer.span), tiled])

    def _looked_up(self, edges: bool) -> list[Register]:
        """Return the launch's rows (or edges) with the places of what they look up."""
        order, array = Field.EDGE_ORDER if edges else Field.ORDER, self.array_of
        first, count = (EDGE_LO, EDGES) if edges else (LO, COUNT)
        return [array(order), first, array(Field.ROWS), AT, count]

    def _add_lookups(self, step: AddLookups) -> None:
        place = step.source
        size = int64(step.size)
        is_local = place.rows in (PlaceRows.LOCAL, PlaceRows.LOCAL_EDGE)
        arguments = [
            self.param(step.param, Field.GRADIENTS), size, *self.bounds(step.words),
            *self.bounds(step.columns), self.at(self.base(place), place.start, self.real),
            int64(place.step), self.array_in(Field.INTS, step.pull),
            *self._looked_up(step.edges),
            Register("i1", "true" if is_local else "false"),
        ]  # fmt: skip
        self.do("vrt_add_lookups", arguments)
