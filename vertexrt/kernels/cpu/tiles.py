"""Register tiles of products: sums of a few rows and outputs, kept in vector registers.

    dot       y[r, o] = sum over k of x[r, k] w[o, k]     a sum is a vector along k, added up at its
              end, those of a tile together
    spread    y[r, vector o] = or += sum over k of x[r, k] w[k, vector o]     elements of x are
              spread over a vector
    transpose y[k, r] = w[r, k]     a block of as many rows and columns as a vector has lanes

Where elements do not fill the last vector, its other lanes are left out: loads and stores have a
mask. The tiles of sums pack nothing: their w is read as it lies. Source: the register tiles of Goto
and van de Geijn, ACM TOMS 2008.
"""

from __future__ import annotations

from collections.abc import Sequence

from vertexrt.native.code import Code, Register, int64

DOT_ROWS = 4  # of a tile; what is left over has tiles of 1 to 3 rows
SPREAD_ROWS = 6  # rows are shared out evenly to tiles of at most so many
# Terms that are added to what there was one by one: it is loaded before the sums, which is faster.
# More are added up among themselves first, or float32 would lose digits.
FEW_TERMS = 64

DOT_ARGUMENTS = [
    *(Register("ptr", f"%{name}") for name in ("w", "x", "y")),
    *(Register("i64", f"%{name}") for name in ("m", "n")),
]
SPREAD_ARGUMENTS = [
    *(Register("ptr", f"%{name}") for name in ("w", "x", "y")),
    *(Register("i64", f"%{name}") for name in ("w_step", "x_step", "y_step", "count")),
    Register("i1", "%add"),
]
TRANSPOSE = "vrt_transpose"
TRANSPOSE_ARGUMENTS = [
    *(Register("ptr", f"%{name}") for name in ("w", "y")),
    *(Register("i64", f"%{name}") for name in ("w_step", "y_step", "rows", "columns")),
]
TAIL = 0  # vectors of a tile that makes a part of one; LEFT, its last argument: lanes of that part
LEFT = Register("i64", "%left")


def dot_name(rows: int, outputs: int) -> str:
    """Name the function of a tile: w has n columns, y has m."""
    return f"vrt_dot_{rows}_{outputs}"


def spread_name(down: bool, rows: int, outputs: int) -> str:
    """Name the function of a tile.

    Args:
        down: x is stored with a row for each term, else with a row for each row of y.
    """
    return f"vrt_{'down' if down else 'across'}_{rows}_{outputs}"


