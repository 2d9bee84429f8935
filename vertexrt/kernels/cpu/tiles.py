"""Products of few rows with a weight that is read once, where it lies: no packing, no BLAS.

A level of a tree has a few rows, and BLAS packs the weight anew for each product. Here a tile of
rows and outputs is added up in vector registers while the weight streams by:

    y = x W^T    a tile of 4 rows and 4 outputs: each sum is one vector along the inner dimension,
                 added up at its end
    y = x W      a tile of 4 rows and 4 vectors of outputs; elements of x are spread over a vector

Source: the register tiles of Goto and van de Geijn, ACM TOMS 2008, without their packing.
"""

from __future__ import annotations

from collections.abc import Callable

from vertexrt.kernels.cpu.code import Code, Register, int64

ROWS = 4  # of a tile; what is left over has tiles of 1 to 3 rows, and of 1 output
ARGUMENTS = [
    *(Register("ptr", f"%{name}") for name in ("w", "x", "y")),
    *(Register("i64", f"%{name}") for name in ("m", "n", "count")),
]


class ProductTiles:
    """Functions for tiles of one dtype, and products that call them.

    Args:
        size: of a vector register, in float32 elements.

    Attributes:
        lanes: elements of a vector; outputs: of a tile, whose sums fit 16 or 32 registers.
    """

    def __init__(self, real: str, size: int) -> None:
        self.real, self.lanes = real, size if real == "float" else size // 2
        lanes = self.lanes
        self.outputs = 2 if size == 8 else 4
        self.vector = f"<{lanes} x {real}>"
        self.suffix = f"v{lanes}{'f32' if real == 'float' else 'f64'}"

    def declarations(self) -> list[str]:
        """Declare what tiles call."""
        v, s = self.vector, self.suffix
        return [
            f"declare {v} @llvm.fma.{s}({v}, {v}, {v})",
            f"declare {self.real} @llvm.vector.reduce.fadd.{s}({self.real}, {v})",
        ]

    def functions(self) -> list[str]:
        """Write the tiles of all shapes."""
        shapes = [(r, o) for r in range(1, ROWS + 1) for o in (1, self.outputs)]
        return [
            write(*shape)
            for write in (self._forward, self._turned, self._outer)
            for shape in shapes
        ]

    def _sums(self, code: Code, rows: int, outputs: int) -> list[list[Register]]:
        zero = Register(self.vector, "zeroinitializer")
        return [[code.variable(zero) for _ in range(outputs)] for _ in range(rows)]

    def _add(self, code: Code, total: Register, a: Register, b: Register) -> None:
        """Add a product of vectors to a sum."""
        old = code.load(self.vector, total)
        code.store(code.call(self.vector, f"llvm.fma.{self.suffix}", [a, b, old]), total)

    def _load(self, code: Code, base: Register, at: Register) -> Register:
        """Load a vector that may begin at any element."""
        return code.op(self.vector, f"load {self.vector}, {code.at(base, at, self.real)}, align 4")

    def _forward(self, rows: int, outputs: int) -> str:
        """Write y[r, o] = sum over k of x[r, k] w[o, k]; w has n columns, y has m."""
        code = Code(f"vrt_forward_{rows}_{outputs}", ARGUMENTS, self.real)
        w, x, y, m, n, _ = ARGUMENTS
        sums = self._sums(code, rows, outputs)
        with code.loop(0, code.integer("sdiv", n, self.lanes)) as block:
            k = code.mul(block, self.lanes)
            ws = [self._load(code, w, code.add(code.mul(n, o), k)) for o in range(outputs)]
            for r in range(rows):
                row = self._load(code, x, code.add(code.mul(n, r), k))
                for o in range(outputs):
                    self._add(code, sums[r][o], row, ws[o])
        for r in range(rows):
            for o in range(outputs):
                parts = code.load(self.vector, sums[r][o])
                given = [code.const(0.0), parts]
                name = f"llvm.vector.reduce.fadd.{self.suffix}"
                total = code.call(self.real, name, given, "reassoc ")
                code.store(total, y, code.add(code.mul(m, r), o))
        return code.text()

    def _turned(self, rows: int, outputs: int) -> str:
        """Write y[r, vector o] = sum over k of x[r, k] w[k, vector o]; w and y have n columns."""
        return self._by_vectors("turned", rows, outputs)

    def _outer(self, rows: int, outputs: int) -> str:
        """Write y[r, vector o] += sum over k of x[k, r] w[k, vector o]; x has m columns."""
        return self._by_vectors("outer", rows, outputs)

    def _by_vectors(self, name: str, rows: int, outputs: int) -> str:
        code = Code(f"vrt_{name}_{rows}_{outputs}", ARGUMENTS, self.real)
        w, _, y, _, n, count = ARGUMENTS
        sums = self._sums(code, rows, outputs)
        tile = [(r, o) for r in range(rows) for o in range(outputs)]
        place = {
            (r, o): code.at(y, code.add(code.mul(n, r), o * self.lanes), self.real) for r, o in tile
        }
        for r, o in tile if name == "outer" else ():
            code.store(self._load(code, place[r, o], int64(0)), sums[r][o])
        with code.loop(0, count) as k:
            ws = self._vectors(code, w, code.mul(k, n), outputs)
            spread = [self._factor(code, name, r, k) for r in range(rows)]
            for r, o in tile:
                self._add(code, sums[r][o], spread[r], ws[o])
        for r, o in tile:
            total = code.load(self.vector, sums[r][o])
            code.line(f"store {total}, {place[r, o]}, align 4")
        return code.text()

    def _vectors(self, code: Code, base: Register, begin: Register, count: int) -> list[Register]:
        """Load vectors that lie side by side."""
        starts = [code.add(begin, k * self.lanes) for k in range(count)]
        return [self._load(code, base, start) for start in starts]

    def _factor(self, code: Code, name: str, r: int, k: Register) -> Register:
        """Return the factor of row r at step k, in all lanes."""
        _, x, _, m, _, _ = ARGUMENTS
        turned = name == "turned"
        at = code.add(code.mul(m, r), k) if turned else code.add(code.mul(k, m), r)
        return self._spread(code, code.load(self.real, x, at))

    def _spread(self, code: Code, one: Register) -> Register:
        """Return a vector of one number."""
        first = code.op(self.vector, f"insertelement {self.vector} poison, {one}, i32 0")
        mask = f"<{self.lanes} x i32> zeroinitializer"
        return code.op(self.vector, f"shufflevector {first}, {self.vector} poison, {mask}")


