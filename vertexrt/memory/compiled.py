"""The compiled loop of the memory plan."""

from __future__ import annotations

from typing import Any

import numpy as np

from vertexrt.native.compiled import compiled

Array = np.ndarray[Any, Any]

NO_ROW = 1 << 62  # beyond any
ALIGN = 16  # elements: 64 bytes in float32


@compiled
def place_tensors(
    buffer: Array,
    width: Array,
    sizes: Array,
    first_row: Array,
    end_row: Array,
    zero_elements: int,
    temporary_elements: int,
) -> tuple[Array, int, int]:
    """Place the tensors of one minibatch: multiply the buffers by rows and add up.

    Args:
        buffer, width: int64, of `Sharing`.
        sizes: int64 [tensors] elements a row.
        first_row, end_row: int64 [tensors] the rows that any task writes; other rows take no
            memory.
        zero_elements: a row of zeros at the start of the arena (what an absent child reads).
        temporary_elements: the most that one task needs besides.
    Returns: the fields of `MemoryPlan`; the peak is known here, before the first kernel.
    """
    starts = np.empty(len(width), np.int64)
    ends = np.zeros(len(width), np.int64)
    for b in range(len(width)):
        starts[b] = NO_ROW
    for t in range(len(buffer)):
        starts[buffer[t]] = min(starts[buffer[t]], first_row[t])
        ends[buffer[t]] = max(ends[buffer[t]], end_row[t])
    at = (zero_elements + ALIGN - 1) // ALIGN * ALIGN
    offsets = np.empty(len(width), np.int64)
    for b in range(len(width)):
        starts[b] = min(starts[b], ends[b])
        offsets[b] = at
        at += ((ends[b] - starts[b]) * width[b] + ALIGN - 1) // ALIGN * ALIGN
    base = np.empty(len(buffer), np.int64)
    for t in range(len(buffer)):
        base[t] = offsets[buffer[t]] - starts[buffer[t]] * sizes[t]
    return base, at, at + temporary_elements
