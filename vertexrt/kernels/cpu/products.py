"""Products that kernels call: loops over register tiles, and BLAS for many rows of large weights.

    vrt_product               Y = X W^T, some outputs     by dot tiles, or spread ones and W^T
    vrt_product_transposed    Y = X W                     by spread tiles
    vrt_outer                 G += D^T X, some rows       by spread tiles

A weight serves all three as it lies. Of many rows the first transposes a strip of it at a time: no
copy outlives the call, or it would have to be kept up with every update. Panels that are packed
once would serve few rows as well, and are 0.9 to 1.1 times as fast there (`docs/performance.md`).
OpenBLAS is slower but for many rows of large matrices. `tiled` of all three says up to how many
rows tiles take, `strips` of the first from how many on W is transposed: both are decided before
(`choose_products`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from vertexrt.kernels.cpu.tiles import (
    DOT_ROWS,
    SPREAD_ROWS,
    TAIL,
    TRANSPOSE,
    VectorCode,
    dot_name,
    spread_name,
    tiles,
)
from vertexrt.native.code import Code, Register, int64

DOT_BLOCK = 64  # rows that meet all of a weight before the next do: they stay in the caches
BLOCK = 96  # the same for spread elements
STRIP_DEPTH = 128  # terms of a strip, a multiple of all lanes: it stays in the first cache
STRIP_BLOCK = 256  # rows that meet all strips before the next do: they stay in the second cache
DEPTH = 256  # terms that are added up before they join a sum: more lose digits and leave caches


def products(real: str, size: int) -> list[Code]:
    """Write the three functions, and the tiles that they call."""
    made = [each(real, size) for each in (_product, _product_transposed, _outer)]
    return [*tiles(real, size), *made]


def _start(
    name: str, pointers: str, real: str, size: int, limits: tuple[str, ...] = ("tiled",)
) -> tuple[VectorCode, list[Register], Register]:
    """Begin a function that does nothing without rows or outputs.

    Args:
        limits: numbers of rows that say how a product is made.
    Returns: it, its arguments, and how many outputs there are.
    """
    names = [Register("ptr", f"%{name}") for name in pointers.split()]
    names += [Register("i64", f"%{name}") for name in ("rows", "m", "n", "lo", "hi", *limits)]
    code = VectorCode(name, names, real, size)
    rows, _, _, lo, hi, *_ = names[3:]
    wide = code.integer("sub", hi, lo)
    with code.when(code.compare("sle", code.mul(rows, wide), 0)):
        code.leave()
    return code, names, wide


def _product(real: str, size: int) -> Code:
    """Write Y[rows, lo:hi] = X W[lo:hi]^T."""
    code, names, wide = _start("vrt_product", "w x y", real, size, ("tiled", "strips"))
    w, x, y, rows, m, n, lo, _, tiled, strips = names
    at, to = code.at(w, code.mul(lo, n), code.real), code.at(y, lo, code.real)
    with code.when(code.compare("sle", rows, tiled)):
        for test, block, append in (
            ("sge", STRIP_BLOCK, _strip_block),
            ("slt", DOT_BLOCK, _dot_block),
        ):
            with (
                code.when(code.compare(test, rows, strips)),
                _blocks(code, rows, block) as (first, height),
            ):
                values = code.at(x, code.mul(first, n), code.real)
                sums = code.at(to, code.mul(first, m), code.real)
                append(code, [at, values, sums, m, n], height, wide)
        code.leave()
    _gemm(code, "TN", 0.0, [wide, rows, n], [(at, n), (x, n), (to, m)])
    return code


def _product_transposed(real: str, size: int) -> Code:
    """Write Y[rows, lo:hi] = X W[:, lo:hi]."""
    code, names, wide = _start("vrt_product_transposed", "w x y", real, size)
    w, x, y, rows, m, n, lo, _, tiled = names
    at, to = code.at(w, lo, code.real), code.at(y, lo, code.real)
    with code.when(code.compare("sle", rows, tiled)):
        _Sweep(code, False, Matrices(at, x, to, n, m, n)).append(rows, wide, m)
        code.leave()
    _gemm(code, "NN", 0.0, [wide, rows, m], [(at, n), (x, m), (to, n)])
    return code


def _outer(real: str, size: int) -> Code:
    """Write G[lo:hi, n] += D[rows, lo:hi]^T X[rows, n], where D has m columns."""
    code, names, wide = _start("vrt_outer", "g d x", real, size)
    g, d, x, rows, m, n, lo, _, tiled = names
    at, to = code.at(d, lo, code.real), code.at(g, code.mul(lo, n), code.real)
    with code.when(code.compare("sle", rows, tiled)):
        _Sweep(code, True, Matrices(x, at, to, n, m, n)).append(wide, n, rows)
        code.leave()
    _gemm(code, "NT", 1.0, [n, wide, rows], [(x, n), (at, m), (to, n)])
    return code


def _gemm(
    code: Code,
    turned: str,
    beta: float,
    sizes: list[Register],
    matrices: list[tuple[Register, Register]],
) -> None:
    """Call BLAS gemm (column-major): c = op(a) op(b) + beta c.

    Args:
        turned: N or T for a and for b.
        sizes: m, n, k.
        matrices: address and leading dimension of a, b and c.
    """

    def counted(size: Register) -> Register:
        return code.variable(code.op("i32", f"trunc {size} to i32"))

    letters = [code.variable(Register("i8", str(ord(letter)))) for letter in turned]
    a, b, c = ([address, counted(leading)] for address, leading in matrices)
    one, other = code.variable(code.const(1.0)), code.variable(code.const(beta))
    code.do("vrt_gemm", [*letters, *map(counted, sizes), one, *a, *b, other, *c])


# Loops over tiles.


def _pieces(code: Code, whole: Register, most: int) -> Register:
    """Return how many pieces of at most so many there are."""
    return code.integer("sdiv", code.add(whole, most - 1), most)


@contextmanager
def _blocks(code: Code, whole: Register, most: int) -> Iterator[tuple[Register, Register]]:
    """Loop over pieces; yield the first element of each, and how many it has."""
    with code.loop(0, _pieces(code, whole, most)) as piece:
        first = code.mul(piece, most)
        yield first, code.least(int64(most), code.integer("sub", whole, first))


def _for_count(code: Code, count: Register, most: int, append: Callable[[int], None]) -> None:
    """Append what is done for a number of rows, for each of 1 to `most`."""
    for tall in range(most, 0, -1):
        with code.when(code.compare("eq", count, tall)):
            append(tall)


def _columns(code: VectorCode, count: Register, call: Callable[[Register, int], None]) -> None:
    """Append calls for all outputs, each an element or a vector: full tiles first."""
    full = code.integer("sdiv", count, code.outputs)
    with code.loop(0, full) as t:
        call(code.mul(t, code.outputs), code.outputs)
    with code.loop(code.mul(full, code.outputs), count) as t:
        call(t, 1)


def _dot_block(
    code: VectorCode, matrices: list[Register], rows: Register, outputs: Register
) -> None:
    """Append a product of a block of rows; the weight passes once.

    Args:
        matrices: w, x, y, and m and n as in `vrt_product`.
    """
    w, x, y, m, n = matrices
    full = code.integer("sdiv", rows, DOT_ROWS)
    done = code.mul(full, DOT_ROWS)
    left = code.integer("sub", rows, done)

    def column(at: Register, wide: int) -> None:
        weight = code.at(w, code.mul(at, n), code.real)

        def tile(first: Register, tall: int) -> None:
            values = code.at(x, code.mul(first, n), code.real)
            to = code.at(y, code.add(code.mul(first, m), at), code.real)
            code.do(dot_name(tall, wide), [weight, values, to, m, n])

        with code.loop(0, full) as t:
            tile(code.mul(t, DOT_ROWS), DOT_ROWS)
        _for_count(code, left, DOT_ROWS - 1, lambda tall: tile(done, tall))

    _columns(code, outputs, column)


def _strip_block(
    code: VectorCode, matrices: list[Register], rows: Register, outputs: Register
) -> None:
    """Append a product of a block of rows; all meet each strip of the weight, transposed.

    Args:
        matrices: w, x, y, and m and n as in `vrt_product`.
    """
    w, x, y, m, n = matrices
    real, lanes = code.real, code.lanes
    width = code.outputs * lanes
    strip = code.array(real, STRIP_DEPTH * width)
    with (
        _blocks(code, outputs, width) as (output, wide),
        _blocks(code, n, STRIP_DEPTH) as (term, count),
    ):
        at = code.at(w, code.add(code.mul(output, n), term), real)
        with _blocks(code, wide, lanes) as (o, some), _blocks(code, count, lanes) as (k, terms):
            source = code.at(at, code.add(code.mul(o, n), k), real)
            to = code.at(strip, code.add(code.mul(k, width), o), real)
            code.do(TRANSPOSE, [source, to, n, int64(width), some, terms])
        values, sums = code.at(x, term, real), code.at(y, output, real)
        sweep = _Sweep(code, False, Matrices(strip, values, sums, int64(width), n, m))
        sweep.block((int64(0), rows), (int64(0), count), wide, code.compare("sgt", term, 0))


class Matrices(NamedTuple):
    """Operands of a sweep: addresses, and elements from a row of each to the next."""

    w: Register
    x: Register
    y: Register
    w_step: Register
    x_step: Register
    y_step: Register


class _Sweep:
    """A product y [rows, columns] = x w, by spread tiles.

    Args:
        down: x is stored with a row for each term, and y is added to.
    """

    def __init__(self, code: VectorCode, down: bool, matrices: Matrices) -> None:
        self.code, self.down, self.given = code, down, matrices
        self.copy = code.array(code.real, BLOCK * DEPTH) if down else matrices.x

    def append(self, rows: Register, columns: Register, depth: Register) -> None:
        """Append all of it.

        Args:
            depth: terms of a sum.
        """
        code = self.code
        if self.down:  # some terms for all rows: w is what passes once
            with _blocks(code, depth, DEPTH) as terms, _blocks(code, rows, BLOCK) as block:
                self.block(block, terms, columns, Register("i1", "true"))
        else:
            with _blocks(code, rows, BLOCK) as block, _blocks(code, depth, DEPTH) as terms:
                self.block(block, terms, columns, code.compare("sgt", terms[0], 0))

    def block(
        self,
        block: tuple[Register, Register],
        terms: tuple[Register, Register],
        columns: Register,
        add: Register,
    ) -> None:
        """Append all columns of a block of rows, for some terms; `add` to what y holds."""
        code, m = self.code, self.given
        (first, height), (term, count) = block, terms
        w = code.at(m.w, code.mul(term, m.w_step), code.real)
        y = code.at(m.y, code.mul(first, m.y_step), code.real)
        x, x_step = self._values(block, terms)
        lanes = code.lanes
        vectors, left = (code.integer(of, columns, lanes) for of in ("sdiv", "srem"))

        def tile(row: Register, tall: int, column: Register, wide: int) -> None:
            at = code.mul(column, lanes)
            given = [
                code.at(w, at, code.real),
                code.at(x, row if self.down else code.mul(row, x_step), code.real),
                code.at(y, code.add(code.mul(row, m.y_step), at), code.real),
                *(m.w_step, x_step, m.y_step, count, add),
                *((left,) if wide == TAIL else ()),
            ]
            code.do(spread_name(self.down, tall, wide), given)

        def every(call: Callable[[Register, int], None]) -> None:
            _columns(code, vectors, call)
            with code.when(code.compare("sgt", left, 0)):
                call(vectors, TAIL)

        if self.down:  # y is the gradient of a weight: it passes once, as it lies
            self._tiles(height, lambda r, tall: every(lambda c, wide: tile(r, tall, c, wide)))
        else:
            every(lambda c, wide: self._tiles(height, lambda r, tall: tile(r, tall, c, wide)))

    def _values(
        self, block: tuple[Register, Register], terms: tuple[Register, Register]
    ) -> tuple[Register, Register]:
        """Return where a block's x lies: of rows for terms a copy, or they share cache sets."""
        code, m = self.code, self.given
        (first, height), (term, count) = block, terms
        if not self.down:
            at = code.add(code.mul(first, m.x_step), term)
            return code.at(m.x, at, code.real), m.x_step
        with code.loop(0, count) as k:
            at = code.add(code.mul(code.add(term, k), m.x_step), first)
            source, to = (
                code.at(m.x, at, code.real),
                code.at(self.copy, code.mul(k, BLOCK), code.real),
            )
            with code.loop(0, height, independent=True) as j:
                value = code.load(code.real, source, j, independent=True)
                code.store(value, to, j, independent=True)
        return self.copy, int64(BLOCK)

    def _tiles(self, rows: Register, call: Callable[[Register, int], None]) -> None:
        """Append calls for all rows, in tiles that differ by one row at most."""
        code = self.code
        count = _pieces(code, rows, SPREAD_ROWS)
        each, more = code.integer("sdiv", rows, count), code.integer("srem", rows, count)
        with code.loop(0, count) as t:
            first = code.add(code.mul(t, each), code.least(t, more))
            larger = code.op("i64", f"zext {code.compare('slt', t, more)} to i64")
            _for_count(code, code.add(each, larger), SPREAD_ROWS, lambda tall: call(first, tall))
