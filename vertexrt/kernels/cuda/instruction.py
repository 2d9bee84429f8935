"""The instruction of a persistent kernel: that of `script.isa`, with columns of a GPU's own.

All processors follow one script outside the path; on the path each group follows its own. Both are
int32 [*, COLUMNS]. `header` writes the same declaration for the kernels, which CUDA and the shim
include as `instruction.cuh`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from vertexrt.script.isa import FIELDS, NONE, WORDS, c_struct


@dataclass(frozen=True, slots=True)
class TileColumns:
    """What an instruction of a group has in addition.

    Attributes:
        parents: edges to parents of the tile; first_parent: the first of them.
        slot: first row of the ring that the tile has, or NONE; uses: for what, see USES.
        far: children that are copied to the ring; expect: elements that have come since the last
            wait.
        times: how often it is executed; step: rows from one time to the next; move,
            move_2: edges to the first parent of a row, and to the second; see `repeats`.
    """

    parents: int
    first_parent: int
    slot: int
    uses: int
    far: int
    expect: int
    times: int
    step: int
    move: int
    move_2: int


@dataclass(frozen=True, slots=True)
class LaunchColumns:
    """What an instruction of all processors has in the same places.

    Attributes:
        start: `first` of the arguments of a launch.
        across, down: blocks of a launch; before: blocks of its round in front of it; counter: the
            first of its counters among those of its round.
        overlap: rows of a tile of blocks, where idle processors run it while the groups follow the
            path, see `overlap`; else 0.
    """

    start: int
    across: int
    down: int
    before: int
    counter: int
    overlap: int


OF_TILES = tuple(field.name for field in fields(TileColumns))
OF_LAUNCHES = tuple(field.name for field in fields(LaunchColumns))
ALIGN = 4  # words: what a thread loads at once
COLUMNS = -(-(WORDS + len(OF_TILES)) // ALIGN) * ALIGN
PARENTS, FIRST_PARENT, SLOT, USES, FAR, EXPECT, TIMES, STEP, MOVE, MOVE_2 = range(
    WORDS, WORDS + len(OF_TILES)
)
START, ACROSS, DOWN, BEFORE, COUNTER, OVERLAP = range(WORDS, WORDS + len(OF_LAUNCHES))

# OP in the script of all processors: one of these, or from FIRST_OP on a step of the function.
OPS = (
    "END", "FORWARD", "BACKWARD", "COLLECT", "SQUARES", "FINISH", "CHECK", "UPDATE", "FIRST_OP"
)  # fmt: skip
END, FORWARD, BACKWARD, COLLECT, SQUARES, FINISH, CHECK, UPDATE, FIRST_OP = range(len(OPS))
# WAIT: NONE, for all that was written, or for rows of the ring alone.
WAITS = ("FOR_ALL", "FOR_RING")
FOR_ALL, FOR_RING = range(len(WAITS))
# Bits of USES: what is, or comes, into a tile's rows of the ring.
BITS = ("HAS_OPERAND", "IS_SENT", "IS_PUT")
HAS_OPERAND, IS_SENT, IS_PUT = (1 << k for k in range(len(BITS)))

HEADER = "instruction.cuh"


def header() -> str:
    """Return the text of HEADER."""
    bits = ", ".join(f"{name} = {1 << k}" for k, name in enumerate(BITS))
    return f"""\
// Made from script/isa.py and kernels/cuda/instruction.py, which say what the fields mean.
#pragma once

{c_struct("Instruction", FIELDS, 4 * ALIGN, (OF_TILES, OF_LAUNCHES))}
constexpr int INSTRUCTION_WORDS = sizeof(Instruction) / sizeof(int);
enum {{ {", ".join(OPS)} }};  // `op` in the script of all processors
enum {{ NO_WAIT = {NONE}, {", ".join(WAITS)} }};  // `wait`
enum {{ {bits} }};  // `uses`
"""
