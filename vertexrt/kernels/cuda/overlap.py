"""Products of inputs that are overlapped with the path.

A few sequences are followed by a few groups of processors, and most processors are idle while the
groups follow the path. Where one kernel of products, in tiles of few rows, is all that comes before
the path, the idle processors run it at the same time. They count the finished blocks of each tile
of rows, and a group waits for the tiles of the rows that it reads next, instead of for all rows.
`overlap.cuh` is the part of the kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from vertexrt.ir.layers import Phase
from vertexrt.ir.program import Stage
from vertexrt.kernels.cuda.instruction import ACROSS, DOWN, OVERLAP
from vertexrt.kernels.cuda.rows_at_once import MOST_OF_A_CLUSTER
from vertexrt.script.isa import FIRST, NONE, ROWS, WAIT

Array = np.ndarray[Any, Any]

TILE_ROWS = (8, 32)  # of such a step: the tiles of products of few rows
MOST_TILES = 64  # of rows: each has a counter


def may_overlap(processors: int, phases: Sequence[Phase]) -> bool:
    """Tell whether a kernel has the code for it: small groups, and no backward path.

    Groups too large to be clusters leave few processors idle. In a training step the code would
    take registers of the backward path, and products of inputs are a small part of it.
    """
    return processors <= MOST_OF_A_CLUSTER and all(x.stage == Stage.PATH for x in phases)


def idle_processors(launched: int, busy: int) -> int:
    """Return how many processors run products while the groups follow the path.

    Args:
        launched: processors of a launch; busy: those of its groups.
    Returns: 0 where less than half of the processors are idle.
    """
    return launched - busy if 2 * busy <= launched else 0


def overlapped_tile(tile: int, first: int, per_row: int, per_edge: int) -> int:
    """Return the rows of a tile of a step that may be overlapped; 0 for other steps.

    Args:
        tile: rows of its tile; first: of its rows, negative where they are a list.
        per_row, per_edge: rows of products for each row and each edge.
    """
    fits = tile == TILE_ROWS[0] or tile == TILE_ROWS[1]
    return tile if fits and first >= 0 and per_row == 1 and per_edge == 0 else 0


def is_overlapped(script: Array, count: int, cut: int, idle: int) -> bool:
    """Tell whether what comes before a side of the path is overlapped with it.

    Args:
        script: of all processors, of which there are `count` instructions.
        cut: how many of them the kernel does not run; idle: of `idle_processors`.
    """
    alone = idle > 0 and count == 1 and cut == 0 and script[0, WAIT] == NONE
    return alone and script[0, OVERLAP] > 0 and 1 < script[0, DOWN] <= MOST_TILES


def mark_overlapped(script: Array, count: int, overlapped: bool) -> None:
    """Mark the step that is overlapped and its side of the path, the first two, or nothing.

    The side gets the rows and the blocks of the step.
    """
    for k in range(2 * int(overlapped), count):
        script[k, OVERLAP] = 0
    if overlapped:
        for column in (FIRST, ROWS, ACROSS, DOWN, OVERLAP):
            script[1, column] = script[0, column]
