"""What the loop that launches calls by address: the CUDA driver, and cuBLAS.

Machine code that calls by address is cached on disk, and the shim (`tests/shim`) can stand in for
both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from vertexrt.kernels.cuda.device import BUFFER_POINTER, BUFFER_SIZE, SIZE, Calls
from vertexrt.native.compiled import compiled
from vertexrt.native.foreign import Foreign

Array = np.ndarray[Any, Any]

# Of `new_arguments`: the driver's `extra`, the size that it points to, and the arguments.
FIRST_ARGUMENT = SIZE + 1
NO_TRANSPOSE, TRANSPOSE = 0, 1  # cuBLAS
CUDA_R_32F = 0
DEFAULT_ALGORITHM = -1
# Of a stream: addresses and handles, and of all of them the reals; how many processors there are;
# of `wide_products.py`, where splits leave their sums, and the first of the kernels.
CALLS = 15
(
    LAUNCH, GEMM, COMPUTE, HANDLE, STREAM, RECORD, WAIT, ITEMSIZE, ZERO, ONE, PROCESSORS, PARTIAL,
    WIDE,
) = range(CALLS - 2)  # fmt: skip


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


_LAUNCH = Foreign("i32", "ptr i32 i32 i32 i32 i32 i32 i32 ptr ptr ptr")
_GEMM = Foreign("i32", "ptr i32 i32 i32 i32 i32 ptr ptr i32 ptr i32 ptr ptr i32")
_GEMM_EX = Foreign(
    "i32", "ptr i32 i32 i32 i32 i32 ptr ptr i32 i32 ptr i32 i32 ptr ptr i32 i32 i32 i32"
)
_LAUNCH_EX = Foreign("i32", "ptr ptr ptr ptr")
_RECORD = Foreign("i32", "ptr ptr")
_WAIT = Foreign("i32", "ptr ptr i32")


def launch_kernel(
    address: int, function: int, blocks: Blocks, stream: int, extra: int, shared: int
) -> int:
    """Call cuLaunchKernel by its address; return the driver's error.

    Args:
        shared: bytes of dynamic shared memory of a block.
    """
    x, y, threads = blocks
    return int(_LAUNCH(address, function, x, y, 1, threads, 1, 1, shared, stream, 0, extra))


def record_event(address: int, event: int, stream: int) -> int:
    """Call cuEventRecord by its address; return the driver's error."""
    return int(_RECORD(address, event, stream))


def wait_for_event(address: int, stream: int, event: int) -> int:
    """Call cuStreamWaitEvent by its address; return the driver's error."""
    return int(_WAIT(address, stream, event, 0))


def new_arguments(most: int) -> Array:
    """Return room for so many arguments of a kernel, after what the driver is told of them.

    Whoever launches writes 8 times their number to SIZE, and keeps the array until then.
    """
    found = np.zeros(FIRST_ARGUMENT + most, np.int64)
    at = found.ctypes.data
    found[0], found[1] = BUFFER_POINTER, at + 8 * FIRST_ARGUMENT
    found[2], found[3] = BUFFER_SIZE, at + 8 * SIZE
    return found


@compiled
def launch_each(launch_address: int, stream: int, packed: Array) -> int:
    """Launch kernels that take one struct each, one after the other: no signal comes between.

    Args:
        packed: int64 [*], of each of them its function, blocks, threads of each, how many words its
            struct has, and these; of no blocks there is nothing to do.
    Returns: the driver's error.
    """
    given, at, code = new_arguments(len(packed)), 0, 0
    while at < len(packed) and code == 0:
        function, blocks, threads, size = packed[at], packed[at + 1], packed[at + 2], packed[at + 3]
        at += 4
        given[FIRST_ARGUMENT : FIRST_ARGUMENT + size] = packed[at : at + size]
        given[SIZE] = 8 * size
        at += size
        if blocks > 0:
            grid = Blocks(blocks, 1, threads)
            code = launch_kernel(launch_address, function, grid, stream, given.ctypes.data, 0)
    given[SIZE] = 0  # it lives until here
    return int(code)


@compiled
def launch_configured(address: int, config: int, function: int, extra: int) -> int:
    """Call cuLaunchKernelEx by its address, with a CUlaunchConfig; return the driver's error."""
    return int(_LAUNCH_EX(address, config, function, 0, extra))


@compiled
def order_streams(record: int, wait: int, event: int, before: int, after: int) -> int:
    """Let a stream wait on the device for what another one has; return the driver's error.

    Args:
        record, wait: addresses of cuEventRecord and cuStreamWaitEvent.
        event: that marks what the stream `before` has, for the stream `after`.
    """
    code = record_event(record, event, before)
    if code == 0:
        code = wait_for_event(wait, after, event)
    return int(code)


def product(calls: Array, asked: GemmCall) -> int:
    """Call the gemm that was chosen: cublasSgemm_v2 or cublasDgemm_v2, or cublasGemmEx."""
    handle, c = calls[HANDLE], asked
    if calls[COMPUTE] == 0:
        return int(_GEMM(calls[GEMM], handle, *asked))
    return int(
        _GEMM_EX(
            calls[GEMM], handle, c.ta, c.tb, c.m, c.n, c.k, c.alpha, c.a, CUDA_R_32F, c.lda, c.b,
            CUDA_R_32F, c.ldb, c.beta, c.c, CUDA_R_32F, c.ldc, calls[COMPUTE], DEFAULT_ALGORITHM,
        )
    )  # fmt: skip


def addresses_of(calls: Calls, scalars: Array, processors: int, wide: Sequence[int]) -> Array:
    """Return what `driver.launch` calls on a stream: int64 [CALLS].

    Args:
        scalars: 0 and 1 of the dtype of the network, which must live as long.
        processors: of the device.
        wide: of `wide_products.py`: where splits leave their sums, and the kernels; zeros for none.
    """
    found = np.zeros(CALLS, np.int64)
    found[LAUNCH], found[HANDLE], found[STREAM] = calls.launch, calls.handle, calls.stream
    found[RECORD], found[WAIT] = calls.record, calls.wait
    found[GEMM] = calls.gemm64
    if scalars.dtype == np.float32:
        found[GEMM], found[COMPUTE] = calls.gemm32, calls.compute
    found[ITEMSIZE], found[ZERO] = scalars.itemsize, scalars.ctypes.data
    found[ONE] = found[ZERO] + scalars.itemsize
    found[PROCESSORS], found[PARTIAL:] = processors, wide
    return found
