"""Arrays that begin where vectors load best: at a cache line, and large ones at a huge page.

A vector of 64 bytes that crosses a cache line is two loads. NumPy promises 16 bytes only. It asks
Linux for huge pages for what takes 4 MB or more, but these begin at multiples of 2 MB: the weights,
which are the first 2 MB of a Tree-LSTM with hidden 256, would have small pages, and a step reads
them level by level (`docs/performance.md`).
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

CACHE_LINE = 64  # bytes
HUGE_PAGE = 2 << 20
GIB = 1 << 30
NUMPY_ASKS = 2 * HUGE_PAGE  # bytes of an array from which NumPy asks for huge pages
LARGE = HUGE_PAGE // 2  # bytes that may take a whole huge page


def machine_bytes() -> int:
    """Return how much memory this machine has."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def aligned_zeros(size: int, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Return zeros, [size]. Memory is taken where it is written to."""
    large = size * dtype.itemsize >= LARGE
    begin = HUGE_PAGE if large else CACHE_LINE
    held = max(size * dtype.itemsize + begin, NUMPY_ASKS if large else 0)
    whole = np.zeros(held // dtype.itemsize, dtype)
    skip = -whole.ctypes.data % begin // dtype.itemsize
    return whole[skip : skip + size]
