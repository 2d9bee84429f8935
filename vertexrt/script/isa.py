"""The instruction set of scripts, declared once.

A script is an array of instructions, one row of FIELDS each. An instruction runs one segment of a
task program on a tile of rows: it waits until a counter has reached a threshold, does its work, and
adds one to a counter. Everything else (which rows, which edges) are operands of the segment.

Source: VPPS (MICRO 2018), section III: scripts of instructions per processor with barriers by
counters; an instruction here is a whole segment.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, fields

import numpy as np
import numpy.typing as npt

NONE = -1  # no wait, no signal, no single first row


@dataclass(frozen=True, slots=True)
class Instruction:
    """One step of a processor.

    Attributes:
        program: number of the task program.
        segment: which of its segments.
        rows: rows of the tile.
        first: first row, or NONE where the rows are listed.
        listed: first entry in the list of rows.
        edges: edges of the tile; first_edge: the first of them.
        wait: counter to wait for, or NONE; threshold: what it must have reached.
        signal: counter to add one to when done, or NONE.
        temporary: element at which the tile's temporaries start, from those of the processor: what
            a segment leaves for the next one of its tile lies apart from tiles in between.
    """

    program: int
    segment: int
    rows: int
    first: int
    listed: int
    edges: int
    first_edge: int
    wait: int
    threshold: int
    signal: int
    temporary: int = 0


FIELDS = tuple(field.name for field in fields(Instruction))
WORDS = len(FIELDS)
PROGRAM, SEGMENT, ROWS, FIRST, LISTED, EDGES, FIRST_EDGE, WAIT, THRESHOLD, SIGNAL, TEMPORARY = (
    range(WORDS)
)

Script = npt.NDArray[np.int64]  # [instructions, WORDS]


def encode(instructions: list[Instruction]) -> Script:
    """Return the words of a script."""
    return np.array([astuple(i) for i in instructions], np.int64).reshape(-1, WORDS)


def decode(script: Script) -> list[Instruction]:
    """Return the instructions of a script."""
    return [Instruction(*row) for row in script.tolist()]


def describe(i: Instruction, names: list[str] | None = None) -> str:
    """Print one instruction.

    Args:
        names: of the task programs.
    """
    known = names is not None and 0 <= i.program < len(names)
    name = names[i.program] if names is not None and known else f"program {i.program}"
    rows = f"rows {i.first}..{i.first + i.rows - 1}" if i.first >= 0 else f"{i.rows} listed rows"
    rows = rows if i.rows else "no rows"
    edges = f" edges {i.first_edge}..{i.first_edge + i.edges - 1}" if i.edges else ""
    wait = f" wait c{i.wait} >= {i.threshold}" if i.wait != NONE else ""
    signal = f" signal c{i.signal}" if i.signal != NONE else ""
    temporary = f" temporary {i.temporary}" if i.temporary else ""
    return f"{name}.{i.segment} {rows}{edges}{temporary}{wait}{signal}"


def disassemble(script: Script, names: list[str] | None = None) -> str:
    """Print a script, one instruction a line.

    Args:
        names: of the task programs.
    """
    lines = [f"{k:5} {describe(i, names)}" for k, i in enumerate(decode(script))]
    return "\n".join(lines)


def c_header() -> str:
    """Return the same declaration for C and CUDA."""
    lines = ["// Generated from vertexrt/script/isa.py.", "#pragma once", "#include <stdint.h>", ""]
    lines.append("typedef struct {")
    lines += [f"    int64_t {name};" for name in FIELDS]
    lines += ["} vrt_instruction;", "", f"#define VRT_WORDS {WORDS}", f"#define VRT_NONE ({NONE})"]
    return "\n".join(lines) + "\n"
