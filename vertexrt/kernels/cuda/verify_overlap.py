"""Verify which instructions are overlapped, see `overlap`."""

from __future__ import annotations

from typing import Any

import numpy as np

from vertexrt.kernels.cuda.cuts import APART_AT
from vertexrt.kernels.cuda.instruction import ACROSS, DOWN, FIRST_OP, FORWARD, OVERLAP
from vertexrt.kernels.cuda.overlap import MOST_TILES, TILE_ROWS
from vertexrt.kernels.cuda.persistent_launch import WrittenScripts
from vertexrt.kernels.cuda.verify_rounds import refuse
from vertexrt.script.isa import FIRST, NONE, OP, ROWS, WAIT

Array = np.ndarray[Any, Any]

KNOWN = [FIRST, ROWS, ACROSS, DOWN, OVERLAP]  # of the step, by its side of the path


def verify_overlap(written: WrittenScripts) -> None:
    """Check that an overlapped step is the first of a launch, and that the path knows its rows.

    Raises: PlanError.
    """
    script = written.script[: written.common]
    marked = np.flatnonzero(script[:, OVERLAP]).tolist()
    if not marked:
        return
    if marked != [0, 1]:
        at = marked[-1]
        refuse(script[at], at, f"instructions {marked} are overlapped", "the first two, or none")
    step, side = script[:2]
    if side[OP] != FORWARD or step[OP] < FIRST_OP:
        refuse(side, 1, "it is overlapped with a step", "forward, after one step of the function")
    if step[WAIT] != NONE or 0 in written.apart[:, APART_AT]:
        refuse(
            step, 0, "it waits, or the kernel does not run it", "a step that the kernel begins with"
        )
    if (step[KNOWN] != side[KNOWN]).any():
        refuse(side, 1, f"it waits for {side[KNOWN]}", f"{step[KNOWN]}, as the step has it")
    _verify_tiles(step)


def _verify_tiles(step: Array) -> None:
    rows, down, each = (int(step[k]) for k in (ROWS, DOWN, OVERLAP))
    fits = each in TILE_ROWS and down == -(-rows // each) and 1 < down <= MOST_TILES
    if not fits or step[FIRST] < 0:
        got = f"{down} tiles of {each} rows"
        refuse(step, 0, got, f"all {rows} rows in order, in 2 to {MOST_TILES} tiles of {TILE_ROWS}")
