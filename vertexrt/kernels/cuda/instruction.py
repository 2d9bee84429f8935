"""The instruction of a persistent kernel: that of `script.isa`, with columns of a GPU's own.

All processors follow one script outside the path; on the path each group follows its own. Both are
int32 [*, COLUMNS]. `header` writes the same declaration for the kernels, which CUDA and the shim
include as `instruction.cuh`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from vertexrt.script.isa import FIELDS, NONE, WORDS, c_struct


@dataclass(frozen=True, slots=True)
class GpuColumns:
    """What a GPU adds to an instruction.

    Attributes:
        parents: edges to parents of the tile; first_parent: the first of them.
        slot: first row of the ring that the tile has, or NONE; uses: for what, see USES.
        far: children that are copied to the ring; expect: elements that have come since the last
            wait.
        start, chunks: `first` and `chunks` of the arguments of a launch.
        across, down: blocks of a launch; before: blocks of its round in front of it.
    """

    parents: int
    first_parent: int
    slot: int
    uses: int
    far: int
    expect: int
    start: int
    chunks: int
    across: int
    down: int
    before: int


OWN_FIELDS = tuple(field.name for field in fields(GpuColumns))
COLUMNS = WORDS + len(OWN_FIELDS)
PARENTS, FIRST_PARENT, SLOT, USES, FAR, EXPECT, START, CHUNKS, ACROSS, DOWN, BEFORE = range(
    WORDS, COLUMNS
)

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

{c_struct("Instruction", (*FIELDS, *OWN_FIELDS), 16)}
constexpr int INSTRUCTION_WORDS = sizeof(Instruction) / sizeof(int);
enum {{ {", ".join(OPS)} }};  // `op` in the script of all processors
enum {{ NO_WAIT = {NONE}, {", ".join(WAITS)} }};  // `wait`
enum {{ {bits} }};  // `uses`
"""