class VectorCode(Code):
    """A function under construction, of vectors of a processor.

    Args:
        size: of a vector register, in float32 elements.
    Attributes:
        lanes: elements of a vector; outputs: of a tile, whose sums fit 16 or 32 registers.
    """

    def __init__(
        self, name: str, arguments: Sequence[Register], real: str, size: int, inline: bool = True
    ) -> None:
        super().__init__(name, arguments, real, inline=inline)
        self.lanes = lanes = size if real == "float" else size // 2
        self.outputs = 2 if size == 8 else min(4, lanes)
        self.vector = f"<{lanes} x {real}>"
        kind = f"v{lanes}{'f32' if real == 'float' else 'f64'}"
        self.fma, self.mask = f"llvm.fma.{kind}", f"<{lanes} x i1>"
        self.masked_load = f"llvm.masked.load.{kind}.p0"
        self.masked_store = f"llvm.masked.store.{kind}.p0"

    def _sums(self, rows: int, outputs: int) -> list[list[Register]]:
        zero = Register(self.vector, "zeroinitializer")
        return [[self.variable(zero) for _ in range(outputs)] for _ in range(rows)]

    def _add(self, total: Register, a: Register, b: Register) -> None:
        """Add a product of vectors to a sum."""
        old = self.load(self.vector, total)
        self.store(self.call(self.vector, self.fma, [a, b, old]), total)

    def _load(self, base: Register, at: Register | int, mask: Register | None = None) -> Register:
        """Load a vector that may begin at any element; zeros in lanes that a mask leaves out."""
        place = self.at(base, at, self.real)
        if mask is None:
            return self.op(self.vector, f"load {self.vector}, {place}, align 4")
        zero = Register(self.vector, "zeroinitializer")
        given = [place, Register("i32", "4"), mask, zero]
        return self.call(self.vector, self.masked_load, given)

    def _store(self, value: Register, place: Register, mask: Register | None) -> None:
        """Store a vector, or the lanes of a mask."""
        if mask is None:
            self.line(f"store {value}, {place}, align 4")
        else:
            self.do(self.masked_store, [value, place, Register("i32", "4"), mask])

    def _first_lanes(self, count: Register) -> Register:
        """Return the mask of the first lanes."""
        kind = f"<{self.lanes} x i64>"
        first = self.op(kind, f"insertelement {kind} poison, {count}, i32 0")
        same = f"{kind} poison, <{self.lanes} x i32> zeroinitializer"
        counts = self.op(kind, f"shufflevector {first}, {same}")
        lanes = ", ".join(f"i64 {lane}" for lane in range(self.lanes))
        return self.op(self.mask, f"icmp slt {kind} <{lanes}>, {counts.name}")

    # Sums that are vectors.

    def dot(self, rows: int, outputs: int) -> None:
        """Append the tile of sums that are vectors."""
        w, x, y, m, n = DOT_ARGUMENTS
        sums = self._sums(rows, outputs)

        def add(k: Register, mask: Register | None) -> None:
            ws = [self._load(w, self.add(self.mul(n, o), k), mask) for o in range(outputs)]
            for r in range(rows):
                row = self._load(x, self.add(self.mul(n, r), k), mask)
                for o in range(outputs):
                    self._add(sums[r][o], row, ws[o])

        with self.loop(0, self.integer("sdiv", n, self.lanes)) as block:
            add(self.mul(block, self.lanes), None)
        left = self.integer("srem", n, self.lanes)
        with self.when(self.compare("sgt", left, 0)):
            add(self.integer("sub", n, left), self._first_lanes(left))
        each = min(rows, self.lanes // outputs)  # rows whose totals are one vector
        for first in range(0, rows, each):
            some = sums[first : first + each]
            totals = self._totals([self.load(self.vector, sum) for row in some for sum in row])
            for r in range(len(some)):
                part = self._shuffle(totals, totals, range(r * outputs, (r + 1) * outputs))
                at = self.at(y, self.mul(m, first + r), self.real)
                self.line(f"store {part}, {at}, align 4")

    # Blocks that are transposed.

    def transpose(self) -> None:
        """Append a copy; of rows and columns that w lacks, y has other elements of w, and zeros."""
        w, y, w_step, y_step, rows, columns = TRANSPOSE_ARGUMENTS
        mask = self._first_lanes(columns)
        vectors = []
        for r in range(self.lanes):
            row = self.select(self.compare("sgt", rows, r), int64(r), int64(0))
            vectors.append(self._load(w, self.mul(row, w_step), mask))
        apart = 1
        while apart < self.lanes:
            # Blocks of `apart` lanes beside the diagonal of blocks of twice as many change places.
            for first in range(self.lanes):
                if not first & apart:
                    pair = vectors[first], vectors[first + apart]
                    for half in (0, apart):
                        vectors[first + half] = self._half(*pair, half, apart)
            apart *= 2
        for k, vector in enumerate(vectors):
            self._store(vector, self.at(y, self.mul(y_step, k), self.real), None)

    def _half(self, a: Register, b: Register, half: int, apart: int) -> Register:
        """Return the lanes of two vectors whose bit `apart` is that of `half`, side by side."""
        lanes = [
            (lane & ~apart | half) + (self.lanes if lane & apart else 0)
            for lane in range(self.lanes)
        ]
        return self._shuffle(a, b, lanes)

    def _totals(self, vectors: list[Register]) -> Register:
        """Return a vector whose lane k is the sum over the lanes of vector k."""
        apart = 1
        while apart < self.lanes:
            # From here on lane k has partial sums of the vectors whose number is k % (2 apart).
            pairs = range(0, len(vectors), 2)
            vectors = [self._add_lanes(vectors[k : k + 2], apart) for k in pairs]
            apart *= 2
        return vectors[0]

    def _add_lanes(self, pair: list[Register], apart: int) -> Register:
        """Add lanes that lie so far apart, of the first vector in one half of them."""
        second = [self.lanes if lane & apart else 0 for lane in range(self.lanes)]
        own, other = (
            self._shuffle(pair[0], pair[-1], [(k ^ move) + s for k, s in enumerate(second)])
            for move in (0, apart)
        )
        return self.op(self.vector, f"fadd {own}, {other.name}")

    def _shuffle(self, a: Register, b: Register, lanes: Sequence[int]) -> Register:
        """Return chosen lanes of two vectors."""
        mask = ", ".join(f"i32 {lane}" for lane in lanes)
        kind, chosen = f"<{len(lanes)} x {self.real}>", f"<{len(lanes)} x i32> <{mask}>"
        return self.op(kind, f"shufflevector {a}, {b}, {chosen}")

    # Elements that are spread.

    def spread(self, down: bool, rows: int, outputs: int) -> None:
        """Append the tile of elements that are spread."""
        w, x, y, w_step, x_step, y_step, count, add = SPREAD_ARGUMENTS
        mask = self._first_lanes(LEFT) if outputs == TAIL else None
        wide = max(outputs, 1)
        sums = self._sums(rows, wide)
        places = [
            (sums[r][o], self.at(y, self.add(self.mul(y_step, r), o * self.lanes), self.real))
            for r in range(rows)
            for o in range(wide)
        ]
        few = self.compare("sle", count, FEW_TERMS)
        with self.when(self.integer("and", add, few)):
            for total, place in places:
                self.store(self._load(place, 0, mask), total)
        with self.loop(0, count) as k:
            row = self.at(w, self.mul(k, w_step), self.real)
            ws = [self._load(row, o * self.lanes, mask) for o in range(wide)]
            for r, row_sums in enumerate(sums):
                at = self.add(self.mul(k, x_step), r) if down else self.add(self.mul(x_step, r), k)
                self._add_row(row_sums, self.load(self.real, x, at), ws)
        many = self.integer("and", add, self.compare("sgt", count, FEW_TERMS))
        self._join(places, many, mask)

    def _join(
        self,
        places: Sequence[tuple[Register, Register]],
        adds: Register,
        mask: Register | None,
    ) -> None:
        """Store sums in their places; `adds`: to what is there."""
        with self.when(adds):
            for total, place in places:
                new, old = self.load(self.vector, total), self._load(place, 0, mask)
                self.store(self.op(self.vector, f"fadd {old}, {new.name}"), total)
        for total, place in places:
            self._store(self.load(self.vector, total), place, mask)

    def _add_row(self, sums: list[Register], x: Register, vectors: list[Register]) -> None:
        """Add vectors, times one number, to sums."""
        first = self.op(self.vector, f"insertelement {self.vector} poison, {x}, i32 0")
        same = self._shuffle(first, first, [0] * self.lanes)
        for total, vector in zip(sums, vectors, strict=True):
            self._add(total, same, vector)


def tiles(real: str, size: int) -> list[Code]:
    """Write the tiles of all shapes."""
    found: list[Code] = []

    def new(name: str, arguments: Sequence[Register]) -> VectorCode:
        # A copy of each where it is called would take twice as long to compile.
        code = VectorCode(name, arguments, real, size, inline=False)
        found.append(code)
        return code

    transpose = new(TRANSPOSE, TRANSPOSE_ARGUMENTS)
    transpose.transpose()
    wide = (1, transpose.outputs)
    for rows in range(1, DOT_ROWS + 1):
        for outputs in wide:
            new(dot_name(rows, outputs), DOT_ARGUMENTS).dot(rows, outputs)
    for rows in range(1, SPREAD_ROWS + 1):
        for outputs in (*wide, TAIL):
            arguments = [*SPREAD_ARGUMENTS, LEFT] if outputs == TAIL else SPREAD_ARGUMENTS
            for down in (False, True):
                new(spread_name(down, rows, outputs), arguments).spread(down, rows, outputs)
    return found
