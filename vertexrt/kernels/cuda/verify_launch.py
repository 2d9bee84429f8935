"""Verify the scripts of a step on a GPU before its launch, as they go up to the device.

The scripts of the groups are given to the verifier of scripts as they are; `verify_rounds` looks at
what all processors do outside the path.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from vertexrt.engine.batched import Run
from vertexrt.kernels.cuda.instruction import FIRST_PARENT, PARENTS
from vertexrt.kernels.cuda.kernel import MOST_ROWS, TILE_EDGES
from vertexrt.kernels.cuda.persistent_launch import Paths, WrittenScripts
from vertexrt.kernels.cuda.thread_text import ROW_PAD
from vertexrt.kernels.cuda.verify_cells import verify_cells
from vertexrt.kernels.cuda.verify_overlap import verify_overlap
from vertexrt.kernels.cuda.verify_repeats import expanded, verify_repeats
from vertexrt.kernels.cuda.verify_ring import verify_ring
from vertexrt.kernels.cuda.verify_rounds import refuse, verify_rounds
from vertexrt.script.assemble import Batch
from vertexrt.script.groups import Groups, GroupScripts
from vertexrt.script.isa import EDGES, FIRST, OP, ROWS, TEMPORARY
from vertexrt.script.verify import verify_groups

if TYPE_CHECKING:
    from vertexrt.kernels.cuda.persistent import PersistentExecutable

Array = np.ndarray[Any, Any]

MANY = 1 << 30  # rows or edges of a tile whose indices are read from memory


def verify_launch(
    run: Run,
    table: Array,
    executable: PersistentExecutable,
    path: Paths,
    written: WrittenScripts,
) -> None:
    """Check all scripts of a launch.

    Args:
        table: the launches that the scripts stand for.
        path: what the scripts of the groups were written from.
    Raises: PlanError, which names group or launch, and the instruction.
    """
    s, shape = run.layout.schedule, run.ready.shape
    assert shape is not None
    _lengths(written, path.lengths)
    verify_repeats(executable, written, s)
    written = expanded(executable.facts.rings, executable.facts.repeated, written)
    lengths = np.diff(written.sections, axis=1)
    paths = GroupScripts(written.script[written.common :], lengths, path.temporary)
    names = [f"{t.task.stage.word}[{k}]" for k, t in enumerate(executable.writer.tasks)]
    verify_groups(
        paths,
        shape,
        Batch(table, s.edge_ptr, s.every_ptr, s.child_row),
        executable.assembled,
        Groups(s.order, run.share.batch.graph_ptr, lengths.shape[1]),
        executable.processors,
        names,
    )
    _sizes(executable, written)
    _parents(written, executable.facts.forward, s.parent_ptr)
    _temporaries(executable, path, written)
    verify_ring(executable, written, s.child_row)
    verify_rounds(run, table, executable, written)
    verify_overlap(written)
    verify_cells(table, s, run.share.batch.graph_ptr, executable, path)


def _lengths(written: WrittenScripts, lengths: Array) -> None:
    """Check where the scripts of the groups start and end."""
    ends = written.common + np.concatenate([[0], np.cumsum(lengths.reshape(-1))])
    groups = lengths.shape[1]
    bounds = [ends[side * groups : (side + 1) * groups + 1] for side in range(len(lengths))]
    wanted = [each.tolist() for each in bounds]
    if written.sections.tolist() != wanted or ends[-1] != len(written.script):
        got = f"scripts of groups at {written.sections.tolist()} of {len(written.script)}"
        refuse(None, written.common, got, f"{wanted} of {ends[-1]}, by their lengths")


def _temporaries(executable: PersistentExecutable, path: Paths, written: WrittenScripts) -> None:
    """Check that temporaries stay in front of what lies after them in shared memory."""
    writer = executable.writer
    for side in range(len(writer.phases)):
        if not writer.fits(side):
            continue  # the kernel looks for itself
        room = writer.room(side, path.ring)
        scratch = {number: segment.scratch for number, segment in writer.segments(side)}
        for k in range(written.sections[side, 0], written.sections[side, -1]):
            row = written.script[k]
            by_row, _, once = scratch[int(row[OP])]
            end = row[TEMPORARY] + -(-row[ROWS] // ROW_PAD) * ROW_PAD * by_row + once
            if end > room:
                refuse(row, k, f"temporaries end at element {end}", f"{room} or less")


def _sizes(executable: PersistentExecutable, written: WrittenScripts) -> None:
    """Check that tiles have rows, and not more than a kernel that relies on it has indices for."""
    script = written.script[written.common :]
    most = (MOST_ROWS, TILE_EDGES) if executable.writer.tiles_fit() else (MANY, MANY)
    wrong = (script[:, ROWS] < 1) | (script[:, ROWS] > most[0]) | (script[:, EDGES] > most[1])
    for k in np.flatnonzero(wrong):
        got = f"a tile of {script[k, ROWS]} rows and {script[k, EDGES]} edges"
        refuse(script[k], written.common + int(k), got, f"1 to {most[0]}, and at most {most[1]}")


def _parents(written: WrittenScripts, forward: int, parent_ptr: Array) -> None:
    """Check the edges to parents, which a processor fetches ahead on the way back.

    Args:
        forward: how many sides are forward.
    """
    begin = int(written.sections[:forward, -1].max(initial=written.common))
    script = written.script[begin:]
    first, end = parent_ptr[script[:, FIRST]], parent_ptr[script[:, FIRST] + script[:, ROWS]]
    wrong = (script[:, FIRST_PARENT] != first) | (script[:, PARENTS] != end - first)
    for k in np.flatnonzero(wrong):
        row = script[k]
        got = f"{row[PARENTS]} parents from {row[FIRST_PARENT]}"
        refuse(row, int(begin + k), got, f"{end[k] - first[k]} from {first[k]}")
