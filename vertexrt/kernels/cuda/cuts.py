"""Cut a persistent launch at wide products, which kernels of their own make faster.

The kernel runs its script up to such products, they follow it on its stream, and another launch of
the kernel goes on after them. They stay in the script, in their order; `apart` lists them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from vertexrt.kernels.cuda.calls import ITEMSIZE
from vertexrt.kernels.cuda.driver import (
    FORM,
    GEMM_EDGES,
    IS_GEMM,
    OUTER,
    PLAIN,
    TEMPORARY,
    TIMES,
    K,
    M,
    launch_product,
)
from vertexrt.kernels.cuda.wide_products import splits_of
from vertexrt.native.compiled import compiled

Array = np.ndarray[Any, Any]
Int64 = npt.NDArray[np.int64]

# Columns of `apart`: the instruction, the launch of the table, the step among those of all
# programs, and where the temporaries of the launch begin.
APART_AT, APART_LAUNCH, APART_STEP, APART_TEMPORARY = range(4)
APART_COLUMNS = 4
# Multiplications of a product, for each processor, from which on a cut is worth it.
WORTH = 1_500_000


def rows_of(product: Array, row: Array) -> int:
    """Return the rows of a product, given a row of the launch table."""
    return int((row[4] if product[GEMM_EDGES] else row[1]) * product[TIMES])


def is_worth_a_cut(product: Array, row: Array, processors: int) -> bool:
    """Tell whether a step is a product that is faster in a kernel of its own.

    Args:
        product: of `encode_products`; row: of the launch table.
        processors: of the device.
    """
    if product[IS_GEMM] == 0:
        return False
    rows, m, k = rows_of(product, row), product[M], product[K]
    if rows * m * k < WORTH * processors:
        return False
    if product[FORM] == OUTER:
        return splits_of(k, m, rows, processors) > 0
    if product[FORM] == PLAIN:
        return splits_of(m, rows, k, processors) > 0
    return splits_of(k, rows, m, processors) > 0


@compiled
def launch_products(
    apart: Array, table: Array, products: Array, words: Array, calls: Array
) -> tuple[int, int, int]:
    """Launch products that are apart.

    Args:
        apart: int64 [*, APART_COLUMNS] some of them; table: of launches.
        products: of `encode_products`.
        words: what they are in this run; calls: of `addresses_of`.
    Returns: the error of the driver (or of cuBLAS, plus CUBLAS_CODES), 0 for none; launch and step.
    """
    first = words[TEMPORARY]
    for each in apart:
        t, s = each[APART_LAUNCH], each[APART_STEP]
        words[TEMPORARY] = first + calls[ITEMSIZE] * each[APART_TEMPORARY]
        code = launch_product(products[s], table[t], rows_of(products[s], table[t]), words, calls)
        words[TEMPORARY] = first
        if code != 0:
            return code, t, s
    return 0, 0, 0


class Piece(NamedTuple):
    """What of a script is run by one launch of the kernel, and by products after it.

    Attributes:
        begin, end: instructions; nothing is launched where there are none.
        apart: the products: rows of `apart`.
    """

    begin: int
    end: int
    apart: Int64


def pieces_of(common: int, apart: Int64) -> list[Piece]:
    """Cut a script of all processors, of so many instructions, at products that are apart."""
    at = apart[:, APART_AT]
    starts = np.flatnonzero(np.diff(at, prepend=-2) != 1)
    found, begin = [], 0
    for run in np.split(apart, starts[1:]) if len(apart) else []:
        found.append(Piece(begin, int(run[0, APART_AT]), run))
        begin = int(run[-1, APART_AT]) + 1
    return [*found, Piece(begin, common, apart[:0])]


Launch = Callable[[int, int], None]


def launch_pieces(pieces: list[Piece], kernel: Launch, products: Callable[[Int64], None]) -> None:
    """Launch pieces in their order.

    Args:
        kernel: launches instructions `begin` to `end`; products: launches rows of `apart`.
    """
    for piece in pieces:
        if piece.begin < piece.end:
            kernel(piece.begin, piece.end)
        if len(piece.apart):
            products(piece.apart)
