"""Products as generated kernels call them: by BLAS, in chunks that suit it."""

from __future__ import annotations

from typing import Any

import llvmlite.ir as ll
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from vertexrt.cache.compiled import njit

_NO, _YES = ord("N"), ord("T")


@intrinsic
def _gemm(typing, ta, tb, m, n, k, a, ao, lda, b, bo, ldb, beta, c, co, ldc):  # type: ignore[no-untyped-def]
    """Call BLAS gemm (column-major): c = op(a) op(b) + beta c, matrices as (array, offset, ld)."""
    i64 = types.int64
    signature = types.void(i64, i64, i64, i64, i64, a, i64, i64, b, i64, i64, c.dtype, c, i64, i64)
    kind = ord("s") if c.dtype == types.float32 else ord("d")

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        byte, word = ll.IntType(8), ll.IntType(64)
        pointer = byte.as_pointer()
        shape = (
            [byte] * 3
            + [word] * 3
            + [pointer, pointer, word, pointer, word, pointer, pointer, word]
        )
        # numba's own wrapper of SciPy's BLAS; unlike a ctypes pointer it can be cached on disk.
        target = cgutils.get_or_insert_function(
            builder.module, ll.FunctionType(ll.IntType(32), shape), "numba_xxgemm"
        )

        def at(position: int) -> Any:
            data = context.make_array(sig.args[position])(context, builder, args[position]).data
            return builder.bitcast(builder.gep(data, [args[position + 1]]), pointer)

        def scalar(value: Any) -> Any:
            return builder.bitcast(cgutils.alloca_once_value(builder, value), pointer)

        one = context.get_constant(sig.args[11], 1.0)
        builder.call(
            target,
            [
                ll.Constant(byte, kind),
                builder.trunc(args[0], byte),
                builder.trunc(args[1], byte),
                args[2],
                args[3],
                args[4],
                scalar(one),
                at(5),
                args[7],
                at(8),
                args[10],
                scalar(args[11]),
                at(12),
                args[14],
            ],
        )
        return context.get_dummy_value()

    return signature, code


# OpenBLAS has kernels without packing for small products, but takes them only up to a number of
# multiply-adds. Few rows times a wide weight pass below it in chunks of the weight: at 2 rows times
# 768 x 256 that takes 12 us instead of 49 (Xeon with AVX-512, OpenBLAS 0.3.31, one thread).
SMALL_TRANSPOSED = 1 << 18
SMALL_PLAIN = 3 << 18
FEWEST = 48


@njit(cache=True, nogil=True)
def _chunk(rows: int, outputs: int, inner: int, small: int) -> int:
    if rows * outputs * inner <= small:
        return outputs
    chunk = small // (rows * inner) // 16 * 16
    return chunk if chunk >= FEWEST else outputs


@njit(cache=True, error_model="numpy", nogil=True)
def product(
    w: Any, wo: int, x: Any, xo: int, y: Any, yo: int, rows: int, m: int, k: int, lo: int, hi: int
) -> None:
    """Y[rows, lo:hi] = X[rows, k] W[lo:hi, k]^T, where Y has m columns."""
    if rows == 0 or hi <= lo:
        return
    zero = y.dtype.type(0.0)
    step = _chunk(rows, hi - lo, k, SMALL_TRANSPOSED)
    for c in range(lo, hi, step):
        width = min(step, hi - c)
        _gemm(_YES, _NO, width, rows, k, w, wo + c * k, k, x, xo, k, zero, y, yo + c, m)


@njit(cache=True, error_model="numpy", nogil=True)
def product_transposed(
    w: Any, wo: int, d: Any, do: int, y: Any, yo: int, rows: int, m: int, k: int, lo: int, hi: int
) -> None:
    """Y[rows, lo:hi] = D[rows, m] W[m, lo:hi], where W and Y have k columns."""
    if rows == 0 or hi <= lo:
        return
    zero = y.dtype.type(0.0)
    step = _chunk(rows, hi - lo, m, SMALL_PLAIN)
    for c in range(lo, hi, step):
        width = min(step, hi - c)
        _gemm(_NO, _NO, width, rows, m, w, wo + c, k, d, do, m, zero, y, yo + c, k)


@njit(cache=True, error_model="numpy", nogil=True)
def product_outer(
    g: Any, go: int, d: Any, do: int, x: Any, xo: int, rows: int, m: int, k: int, lo: int, hi: int
) -> None:
    """G[lo:hi, k] += D[rows, lo:hi]^T X[rows, k], where D has m columns."""
    if rows and hi > lo:
        one = g.dtype.type(1.0)
        _gemm(_NO, _YES, k, hi - lo, rows, x, xo, k, d, do + lo, m, one, g, go + lo * k, k)