def multiply(
    code: Code,
    kind: str,
    tiles: ProductTiles,
    arguments: list[Register],
    span: tuple[Register, Register],
) -> None:
    """Append a product, tile by tile: outputs outside, so that the weight is read once.

    Args:
        kind: forward, turned or outer.
        arguments: w, x, y, rows, m, n as `vrt_product` has them; for `outer` the gradient, d and x.
        span: outputs of a product, rows of a gradient.
    """
    w, x, y, rows, m, n = arguments
    lo, hi = span
    if kind == "outer":
        gradient, d, values = w, x, y
        rows, (lo, hi), first_row, count = code.integer("sub", hi, lo), (int64(0), n), lo, rows
        w, x = values, code.at(d, first_row, code.real)
        y = code.at(gradient, code.mul(first_row, n), code.real)
    else:
        count = m
    wide = 1 if kind == "forward" else tiles.lanes
    width = m if kind == "forward" else n
    step = {"forward": n, "turned": m, "outer": int64(1)}[kind]

    def column(at: Register, outputs: int) -> None:
        """Append a tile of outputs for all rows."""
        weight = code.at(w, code.mul(at, n) if kind == "forward" else at, code.real)

        def call(first: Register, tall: int) -> None:
            given = [
                weight,
                code.at(x, code.mul(first, step), code.real),
                code.at(y, code.add(code.mul(first, width), at), code.real),
                m,
                n,
                count,
            ]
            code.line(f"call void @vrt_{kind}_{tall}_{outputs}({', '.join(map(str, given))})")

        _in_tiles(code, rows, call)

    outputs = code.integer("sdiv", code.integer("sub", hi, lo), wide)
    full = code.integer("sdiv", outputs, tiles.outputs)
    with code.loop(0, full) as t:
        column(code.add(lo, code.mul(t, tiles.outputs * wide)), tiles.outputs)
    with code.loop(code.mul(full, tiles.outputs), outputs) as t:
        column(code.add(lo, code.mul(t, wide)), 1)


def _in_tiles(code: Code, rows: Register, call: Callable[[Register, int], None]) -> None:
    """Append calls for all rows: tiles of ROWS, and one of what is left."""
    full = code.integer("sdiv", rows, ROWS)
    with code.loop(0, full) as t:
        call(code.mul(t, ROWS), ROWS)
    done = code.mul(full, ROWS)
    left = code.integer("sub", rows, done)
    for count in range(1, ROWS):
        with code.when(code.compare("eq", left, int64(count))):
            call(done, count)
