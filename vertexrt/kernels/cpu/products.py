"""What all kernels call: products, copies of rows, sums into rows of a table; and BLAS.

It is one library for each dtype, made once and kept like a kernel, which knows no function of a
user. Products are loops over register tiles, and BLAS for many rows of large weights.

    vrt_product               Y = X W^T, some outputs     by dot tiles, or spread ones and W^T
    vrt_product_transposed    Y = X W                     by spread tiles
    vrt_outer                 G += D^T X, some rows       by spread tiles

A weight serves all three as it lies. Of many rows the first transposes a strip of it at a time: no
copy outlives the call, or it would have to be kept up with every update. Panels that are packed
once would serve few rows as well, and are 0.9 to 1.1 times as fast there (`docs/performance.md`).
OpenBLAS is slower but for many rows of large matrices. `tiled` of all three says up to how many
rows tiles take, `strips` of the first from how many on W is transposed: both are decided before
(`choose_products`).

Tiles are sums of a few rows and outputs, kept in vector registers:

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

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from vertexrt.lower.kernel import ROWS_A_SUM
from vertexrt.native.blas import blas_address
from vertexrt.native.code import Code, Register, module_of, once
from vertexrt.native.load import LoadedCode, load, machine

DOT_ROWS = 4  # of a tile; what is left over has tiles of 1 to 3 rows
SPREAD_ROWS = 6  # rows are shared out evenly to tiles of at most so many
# Terms that are added to what there was one by one: it is loaded before the sums, which is faster.
# More are added up among themselves first, or float32 would lose digits.
FEW_TERMS = 64
TAIL = (
    0  # vectors of a tile that makes a part of one: its last argument, `left`, lanes of that part
)

DOT_BLOCK = 64  # rows that meet all of a weight before the next do: they stay in the caches
BLOCK = 96  # the same for spread elements
STRIP_DEPTH = 128  # terms of a strip, a multiple of all lanes: it stays in the first cache
STRIP_BLOCK = 256  # rows that meet all strips before the next do: they stay in the second cache
DEPTH = 256  # terms that are added up before they join a sum: more lose digits and leave caches

Matrix = tuple[Register, Register]  # its address, and elements from a row to the next
Range = tuple[Register, Register]  # its first element, and how many it has


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
        self, name: str, arguments: str, real: str, size: int, inline: bool = True
    ) -> None:
        super().__init__(name, arguments, real, inline=inline)
        self.lanes = lanes = size if real == "float" else size // 2
        self.outputs = 2 if size == 8 else min(4, lanes)
        self.vector = f"<{lanes} x {real}>"
        self.mask = f"<{lanes} x i1>"
        self.kind = f"v{lanes}{'f32' if real == 'float' else 'f64'}"

    def _sums(self, rows: int, outputs: int) -> list[list[Register]]:
        zero = Register(self.vector, "zeroinitializer")
        return [[self.variable(zero) for _ in range(outputs)] for _ in range(rows)]

    def _add(self, total: Register, a: Register, b: Register) -> None:
        """Add a product of vectors to a sum."""
        total[0] = self.call(self.vector, f"llvm.fma.{self.kind}", [a, b, total[0]])

    def _load(self, place: Register, mask: Register | None = None) -> Register:
        """Load a vector that may begin at any element; zeros in lanes that a mask leaves out."""
        if mask is None:
            return self.op(self.vector, f"load {self.vector}, {place}, align 4")
        zero = Register(self.vector, "zeroinitializer")
        given = [place, self.const(4, "i32"), mask, zero]
        return self.call(self.vector, f"llvm.masked.load.{self.kind}.p0", given)

    def _store(self, value: Register, place: Register, mask: Register | None = None) -> None:
        """Store a vector, or the lanes of a mask."""
        if mask is None:
            self.line(f"store {value}, {place}, align 4")
        else:
            given = [value, place, self.const(4, "i32"), mask]
            self.do(f"llvm.masked.store.{self.kind}.p0", given)

    def _first_lanes(self, count: Register) -> Register:
        """Return the mask of the first lanes."""
        kind = f"<{self.lanes} x i64>"
        first = self.op(kind, f"insertelement {kind} poison, {count}, i32 0")
        same = f"{kind} poison, <{self.lanes} x i32> zeroinitializer"
        counts = self.op(kind, f"shufflevector {first}, {same}")
        lanes = ", ".join(f"i64 {lane}" for lane in range(self.lanes))
        return self.op(self.mask, f"icmp slt {kind} <{lanes}>, {counts.name}")

    def _shuffle(self, a: Register, b: Register, lanes: Sequence[int]) -> Register:
        """Return chosen lanes of two vectors."""
        mask = ", ".join(f"i32 {lane}" for lane in lanes)
        kind, chosen = f"<{len(lanes)} x {self.real}>", f"<{len(lanes)} x i32> <{mask}>"
        return self.op(kind, f"shufflevector {a}, {b}, {chosen}")

    def _doubling(self) -> Iterator[int]:
        """Yield the powers of two below the lanes."""
        apart = 1
        while apart < self.lanes:
            yield apart
            apart *= 2

    # Sums that are vectors.

    def dot(self, rows: int, outputs: int) -> None:
        """Append the tile of sums that are vectors."""
        w, x, y, m, n = self.arguments
        sums = self._sums(rows, outputs)

        def add(k: Register, mask: Register | None) -> None:
            ws = [self._load(w + (n * o + k), mask) for o in range(outputs)]
            for r in range(rows):
                row = self._load(x + (n * r + k), mask)
                for o in range(outputs):
                    self._add(sums[r][o], row, ws[o])

        with self.loop(0, n // self.lanes) as block:
            add(block * self.lanes, None)
        left = n % self.lanes
        with self.when(left > 0):
            add(n - left, self._first_lanes(left))
        each = min(rows, self.lanes // outputs)  # rows whose totals are one vector
        for first in range(0, rows, each):
            some = sums[first : first + each]
            totals = self._totals([sum[0] for row in some for sum in row])
            for r in range(len(some)):
                part = self._shuffle(totals, totals, range(r * outputs, (r + 1) * outputs))
                self._store(part, y + m * (first + r))

    def _totals(self, vectors: list[Register]) -> Register:
        """Return a vector whose lane k is the sum over the lanes of vector k."""
        for apart in self._doubling():
            # From here on lane k has partial sums of the vectors whose number is k % (2 apart):
            # lanes that lie so far apart are added, of the first of a pair in one half of them.
            second = [self.lanes if lane & apart else 0 for lane in range(self.lanes)]
            pairs = [vectors[k : k + 2] for k in range(0, len(vectors), 2)]
            vectors = []
            for pair in pairs:
                own, other = (
                    self._shuffle(pair[0], pair[-1], [(k ^ move) + s for k, s in enumerate(second)])
                    for move in (0, apart)
                )
                vectors.append(own + other)
        return vectors[0]

    # Blocks that are transposed.

    def transpose(self) -> None:
        """Append a copy; of rows and columns that w lacks, y has other elements of w, and zeros."""
        w, y, w_step, y_step, rows, columns = self.arguments
        mask = self._first_lanes(columns)
        vectors = []
        for r in range(self.lanes):
            row = self.select(rows > r, self.value(r), self.value(0))
            vectors.append(self._load(w + row * w_step, mask))
        for apart in self._doubling():
            # Blocks of `apart` lanes beside the diagonal of blocks of twice as many change places:
            # a vector gets the lanes of two whose bit `apart` is that of `half`, side by side.
            for first in range(self.lanes):
                if not first & apart:
                    pair = vectors[first], vectors[first + apart]
                    for half in (0, apart):
                        lanes = [
                            (lane & ~apart | half) + (self.lanes if lane & apart else 0)
                            for lane in range(self.lanes)
                        ]
                        vectors[first + half] = self._shuffle(*pair, lanes)
        for k, vector in enumerate(vectors):
            self._store(vector, y + y_step * k)

    # Elements that are spread.

    def spread(self, down: bool, rows: int, outputs: int) -> None:
        """Append the tile of elements that are spread."""
        w, x, y, w_step, x_step, y_step, count, add, *left = self.arguments
        mask = self._first_lanes(*left) if left else None
        wide = max(outputs, 1)
        sums = self._sums(rows, wide)
        places = [
            (sums[r][o], y + (y_step * r + o * self.lanes))
            for r in range(rows)
            for o in range(wide)
        ]
        few = count <= FEW_TERMS
        with self.when(add & few):
            for total, place in places:
                total[0] = self._load(place, mask)
        with self.loop(0, count) as k:
            row = w + k * w_step
            ws = [self._load(row + o * self.lanes, mask) for o in range(wide)]
            for r, row_sums in enumerate(sums):
                element = x[k * x_step + r if down else x_step * r + k]
                alone = f"insertelement {self.vector} poison, {element}, i32 0"
                first = self.op(self.vector, alone)
                same = self._shuffle(first, first, [0] * self.lanes)
                for total, vector in zip(row_sums, ws, strict=True):
                    self._add(total, same, vector)
        with self.when(add & (count > FEW_TERMS)):
            for total, place in places:
                new = total[0]
                total[0] = self._load(place, mask) + new
        for total, place in places:
            self._store(total[0], place, mask)


def products(real: str, size: int) -> list[Code]:
    """Write the three functions, and the tiles of all shapes that they call."""
    found: list[Code] = []

    def tile(name: str, arguments: str) -> VectorCode:
        # A copy of each where it is called would take twice as long to compile.
        code = VectorCode(name, arguments, real, size, inline=False)
        found.append(code)
        return code

    transpose = tile("vrt_transpose", "*w *y w_step y_step rows columns")
    transpose.transpose()
    wide = (1, transpose.outputs)
    for rows in range(1, DOT_ROWS + 1):
        for outputs in wide:
            tile(dot_name(rows, outputs), "*w *x *y m n").dot(rows, outputs)
    for rows in range(1, SPREAD_ROWS + 1):
        for outputs in (*wide, TAIL):
            arguments = "*w *x *y w_step x_step y_step count i1:add"
            arguments += " left" if outputs == TAIL else ""
            for down in (False, True):
                tile(spread_name(down, rows, outputs), arguments).spread(down, rows, outputs)
    return [*found, *(_Product(form, real, size) for form in FORMS)]


# The functions by what they make of a weight W [m, n], and their arguments.
FORMS = {
    "x W^T": ("vrt_product", "*w *x *y rows m n lo hi tiled strips"),
    "d W": ("vrt_product_transposed", "*w *x *y rows m n lo hi tiled"),
    "d^T x": ("vrt_outer", "*g *d *x rows m n lo hi tiled"),
}


class _Product(VectorCode):
    """One of the three functions; it does nothing without rows or outputs."""

    def __init__(self, form: str, real: str, size: int) -> None:
        super().__init__(*FORMS[form], real, size)
        first, second, third, rows, m, n, lo, hi, tiled, *strips = self.arguments
        wide = hi - lo
        with self.when(rows * wide <= 0):
            self.leave()
        if form == "x W^T":  # Y[rows, lo:hi] = X W[lo:hi]^T
            w, x, y = (first + lo * n, n), (second, n), (third + lo, m)
            turned, beta, sizes = "TN", 0.0, [wide, rows, n]
        elif form == "d W":  # Y[rows, lo:hi] = X W[:, lo:hi]
            w, x, y = (first + lo, n), (second, m), (third + lo, n)
            turned, beta, sizes = "NN", 0.0, [wide, rows, m]
        else:  # G[lo:hi, n] += D[rows, lo:hi]^T X[rows, n], where D has m columns
            x, w, y = (second + lo, m), (third, n), (first + lo * n, n)
            turned, beta, sizes = "NT", 1.0, [n, wide, rows]
        with self.when(rows <= tiled):
            if form == "x W^T":
                self._by_strips_or_dots(w, x, y, rows, wide, *strips)
            elif form == "d W":
                self._sweep(False, w, x, y, rows, wide, m)
            else:
                self._sweep(True, w, x, y, wide, n, rows)
            self.leave()
        # BLAS gemm (column-major): c = op(a) op(b) + beta c.
        letters = [self.variable(self.const(ord(letter), "i8")) for letter in turned]

        def counted(size: Register) -> Register:
            return self.variable(self.convert(size, "i32"))

        a, b, c = ([address, counted(leading)] for address, leading in (w, x, y))
        one, other = self.variable(self.const(1.0)), self.variable(self.const(beta))
        self.do("vrt_gemm", [*letters, *map(counted, sizes), one, *a, *b, other, *c])

    # Loops over tiles.

    @contextmanager
    def _blocks(self, whole: Register, most: int) -> Iterator[Range]:
        """Loop over ranges of at most so many elements."""
        with self.loop(0, (whole + (most - 1)) // most) as piece:
            first = piece * most
            yield first, self.least(self.value(most), whole - first)

    def _for_count(self, count: Register, most: int, append: Callable[[int], None]) -> None:
        """Append what is done for a number of rows, for each of 1 to `most`."""
        for tall in range(most, 0, -1):
            with self.when(count.equals(tall)):
                append(tall)

    def _columns(self, count: Register, call: Callable[[Register, int], None]) -> None:
        """Append calls for all outputs, each an element or a vector: full tiles first."""
        full = count // self.outputs
        with self.loop(0, full) as t:
            call(t * self.outputs, self.outputs)
        with self.loop(full * self.outputs, count) as t:
            call(t, 1)

    def _by_strips_or_dots(
        self, w: Matrix, x: Matrix, y: Matrix, rows: Register, wide: Register, strips: Register
    ) -> None:
        """Append a product whose terms lie side by side in w and in x."""
        with self.when(rows >= strips), self._blocks(rows, STRIP_BLOCK) as (first, height):
            self._strips(w, _row(x, first), _row(y, first), height, wide)
        with self.when(rows < strips), self._blocks(rows, DOT_BLOCK) as (first, height):
            self._dots(w, _row(x, first), _row(y, first), height, wide)

    def _dots(self, w: Matrix, x: Matrix, y: Matrix, rows: Register, outputs: Register) -> None:
        """Append a product of a block of rows; the weight passes once."""
        full = rows // DOT_ROWS
        done = full * DOT_ROWS
        left = rows - done

        def column(at: Register, wide: int) -> None:
            weight, _ = _row(w, at)

            def tile(first: Register, tall: int) -> None:
                values, _ = _row(x, first)
                to = y[0] + (first * y[1] + at)
                self.do(dot_name(tall, wide), [weight, values, to, y[1], w[1]])

            with self.loop(0, full) as t:
                tile(t * DOT_ROWS, DOT_ROWS)
            self._for_count(left, DOT_ROWS - 1, lambda tall: tile(done, tall))

        self._columns(outputs, column)

    def _strips(self, w: Matrix, x: Matrix, y: Matrix, rows: Register, outputs: Register) -> None:
        """Append a product of a block of rows; all meet each strip of the weight, transposed."""
        lanes, width = self.lanes, self.outputs * self.lanes
        strip = self.place(f"[{STRIP_DEPTH * width} x {self.real}], align 64", of=self.real)
        step = self.value(width)
        with (
            self._blocks(outputs, width) as (output, wide),
            self._blocks(w[1], STRIP_DEPTH) as (term, count),
        ):
            at = w[0] + (output * w[1] + term)
            with self._blocks(wide, lanes) as (o, some), self._blocks(count, lanes) as (k, terms):
                given = [at + (o * w[1] + k), strip + (k * width + o), w[1], step, some, terms]
                self.do("vrt_transpose", given)
            x, y = (x[0] + term, x[1]), (y[0] + output, y[1])
            zero = self.value(0)
            self._spread((strip, step), x, y, (zero, rows), (zero, count), wide, term > 0)

    def _sweep(
        self,
        down: bool,
        w: Matrix,
        x: Matrix,
        y: Matrix,
        rows: Register,
        columns: Register,
        depth: Register,
    ) -> None:
        """Append a product y [rows, columns] = x w, by spread tiles.

        Args:
            down: x is stored with a row for each term, and y is added to.
            depth: terms of a sum.
        """
        if not down:
            with self._blocks(rows, BLOCK) as block, self._blocks(depth, DEPTH) as terms:
                self._spread(w, x, y, block, terms, columns, terms[0] > 0)
            return
        copy = self.place(f"[{BLOCK * DEPTH} x {self.real}], align 64", of=self.real)
        always = self.const(True, "i1")
        # Some terms for all rows: w is what passes once.
        with self._blocks(depth, DEPTH) as terms, self._blocks(rows, BLOCK) as block:
            self._spread(w, x, y, block, terms, columns, always, copy)

    def _spread(
        self,
        w: Matrix,
        x: Matrix,
        y: Matrix,
        block: Range,
        terms: Range,
        columns: Register,
        add: Register,
        copy: Register | None = None,
    ) -> None:
        """Append all columns of a block of rows, for some terms.

        Args:
            add: to what y holds.
            copy: where x goes that has a row for each term: its rows share cache sets.
        """
        (first, height), (term, count) = block, terms
        w_from, _ = _row(w, term)
        y_from, _ = _row(y, first)
        down = copy is not None
        if copy is None:
            x_from, x_step = x[0] + (first * x[1] + term), x[1]
        else:
            x_from, x_step = copy, self.value(BLOCK)
            with self.loop(0, count) as k:
                source, to = x[0] + ((term + k) * x[1] + first), copy + k * BLOCK
                with self.loop(0, height, independent=True) as j:
                    to[j] = source[j]
        vectors, left = columns // self.lanes, columns % self.lanes

        def tile(row: Register, tall: int, column: Register, wide: int) -> None:
            at = column * self.lanes
            given = [
                w_from + at,
                x_from + (row if down else row * x_step),
                y_from + (row * y[1] + at),
                *(w[1], x_step, y[1], count, add),
                *((left,) if wide == TAIL else ()),
            ]
            self.do(spread_name(down, tall, wide), given)

        def every(call: Callable[[Register, int], None]) -> None:
            self._columns(vectors, call)
            with self.when(left > 0):
                call(vectors, TAIL)

        def tiles(call: Callable[[Register, int], None]) -> None:
            """Append calls for all rows, in tiles that differ by one row at most."""
            number = (height + (SPREAD_ROWS - 1)) // SPREAD_ROWS
            each, more = height // number, height % number
            with self.loop(0, number) as t:
                begin = t * each + self.least(t, more)
                larger = self.convert(t < more, "i64")
                self._for_count(each + larger, SPREAD_ROWS, lambda tall: call(begin, tall))

        if down:  # y is the gradient of a weight: it passes once, as it lies
            tiles(lambda r, tall: every(lambda c, wide: tile(r, tall, c, wide)))
        else:
            every(lambda c, wide: tiles(lambda r, tall: tile(r, tall, c, wide)))


def _row(matrix: Matrix, number: Register) -> Matrix:
    """Return a matrix from one of its rows on."""
    address, step = matrix
    return address + number * step, step


COPIES = "vrt_pack", "vrt_unpack"
EXPORTS = (*(name for name, _ in FORMS.values()), *COPIES, "vrt_add_lookups", "vrt_count_children")


def register_size() -> int:
    """Return how many float32 elements a vector register of this processor holds."""
    features = machine()[1][2]
    return 16 if "+avx512f" in features else 8 if "+avx2" in features else 4


@functools.cache
def library_of(real: str, size: int = 0) -> LoadedCode:
    """Return the addresses of what kernels of `float` or `double` call.

    Args:
        size: of vectors, in float32 elements; 0 for this processor's.
    """
    gemm = blas_address("sgemm" if real == "float" else "dgemm")
    return load(library(real, size or register_size()), EXPORTS, {"vrt_gemm": gemm})


def library(real: str, size: int) -> str:
    """Return the module of what kernels of a dtype call.

    Args:
        size: of a vector register of this processor, in float32 elements.
    """
    copies = [_copy_rows(real, name) for name in COPIES]
    return module_of([*products(real, size), *copies, _AddLookups(real), _count_children()])


def _copy_rows(real: str, name: str) -> Code:
    """Write a copy of rows[at : at + n] of a tensor to the rows of a temporary, or back."""
    code = Code(name, "*base size index*rows at n *packed", real)
    base, size, rows, at, n, packed = code.arguments
    with code.loop(0, n) as i:
        row = rows[at + i]
        ends = [base + row * size, packed + i * size]
        source, to = ends if name == "vrt_pack" else reversed(ends)
        with code.loop(0, size, independent=True) as j:
            to[j] = source[j]
    return code


class _AddLookups(Code):
    """Sums of the rows of a launch, into the rows of a gradient that they looked up.

    More than ROWS_A_SUM rows are chained by word, in their order, and added up in float64: what a
    frequent word adds up would lose digits in float32.

    Arguments: the gradient and the elements of its rows; the words and columns that this processor
    adds to; where the rows lie, how far apart, one for each row of the launch if `local`; what each
    vertex looked up (-1: nothing), by `order` of the rows; the launch.
    """

    def __init__(self, real: str) -> None:
        text = "*gradient size word0 word1 first end *source step index*index index*order lo"
        super().__init__("vrt_add_lookups", f"{text} index*rows at n i1:local", real)
        self.gradient, self.size, self.word0, self.word1, self.first, self.end = self.arguments[:6]
        self.source, self.step, self.index, self.order, self.lo, self.rows = self.arguments[6:12]
        self.listed, n, self.local = self.arguments[12:]
        with self.when(n <= ROWS_A_SUM):
            with self.loop(0, n) as i:
                row, word = self._look_up(i)
                with self.when(self._is_own(word)):
                    self._add(self._target(word), self._row(i, row))
            self.leave()
        words = self.most(self.word1 - self.word0, 0)
        sizes = [(x + 1) * 8 for x in (n, words, self.size)]
        taken = [self.call("ptr", "malloc", [size]) for size in sizes]
        following, self.newest, total = (
            memory.to(of) for memory, of in zip(taken, ("i64", "i64", "double"), strict=True)
        )
        # The rows of each word are linked, the first to the next.
        with self.loop(0, words) as w:
            self.newest[w] = self.const(-1, "i64")
        with self.loop(0, n) as k:
            i = n + -1 - k
            _, word = self._look_up(i)
            with self.when(self._is_own(word)):
                newest = self._newest(word)
                following[i] = newest[0]
                newest[0] = i
        self._clear(total)
        with self.loop(0, n) as i:
            _, word = self._look_up(i)
            with (
                self.when(self._is_own(word)),
                self.when(self._newest(word)[0].equals(i)),  # the first row of a word
            ):
                other = self.variable(i)
                with self.repeat(lambda: other[0] >= 0):
                    k = other[0]
                    self._add(total, self._row(k, self._look_up(k)[0]))
                    other[0] = following[k]
                self._add(self._target(word), total)
                self._clear(total)
        for memory in taken:
            self.do("free", [memory])

    @once(0)
    def _is_listed(self) -> Register:
        return self.lo < 0

    def _look_up(self, i: Register) -> tuple[Register, Register]:
        """Return row i of the launch, and what it looked up."""
        listed = self._is_listed()
        row = self.variable(self.lo + i)
        with self.when(listed):
            row[0] = self.rows[self.listed + i]
        found = row[0]
        return found, self.index[self.order[found]]

    def _is_own(self, word: Register) -> Register:
        """Tell whether this processor adds to the gradient of a word."""
        after = word >= self.word0
        return after & (word < self.word1)

    def _row(self, i: Register, row: Register) -> Register:
        """Return where row i of the launch lies."""
        return self.source + self.select(self.local, i, row) * self.step

    def _newest(self, word: Register) -> Register:
        return self.newest + (word - self.word0)

    def _target(self, word: Register) -> Register:
        return self.gradient + word * self.size

    def _clear(self, total: Register) -> None:
        with self.loop(self.first, self.end, independent=True) as j:
            total[j] = self.const(0.0, "double")

    def _add(self, to: Register, source: Register) -> None:
        """Add a row to another; those of two types in float64, rounded once."""
        wide = "double" if to.of != source.of else to.of
        with self.loop(self.first, self.end, independent=True) as j:
            x, old = source[j], to[j]
            x, old = (self.convert(value, wide) for value in (x, old))
            to[j] = self.convert(old + x, to.of)


def _count_children() -> Code:
    """Write a count of the edges that have a child."""
    code = Code("vrt_count_children", "i32*children first end", result="i64")
    children, first, end = code.arguments
    count = code.variable(code.value(0))
    with code.loop(first, end) as e:
        there = children[e] >= 0
        count[0] = count[0] + code.convert(there, "i64")
    code.leave(count[0])
    return code
