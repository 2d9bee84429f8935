"""What all kernels call: products, copies of rows, sums into rows of a table.

One library for each dtype, made once and kept like a kernel. It knows no function of a user.
"""

from __future__ import annotations

from vertexrt.kernels.cpu.products import products
from vertexrt.lower.kernel import ROWS_A_SUM
from vertexrt.native.code import Code, Register, arguments_of, int64, module_of

EXPORTS = (
    "vrt_product",
    "vrt_product_transposed",
    "vrt_outer",
    "vrt_pack",
    "vrt_unpack",
    "vrt_add_lookups",
    "vrt_count_children",
)


def library(real: str, size: int) -> str:
    """Return the module of what kernels of a dtype call.

    Args:
        size: of a vector register of this processor, in float32 elements.
    """
    return module_of(
        [
            *products(real, size),
            _copy_rows(real, "vrt_pack"),
            _copy_rows(real, "vrt_unpack"),
            _AddLookups(real),
            _count_children(),
        ]
    )


def _copy_rows(real: str, name: str) -> Code:
    """Write a copy of rows[at : at + n] of a tensor to the rows of a temporary, or back."""
    arguments = arguments_of("*base size *rows at n *packed")
    base, size, rows, at, n, packed = arguments
    code = Code(name, arguments, real)
    with code.loop(0, n) as i:
        row = code.load_index(rows, code.add(at, i))
        ends = [code.at(base, code.mul(row, size), real), code.at(packed, code.mul(i, size), real)]
        source, to = ends if name == "vrt_pack" else reversed(ends)
        with code.loop(0, size, independent=True) as j:
            code.store(code.load(real, source, j, independent=True), to, j, independent=True)
    return code


# Sums into rows of a table.


class _AddLookups(Code):
    """Sums of the rows of a launch, into the rows of a gradient that they looked up.

    More than ROWS_A_SUM rows are chained by word, in their order, and added up in float64: what a
    frequent word adds up would lose digits in float32.

    Arguments: the gradient and the elements of its rows; the words and columns that this processor
    adds to; where the rows lie, how far apart, one for each row of the launch if `local`; what each
    vertex looked up (-1: nothing), by `order` of the rows; the launch.
    """

    def __init__(self, real: str) -> None:
        text = "*gradient size word0 word1 first end *source step *index *order lo *rows at n"
        arguments = arguments_of(text)
        local = Register("i1", "%local")
        super().__init__("vrt_add_lookups", [*arguments, local], real)
        self.local = local
        self.gradient, self.size, self.word0, self.word1, self.first, self.end = arguments[:6]
        self.source, self.step, self.index, self.order, self.lo, self.rows = arguments[6:12]
        self.listed, self.n = arguments[12:]
        n = self.n
        with self.when(self.compare("sle", n, ROWS_A_SUM)):
            with self.loop(0, n) as i:
                row, word = self._look_up(i)
                with self.when(self._is_own(word)):
                    self._add(self._target(word), self._row(i, row))
            self.leave()
        words = self.most(self.integer("sub", self.word1, self.word0), 0)
        sizes = [self.mul(self.add(x, 1), 8) for x in (n, words, self.size)]
        taken = [self.call("ptr", "malloc", [size]) for size in sizes]
        self.following, self.newest, self.total = taken
        self._chain(words)
        self._clear()
        with self.loop(0, n) as i:
            self._add_chain(i)
        for memory in taken:
            self.do("free", [memory])

    def _look_up(self, i: Register) -> tuple[Register, Register]:
        """Return row i of the launch, and what it looked up."""
        listed = self.once(0, "listed", lambda: self.compare("slt", self.lo, 0))
        row = self.variable(self.add(self.lo, i))
        with self.when(listed):
            self.store(self.load_index(self.rows, self.add(self.listed, i)), row)
        found = self.load("i64", row)
        return found, self.load_index(self.index, self.load_index(self.order, found))

    def _is_own(self, word: Register) -> Register:
        """Tell whether this processor adds to the gradient of a word."""
        after = self.compare("sge", word, self.word0)
        return self.integer("and", after, self.compare("slt", word, self.word1))

    def _row(self, i: Register, row: Register) -> Register:
        """Return where row i of the launch lies."""
        number = self.select(self.local, i, row)
        return self.at(self.source, self.mul(number, self.step), self.real)

    def _chain(self, words: Register) -> None:
        """Link the rows of each word, the first to the next."""
        with self.loop(0, words) as w:
            self.store(int64(-1), self.newest, w)
        with self.loop(0, self.n) as k:
            i = self.integer("sub", self.add(self.n, -1), k)
            _, word = self._look_up(i)
            with self.when(self._is_own(word)):
                newest = self._newest(word)
                self.store(self.load("i64", newest), self.following, i)
                self.store(i, newest)

    def _add_chain(self, i: Register) -> None:
        """Add up the rows of a word, if row i is the first of them."""
        _, word = self._look_up(i)
        with self.when(self._is_own(word)):
            is_first = self.compare("eq", self.load("i64", self._newest(word)), i)
            with self.when(is_first):
                other = self.variable(i)
                with self.repeat(lambda: self.compare("sge", self.load("i64", other), 0)):
                    k = self.load("i64", other)
                    self._add(self.total, self._row(k, self._look_up(k)[0]), "double")
                    self.store(self.load("i64", self.following, k), other)
                self._add(self._target(word), self.total, self.real, "double")
                self._clear()

    def _newest(self, word: Register) -> Register:
        return self.at(self.newest, self.integer("sub", word, self.word0), "i64")

    def _target(self, word: Register) -> Register:
        return self.at(self.gradient, self.mul(word, self.size), self.real)

    def _clear(self) -> None:
        with self.loop(self.first, self.end, independent=True) as j:
            self.store(Register("double", "0.0"), self.total, j, independent=True)

    def _add(self, to: Register, source: Register, type: str = "", of: str = "") -> None:
        """Add a row to another.

        Args:
            type, of: of the elements of both; the library's, where it is not said.
        """
        type, of = type or self.real, of or self.real
        with self.loop(self.first, self.end, independent=True) as j:
            x = self.load(of, source, j, independent=True)
            old = self.load(type, to, j, independent=True)
            if type != self.real or of != self.real:  # in float64, rounded once
                x, old = (self._wide(v) for v in (x, old))
            total = self.op(x.type, f"fadd {old}, {x.name}")
            if total.type != type:
                total = self.op(type, f"fptrunc {total} to {type}")
            self.store(total, to, j, independent=True)

    def _wide(self, x: Register) -> Register:
        return x if x.type == "double" else self.op("double", f"fpext {x} to double")


def _count_children() -> Code:
    """Write a count of the edges that have a child."""
    code = Code("vrt_count_children", arguments_of("*children first end"), result="i64")
    children, first, end = code.arguments
    count = code.variable(int64(0))
    with code.loop(first, end) as e:
        there = code.compare("sge", code.load("i32", children, e), 0)
        code.store(code.add(code.load("i64", count), code.convert(there, "i64")), count)
    code.leave(code.load("i64", count))
    return code
