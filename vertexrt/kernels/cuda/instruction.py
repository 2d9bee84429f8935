"""The instruction of a persistent kernel: that of `script.isa`, with columns of a GPU's own.

All processors follow one script, int32 [*, COLUMNS]. `header` writes the same declaration for the
kernels, which CUDA and the shim include as `instruction.cuh`.
"""

from __future__ import annotations

from vertexrt.script.isa import FIELDS, NONE, WORDS, c_struct

# What an instruction has in addition: `first` of the arguments of a launch; its blocks across and
# down; blocks of its round in front of it; the first of its counters among those of its round; its
# numbers in the table, and among the steps of all task programs.
OF_LAUNCHES = "start", "across", "down", "before", "counter", "launch", "step"
ALIGN = 4  # words: what a thread loads at once
COLUMNS = -(-(WORDS + len(OF_LAUNCHES)) // ALIGN) * ALIGN
START, ACROSS, DOWN, BEFORE, COUNTER, LAUNCH, STEP = range(WORDS, WORDS + len(OF_LAUNCHES))

# OP: one of these, or from FIRST_OP on a step of the function.
OPS = "END", "FORWARD", "BACKWARD", "SQUARES", "FINISH", "CHECK", "UPDATE", "FIRST_OP"
END, FORWARD, BACKWARD, SQUARES, FINISH, CHECK, UPDATE, FIRST_OP = range(len(OPS))
FOR_ALL = 0  # WAIT: NONE, or for all that was written

HEADER = "instruction.cuh"


def header() -> str:
    """Return the text of HEADER."""
    return f"""\
// Made from script/isa.py and kernels/cuda/instruction.py, which say what the fields mean.
#pragma once

{c_struct("Instruction", (*FIELDS, *OF_LAUNCHES), 4 * ALIGN)}
constexpr int INSTRUCTION_WORDS = sizeof(Instruction) / sizeof(int);
enum {{ {", ".join(OPS)} }};  // `op`
enum {{ NO_WAIT = {NONE}, FOR_ALL }};  // `wait`
"""
