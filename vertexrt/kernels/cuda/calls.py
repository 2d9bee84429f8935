"""What the loop that launches calls by address: the CUDA driver, and cuBLAS.

Machine code that calls by address is cached on disk, and the shim (`tests/shim`) can stand in for
both.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import llvmlite.ir as ll
import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from vertexrt.cache.compiled import njit
from vertexrt.kernels.cuda.device import Calls

Array = np.ndarray[Any, Any]

# Of `new_arguments`: the driver's `extra`, the size that it points to, and the arguments.
BUFFER_POINTER, BUFFER_SIZE = 1, 2
SIZE, FIRST_ARGUMENT = 5, 6
NO_TRANSPOSE, TRANSPOSE = 0, 1  # cuBLAS
CUDA_R_32F = 0
CALLS = 10  # of a stream: addresses and handles, and of all of them the reals
LAUNCH, GEMM, COMPUTE, HANDLE, STREAM, RECORD, WAIT, ITEMSIZE, ZERO, ONE = range(CALLS)


class Blocks(NamedTuple):
    """The grid of a launch: blocks across and down, threads of each."""

    across: int
    down: int
    threads: int


class GemmCall(NamedTuple):
    """c = alpha a b + beta c, as cuBLAS takes it: column-major, arrays and scalars by address."""

    ta: int
    tb: int
    m: int
    n: int
    k: int
    alpha: int
    a: int
    lda: int
    b: int
    ldb: int
    beta: int
    c: int
    ldc: int


WIDE = {"alpha", "a", "b", "beta", "c"}  # addresses; the others have 32 bits


def _call(builder: Any, address: Any, given: list[Any]) -> Any:
    """Call a function by its address; it returns 32 bits."""
    shape = ll.FunctionType(ll.IntType(32), [value.type for value in given])
    return builder.call(builder.inttoptr(address, shape.as_pointer()), given)


def _fields(context: Any, builder: Any, kind: Any, value: Any) -> list[Any]:
    """Return the values of a record of integers, 64 bits each."""
    values = zip(cgutils.unpack_tuple(builder, value), kind.types, strict=True)
    return [context.cast(builder, each, of, types.int64) for each, of in values]


@intrinsic
def launch_kernel(typing, address, function, blocks, stream, extra):  # type: ignore[no-untyped-def]
    """Call cuLaunchKernel by its address, with `Blocks`."""
    whole = types.int64
    signature = types.int32(whole, whole, blocks, whole, whole)

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        word, half = ll.IntType(64), ll.IntType(32)
        grid = _fields(context, builder, sig.args[2], args[2])
        x, y, t = (builder.trunc(value, half) for value in grid)
        one, none, null = ll.Constant(half, 1), ll.Constant(half, 0), ll.Constant(word, 0)
        given = [args[1], x, y, one, t, one, one, none, args[3], null, args[4]]
        return _call(builder, args[0], given)

    return signature, code


def _product_fields(context: Any, builder: Any, kind: Any, value: Any) -> dict[str, Any]:
    """Return the values of a `GemmCall` by name, as wide as cuBLAS takes each."""
    values = zip(GemmCall._fields, _fields(context, builder, kind, value), strict=True)
    half = ll.IntType(32)
    return {name: v if name in WIDE else builder.trunc(v, half) for name, v in values}


@intrinsic
def _gemm(typing, address, handle, asked):  # type: ignore[no-untyped-def]
    """Call cublasSgemm_v2 or cublasDgemm_v2 by its address, with a `GemmCall`."""
    signature = types.int32(types.int64, types.int64, asked)

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        fields = _product_fields(context, builder, sig.args[2], args[2])
        return _call(builder, args[0], [args[1], *fields.values()])

    return signature, code


@intrinsic
def _gemm_ex(typing, address, handle, asked, compute):  # type: ignore[no-untyped-def]
    """Call cublasGemmEx by its address, with a `GemmCall`: float32 in and out."""
    signature = types.int32(types.int64, types.int64, asked, types.int64)

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        half = ll.IntType(32)
        kind, algorithm = ll.Constant(half, CUDA_R_32F), ll.Constant(half, -1)
        given = [args[1]]
        for name, value in _product_fields(context, builder, sig.args[2], args[2]).items():
            given += [value, kind] if name in ("a", "b", "c") else [value]
        return _call(builder, args[0], [*given, builder.trunc(args[3], half), algorithm])

    return signature, code


@intrinsic
def record_event(typing, address, event, stream):  # type: ignore[no-untyped-def]
    """Call cuEventRecord by its address."""
    signature = types.int32(*[types.int64] * 3)

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _call(builder, args[0], list(args[1:]))

    return signature, code


@intrinsic
def wait_for_event(typing, address, stream, event):  # type: ignore[no-untyped-def]
    """Call cuStreamWaitEvent by its address."""
    signature = types.int32(*[types.int64] * 3)

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _call(builder, args[0], [args[1], args[2], ll.Constant(ll.IntType(32), 0)])

    return signature, code


@njit(cache=True, nogil=True)
def new_arguments(most: int) -> Array:
    """Return room for so many arguments of a kernel, after what the driver is told of them.

    Whoever launches writes 8 times their number to SIZE, and keeps the array until then.
    """
    found = np.zeros(FIRST_ARGUMENT + most, np.int64)
    at = found.ctypes.data
    found[0], found[1] = BUFFER_POINTER, at + 8 * FIRST_ARGUMENT
    found[2], found[3] = BUFFER_SIZE, at + 8 * SIZE
    return found


@njit(cache=True, nogil=True)
def launch_one(
    launch_address: int, function: int, blocks: int, threads: int, stream: int, arguments: Array
) -> int:
    """Launch a kernel that takes one struct, given as int64 [*]; return the driver's error."""
    given = new_arguments(len(arguments))
    given[FIRST_ARGUMENT:] = arguments
    given[SIZE] = 8 * len(arguments)
    grid = Blocks(blocks, 1, threads)
    code = launch_kernel(launch_address, function, grid, stream, given.ctypes.data)
    given[SIZE] = 0  # it lives until here
    return int(code)


@njit(cache=True, nogil=True)
def product(calls: Array, asked: GemmCall) -> Any:
    """Call the gemm that was chosen."""
    if calls[COMPUTE] == 0:
        return _gemm(calls[GEMM], calls[HANDLE], asked)
    return _gemm_ex(calls[GEMM], calls[HANDLE], asked, calls[COMPUTE])


def addresses_of(calls: Calls, scalars: Array) -> Array:
    """Return what `driver.launch` calls on a stream: int64 [CALLS].

    Args:
        scalars: 0 and 1 of the dtype of the network, which must live as long.
    """
    found = np.zeros(CALLS, np.int64)
    found[LAUNCH], found[HANDLE], found[STREAM] = calls.launch, calls.handle, calls.stream
    found[RECORD], found[WAIT] = calls.record, calls.wait
    found[GEMM] = calls.gemm64
    if scalars.dtype == np.float32:
        found[GEMM], found[COMPUTE] = calls.gemm32, calls.compute
    found[ITEMSIZE], found[ZERO] = scalars.itemsize, scalars.ctypes.data
    found[ONE] = found[ZERO] + scalars.itemsize
    return found
