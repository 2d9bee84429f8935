"""What the loop that launches calls by address: the CUDA driver, and cuBLAS.

Machine code that calls by address is cached on disk, and the shim (`tests/shim`) can stand in for
both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import llvmlite.ir as ll
import numpy as np
from numba import types
from numba.extending import intrinsic

from vertexrt.cache.compiled import njit
from vertexrt.kernels.cuda.device import Calls

Array = np.ndarray[Any, Any]

BUFFER_POINTER, BUFFER_SIZE = 1, 2  # of the driver's `extra`
NO_TRANSPOSE, TRANSPOSE = 0, 1  # cuBLAS
CUDA_R_32F = 0
CALLS = 7  # for each stream
LAUNCH, GEMM, COMPUTE, HANDLE, STREAM, RECORD, WAIT = range(CALLS)


@intrinsic
def launch_kernel(typing, address, function, gx, gy, threads, stream, extra):  # type: ignore[no-untyped-def]
    """Call cuLaunchKernel by its address."""
    signature = types.int32(*[types.int64] * 7)

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        word, half = ll.IntType(64), ll.IntType(32)
        shape = ll.FunctionType(half, [word, *[half] * 7, word, word, word])
        target = builder.inttoptr(args[0], shape.as_pointer())
        one, zero = ll.Constant(half, 1), ll.Constant(word, 0)
        x, y, t = (builder.trunc(args[k], half) for k in (2, 3, 4))
        none = ll.Constant(half, 0)
        given = [args[1], x, y, one, t, one, one, none, args[5], zero, args[6]]
        return builder.call(target, given)

    return signature, code


@intrinsic
def _gemm(typing, address, handle, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc):  # type: ignore[no-untyped-def]
    """Call cublasSgemm_v2 or cublasDgemm_v2 by its address; column-major, scalars by pointer."""
    signature = types.int32(*[types.int64] * 15)
    narrow = (2, 3, 4, 5, 6, 9, 11, 14)

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        word, half = ll.IntType(64), ll.IntType(32)
        kinds = [half if p in narrow else word for p in range(1, 15)]
        target = builder.inttoptr(args[0], ll.FunctionType(half, kinds).as_pointer())
        given = [builder.trunc(args[p], half) if p in narrow else args[p] for p in range(1, 15)]
        return builder.call(target, given)

    return signature, code


@intrinsic
def _gemm_ex(  # type: ignore[no-untyped-def]
    typing, address, handle, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, compute
):
    """Call cublasGemmEx by its address: float32 in and out."""
    signature = types.int32(*[types.int64] * 16)

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        half = ll.IntType(32)
        kind, algorithm = ll.Constant(half, CUDA_R_32F), ll.Constant(half, -1)
        given = [args[1], *(builder.trunc(args[p], half) for p in range(2, 7)), args[7]]
        given += [args[8], kind, builder.trunc(args[9], half)]
        given += [args[10], kind, builder.trunc(args[11], half), args[12]]
        given += [args[13], kind, builder.trunc(args[14], half)]
        given += [builder.trunc(args[15], half), algorithm]
        shape = ll.FunctionType(half, [value.type for value in given])
        return builder.call(builder.inttoptr(args[0], shape.as_pointer()), given)

    return signature, code


@intrinsic
def record_event(typing, address, event, stream):  # type: ignore[no-untyped-def]
    """Call cuEventRecord by its address."""
    signature = types.int32(*[types.int64] * 3)

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        word = ll.IntType(64)
        shape = ll.FunctionType(ll.IntType(32), [word, word])
        return builder.call(builder.inttoptr(args[0], shape.as_pointer()), args[1:])

    return signature, code


@intrinsic
def wait_for_event(typing, address, stream, event):  # type: ignore[no-untyped-def]
    """Call cuStreamWaitEvent by its address."""
    signature = types.int32(*[types.int64] * 3)

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        word, half = ll.IntType(64), ll.IntType(32)
        shape = ll.FunctionType(half, [word, word, half])
        given = [args[1], args[2], ll.Constant(half, 0)]
        return builder.call(builder.inttoptr(args[0], shape.as_pointer()), given)

    return signature, code


@njit(cache=True, nogil=True)
def launch_one(
    launch_address: int, function: int, blocks: int, threads: int, stream: int, arguments: Array
) -> int:
    """Launch a kernel that takes one struct, given as int64 [*]; return the driver's error."""
    extra = np.zeros(5, np.int64)
    size = np.full(1, 8 * len(arguments), np.int64)
    extra[0] = BUFFER_POINTER
    extra[1] = arguments.ctypes.data
    extra[2] = BUFFER_SIZE
    extra[3] = size.ctypes.data
    code = launch_kernel(launch_address, function, blocks, 1, threads, stream, extra.ctypes.data)
    size[0] = 0  # it lives until here
    return int(code)


@njit(cache=True, nogil=True)
def product(
    calls: Array,
    ta: int,
    tb: int,
    m: int,
    n: int,
    k: int,
    alpha: int,
    a: int,
    lda: int,
    b: int,
    ldb: int,
    beta: int,
    c: int,
    ldc: int,
) -> Any:
    """Call the gemm that was chosen."""
    address, compute, handle = calls[GEMM], calls[COMPUTE], calls[HANDLE]
    if compute == 0:
        return _gemm(address, handle, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc)
    return _gemm_ex(address, handle, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, compute)


def addresses_of(streams: Sequence[Calls], dtype: np.dtype[Any]) -> Array:
    """Return what `driver.launch` calls on each stream.

    Args:
        dtype: of the network.
    Returns: int64 [streams, CALLS].
    """
    found = np.zeros((len(streams), CALLS), np.int64)
    for row, calls in zip(found, streams, strict=True):
        row[LAUNCH], row[HANDLE], row[STREAM] = calls.launch, calls.handle, calls.stream
        row[RECORD], row[WAIT] = calls.record, calls.wait
        row[GEMM] = calls.gemm64
        if dtype == np.float32:
            row[GEMM], row[COMPUTE] = calls.gemm32, calls.compute
    return found
