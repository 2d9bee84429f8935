"""Sizes of numbers in ranges of flat arrays: are all within a limit, and sums of squares."""

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import types
from numba.extending import overload

from vertexrt.cache.compiled import inner

FloatArray = npt.NDArray[np.floating[Any]]
RowArray = npt.NDArray[np.int64]

LANES = 64  # partial sums of a norm; 32 or fewer are not vectorised (10 GB/s against 28)


def _bits(x: FloatArray) -> Any:
    """Return numbers as integers, and which bits of these are the size of a number."""
    raise NotImplementedError


@overload(_bits)  # type: ignore[untyped-decorator]
def _bits_of(x: Any) -> Any:
    integer: Any = np.uint32 if x.dtype == types.float32 else np.uint64
    size = integer(np.iinfo(integer).max // 2)

    def code(x: Any) -> Any:
        return x.view(integer), size

    return code


@inner
def size_of(limit: float, numbers: FloatArray) -> Any:
    """Return a limit as `within` compares sizes of these numbers with it."""
    one = np.empty(1, numbers.dtype)
    one[0] = limit
    bits, _ = _bits(one)
    return bits[0]


@inner
def within(numbers: FloatArray, most: Any) -> bool:
    """Tell whether the size of every number is at most `size_of` a limit; one that is nan is not.

    Sizes are compared as integers: nan is above infinity there, and the largest of many is found in
    vectors (73 GB/s from L3 on a Zen 4; a comparison of floats that keeps nan takes five times as
    long).
    """
    bits, size = _bits(numbers)
    top = bits.dtype.type(0)
    for i in range(len(bits)):
        top = max(top, bits[i] & size)
    return bool(top <= most)


@inner
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
