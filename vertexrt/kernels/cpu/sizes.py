"""Sizes of numbers in ranges of flat arrays: are all within a limit, and sums of squares."""

from typing import Any

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.floating[Any]]
RowArray = npt.NDArray[np.int64]

LANES = 64  # partial sums of a norm; 32 or fewer are not vectorised (10 GB/s against 28)


def within(numbers: FloatArray, limit: float) -> bool:
    """Tell whether the size of every number is at most a limit; one that is nan is not."""
    fine, most = True, numbers.dtype.type(limit)
    for i in range(len(numbers)):
        fine &= bool(abs(numbers[i]) <= most)
    return fine


def sum_of_squares(gradients: FloatArray, start: int, width: int, rows: RowArray) -> float:
    """Sum the squares of some rows in float64, in an order that depends on `width` only.

    Element j of a row goes to partial sum j % LANES; the partial sums are added in order.
    """
    partial = np.zeros(LANES)
    whole = width // LANES * LANES
    for r in range(rows.size):
        begin = start + rows[r] * width
        for block in range(begin, begin + whole, LANES):
            g = gradients[block : block + LANES]
            for j in range(LANES):
                x = np.float64(g[j])
                partial[j] += x * x
        g = gradients[begin + whole : begin + width]
        for j in range(width - whole):
            x = np.float64(g[j])
            partial[j] += x * x
    total = 0.0
    for j in range(LANES):
        total += partial[j]
    return total
