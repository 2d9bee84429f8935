"""Launch products of warp groups again and again, and look at every result.

    python -m benchmarks.stress_products [--launches 100000]

Threads of a block meet at barriers of their own, and blocks share the depth of a tile. Each result
must have the bits of the first time, wherever NaN was before it, and the first one must be that of
NumPy in float64.
"""

import sys
import time

import numpy as np

from benchmarks.command import read_options
from vertexrt.kernels.cuda.cupy_device import CupyDevice
from vertexrt.kernels.cuda.driver import (
    NO_TRANSPOSE,
    TRANSPOSE,
    GemmCall,
    addresses_of,
    load_wide,
    multiply,
    split_bytes,
    wide_splits,
)
from vertexrt.native.compiled import compiled

# (rows, columns, depth): whole tiles, parts of tiles, little and much depth, and blocks that share
# the depth of a tile.
SIZES = (
    (1536, 1408, 256),
    (1500, 1401, 100),
    (2240, 10000, 650),
    (2048, 2048, 64),
    (1019, 251, 6400),
)
SCALARS = np.array([0, 1], np.float32)
BOUND = 2e-6  # of the largest sum of absolute products


@compiled
def launch_product(calls: np.ndarray, form: int, sizes: np.ndarray, at: np.ndarray) -> int:
    """Launch y = x w^T (form 0), y = x w (1) or y += d^T x (2); return the error.

    Args:
        sizes: rows, columns and depth; at: addresses of the two operands, y, 1 and 0.
    """
    rows, wide, deep = sizes
    x, w, y, one, zero = at
    if form == 0:
        asked = GemmCall(
            TRANSPOSE, NO_TRANSPOSE, wide, rows, deep, one, w, deep, x, deep, zero, y, wide
        )
    elif form == 1:
        asked = GemmCall(
            NO_TRANSPOSE, NO_TRANSPOSE, wide, rows, deep, one, w, wide, x, deep, zero, y, wide
        )
    else:
        asked = GemmCall(
            NO_TRANSPOSE, TRANSPOSE, wide, rows, deep, one, w, wide, x, rows, one, y, wide
        )
    return multiply(calls, asked) if wide_splits(calls, asked.m, asked.n, asked.k) else -1


def main() -> int:
    """Launch, compare, and print how it goes."""
    given = read_options("benchmarks.stress_products", __doc__, launches=100_000)
    device = CupyDevice()
    real = np.dtype(np.float32)
    left = device.arrays().zeros(split_bytes(device.processors), np.uint8)
    wide = left.data.ptr, *load_wide(device, real)
    calls = addresses_of(device.calls, SCALARS, device.processors, wide)
    each = -(-given.launches // (3 * len(SIZES)))
    begin, launches, wrong = time.perf_counter(), 0, 0
    with device.stream:
        for sizes in SIZES:
            for form in range(3):
                wrong += repeat(device, calls, form, sizes, each)
                launches += each
                seconds = time.perf_counter() - begin
                print(f"{launches:,} launches in {seconds:.0f} s, {wrong} wrong", flush=True)
    return 1 if wrong else 0


def repeat(
    device: CupyDevice, calls: np.ndarray, form: int, sizes: tuple[int, ...], times: int
) -> int:
    """Launch one product so often; return how often it was wrong."""
    arrays, (rows, wide, deep) = device.arrays(), sizes
    rng = np.random.default_rng(form)
    shapes = [(rows, deep), (deep, wide)]
    shapes[0] = (deep, rows) if form == 2 else shapes[0]
    shapes[1] = (wide, deep) if form == 0 else shapes[1]
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
    on_device = arrays.asarray(x), arrays.asarray(w)
    before = arrays.zeros((rows, wide), np.float32) if form == 2 else np.nan
    y, first = arrays.empty((rows, wide), np.float32), None
    at = [array.data.ptr for array in (*on_device, y)]
    at += [SCALARS.ctypes.data + SCALARS.itemsize, SCALARS.ctypes.data]
    wrong = arrays.zeros((), np.int64)
    for _ in range(times):
        y[...] = before
        device.check(launch_product(calls, form, np.array(sizes), np.array(at)))
        if first is None:
            first = y.copy()
            left, right = x.T if form == 2 else x, w.T if form == 0 else w
            off = np.abs(first.get() - left.astype(np.float64) @ right)
            if off.max() > BOUND * (np.abs(left) @ np.abs(right)).max():
                return times
        wrong += (y.view(np.int32) != first.view(np.int32)).any()
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
