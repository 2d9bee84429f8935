"""What all kernels call: products, copies of rows, sums into rows of a table; and BLAS.

One library for each dtype, made once and kept like a kernel. It knows no function of a user.
"""

from __future__ import annotations

import functools

from vertexrt.kernels.cpu.products import FORMS, products
from vertexrt.lower.kernel import ROWS_A_SUM
from vertexrt.native.blas import blas_address
from vertexrt.native.code import Code, Register, module_of, once
from vertexrt.native.load import LoadedCode, load, machine

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
