"""Dynamic tensors, and the plan of the arena: an offset for each, before anything runs.

Two steps. Once per compiled function `share` puts tensors whose lives do not overlap into common
buffers (that depends on phases only). For each minibatch `place_tensors` multiplies by rows and
adds up, a loop over some dozens of buffers. Reuse by lifetime is ours; Cavs only appends.

A dynamic tensor (Cavs, section 3.3 and figure 6) has one row for each vertex or edge of a batch.
All tasks of a minibatch write one after another, in execution order, so that lazy ops read all rows
as one tensor. It is named by a key: a state, a push, or the value of a node; kinds share it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from vertexrt.ir.layers import Phase
from vertexrt.native.compiled import compiled

Int64 = npt.NDArray[np.int64]
Key = tuple[object, ...]
NO_ROW = 1 << 62  # beyond any
ALIGN = 16  # elements: 64 bytes in float32


@dataclass(slots=True)
class TensorSpec:
    """What is known of a dynamic tensor before any batch.

    Attributes:
        size: elements a row.
        edges: rows are edges, not vertices.
        first, last: phases between which it must stay in memory.
    """

    key: Key
    size: int
    edges: bool
    first: Phase
    last: Phase

    def overlaps(self, other: TensorSpec) -> bool:
        """Tell whether both are in memory at the same time."""
        return self.first <= other.last and other.first <= self.last

    def describe(self) -> str:
        """Name the tensor, its row and its life, for people."""
        rows = "E" if self.edges else "V"
        name = " ".join(str(part) for part in self.key)
        return f"{name:24} [{rows}, {self.size}] {self.first.name} .. {self.last.name}"


@dataclass(slots=True)
class TensorTable:
    """All tensors of a compiled function, numbered in order of appearance."""

    specs: list[TensorSpec] = field(default_factory=list)
    numbers: dict[Key, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.specs)

    def __iter__(self) -> Iterator[TensorSpec]:
        return iter(self.specs)

    def use(self, key: Key, size: int, edges: bool, phase: Phase) -> int:
        """Return the number of a tensor that a phase reads or writes; its life is widened."""
        if key not in self.numbers:
            self.specs.append(TensorSpec(key, size, edges, phase, phase))
            self.numbers[key] = len(self.specs) - 1
        spec = self.specs[self.numbers[key]]
        assert (spec.size, spec.edges) == (size, edges), f"{key} has two shapes: {spec}, {size}"
        spec.first = min(spec.first, phase)
        spec.last = max(spec.last, phase)
        return self.numbers[key]


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
        for members in buffers:
            if members[0].edges == spec.edges and not any(spec.overlaps(o) for o in members):
                members.append(spec)
                break
        else:
            buffers.append([spec])
    buffer = np.zeros(len(table), np.int64)
    for b, members in enumerate(buffers):
        buffer[[table.numbers[spec.key] for spec in members]] = b
    width = np.array([members[0].size for members in buffers], np.int64)
    return Sharing(buffer, width, np.array([members[0].edges for members in buffers], np.bool_))


@compiled
def place_tensors(
    buffer: Int64,
    width: Int64,
    sizes: Int64,
    first_row: Int64,
    end_row: Int64,
    zero_elements: int,
    temporary_elements: int,
) -> tuple[Int64, int, int]:
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
