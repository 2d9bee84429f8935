"""The pass that decides what makes each product of a kernel: register tiles, or BLAS.

Tiles make products of up to so many rows, BLAS those of more; of many rows tiles transpose the
weight first, strip by strip. The fixed limits (`product_limits`) were measured on few machines; a
table that is timed on the machine at hand (`product_table`) corrects those of BLAS where the other
is clearly faster. What is within the noise stays with the fixed limits, so two machines of one kind
nearly always decide alike.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from vertexrt.kernels.backend import BLAS, TIMED
from vertexrt.kernels.cpu.libraries import register_size
from vertexrt.kernels.cpu.product_limits import ANY_ROWS, ProductShape, fixed_rows, strips_from
from vertexrt.kernels.cpu.product_table import Ratios, ratios_of
from vertexrt.lower.kernel import KernelIR, MatrixProduct, Outer, Step
from vertexrt.lower.places import OwnPart, Span

MARGIN = 1.05  # what is not faster by more is noise


class ProductChoice(NamedTuple):
    """What makes a product.

    Attributes:
        rows: tiles make it up to so many, BLAS if it has more.
        strips: from so many on tiles transpose the weight.
        ratios: what was timed, see `product_table`.
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


def decide(kernel: KernelIR, real: str, how: str) -> KernelIR:
    """Decide for all products of a kernel.

    Args:
        real: `float` or `double`.
        how: of `PRODUCTS`.
    """

    def decided(step: Step) -> Step:
        if isinstance(step, MatrixProduct | Outer):
            choice = choose(shape_of(step, real), how)
            if isinstance(step, MatrixProduct):
                return replace(step, tiled=choice.rows, strips=choice.strips)
            return replace(step, tiled=choice.rows)
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
        return ProductChoice(shape, 0, ANY_ROWS, {})
    size = register_size()
    strips = strips_from(shape, size)
    ratios = ratios_of(shape) if how == TIMED else {}
    return ProductChoice(shape, corrected(fixed_rows(shape, size), ratios), strips, ratios)


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
