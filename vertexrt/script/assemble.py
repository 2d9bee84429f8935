"""Assemble scripts: from the launch table of a minibatch to one script for each processor.

All processors of a group run the same tiles in the same order, each its own part. Since a
processor works in order, waiting for the last of several tiles means waiting for all of them, so
that one wait an instruction is enough: for the latest tile that made a child (forward), for the
exchange inside the tile, or for the stage before. A wait that an earlier one of the same script
implies is left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from vertexrt.ir.passes.segment import SegmentedTask, Split
from vertexrt.ir.program import Stage
from vertexrt.script.isa import WORDS

Array = np.ndarray[Any, Any]

BY_ROWS = int(Split.ROWS)
PATH = int(Stage.PATH)


@dataclass(frozen=True, slots=True)
class Shape:
    """What the assembler knows of the task programs: flat arrays over them.

    Attributes:
        stage: [programs]; segment_ptr: [programs + 1]; split: [segments]; gathers: [programs].
    """

    stage: npt.NDArray[np.int64]
    segment_ptr: npt.NDArray[np.int64]
    split: npt.NDArray[np.int64]
    gathers: npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Scripts:
    """Scripts of a group: [processors, instructions, WORDS], and how many counters they use."""

    words: npt.NDArray[np.int64]
    counters: int


def shape_of(tasks: list[SegmentedTask]) -> Shape:
    """Collect what the assembler needs, once per compiled function."""
    counts = [len(t.segments) for t in tasks]
    return Shape(
        np.array([int(t.task.stage) for t in tasks], np.int64),
        np.cumsum([0, *counts]).astype(np.int64),
        np.array([int(s.split) for t in tasks for s in t.segments], np.int64),
        np.array([t.gathers for t in tasks], np.bool_),
    )


def assemble(
    shape: Shape, table: Array, edge_ptr: Array, child_row: Array, processors: int
) -> Scripts:
    """Write the scripts of one group for one minibatch.

    Args:
        shape: of the task programs.
        table: launches in order, as `kernels.layout` describes.
        edge_ptr, child_row: of the schedule.
        processors: of the group.
    """
    words, counters = _assemble(
        shape.stage,
        shape.segment_ptr,
        shape.split,
        shape.gathers,
        table,
        edge_ptr,
        child_row,
        processors,
    )
    return Scripts(words, int(counters))


@njit(cache=True, nogil=True)
def _assemble(
    stage: Array,
    segment_ptr: Array,
    split: Array,
    gathers: Array,
    table: Array,
    edge_ptr: Array,
    child_row: Array,
    processors: int,
) -> tuple[Array, int]:
    launches = len(table)
    total = 0
    for t in range(launches):
        p = table[t, 0]
        total += segment_ptr[p + 1] - segment_ptr[p]
    words = np.empty((processors, total, WORDS), np.int64)
    last = np.empty(launches, np.int64)  # counter of each launch's last segment
    launch_of_row = np.full(len(edge_ptr) - 1, -1, np.int64)
    at, waited, before, now = 0, -1, -1, -1
    for t in range(launches):
        p, n, lo, listed, m, elo = table[t]
        if stage[p] != now:
            now = stage[p]
            before = last[t - 1] if t > 0 else -1  # all of the earlier stages
        need = before
        if now == PATH:
            if gathers[p]:
                for e in range(elo, elo + m):
                    if child_row[e] >= 0:
                        need = max(need, last[launch_of_row[child_row[e]]])
            for r in range(lo, lo + n):
                launch_of_row[r] = t
        for s in range(segment_ptr[p + 1] - segment_ptr[p]):
            if s > 0:
                need = at - 1
            wait = need if processors > 1 and need > waited else -1
            waited = max(waited, need)
            by_rows = split[segment_ptr[p] + s] == BY_ROWS
            for r in range(processors):
                first, rows, entry, edges, first_edge = lo, n, listed, m, elo
                if by_rows:
                    start, end = n * r // processors, n * (r + 1) // processors
                    rows = end - start
                    if lo >= 0:
                        first = lo + start
                        first_edge = edge_ptr[first]
                        edges = edge_ptr[lo + end] - first_edge
                    else:
                        entry = listed + start
                words[r, at, 0] = p
                words[r, at, 1] = s
                words[r, at, 2] = rows
                words[r, at, 3] = first
                words[r, at, 4] = entry
                words[r, at, 5] = edges
                words[r, at, 6] = first_edge
                words[r, at, 7] = wait
                words[r, at, 8] = processors if wait >= 0 else 0
                words[r, at, 9] = at if processors > 1 else -1
            at += 1
        last[t] = at - 1
    return words, at
