"""What tiles make faster than BLAS, and how: limits of rows that were measured once.

`choose_products` corrects what BLAS makes by what is timed on the machine at hand
(`product_table`).
"""

from __future__ import annotations

from typing import NamedTuple

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
        form: of `product_table.FORMS`; real: `float` or `double`.
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
