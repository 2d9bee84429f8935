"""The instruction of scripts, declared once: NumPy columns and a C struct are made from its fields.

A script is an array of instructions, one row each, int32. An instruction runs one segment of a task
program on a tile of rows: it waits until all processors of its group have done an earlier
instruction, and does its work. Processors of a group run the same number of instructions, so an
instruction is also the counter that the group's processors add one to when they have done it.

A device may add columns of its own after these (`kernels/cuda/instruction.py`); the verifier, the
printer and timelines read these in the scripts of any device.

Source: VPPS (MICRO 2018), section III: scripts of instructions per processor with barriers by
counters; an instruction here is a whole segment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields

import numpy as np
import numpy.typing as npt

NONE = -1  # no wait, no single first row


@dataclass(frozen=True, slots=True)
class Instruction:
    """One step of a processor.

    Attributes:
        op: number of the segment, counted over all task programs.
        program: number of the task program whose segment it is.
        rows: rows of the tile.
        first: first row, or NONE where the rows are listed.
        listed: first entry in the list of rows.
        edges: edges of the tile; first_edge: the first of them.
        wait: what to wait for, or NONE: on a CPU the instruction that all processors of the group
            must have done.
        temporary: element at which the tile's temporaries start, from those of the processor: what
            a segment leaves for the next one of its tile lies apart from tiles in between.
    """

    op: int
    program: int
    rows: int
    first: int
    listed: int
    edges: int
    first_edge: int
    wait: int
    temporary: int = 0


FIELDS = tuple(field.name for field in fields(Instruction))
WORDS = len(FIELDS)
OP, PROGRAM, ROWS, FIRST, LISTED, EDGES, FIRST_EDGE, WAIT, TEMPORARY = range(WORDS)

Script = npt.NDArray[np.int32]  # [instructions, WORDS or more]


def encode(instructions: Sequence[Instruction]) -> Script:
    """Return the rows of a script."""
    return np.array([astuple(i) for i in instructions], np.int32).reshape(-1, WORDS)


def decode(script: Script) -> list[Instruction]:
    """Return the instructions of a script, without what a device adds."""
    return [Instruction(*row) for row in script[:, :WORDS].tolist()]


def describe(i: Instruction, names: Sequence[str] = ()) -> str:
    """Print one instruction.

    Args:
        names: of the segments, by `op`.
    """
    name = names[i.op] if 0 <= i.op < len(names) else f"op {i.op}"
    rows = f"rows {i.first}..{i.first + i.rows - 1}" if i.first >= 0 else f"{i.rows} listed rows"
    rows = rows if i.rows else "no rows"
    edges = f" edges {i.first_edge}..{i.first_edge + i.edges - 1}" if i.edges else ""
    wait = f" wait {i.wait}" if i.wait != NONE else ""
    temporary = f" temporary {i.temporary}" if i.temporary else ""
    return f"{name} {rows}{edges}{temporary}{wait}"


def disassemble(script: Script, names: Sequence[str] = ()) -> str:
    """Print a script, one instruction a line.

    Args:
        names: of the segments, by `op`.
    """
    lines = [f"{k:5} {describe(i, names)}" for k, i in enumerate(decode(script))]
    return "\n".join(lines)


def segment_names(programs: Sequence[str], segment_ptr: Sequence[int]) -> list[str]:
    """Name the segments of task programs: `program.number`.

    Args:
        programs: names; segment_ptr: number of each one's first segment, and of all.
    """
    counts = np.diff(segment_ptr).tolist()
    pairs = zip(programs, counts, strict=True)
    return [f"{name}.{s}" for name, count in pairs for s in range(count)]


def c_struct(name: str, columns: Sequence[str], align: int) -> str:
    """Return the C++ struct of a row of a script.

    Args:
        columns: their names; align: bytes.
    """
    return f"struct alignas({align}) {name} {{\n    int {', '.join(columns)};\n}};"
