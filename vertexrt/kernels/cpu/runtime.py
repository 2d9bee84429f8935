"""What generated kernels call: unchecked loads and stores, vectorisable functions, sums, copies.

Measured on 2 cores of a Xeon with AVX-512 and numba 0.68: `load` and `store` vectorise where slices
of one arena do as well, without the cost of making slices; `exp` here takes 0.6 ns an element.
"""

from __future__ import annotations

import math
from typing import Any

import llvmlite.ir as ll
import numpy as np
from numba import types
from numba.extending import intrinsic, overload

from vertexrt.cache.compiled import njit


@intrinsic  # type: ignore[untyped-decorator]
def load(typing: Any, array: Any, index: Any) -> Any:
    """Return array[index] with no bounds check and no wraparound."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        return builder.load(builder.gep(data, [args[1]]))

    return array.dtype(array, types.int64), code


@intrinsic  # type: ignore[untyped-decorator]
def store(typing: Any, array: Any, index: Any, value: Any) -> Any:
    """Set array[index] = value with no bounds check and no wraparound."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        builder.store(args[2], builder.gep(data, [args[1]]))
        return context.get_dummy_value()

    return types.void(array, types.int64, array.dtype), code


@intrinsic  # type: ignore[untyped-decorator]
def _float_of_bits(typing: Any, bits: Any) -> Any:
    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ll.FloatType())

    return types.float32(types.int32), code


F = np.float32
LOG2_E = F(1.44269504)
ROUND = F(12582912.0)  # 1.5 * 2**23: adding it rounds to the nearest integer
LN2_HIGH = F(0.693359375)
LN2_LOW = F(-2.12194440e-4)


@njit(error_model="numpy", cache=True, nogil=True)
def exp32(x: Any) -> Any:
    """Return e**x in float32 within 2 ULP, vectorisable; Cephes' polynomial and range reduction."""
    x = min(max(x, F(-87.3)), F(88.7))
    n = (x * LOG2_E + ROUND) - ROUND
    r = x - n * LN2_HIGH
    r = r - n * LN2_LOW
    p = F(1.9875691500e-4)
    p = p * r + F(1.3981999507e-3)
    p = p * r + F(8.3334519073e-3)
    p = p * r + F(4.1665795894e-2)
    p = p * r + F(1.6666665459e-1)
    p = p * r + F(5.0000001201e-1)
    y = p * (r * r) + r + F(1.0)
    return y * _float_of_bits((np.int32(n) + np.int32(127)) << np.int32(23))


@njit(error_model="numpy", cache=True, nogil=True)
def sigmoid32(x: Any) -> Any:
    """Return 1 / (1 + e**-x)."""
    return F(1.0) / (F(1.0) + exp32(-x))


@njit(error_model="numpy", cache=True, nogil=True)
def tanh32(x: Any) -> Any:
    """Return tanh x: a polynomial near 0, where 2 sigmoid(2x) - 1 would cancel."""
    z = x * x
    p = F(-5.70498872745e-3)
    p = p * z + F(2.06390887954e-2)
    p = p * z + F(-5.37397155531e-2)
    p = p * z + F(1.33314422036e-1)
    p = p * z + F(-3.33332819422e-1)
    small = p * z * x + x
    large = F(2.0) / (F(1.0) + exp32(F(-2.0) * x)) - F(1.0)
    return small if abs(x) < F(0.625) else large


@njit(error_model="numpy", cache=True, nogil=True)
def sigmoid64(x: Any) -> Any:
    """Return 1 / (1 + e**-x) without overflow."""
    e = math.exp(-abs(x))
    return (1.0 if x >= 0 else e) / (1.0 + e)


def exp(x: Any) -> Any:
    """Return e**x in the type of x."""
    raise NotImplementedError


def tanh(x: Any) -> Any:
    """Return tanh x in the type of x."""
    raise NotImplementedError


def sigmoid(x: Any) -> Any:
    """Return 1 / (1 + e**-x) in the type of x."""
    raise NotImplementedError


def _provide(function: Any, single: Any, double: Any) -> None:
    """Compile a function as its float32 or its float64 form, by the type of its operand."""

    def choose(x: Any) -> Any:
        chosen = single if x == types.float32 else double

        def code(x: Any) -> Any:
            return chosen(x)

        return code

    overload(function, jit_options={"error_model": "numpy"})(choose)


_provide(exp, exp32, math.exp)
_provide(tanh, tanh32, math.tanh)
_provide(sigmoid, sigmoid32, sigmoid64)
log = math.log
sqrt = math.sqrt


@njit(error_model="numpy", cache=True, nogil=True)
def uniform(seed: Any, key: Any, vertex: Any, element: Any) -> Any:
    """Hash (seed, key, vertex, element) to 32 bits: a counter-based generator, no state.

    The finaliser is that of MurmurHash3; two rounds, so that neighbouring counters decorrelate.
    """
    u = np.uint32  # numba widens products of uint32, so each is cut back
    h = u(u(seed) ^ u(u(vertex) * u(0x9E3779B1)))
    h = u(u(h ^ (h >> u(16))) * u(0x85EBCA6B))
    h = u(h + u(u(key) * u(0xC2B2AE35)) + u(u(element) * u(0x27D4EB2F)))
    h = u(u(h ^ (h >> u(16))) * u(0x85EBCA6B))
    h = u(u(h ^ (h >> u(13))) * u(0xC2B2AE35))
    return u(h ^ (h >> u(16)))


