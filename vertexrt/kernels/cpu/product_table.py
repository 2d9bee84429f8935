"""How fast products are here, by register tiles and by BLAS: timed once a machine, kept on disk.

Both make a product of one shape for a few numbers of rows, in turns, on one thread of BLAS (which
is all that a worker gives it); what is kept is the ratio of the shortest times. An entry is named
by the processor, the vectors, the BLAS and the shape, and is never changed: so the same steps have
the same bits on this machine from then on. A damaged one counts as missing (`cache.entries`).

Source: Zheng et al. 2018 (EcoRNN) time the layouts of a product and take the faster. A weight here
has one layout, in which each form reads it as it lies; what is chosen is the implementation.
"""

from __future__ import annotations

import ctypes
import functools
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from vertexrt.cache import entries
from vertexrt.cache.folders import folders
from vertexrt.kernels.cpu.libraries import library_of, register_size
from vertexrt.kernels.cpu.product_limits import ANY_ROWS, ProductShape, strips_from
from vertexrt.kernels.cpu.products import FORMS
from vertexrt.locks import ProcessLock
from vertexrt.memory.aligned import aligned_zeros
from vertexrt.native.blas import blas_name, one_thread
from vertexrt.native.load import machine

KIND = "products"  # of cache entries
ROWS = (1, 4, 16, 64, 256)  # that are timed
MOST_WORK = 1 << 26  # multiply-adds of a product that is timed: about a millisecond
SMALL = 1 << 14  # elements of a weight: smaller ones are not worth the time
FEWEST = 2  # numbers of rows that are timed, or the weight is too large
TURNS = 6

DTYPES: dict[str, np.dtype[Any]] = {"float": np.dtype(np.float32), "double": np.dtype(np.float64)}


Ratios = dict[int, float]  # rows -> time of BLAS / time of register tiles

_lock = ProcessLock()  # threads that compile at once decide alike


def ratios_of(shape: ProductShape) -> Ratios:
    """Return what is kept of a shape, or time it; nothing of small products.

    Nothing where nothing can be kept either: another process would time something else.
    """
    if shape.m * shape.n < SMALL:
        return {}
    with _lock.held:
        return _ratios_of(shape, str(folders(KIND).write))


@functools.cache
def _ratios_of(shape: ProductShape, folder: str) -> Ratios:
    """Look once in a process.

    Args:
        folder: where entries are kept.
    """
    name = entry_name(shape)
    found = entries.read(KIND, name)
    if found is None and folders(KIND).lasting:
        timed = time_product(shape)
        found = entries.read(KIND, name)  # another process may have kept its own meanwhile
        if found is None:
            entries.write(KIND, name, b"", timed)
            found = entries.read(KIND, name)
    return {} if found is None else {int(rows): ratio for rows, ratio in found.facts.items()}


def entry_name(shape: ProductShape) -> str:
    """Return the name of a shape's entry on this machine."""
    size = register_size()
    made = [str(size), str(strips_from(shape, size)), blas_name()]
    parts = [*machine()[1], *made, *map(str, shape), str(ROWS)]
    return entries.key_of(parts)


def time_product(shape: ProductShape) -> Ratios:
    """Time a product by tiles and by BLAS; nothing, where a few rows are too much work."""
    rows = [r for r in ROWS if r * shape.m * shape.n <= MOST_WORK]
    if len(rows) < FEWEST:
        return {}
    one_thread.begin(shape)
    try:
        run = _run_of(shape, rows[-1])
        return {r: _ratio(partial(run, r)) for r in rows}
    finally:
        one_thread.end(shape)


def _run_of(shape: ProductShape, most: int) -> Callable[[int, int], None]:
    """Return what makes a product of so many rows, of which tiles make at most `tiled`."""
    strips = (strips_from(shape, register_size()),) if shape.form == "x W^T" else ()
    kinds = [ctypes.c_void_p] * 3 + [ctypes.c_int64] * (6 + len(strips))
    product = ctypes.CFUNCTYPE(None, *kinds)(library_of(shape.real)[FORMS[shape.form][0]])
    m, n, dtype = shape.m, shape.n, DTYPES[shape.real]
    weight, wide, deep = (aligned_zeros(size, dtype) for size in (m * n, most * m, most * n))
    for array in (weight, wide, deep):
        array.fill(0.5)
    operands = {"x W^T": (deep, wide), "d W": (wide, deep), "d^T x": (wide, deep)}[shape.form]
    hi = n if shape.form == "d W" else m
    x, y = operands

    def run(rows: int, tiled: int) -> None:
        arrays = weight.ctypes.data, x.ctypes.data, y.ctypes.data
        product(*arrays, rows, m, n, 0, hi, tiled, *strips)

    return run


def _ratio(run: Callable[[int], None]) -> float:
    """Return the time of BLAS over that of tiles: the least of some turns of each.

    It is the time of the thread, in which another process does not count; what that one does to the
    caches shows in most turns, but not in the least.
    """

    def seconds(tiled: int) -> float:
        start = time.thread_time()
        run(tiled)
        return time.thread_time() - start

    turns = [(seconds(0), seconds(ANY_ROWS)) for _ in range(TURNS)]
    blas, tiles = (min(each) for each in zip(*turns, strict=True))
    # Some systems have clocks that do not move meanwhile: then nothing is known.
    ratio: float = round(blas / tiles, 3) if min(blas, tiles) > 0.0 else 1.0
    return ratio
