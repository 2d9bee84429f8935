"""Products before the path that other processors make beside it.

A few sequences are followed by a few groups, and most processors have none. Where products of the
inputs are all that comes before the path, those processors make them, tile of rows by tile of rows,
while the groups follow the path: a group waits for the tiles of the rows that it is about to read,
and not for the last of all. `beside.cuh` is the kernel's half.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from vertexrt.ir.layers import Phase
from vertexrt.ir.program import Stage
from vertexrt.kernels.cuda.instruction import ACROSS, BESIDE, DOWN
from vertexrt.kernels.cuda.rows_at_once import MOST_OF_A_CLUSTER
from vertexrt.script.isa import FIRST, NONE, ROWS, WAIT

Array = np.ndarray[Any, Any]

TILE_ROWS = (8, 32)  # of such a step: the tiles of products of few rows
MOST_TILES = 64  # of rows: each has a counter


def may_run_beside(processors: int, phases: Sequence[Phase]) -> bool:
    """Tell whether a kernel has the code for it: small groups, and no way back.

    Groups too large to be clusters leave few processors without one. In a step of training the code
    would take registers of the way back, where products of inputs are little of it.
    """
    return processors <= MOST_OF_A_CLUSTER and all(x.stage == Stage.PATH for x in phases)


def free_processors(all_of_them: int, busy: int) -> int:
    """Return how many processors make products beside the path: most of a launch's, or none.

    Args:
        all_of_them: processors of a launch; busy: those that have a group.
    """
    return all_of_them - busy if 2 * busy <= all_of_them else 0


def tile_rows(of_step: int, first: int, per_row: int, per_edge: int) -> int:
    """Return the rows of a tile of a step that may run so; 0 where it may not.

    Args:
        of_step: rows of its tile; first: of its rows, negative where they are a list.
        per_row, per_edge: rows of products for each row and each edge.
    """
    fits = of_step == TILE_ROWS[0] or of_step == TILE_ROWS[1]
    return of_step if fits and first >= 0 and per_row == 1 and per_edge == 0 else 0


def runs_beside(script: Array, count: int, cut: int, free: int) -> bool:
    """Tell whether what comes before a side of the path is run beside it.

    Args:
        script: of all processors, of which there are `count` instructions.
        cut: how many of them the kernel does not run; free: of `free_processors`.
    """
    alone = free > 0 and count == 1 and cut == 0 and script[0, WAIT] == NONE
    return alone and script[0, BESIDE] > 0 and 1 < script[0, DOWN] <= MOST_TILES


def say_who_runs(script: Array, count: int, beside: bool) -> None:
    """Say in the instructions that run beside each other, and in no others, that they do.

    The second one is the side of the path; it gets the rows and the blocks of the first.
    """
    for k in range(2 * int(beside), count):
        script[k, BESIDE] = 0
    if beside:
        for column in (FIRST, ROWS, ACROSS, DOWN, BESIDE):
            script[1, column] = script[0, column]