SUMS = {"reassoc", "nsz", "contract"}  # lets a sum run in vector lanes; the order stays fixed


@njit(cache=True, error_model="numpy", fastmath=SUMS, nogil=True)
def row_sum(a: Any, at: int, size: int) -> Any:
    """Sum a row."""
    total = a.dtype.type(0.0)
    for j in range(size):
        total += load(a, at + j)
    return total


@njit(cache=True, error_model="numpy", fastmath={"nnan", "nsz"}, nogil=True)
def row_max(a: Any, at: int, size: int) -> Any:
    """Return the largest element of a row."""
    top = load(a, at)
    for j in range(size):
        x = load(a, at + j)
        top = x if x > top else top
    return top


@njit(cache=True, error_model="numpy", fastmath=SUMS, nogil=True)
def row_logsumexp(a: Any, at: int, size: int) -> Any:
    """Return log of the sum of exponentials of a row, without overflow."""
    top = row_max(a, at, size)
    total = a.dtype.type(0.0)
    for j in range(size):
        total += exp(load(a, at + j) - top)
    return top + log(total)


@njit(cache=True, nogil=True)
def count_children(child_row: Any, edge_ptr: Any, row: int) -> int:
    """Count the slots of a row that hold a child."""
    count = 0
    for e in range(edge_ptr[row], edge_ptr[row + 1]):
        count += child_row[e] >= 0
    return count


@njit(cache=True, nogil=True)
def pack(a: Any, base: int, size: int, rows: Any, at: int, n: int, to: int) -> None:
    """Copy rows[at : at + n] of a tensor to the rows of a temporary."""
    for i in range(n):
        source = base + rows[at + i] * size
        for j in range(size):
            store(a, to + i * size + j, load(a, source + j))


@njit(cache=True, nogil=True)
def unpack(a: Any, base: int, size: int, rows: Any, at: int, n: int, source: int) -> None:
    """Copy the rows of a temporary to rows[at : at + n] of a tensor."""
    for i in range(n):
        to = base + rows[at + i] * size
        for j in range(size):
            store(a, to + j, load(a, source + i * size + j))


ROWS_A_SUM = 256  # added up one by one; longer sums are sums of such, or float32 would lose digits


@njit(cache=True, nogil=True)
def add_row(a: Any, source: int, b: Any, to: int, size: int, anew: bool) -> None:
    """Add elements of an array to those of another, or copy them there."""
    if anew:
        for j in range(size):
            store(b, to + j, load(a, source + j))
    else:
        for j in range(size):
            store(b, to + j, load(b, to + j) + load(a, source + j))


@njit(cache=True, nogil=True)
def add_part(a: Any, source: int, b: Any, to: int, first: int, end: int) -> None:
    """Add some elements of a row to those of another."""
    for j in range(first, end):
        store(b, to + j, load(b, to + j) + load(a, source + j))


@njit(cache=True, nogil=True)
def add_lookups(
    gradient: Any,
    to: int,
    size: int,
    first_word: int,
    end_word: int,
    first: int,
    end: int,
    a: Any,
    source: int,
    step: int,
    index: Any,
    order: Any,
    lo: int,
    rows: Any,
    at: int,
    n: int,
    local: bool,
) -> None:
    """Add the rows of a task to the rows of a table's gradient that they looked up.

    Args:
        to: where the gradient begins; size: elements of a row.
        first_word, end_word, first, end: the rows and columns that this processor adds to.
        source, step: where the rows to be added lie, one for each of the task if `local`.
        index: what each vertex looked up, -1 for nothing, by `order` of the rows.
        lo, rows, at, n: the task.
    """
    row_of = np.empty(n, np.int64)
    word_of = np.empty(n, np.int64)
    for i in range(n):
        row = lo + i if lo >= 0 else rows[at + i]
        word = np.int64(index[order[row]])
        row_of[i] = source + (i if local else row) * step
        word_of[i] = word if first_word <= word < end_word else -1
    if n <= ROWS_A_SUM:
        for i in range(n):
            if word_of[i] >= 0:
                add_part(a, row_of[i], gradient, to + word_of[i] * size, first, end)
        return
    # Rows of one word in a chain, in their order. What a frequent word adds up would lose digits in
    # float32.
    newest = np.full(end_word - first_word, -1, np.int64)
    following = np.empty(n, np.int64)
    for i in range(n - 1, -1, -1):
        if word_of[i] >= 0:
            following[i] = newest[word_of[i] - first_word]
            newest[word_of[i] - first_word] = i
    total = np.zeros(size, np.float64)
    for i in range(n):
        if word_of[i] < 0 or newest[word_of[i] - first_word] != i:
            continue
        target = to + word_of[i] * size
        if following[i] < 0:
            add_part(a, row_of[i], gradient, target, first, end)
            continue
        other = i
        while other >= 0:
            add_part(a, row_of[other], total, 0, first, end)
            other = following[other]
        add_part(total, 0, gradient, target, first, end)
        total[first:end] = 0.0
