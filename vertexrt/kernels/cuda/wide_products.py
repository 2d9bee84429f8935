"""Products of many rows by the matrix units of Hopper, where they are faster than cuBLAS.

cuBLAS multiplies float32 without matrix units, unless TF32 is allowed. `warp_group_matmul.cuh` has
the same product by three TF32 products, twice as fast where its tiles, 128 x 128, occupy most of
the device.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from vertexrt.kernels.cuda.calls import (
    FIRST_ARGUMENT,
    LAUNCH,
    ONE,
    PARTIAL,
    PROCESSORS,
    STREAM,
    TRANSPOSE,
    WIDE,
    Blocks,
    GemmCall,
    launch_kernel,
    new_arguments,
    product,
)
from vertexrt.kernels.cuda.compile import FOLDER
from vertexrt.kernels.cuda.device import SIZE, Device

Array = np.ndarray[Any, Any]

NAMES = ("wide_plain", "wide_transposed", "wide_outer")  # y = x w^T, y = x w, g += d^T x
TILE, THREADS = 128, 256
SHARED_BYTES = 167_072  # of a block: `MatmulMemory`
VALUES = 16  # of `WideProduct`
SHALLOWEST = 64  # of less depth, a tile is not worth its beginning and its end
SPLIT_DEPTH = 256  # at least, of what shares the depth of a tile
# What a tile costs beside its chunks of DEPTH, in chunks (1.5 us on an H200), and, for each of its
# splits, what adds these up.
DEPTH, BESIDE, JOINED = 32, 2, 2
MOST_SPLITS, MOST_PARTS = 16, 4  # of a tile; for each processor, of all tiles
LEAST_SPLIT = 1 << 15  # elements of parameters: products of fewer do not fill a device by splits
# Tiles have to fill so much of the device, with what they cost beside their chunks: at 0.2 products
# take 1.2 of cuBLAS's time, at 0.3 0.79 of it, and from 0.6 on 0.53 to 0.75 (H200).
FULL, OF = 7, 25


@cache
def wide_source() -> str:
    """Return the kernels, whose names are NAMES."""
    sizes = {"SHARED_BYTES": SHARED_BYTES, "TILE": TILE, "DEPTH": DEPTH}
    defines = [f"#define WIDE_{name} {size}" for name, size in sizes.items()]
    return "\n".join([*defines, (FOLDER / "wide.cu").read_text()])


def has_wide(device: Device, dtype: npt.DTypeLike) -> bool:
    """Tell whether a device has such kernels for the products of a dtype."""
    single = np.dtype(dtype) == np.float32
    return device.warp_groups and device.precision == "float32" and single


def wide_sources(device: Device, dtype: npt.DTypeLike) -> list[str]:
    """Return what a device needs for the products of a dtype: the kernels, or nothing."""
    return [wide_source()] if has_wide(device, dtype) else []


def split_bytes(processors: int) -> int:
    """Return the bytes of what splits leave: sums of a tile, and then a counter, for each of them.

    They begin as zeros.
    """
    return MOST_PARTS * processors * (TILE * TILE + 1) * 4


def load_wide(device: Device, dtype: np.dtype[Any]) -> tuple[int, ...]:
    """Return the functions of the kernels, in the order of NAMES; zeros where there are none."""
    sources = wide_sources(device, dtype)
    if not sources:
        return (0,) * len(NAMES)
    found = device.load(sources, dtype)
    functions = tuple(found[name] for name in NAMES)
    for function in functions:
        device.allow_shared(function, SHARED_BYTES)
    return functions


def splits_of(m: int, n: int, k: int, processors: int) -> int:
    """Return in how many parts the depth of a product of [m, k] and [k, n] is made.

    Processors take turns with tiles, or with parts of these; that number is taken with which they
    are done first.

    Returns: 0 where its tiles do not fill the device.
    """
    if k < SHALLOWEST:
        return 0
    tiles = (m + TILE - 1) // TILE * ((n + TILE - 1) // TILE)
    chunks = (k + DEPTH - 1) // DEPTH
    best, least = 1, (tiles + processors - 1) // processors * (chunks + BESIDE)
    for splits in range(2, min(MOST_SPLITS, k // SPLIT_DEPTH) + 1):
        if tiles * splits > MOST_PARTS * processors:
            break
        turns = (tiles * splits + processors - 1) // processors
        cost = turns * ((chunks + splits - 1) // splits + BESIDE + JOINED * splits)
        if cost < least:
            best, least = splits, cost
    return best if OF * m * n * chunks >= FULL * processors * TILE * TILE * least else 0


def wide_splits(calls: Array, asked: GemmCall) -> int:
    """Return `splits_of` a product that a kernel of ours makes, 0 for others."""
    if calls[WIDE] == 0:
        return 0
    splits = splits_of(asked.m, asked.n, asked.k, calls[PROCESSORS])
    return splits if splits == 1 or calls[PARTIAL] != 0 else 0


def _vector(asked: GemmCall, rows: int, columns: int) -> int:
    """Return how many neighbours in memory are loaded at once.

    Args:
        rows, columns: those of the operands' neighbours that count.
    """
    every = rows | columns | asked.lda | asked.ldb | asked.ldc | asked.m
    every |= (asked.a | asked.b | asked.c) // 4  # of float32
    if every % 4 == 0:
        return 4
    return 2 if every % 2 == 0 else 1


def multiply(calls: Array, asked: GemmCall) -> int:
    """Launch a product; return the error of the driver, or that of cuBLAS."""
    splits = wide_splits(calls, asked)
    if splits == 0:
        return product(calls, asked)
    # cuBLAS takes columns: its second operand, and the rows of ours, are the columns of c.
    a_along, b_along = asked.tb == TRANSPOSE, asked.ta != TRANSPOSE
    form = 2 if a_along else 1 if b_along else 0
    rows = asked.n if a_along else asked.k
    columns = asked.m if b_along else asked.k
    down = (asked.n + TILE - 1) // TILE
    across = (asked.m + TILE - 1) // TILE
    given = new_arguments(VALUES)
    at = FIRST_ARGUMENT
    given[at], given[at + 1], given[at + 2] = asked.b, asked.ldb, asked.n
    given[at + 3], given[at + 4], given[at + 5] = asked.a, asked.lda, asked.m
    given[at + 6], given[at + 7], given[at + 8] = asked.c, asked.ldc, asked.k
    given[at + 9], given[at + 10], given[at + 11] = down, across, splits
    given[at + 12] = _vector(asked, rows, columns)
    given[at + 13] = asked.beta == calls[ONE]
    given[at + 14] = calls[PARTIAL]
    given[at + 15] = calls[PARTIAL] + 4 * TILE * TILE * MOST_PARTS * calls[PROCESSORS]
    given[SIZE] = 8 * VALUES
    grid = Blocks(min(down * across * splits, calls[PROCESSORS]), 1, THREADS)
    function, extra = calls[WIDE + form], given.ctypes.data
    code = launch_kernel(calls[LAUNCH], function, grid, calls[STREAM], extra, SHARED_BYTES)
    given[SIZE] = 0  # it lives until here
    return int(code)
