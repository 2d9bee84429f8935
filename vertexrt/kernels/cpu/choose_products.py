"""The pass that decides what makes each product of a kernel: register tiles, or BLAS.

Tiles make products of up to so many rows, BLAS those of more; of many rows tiles transpose the
weight first, strip by strip. The fixed limits were measured on few machines; a table that is timed
on the machine at hand corrects those of BLAS where the other is clearly faster. What is within the
noise stays with the fixed limits, so two machines of one kind nearly always decide alike.

The table is timed once a machine and kept on disk. Both make a product of one shape for a few
numbers of rows, in turns, on one thread of BLAS (which is all that a worker gives it); what is kept
is the ratio of the shortest times. An entry is named by the processor, the vectors, the BLAS and
the shape, and is never changed: so the same steps have the same bits on this machine from then on.
A damaged one counts as missing (`cache.entries`).

Source: Zheng et al. 2018 (EcoRNN) time the layouts of a product and take the faster. A weight here
has one layout, in which each form reads it as it lies; what is chosen is the implementation.
"""

from __future__ import annotations

import ctypes
import functools
import time
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from vertexrt.cache import entries
from vertexrt.cache.folders import folders
from vertexrt.kernels.backend import BLAS, TIMED
from vertexrt.kernels.cpu.products import FORMS, library_of, register_size
from vertexrt.locks import ProcessLock
from vertexrt.lower.kernel import KernelIR, MatrixProduct, Outer, OwnPart, Span, Step
from vertexrt.memory.aligned import aligned_zeros
from vertexrt.native.blas import blas_name, one_thread
from vertexrt.native.load import machine

MARGIN = 1.05  # what is not faster by more is noise

KIND = "products"  # of cache entries
ROWS = (1, 4, 16, 64, 256)  # that are timed
MOST_WORK = 1 << 26  # multiply-adds of a product that is timed: about a millisecond
SMALL = 1 << 14  # elements of a weight: smaller ones are not worth the time
FEWEST = 2  # numbers of rows that are timed, or the weight is too large
TURNS = 6

ANY_ROWS = 1 << 40  # more than there are
NARROW = 16  # outputs (of sums, terms) that tiles take of any number of rows
# A sum along a row of the weight has the lanes of a vector to add up at its end; one over a strip
# that was transposed has not. With AVX-512 sums of at most SHORT terms gain from STRIP_ROWS rows
# on; longer ones where there is a row for every TERMS_A_ROW terms, and more outputs than a strip.
SHORT, STRIP_ROWS = 64, 16
LONG, TERMS_A_ROW, STRIP_VECTORS = 512, 4, 6


class Limits(NamedTuple):
    """What tiles do faster than OpenBLAS; measured, on one thread of a Zen 4.

    Attributes:
        weight: elements of a weight that any number of rows multiply.
        rows: that multiply a larger one.
        columns: of a gradient that any number of rows are added to.
        sums: multiply-adds of a wider one.
    """

    weight: int
    rows: int
    columns: int
    sums: int


LIMITS = {16: Limits(1 << 18, 512, 256, 48 << 19)}  # by float32 of a vector
NARROWER = Limits(0, 64, 0, 16 << 18)  # with AVX2 alone


class ProductShape(NamedTuple):
    """A product, but for how many rows it has.

    Attributes:
        form: of `products.FORMS`; real: `float` or `double`.
        m, n: rows and columns of the weight, or of the part of it that is used.
    """

    form: str
    real: str
    m: int
    n: int


