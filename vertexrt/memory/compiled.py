"""The compiled loop of the memory plan."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

Array = np.ndarray[Any, Any]


@njit(cache=True, nogil=True)
def place_tensors(
    buffer: Array,
    width: Array,
    sizes: Array,
    first_row: Array,
    end_row: Array,
    zero_elements: int,
    align: int,
) -> tuple[Array, int]:
    """Add up the buffers: see `vertexrt.memory.plan.plan_memory`."""
    starts = np.full(len(width), np.int64(2) ** 62, np.int64)
    ends = np.zeros(len(width), np.int64)
    for t in range(len(buffer)):
        starts[buffer[t]] = min(starts[buffer[t]], first_row[t])
        ends[buffer[t]] = max(ends[buffer[t]], end_row[t])
    at = (zero_elements + align - 1) // align * align
    offsets = np.empty(len(width), np.int64)
    for b in range(len(width)):
        starts[b] = min(starts[b], ends[b])
        offsets[b] = at
        at += ((ends[b] - starts[b]) * width[b] + align - 1) // align * align
    base = np.empty(len(buffer), np.int64)
    for t in range(len(buffer)):
        base[t] = offsets[buffer[t]] - starts[buffer[t]] * sizes[t]
    return base, at
