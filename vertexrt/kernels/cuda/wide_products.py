"""Products of many rows by the matrix units of Hopper, where they are faster than cuBLAS.

cuBLAS multiplies float32 without matrix units, unless TF32 is allowed. `warp_group_matmul.cuh` has
the same product by three TF32 products, twice as fast where its tiles, 128 x 128, occupy most of
the device.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from vertexrt.kernels.cuda.calls import (
    FIRST_ARGUMENT,
    LAUNCH,
    ONE,
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
VALUES = 12  # of `WideProduct`
SHALLOWEST = 64  # of less depth, a tile is not worth its beginning and its end
# Tiles have to fill so much of the device, in turns of all processors: at 0.48 a product takes 0.84
# of cuBLAS's time, at 0.38 as long, at 0.67 0.53 of it (H100).
FULL, OF = 9, 20


@cache
def wide_source() -> str:
    """Return the kernels, whose names are NAMES."""
    return f"#define WIDE_SHARED_BYTES {SHARED_BYTES}\n" + (FOLDER / "wide.cu").read_text()


def wide_sources(device: Device, dtype: np.dtype[Any]) -> list[str]:
    """Return what a device needs for the products of a dtype: the kernels, or nothing."""
    there = device.warp_groups and device.precision == "float32" and dtype == np.float32
    return [wide_source()] if there else []


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


def is_wide(calls: Array, asked: GemmCall) -> bool:
    """Tell whether the tiles of a product fill the device."""
    if calls[WIDE] == 0 or asked.k < SHALLOWEST:
        return False
    tiles = (asked.m + TILE - 1) // TILE * ((asked.n + TILE - 1) // TILE)
    turns = (tiles + calls[PROCESSORS] - 1) // calls[PROCESSORS]
    room = turns * calls[PROCESSORS] * TILE * TILE
    return bool(OF * asked.m * asked.n >= FULL * room)


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
    if not is_wide(calls, asked):
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
    given[at + 9], given[at + 10] = down, _vector(asked, rows, columns)
    given[at + 11] = asked.beta == calls[ONE]
    given[SIZE] = 8 * VALUES
    grid = Blocks(down * across, 1, THREADS)
    function, extra = calls[WIDE + form], given.ctypes.data
    code = launch_kernel(calls[LAUNCH], function, grid, calls[STREAM], extra, SHARED_BYTES)
    given[SIZE] = 0  # it lives until here
    return int(code)