def strips_from(shape: ProductShape, size: int) -> int:
    """Return from how many rows on tiles transpose the weight; `size` as of `fixed_rows`."""
    if shape.form != "x W^T":
        return ANY_ROWS
    if shape.n <= SHORT:
        return STRIP_ROWS
    lanes = size if shape.real == "float" else size // 2
    many = shape.n <= LONG and shape.m >= STRIP_VECTORS * lanes
    return max(STRIP_ROWS, shape.n // TERMS_A_ROW) if many else ANY_ROWS


def fixed_rows(shape: ProductShape, size: int) -> int:
    """Return up to how many rows tiles take by the fixed limits.

    Args:
        size: of a vector register, in float32 elements.
    """
    limits = LIMITS.get(size, NARROWER)
    weight = shape.m * shape.n
    if shape.m <= NARROW:  # outputs, sums or terms
        return ANY_ROWS
    if shape.form == "d^T x":
        return ANY_ROWS if shape.n <= limits.columns else limits.sums // max(weight, 1)
    return ANY_ROWS if weight <= limits.weight else limits.rows


Ratios = dict[int, float]  # rows -> time of BLAS / time of register tiles

_lock = ProcessLock()  # threads that compile at once decide alike


def ratios_of(shape: ProductShape) -> Ratios:
    """Return what is kept of a shape, or time it; nothing of small products.

    Nothing where nothing can be kept either: another process would time something else.
    """
    if shape.m * shape.n < SMALL:
        return {}
    with _lock.held:
        return _ratios_of(shape, str(folders(KIND).write))


@functools.cache
def _ratios_of(shape: ProductShape, folder: str) -> Ratios:
    """Look once in a process.

    Args:
        folder: where entries are kept.
    """
    name = entry_name(shape)
    found = entries.read(KIND, name)
    if found is None and folders(KIND).lasting:
        timed = time_product(shape)
        found = entries.read(KIND, name)  # another process may have kept its own meanwhile
        if found is None:
            entries.write(KIND, name, b"", timed)
            found = entries.read(KIND, name)
    return {} if found is None else {int(rows): ratio for rows, ratio in found.facts.items()}


def entry_name(shape: ProductShape) -> str:
    """Return the name of a shape's entry on this machine."""
    size = register_size()
    made = (size, strips_from(shape, size), blas_name(), *shape, ROWS)
    return entries.key_of([*machine()[1], *map(str, made)])


def time_product(shape: ProductShape) -> Ratios:
    """Return the time of BLAS over that of tiles: the least of some turns of each.

    Nothing is timed where a few rows are too much work.
    """
    rows = [r for r in ROWS if r * shape.m * shape.n <= MOST_WORK]
    if len(rows) < FEWEST:
        return {}
    one_thread.begin(shape)
    try:
        run = _run_of(shape, rows[-1])

        def seconds(rows: int, tiled: int) -> float:
            # Of the thread, in which another process does not count; what that one does to the
            # caches shows in most turns, but not in the least.
            start = time.thread_time()
            run(rows, tiled)
            return time.thread_time() - start

        found = {}
        for r in rows:
            turns = [(seconds(r, 0), seconds(r, ANY_ROWS)) for _ in range(TURNS)]
            blas, tiles = (min(each) for each in zip(*turns, strict=True))
            # Some systems have clocks that do not move meanwhile: then nothing is known.
            found[r] = round(blas / tiles, 3) if min(blas, tiles) > 0.0 else 1.0
        return found
    finally:
        one_thread.end(shape)


def _run_of(shape: ProductShape, most: int) -> Callable[[int, int], None]:
    """Return what makes a product of so many rows, of which tiles make at most `tiled`."""
    strips = (strips_from(shape, register_size()),) if shape.form == "x W^T" else ()
    kinds = [ctypes.c_void_p] * 3 + [ctypes.c_int64] * (6 + len(strips))
    name, _ = FORMS[shape.form]
    product = ctypes.CFUNCTYPE(None, *kinds)(library_of(shape.real)[name])
    m, n, dtype = shape.m, shape.n, np.dtype("f" if shape.real == "float" else "d")
    weight, wide, deep = (aligned_zeros(size, dtype) for size in (m * n, most * m, most * n))
    for array in (weight, wide, deep):
        array.fill(0.5)
    x, y = (deep, wide) if shape.form == "x W^T" else (wide, deep)
    hi = n if shape.form == "d W" else m

    def run(rows: int, tiled: int) -> None:
        arrays = weight.ctypes.data, x.ctypes.data, y.ctypes.data
        product(*arrays, rows, m, n, 0, hi, tiled, *strips)

    return run


class ProductChoice(NamedTuple):
    """What makes a product.

    Attributes:
        rows: tiles make it up to so many, BLAS if it has more.
        strips: from so many on tiles transpose the weight.
        ratios: what was timed.
    """

    shape: ProductShape
    rows: int
    strips: int
    ratios: Ratios

    def __str__(self) -> str:
        s, rows = self.shape, self.rows
        made_by = f"register tiles up to {rows} rows, BLAS above" if rows else "BLAS"
        made_by = "register tiles" if rows == ANY_ROWS else made_by
        if self.strips <= rows and self.strips < ANY_ROWS:
            made_by += f"; W is transposed from {self.strips} rows on"
        timed = "not timed"
        if self.ratios:
            at = ", ".join(map(str, self.ratios))
            times = ", ".join(f"{ratio:.2f}" for ratio in self.ratios.values())
            timed = f"at {at} rows BLAS takes {times} times as long as tiles"
        return f"{s.form}, W [{s.m}, {s.n}]: {made_by}; {timed}"


def decide(kernel: KernelIR, real: str, how: str) -> tuple[KernelIR, list[ProductChoice]]:
    """Decide for all products of a kernel.

    Args:
        real: `float` or `double`.
        how: of `PRODUCTS`.
    Returns: the kernel as it was decided, and what was, for its products in order.
    """
    choices: list[ProductChoice] = []

    def decided(step: Step) -> Step:
        if not isinstance(step, MatrixProduct | Outer):
            return step
        choices.append(choose(shape_of(step, real), how))
        _, rows, strips, _ = choices[-1]
        if isinstance(step, MatrixProduct):
            return replace(step, tiled=rows, strips=strips)
        return replace(step, tiled=rows)

    segments = tuple(tuple(map(decided, steps)) for steps in kernel.segments)
    return replace(kernel, segments=segments), choices


def shape_of(step: MatrixProduct | Outer, real: str) -> ProductShape:
    """Return the shape of a product; where processors share it, that of the whole."""
    if isinstance(step, Outer):
        return ProductShape("d^T x", real, _width(step.span), step.n)
    wide = max(map(_width, step.spans))
    if step.transposed:
        return ProductShape("d W", real, step.m, wide)
    return ProductShape("x W^T", real, wide, step.n)


def _width(span: Span) -> int:
    return span.size if isinstance(span, OwnPart) else span[1] - span[0]


def choose(shape: ProductShape, how: str) -> ProductChoice:
    """Decide for a product."""
    if how == BLAS:
        return ProductChoice(shape, 0, ANY_ROWS, {})
    size = register_size()
    strips = strips_from(shape, size)
    ratios = ratios_of(shape) if how == TIMED else {}
    return ProductChoice(shape, corrected(fixed_rows(shape, size), ratios), strips, ratios)


def corrected(fixed: int, ratios: Ratios) -> int:
    """Return up to how many rows tiles take, given what was timed.

    The limit stands within the noise. Between two numbers of rows that were timed the border is
    their geometric mean; above the last one the limit stands, unless BLAS was faster there.
    """
    tiled = [
        rows for rows, ratio in ratios.items() if ratio > (1 / MARGIN if rows <= fixed else MARGIN)
    ]
    if tiled == [rows for rows in ratios if rows <= fixed]:
        return fixed
    last = max(tiled, default=0)
    slower = [rows for rows in ratios if rows > last]
    return int((last * min(slower)) ** 0.5) if slower else max(fixed, last)
