"""The pass that decides what makes each product of a kernel: register tiles, or BLAS.

Tiles make products of up to so many rows, BLAS those of more. The fixed limits are those of one
machine; a table that is timed on the machine at hand (`product_table`) corrects them where the
other is clearly faster. What is within the noise stays with the fixed limits, so two machines of
one kind nearly always decide alike.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from vertexrt.kernels.cpu.compile import register_size
from vertexrt.kernels.cpu.product_table import ANY_ROWS, ProductShape, Ratios, ratios_of
from vertexrt.kernels.layout import BLAS, TIMED
from vertexrt.lower.kernel import KernelIR, MatrixProduct, Outer, Step
from vertexrt.lower.places import OwnPart, Span

MARGIN = 1.05  # what is not faster by more is noise

NARROW = 16  # outputs (of sums, terms) that tiles take of any number of rows
SHORT, ROWS_OF_SHORT = 16, 16  # sums of fewer terms: tiles make products of at most so many rows


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


class ProductChoice(NamedTuple):
    """What makes a product.

    Attributes:
        rows: tiles make it up to so many, BLAS if it has more.
        ratios: what was timed, see `product_table`.
    """

    shape: ProductShape
    rows: int
    ratios: Ratios

    def __str__(self) -> str:
        s, rows = self.shape, self.rows
        made_by = f"register tiles up to {rows} rows, BLAS above" if rows else "BLAS"
        made_by = "register tiles" if rows == ANY_ROWS else made_by
        timed = "not timed"
        if self.ratios:
            at = ", ".join(map(str, self.ratios))
            times = ", ".join(f"{ratio:.2f}" for ratio in self.ratios.values())
            timed = f"at {at} rows BLAS takes {times} times as long as tiles"
        return f"{s.form}, W [{s.m}, {s.n}]: {made_by}; {timed}"


def decide(kernel: KernelIR, real: str, how: str) -> KernelIR:
    """Decide for all products of a kernel.

    Args:
        real: `float` or `double`.
        how: of `PRODUCTS`.
    """

    def decided(step: Step) -> Step:
        if isinstance(step, MatrixProduct | Outer):
            return replace(step, tiled=choose(shape_of(step, real), how).rows)
        return step

    segments = tuple(tuple(map(decided, steps)) for steps in kernel.segments)
    return replace(kernel, segments=segments)


def may_call_blas(kernel: KernelIR) -> bool:
    """Tell whether BLAS makes a product, of some number of rows."""
    products = (step for step in kernel.steps if isinstance(step, MatrixProduct | Outer))
    return any(step.tiled < ANY_ROWS for step in products)


def choices(kernel: KernelIR, real: str, how: str) -> list[ProductChoice]:
    """Return what was decided for the products of a kernel, in order."""
    steps = (step for step in kernel.steps if isinstance(step, MatrixProduct | Outer))
    return [choose(shape_of(step, real), how) for step in steps]


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
        return ProductChoice(shape, 0, {})
    fixed = fixed_rows(shape, register_size())
    ratios = ratios_of(shape) if how == TIMED else {}
    return ProductChoice(shape, corrected(fixed, ratios), ratios)


def fixed_rows(shape: ProductShape, size: int) -> int:
    """Return up to how many rows tiles take by the fixed limits.

    Args:
        size: of a vector register, in float32 elements.
    """
    limits = LIMITS.get(size, NARROWER)
    weight = shape.m * shape.n
    if shape.form == "x W^T" and shape.n < SHORT:
        return ROWS_OF_SHORT
    if shape.m <= NARROW:  # outputs, sums or terms
        return ANY_ROWS
    if shape.form == "d^T x":
        return ANY_ROWS if shape.n <= limits.columns else limits.sums // max(weight, 1)
    return ANY_ROWS if weight <= limits.weight else limits.rows


def corrected(fixed: int, ratios: Ratios) -> int:
    """Return up to how many rows tiles take, given what was timed.

    Between two numbers of rows that were timed the border is their geometric mean; above the last
    one the limit stands, unless BLAS was faster there.
    """
    tiled = [rows for rows, ratio in ratios.items() if _by_tiles(rows, ratio, fixed)]
    if tiled == [rows for rows in ratios if rows <= fixed]:
        return fixed
    last = max(tiled, default=0)
    slower = [rows for rows in ratios if rows > last]
    return int((last * min(slower)) ** 0.5) if slower else max(fixed, last)


def _by_tiles(rows: int, ratio: float, fixed: int) -> bool:
    """Tell whether tiles are to make what was timed: the limit stands within the noise."""
    return ratio > 1 / MARGIN if rows <= fixed else ratio > MARGIN
