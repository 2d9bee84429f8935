"""Render the expressions of the kernel IR as instructions of LLVM: places, leaves, random draws."""

from __future__ import annotations

from typing import Any

from vertexrt.ir.expressions import translate
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
from vertexrt.lower.kernel import KernelIR
from vertexrt.lower.places import Memory, OwnPart, Rows, Span, ValuePlace
from vertexrt.native.code import Code, Register, int64

FUNCTION, ROW, EDGE = range(3)  # scopes of `Code.once`

# A task program's function; `segment`, `part` and `parts` are for processors that share it.
ARGUMENTS = [
    *(Register("i64", f"%{name}") for name in ("segment", "part", "parts")),
    *(Register("i64", f"%{name}") for name in ("n", "lo", "at", "m", "elo")),
    Register("i64", "%temporary"),
    Register("ptr", "%context"),
]
SEGMENT, PART, PARTS, COUNT, LO, AT, EDGES, EDGE_LO, TEMPORARY, CONTEXT = ARGUMENTS


class Expressions:
    """Appends what expressions are made from; what belongs to a row is made once a row.

    Attributes:
        row, local: the number of the open loop's row, and its number in the launch.
        edge: of the open loop over edges; every: the first edge of each row that has them.
        numbers: of the row, in registers; chosen: elements of the arena that `Choose` found.
        widest: elements of the zeros that stand for what is absent.
    """

    def __init__(self, code: Code, kernel: KernelIR) -> None:
        self.code, self.kernel = code, kernel
        self.every = Field.EVERY_PTR if kernel.splits_edges else Field.EDGE_PTR
        self.math = Arithmetic(code)
        self.row = self.local = self.edge = int64(0)
        self.numbers: dict[int, Register] = {}
        self.chosen: dict[int, Register] = {}
        self.widest = 0

    # What is the same for a launch.

    def array(self, field: Field) -> Register:
        """Return the address of an array of the minibatch."""
        code = self.code
        return code.once(FUNCTION, field, lambda: code.load("ptr", CONTEXT, int64(field)))

    def array_in(self, field: Field, number: int) -> Register:
        """Return the address of one of several arrays: of indices, a row of a matrix."""
        lists, code = self.array(field), self.code

        def make() -> Register:
            if field in (Field.FLOATS, Field.SEEDS):
                return code.load("ptr", lists, int64(number))
            vertices = code.load("i64", CONTEXT, int64(Field.VERTICES))
            return code.at(lists, code.integer("mul", vertices, number), "i32")

        return code.once(FUNCTION, (field, number), make)

    def tensor(self, number: int) -> Register:
        """Return the address of a tensor's row 0."""
        arena, offsets, code = self.array(Field.ARENA), self.array(Field.OFFSETS), self.code
        return code.once(
            FUNCTION,
            ("tensor", number),
            lambda: code.at(arena, code.load("i64", offsets, int64(number)), code.real),
        )

    def param(self, number: int, field: Field = Field.PARAMS) -> Register:
        """Return the address of a parameter, or of its gradient."""
        store, offsets, code = self.array(field), self.array(Field.PARAM_AT), self.code
        return code.once(
            FUNCTION,
            (field, "param", number),
            lambda: code.at(store, code.load("i64", offsets, int64(number)), code.real),
        )

    def temporary(self, number: int) -> Register:
        """Return the address of a temporary of this launch."""
        arena, code, t = self.array(Field.ARENA), self.code, self.kernel.temporaries[number]

        def padded(count: Register) -> Register:
            return code.integer("and", code.add(count, PAD - 1), -PAD)

        def make() -> Register:
            at = code.add(TEMPORARY, t.once)
            at = code.add(at, code.mul(padded(COUNT), t.rows)) if t.rows else at
            at = code.add(at, code.mul(padded(EDGES), t.edges)) if t.edges else at
            return code.at(arena, at, code.real)

        return code.once(FUNCTION, ("temporary", number), make)

    def bounds(self, span: Span) -> tuple[Register, Register]:
        """Return the first and the end element of a span."""
        code = self.code
        if not isinstance(span, OwnPart):
            return int64(span[0]), int64(span[1])

        def cut(part: Register) -> Register:
            whole = span.of or span.size
            at = code.integer("sdiv", code.mul(part, whole), PARTS)
            if span.of:
                at = code.least(code.most(code.add(at, -span.begin), 0), span.size)
            return code.add(at, span.start)

        def first() -> Register:
            return cut(PART)

        def end() -> Register:
            return cut(code.add(PART, 1))

        return code.once(FUNCTION, (span, 0), first), code.once(FUNCTION, (span, 1), end)

    # What belongs to a row.

    def first_row(self, place: ValuePlace) -> Register:
        """Return the address of the first row of the launch, whose rows are contiguous."""
        base = self.base(place)
        if place.memory == Memory.TEMPORARY:
            return base
        first = LO if place.rows == Rows.ROW else EDGE_LO
        return self.code.at(base, self.code.mul(first, place.step), self.code.real)

    def base(self, place: ValuePlace) -> Register:
        """Return the address of row 0 of a place."""
        if place.memory == Memory.TENSOR:
            return self.tensor(place.number)
        return self.temporary(place.number)

    def start(self, place: ValuePlace) -> Register:
        """Return the address of the first element of a place in this row."""
        code = self.code
        if place.memory == Memory.CHOSEN:
            return self.chosen[place.number]
        base = self.base(place)

        def make() -> Register:
            at = code.add(code.mul(self._row_of(place), place.step), place.start)
            return code.at(base, at, code.real)

        key = (place.memory, place.number, place.rows, place.slot, place.start, place.step)
        if place.rows == Rows.ONE:
            return code.at(base, place.start, code.real)
        of_edge = place.rows in (Rows.EDGE, Rows.LOCAL_EDGE)
        return code.once(EDGE if of_edge else ROW, key, make)

    def _row_of(self, place: ValuePlace) -> Register:
        """Return the number of the row that a place has now."""
        match place.rows:
            case Rows.ROW:
                return self.row
            case Rows.LOCAL:
                return self.local
            case Rows.EDGE:
                return self.edge
            case Rows.LOCAL_EDGE:
                return self.code.integer("sub", self.edge, EDGE_LO)
        return self.code.add(self.first_edge(Field.EDGE_PTR), place.slot)

    def per_row(self, key: Any, field: Field, index: Register, type: str = "i64") -> Register:
        """Return an element of an array, loaded once a row."""
        array, code = self.array(field), self.code
        load = code.load_index if type == "i64" else lambda a, i: code.load(type, a, i)
        return code.once(ROW, key, lambda: load(array, index))

    def first_edge(self, field: Field) -> Register:
        """Return the row's first edge, of those that an array numbers."""
        return self.per_row(("first edge", field), field, self.row)

    def end_edge(self, field: Field) -> Register:
        """Return the edge after the row's last, of those that an array numbers."""
        array, code, key = self.array(field), self.code, ("end edge", field)
        return code.once(ROW, key, lambda: code.load_index(array, code.add(self.row, 1)))

    def edges_of(self, relation: int) -> tuple[Register, Register]:
        """Return the row's first and end edge in a relation that is read whole."""
        whole, code = self.kernel.relations, self.code
        if whole == 1:
            return self.first_edge(self.every), self.end_edge(self.every)
        array = self.array(Field.RELATION_PTR)

        def begin(of: int) -> Register:
            def make() -> Register:
                return code.load_index(array, code.add(code.mul(self.row, whole), of))

            return code.once(ROW, ("relation", of), make)

        return begin(relation), begin(relation + 1)

    def vertex(self) -> Register:
        """Return the user's number of the vertex."""
        return self.per_row("vertex", Field.ORDER, self.row)

    def child(self, slot: int, relation: int = 0) -> Register:
        """Return the row of the child in a slot, or of the edge's; -1 where there is none."""
        code, children, edge = self.code, self.array(Field.CHILD_ROW), self.edge
        if slot < 0 and self.kernel.relations == 1:
            return code.once(EDGE, "child", lambda: code.load_index(children, edge))
        if slot < 0:
            first, end = self.edges_of(relation)
        else:
            first, end = self.first_edge(Field.EDGE_PTR), self.end_edge(Field.EDGE_PTR)

        def make() -> Register:
            at = edge if slot < 0 else code.add(first, slot)
            none, found = Register("ptr", "@none"), code.at(children, at, "i32")
            found = code.select(code.compare("slt", at, end), found, none)
            if slot < 0:
                found = code.select(code.compare("sge", at, first), found, none)
            return code.load_index(found)

        return code.once(EDGE if slot < 0 else ROW, ("child", slot, relation), make)

    def given(self, field: Field, number: int) -> Register:
        """Return what this vertex has in one of several arrays of indices; -1 for nothing."""
        array, vertex, code = self.array_in(field, number), self.vertex(), self.code
        return code.once(ROW, ("given", field, number), lambda: code.load_index(array, vertex))

    def given_to_edge(self, field: Field, number: int) -> Register:
        """Return what this edge has in one of several arrays of indices; -1 for nothing."""
        array, order, edge, code = (
            self.array_in(field, number), self.array(Field.EDGE_ORDER), self.edge, self.code,
        )  # fmt: skip

        def make() -> Register:
            return code.load_index(array, code.load_index(order, edge))

        return code.once(EDGE, ("given", field, number), make)

    def is_there(self, index: Register) -> Register:
        """Return the truth of an index being one."""
        return self.code.compare("sge", index, 0)

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
                return self.code.const(expression.value)
            case ReadElement():
                at = self._index(expression.index, j)
                return self.code.load(self.code.real, self.start(expression.place), at, independent)
            case Picked():
                at = self.code.most(self.given(Field.INTS, expression.pull), 0)
                return self.code.load(self.code.real, self.start(expression.row), at)
            case Leaf():
                return self._leaf(expression, j, independent)
            case Apply():
                return self._apply(expression, j, independent)

    def _index(self, index: Index, j: Register) -> Register:
        return self.code.add(j, index.shift) if index.moves else int64(index.shift)

    def _apply(self, apply: Apply, j: Register, independent: bool) -> Register:
        names = {f"x{k}": self.element(x, j, independent) for k, x in enumerate(apply.operands)}
        if apply.draw is not None:
            names["draw"] = self._drawn(apply.draw, self._index(apply.index, j))
        return translate(apply.expression, names, self.math)

    def _drawn(self, wanted: RandomDraw, j: Register) -> Register:
        """Return the factor of dropout: 0, or what keeps the mean; or a number between 0 and 1."""
        code = self.code
        vertex = self.vertex() if wanted.by < 0 else self.given(Field.INTS, wanted.by)
        field = Field.USER_EDGE if wanted.edges else Field.USER_VERTEX
        array = self.array(field)
        counter = code.once(
            ROW, ("counter", field, wanted.by), lambda: code.load_index(array, vertex)
        )
        if wanted.edges:
            counter = code.add(counter, code.integer("sub", self.edge, self.first_edge(self.every)))
        seed = code.once(FUNCTION, "seed", lambda: code.load("i32", CONTEXT, int64(2 * Field.SEED)))
        bits = draw(code, seed, wanted.key, counter, j)
        if wanted.p is None:
            high = code.op(code.real, f"uitofp {code.integer('lshr', bits, 9)} to {code.real}")
            return translate("(high + 0.5) * 1.1920928955078125e-07", {"high": high}, self.math)
        threshold = min(int(wanted.p * 2**32), 2**32 - 1)
        kept = code.compare("uge", bits, threshold)
        return code.select(kept, code.const(1.0 / (1.0 - wanted.p)), code.const(0.0))

    # Leaves.

    def _leaf(self, leaf: Leaf, j: Register, independent: bool) -> Register:
        """Return an input of the function."""
        match leaf.op:
            case "integer" if leaf.edges:
                return self.given_to_edge(Field.INTS, leaf.number)
            case "integer":
                return self.given(Field.INTS, leaf.number)
            case "arange":
                index = self.code.op("i32", f"trunc {self._index(leaf.index, j)} to i32")
                return self.code.op(self.code.real, f"sitofp {index} to {self.code.real}")
            case "is_index":
                return self._truth(self.code.compare("eq", self.given(Field.INTS, leaf.number), j))
            case "present" | "has_child" | "has_integer" | "has_real":
                return self._truth(self.is_there(self._asked(leaf)))
            case "degree":
                return self._degree(leaf.relation)
            case "loss_scale":
                return self._loss_scale()
            case "weight":
                return self.per_row("weight", Field.WEIGHT, self.row, self.code.real)
        return self.code.load(
            self.code.real, self._begin(leaf), self._index(leaf.index, j), independent
        )

    def _truth(self, test: Register) -> Register:
        return self.code.select(test, self.code.const(1.0), self.code.const(0.0))

    def _asked(self, leaf: Leaf) -> Register:
        """Return what is not negative where a child, or a value of a pull, is there."""
        if leaf.op in ("present", "has_child"):
            return self.child(leaf.slot, leaf.relation)
        return self.given(
            Field.INTS if leaf.op == "has_integer" else Field.FLOAT_INDEX, leaf.number
        )

    def _begin(self, leaf: Leaf) -> Register:
        """Return the address of the row that a leaf reads, or of zeros, where there is none."""
        code, key = self.code, (leaf.op, leaf.number)
        scope, given = (EDGE, self.given_to_edge) if leaf.edges else (ROW, self.given)
        match leaf.op:
            case "param":
                return self.param(leaf.number)
            case "seed":
                array, vertex = self.array_in(Field.SEEDS, leaf.number), self.vertex()
                return code.once(
                    ROW, key, lambda: code.at(array, code.mul(vertex, leaf.size), code.real)
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
        code, zeros = self.code, Register("ptr", "@zeros")
        self.widest = max(self.widest, size)

        def make() -> Register:
            found = code.at(array, code.mul(row, size), code.real)
            return code.select(self.is_there(row), found, zeros)

        return code.once(scope, key, make)

    def _degree(self, relation: int) -> Register:
        code, children = self.code, self.array(Field.CHILD_ROW)
        first, end = self.edges_of(relation)

        def make() -> Register:
            count = code.call("i64", "vrt_count_children", [children, first, end])
            return self.math.as_real(code.most(count, 1))

        return code.once(ROW, ("degree", relation), make)

    def _loss_scale(self) -> Register:
        code = self.code

        def make() -> Register:
            scale = code.load("double", CONTEXT, int64(Field.SCALE))
            return scale if code.real == "double" else code.op("float", f"fptrunc {scale} to float")

        return code.once(FUNCTION, "scale", make)
