"""Plan the arena: give every dynamic tensor of a minibatch an offset, before anything runs.

Two steps. Once per compiled function `share` puts tensors whose lives do not overlap into common
buffers (that depends on phases only). For each minibatch `place_tensors` multiplies by rows and
adds up, a loop over some dozens of buffers. Reuse by lifetime is ours; Cavs only appends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from vertexrt.memory.tensors import TensorSpec, TensorTable

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Sharing:
    """Which buffer each tensor lies in, and each buffer's elements a row."""

    buffer: Int64  # [tensors]
    width: Int64  # [buffers]
    edges: npt.NDArray[np.bool_]  # [buffers]


@dataclass(slots=True)
class MemoryPlan:
    """Where everything lies in one arena of `total` elements.

    Attributes:
        base: [tensors] element at which row 0 of each tensor would lie: row r of tensor t is at
            `base[t] + r * size[t]`. Negative where the first rows do not exist.
        temporary: where the temporaries of the running task start.
        total: elements of the arena: the peak.
    """

    base: Int64
    temporary: int
    total: int

    def arena_bytes(self, dtype: Any) -> int:
        """Return the peak in bytes."""
        return int(self.total * np.dtype(dtype).itemsize)


def share(table: TensorTable) -> Sharing:
    """Put tensors into common buffers where their lives do not overlap, widest first."""
    buffers: list[list[TensorSpec]] = []
    for spec in sorted(table, key=lambda spec: -spec.size):
        members = next((m for m in buffers if _fits(spec, m)), None)
        if members is None:
            buffers.append([spec])
        else:
            members.append(spec)
    buffer = np.zeros(len(table), np.int64)
    for b, members in enumerate(buffers):
        buffer[[table.numbers[spec.key] for spec in members]] = b
    width = np.array([members[0].size for members in buffers], np.int64)
    return Sharing(buffer, width, np.array([members[0].edges for members in buffers], np.bool_))


def _fits(spec: TensorSpec, others: list[TensorSpec]) -> bool:
    """Tell whether a tensor can lie where others lie, at other times."""
    return others[0].edges == spec.edges and not any(spec.overlaps(o) for o in others)
