"""Verify the scripts of a step on a GPU before its launch, as they go up to the device.

The scripts of the groups are read back into instructions of `script.isa` and given to the verifier
of scripts; `verify_rounds` looks at what all processors do beside the path.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from vertexrt.engine.batched import Run
from vertexrt.engine.verify_ring import verify_ring
from vertexrt.engine.verify_rounds import refuse, verify_rounds
from vertexrt.ir.pretty import STAGE_WORD
from vertexrt.kernels.cuda.instruction import (
    ELO,
    FIRST_PARENT,
    LO,
    OP,
    PARENTS,
    WAIT,
    M,
    N,
)
from vertexrt.kernels.cuda.instruction import TEMPORARY as AT_TEMPORARY
from vertexrt.kernels.cuda.kernel import MOST_ROWS, SIDES, TILE_EDGES
from vertexrt.kernels.cuda.one_launch import Paths, Written
from vertexrt.kernels.cuda.path_rows import ROW_PAD
from vertexrt.script import isa
from vertexrt.script.verify import verify_groups

if TYPE_CHECKING:
    from vertexrt.kernels.cuda.persistent import PersistentExecutable

Array = np.ndarray[Any, Any]

MANY = 1 << 30  # rows or edges of a tile whose indices are read from memory


def verify_launch(
    run: Run, table: Array, executable: PersistentExecutable, path: Paths, written: Written
) -> None:
    """Check all scripts of a launch.

    Args:
        table: the launches that the scripts stand for.
        path: what the scripts of the groups were written from.
    Raises: PlanError, which names group or launch, and the instruction.
    """
    shape, s = run.ready.shape, run.schedule
    assert shape is not None, f"{run.configuration} has no scripts"
    lengths = _lengths(written, path)
    words = as_instructions(written.script[written.common :], shape.segment_ptr)
    names = [f"{STAGE_WORD[t.task.stage]}[{k}]" for k, t in enumerate(executable.writer.tasks)]
    verify_groups(
        words,
        lengths,
        path.temporary,
        shape,
        table,
        executable.beside,
        s.order,
        s.edge_ptr,
        s.child_row,
        run.share.batch.graph_ptr,
        executable.processors,
        names,
    )
    _sizes(executable, written)
    _parents(written, s.parent_ptr)
    _temporaries(executable, path, written)
    verify_ring(executable, written, s.child_row)
    verify_rounds(run, table, executable, written)


def as_instructions(script: Array, segment_ptr: Array) -> Array:
    """Return the words of `script.isa` of instructions on the path: int64 [*, isa.WORDS].

    Raises: PlanError for an op that is no segment.
    """
    op = script[:, OP].astype(np.int64)
    strange = np.flatnonzero((op < 0) | (op >= segment_ptr[-1]))
    if len(strange):
        got = f"op {op[strange[0]]} on the path"
        refuse(script[strange[0]], int(strange[0]), got, f"segments 0..{segment_ptr[-1] - 1}")
    words = np.zeros((len(script), isa.WORDS), np.int64)
    words[:, isa.PROGRAM] = np.searchsorted(segment_ptr, op, "right") - 1
    words[:, isa.SEGMENT] = op - segment_ptr[words[:, isa.PROGRAM]]
    words[:, isa.ROWS], words[:, isa.FIRST] = script[:, N], script[:, LO]
    words[:, isa.EDGES], words[:, isa.FIRST_EDGE] = script[:, M], script[:, ELO]
    words[:, isa.WAIT] = np.where(script[:, WAIT] != 0, 0, isa.NONE)
    words[:, isa.SIGNAL] = isa.NONE
    words[:, isa.TEMPORARY] = script[:, AT_TEMPORARY]
    return words


def _lengths(written: Written, path: Paths) -> Array:
    """Check where the scripts of the groups start and end; return how long each is."""
    ends = written.common + np.concatenate([[0], np.cumsum(path.lengths.reshape(-1))])
    groups = path.lengths.shape[1]
    wanted = np.stack([ends[: groups + 1], ends[groups:]])
    if not np.array_equal(written.sections, wanted) or ends[-1] != len(written.script):
        got = f"scripts of groups at {written.sections.tolist()} of {len(written.script)}"
        refuse(None, written.common, got, f"{wanted.tolist()} of {ends[-1]}, by their lengths")
    return np.diff(written.sections, axis=1)


def _temporaries(executable: PersistentExecutable, path: Paths, written: Written) -> None:
    """Check that temporaries stay in front of what lies behind them in shared memory."""
    writer = executable.writer
    for side, stage in enumerate(SIDES):
        if not writer.fits(stage):
            continue  # the kernel looks for itself
        room = writer.room(stage, path.ring)
        scratch = {number: segment.scratch for number, segment in writer.segments(stage)}
        for k in range(written.sections[side, 0], written.sections[side, -1]):
            row = written.script[k]
            by_row, _, once = scratch[int(row[OP])]
            end = row[AT_TEMPORARY] + -(-row[N] // ROW_PAD) * ROW_PAD * by_row + once
            if end > room:
                refuse(row, k, f"temporaries end at element {end}", f"{room} or less")


def _sizes(executable: PersistentExecutable, written: Written) -> None:
    """Check that tiles have rows, and not more than a kernel that relies on it has indices for."""
    script = written.script[written.common :]
    most = (MOST_ROWS, TILE_EDGES) if executable.writer.tiles_fit() else (MANY, MANY)
    wrong = (script[:, N] < 1) | (script[:, N] > most[0]) | (script[:, M] > most[1])
    for k in np.flatnonzero(wrong):
        got = f"a tile of {script[k, N]} rows and {script[k, M]} edges"
        refuse(script[k], written.common + int(k), got, f"1 to {most[0]}, and at most {most[1]}")


def _parents(written: Written, parent_ptr: Array) -> None:
    """Check the edges to parents, which a processor fetches ahead."""
    script = written.script[written.common :]
    first, end = parent_ptr[script[:, LO]], parent_ptr[script[:, LO] + script[:, N]]
    wrong = (script[:, FIRST_PARENT] != first) | (script[:, PARENTS] != end - first)
    for k in np.flatnonzero(wrong):
        row = script[k]
        got = f"{row[PARENTS]} parents from {row[FIRST_PARENT]}"
        refuse(row, written.common + int(k), got, f"{end[k] - first[k]} from {first[k]}")
