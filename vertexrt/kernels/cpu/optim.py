"""Compiled updates: the published rules over ranges of flat arrays.

Every kernel works on `rows` of `width` elements that start at `start + row * width`. The dense part
of a store is one row; touched rows of an embedding table are many. So a rule is written once.

    values, gradients, moments   float32 or float64 [total], contiguous, all of one layout
    start, width                 elements
    rows                         int64 [R], unique
    scale                        factor of every gradient: below 1 when the global norm is clipped
    weight_decay                 adds weight_decay * value to the gradient

Scalars are float64 and are rounded once to the dtype of `values`: a float64 scalar would make the
whole loop run in float64. A rule is one loop that stores all its results, so that memory is passed
once; it leaves gradients at zero, since to clear them before the next step adds to them would be a
pass of its own. Measured on one core of a Xeon with AVX-512, numba 0.68, 1 M float32 in L3, Adam:
43 GB/s; in one loop a result over blocks of 1,024, 34 GB/s. Slicing before the loop is what lets it
vectorise: with `values[begin + i]` in place of `p[i]` the same loop takes three times as long.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import types
from numba.extending import overload

from vertexrt.cache.compiled import njit

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


@njit(cache=True, error_model="numpy", nogil=True)
def size_of(limit: float, numbers: FloatArray) -> Any:
    """Return a limit as `within` compares sizes of these numbers with it."""
    bits, _ = _bits(np.full(1, limit, numbers.dtype))
    return bits[0]


@njit(cache=True, error_model="numpy", nogil=True)
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


@njit(cache=True, error_model="numpy", nogil=True)
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


@njit(cache=True, error_model="numpy", nogil=True)
def sgd(
    values: FloatArray,
    gradients: FloatArray,
    start: int,
    width: int,
    rows: RowArray,
    scale: float,
    weight_decay: float,
    lr: float,
) -> None:
    """Move every value by -lr * gradient."""
    real = values.dtype.type
    zero = real(0.0)
    scale_, decay_, lr_ = real(scale), real(weight_decay), real(lr)
    for r in range(rows.size):
        begin = start + rows[r] * width
        p = values[begin : begin + width]
        g = gradients[begin : begin + width]
        for i in range(width):
            p[i] -= lr_ * (scale_ * g[i] + decay_ * p[i])
            g[i] = zero


@njit(cache=True, error_model="numpy", nogil=True)
def momentum(
    values: FloatArray,
    gradients: FloatArray,
    velocities: FloatArray,
    start: int,
    width: int,
    rows: RowArray,
    scale: float,
    weight_decay: float,
    lr: float,
    keep: float,
) -> None:
    """Set velocity = keep * velocity + gradient and move every value by -lr * velocity."""
    real = values.dtype.type
    zero = real(0.0)
    scale_, decay_, lr_, keep_ = real(scale), real(weight_decay), real(lr), real(keep)
    for r in range(rows.size):
        begin = start + rows[r] * width
        p = values[begin : begin + width]
        g = gradients[begin : begin + width]
        v = velocities[begin : begin + width]
        for i in range(width):
            velocity = keep_ * v[i] + (scale_ * g[i] + decay_ * p[i])
            v[i] = velocity
            p[i] -= lr_ * velocity
            g[i] = zero


@njit(cache=True, error_model="numpy", nogil=True)
def adagrad(
    values: FloatArray,
    gradients: FloatArray,
    sums: FloatArray,
    start: int,
    width: int,
    rows: RowArray,
    scale: float,
    weight_decay: float,
    lr: float,
    eps: float,
) -> None:
    """Add gradient^2 to the sum and move every value by -lr * gradient / (sqrt(sum) + eps)."""
    real = values.dtype.type
    zero = real(0.0)
    scale_, decay_, lr_, eps_ = real(scale), real(weight_decay), real(lr), real(eps)
    for r in range(rows.size):
        begin = start + rows[r] * width
        p = values[begin : begin + width]
        g = gradients[begin : begin + width]
        s = sums[begin : begin + width]
        for i in range(width):
            d_p = scale_ * g[i] + decay_ * p[i]
            total = s[i] + d_p * d_p
            s[i] = total
            p[i] -= lr_ * d_p / (np.sqrt(total) + eps_)
            g[i] = zero


@njit(cache=True, error_model="numpy", nogil=True)
def adam(
    values: FloatArray,
    gradients: FloatArray,
    means: FloatArray,
    squares: FloatArray,
    start: int,
    width: int,
    rows: RowArray,
    scale: float,
    weight_decay: float,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    shrink: float,
    steps: int,
) -> None:
    """Run one step of Adam, with the bias corrections of step number `steps` (1 is the first).

    `shrink` multiplies the value before the step: 1 - lr * weight decay for AdamW, 1 for Adam.
    """
    real = values.dtype.type
    zero = real(0.0)
    beta1_, beta2_, eps_ = real(beta1), real(beta2), real(eps)
    rest1_, rest2_ = real(1.0 - beta1), real(1.0 - beta2)  # rounded once, not 1 - rounded beta
    rate_ = real(lr / (1.0 - beta1**steps))
    root_ = real(1.0 / np.sqrt(1.0 - beta2**steps))
    scale_, decay_, shrink_ = real(scale), real(weight_decay), real(shrink)
    for r in range(rows.size):
        begin = start + rows[r] * width
        p = values[begin : begin + width]
        g = gradients[begin : begin + width]
        m = means[begin : begin + width]
        v = squares[begin : begin + width]
        for i in range(width):
            d_p = scale_ * g[i] + decay_ * p[i]
            mean = beta1_ * m[i] + rest1_ * d_p
            square = beta2_ * v[i] + rest2_ * (d_p * d_p)
            m[i] = mean
            v[i] = square
            p[i] = shrink_ * p[i] - rate_ * mean / (np.sqrt(square) * root_ + eps_)
            g[i] = zero
