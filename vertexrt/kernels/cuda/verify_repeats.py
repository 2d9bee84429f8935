"""Verify instructions that are repeated: what the kernel takes from the first is so for the others.

A repetition reads no index: rows, edges, and children move on by the same step, and the states of
children are where the repetition before has put them. All else is verified on the script
in which each repetition is an instruction of its own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from vertexrt.kernels.cuda.instruction import FAR, FIRST_PARENT, MOVE, PARENTS, SLOT, TIMES
from vertexrt.kernels.cuda.persistent_launch import WrittenScripts
from vertexrt.kernels.cuda.repeated_segments import MOST_REPEATED
from vertexrt.kernels.cuda.repeats import MOST_PARENTS, expand_repeats
from vertexrt.kernels.cuda.ring_script import GATHERS
from vertexrt.kernels.cuda.script_rounds import Facts
from vertexrt.kernels.cuda.verify_rounds import refuse
from vertexrt.scheduler.schedule import Schedule
from vertexrt.script.isa import EDGES, FIRST, FIRST_EDGE, OP, ROWS, TEMPORARY

if TYPE_CHECKING:
    from vertexrt.kernels.cuda.persistent import PersistentExecutable

Array = np.ndarray[Any, Any]
NO_SLOTS = np.empty(0, np.int32)


def expanded(rings: Array, repeated: Array, written: WrittenScripts) -> WrittenScripts:
    """Return scripts in which each repetition has instructions of its own.

    Args:
        rings: of `ring_script.write_ring`; repeated: of `script_rounds.Facts`.
    """
    parts, sections = [written.script[: written.common]], np.empty_like(written.sections)
    at = written.common
    for side, bounds in enumerate(written.sections):
        sections[side, 0] = at
        for g in range(len(bounds) - 1):
            own = written.script[bounds[g] : bounds[g + 1]]
            part = expand_repeats(own, int(rings[side, 0]), repeated)
            parts.append(part)
            at += len(part)
            sections[side, g + 1] = at
    return replace(written, script=np.concatenate(parts), sections=sections)


def verify_repeats(
    executable: PersistentExecutable, written: WrittenScripts, schedule: Schedule
) -> None:
    """Check what repetitions rely on.

    Raises: PlanError, which names the instruction.
    """
    for side, bounds in enumerate(written.sections):
        for k in range(bounds[0], bounds[-1]):
            row = written.script[k]
            if row[TIMES] < 1:
                refuse(row, k, f"is executed {row[TIMES]} times", "once or more")
            if row[TIMES] > 1:
                _verify_repeated(executable.facts, side, k, written, schedule)


def _verify_repeated(
    facts: Facts, side: int, k: int, written: WrittenScripts, schedule: Schedule
) -> None:
    """Check an instruction that is executed several times."""
    row, back, ring = written.script[k], side >= facts.forward, int(facts.rings[side, 0])
    slot, parts = map(int, facts.repeated[row[OP]])
    if slot < 0 or row[FAR] or row[TEMPORARY]:
        refuse(row, k, "is repeated", "no copies, and a segment that may be repeated")
    _verify_rows(row, k, back, slot)
    each = expand_repeats(row[None], ring, facts.repeated)[::parts]
    slots = written.child_slot if ring else NO_SLOTS
    _verify_children(k, each, slots, schedule, (facts.segments[row[OP]], slot))
    if back:
        _verify_parents(k, each, row, schedule)
    else:
        _verify_before(k, each, slot, schedule)


def _verify_rows(row: Array, k: int, back: bool, slot: int) -> None:
    """Check that rows have as many children each; on the way back they have parents."""
    rows, edges, parents = int(row[ROWS]), int(row[EDGES]), int(row[PARENTS])
    many = [rows] if back and slot == 0 else range(rows, edges + 1, rows)
    above = range(rows, MOST_PARENTS * rows + 1, rows) if back else [0]
    if rows > MOST_REPEATED or edges not in many or parents not in above:
        got = f"repeats {row[ROWS]} rows, {row[EDGES]} edges, {row[PARENTS]} parents"
        refuse(row, k, got, f"up to {MOST_REPEATED} rows of chains")


def _verify_children(
    k: int, each: Array, child_slot: Array, schedule: Schedule, about: tuple[Array, int]
) -> None:
    """Check the children that an instruction's repetitions take from the first row of the first.

    Args:
        child_slot: empty where the side has no ring.
        about: of `write_ring`, about the segment, and the slot of its children.
    """
    own = np.arange(each[0, ROWS])
    moved = np.arange(len(each)) * int(each[1, FIRST] - each[0, FIRST])
    edges = _edges_read(k, each, each[:, FIRST, None] + own, schedule, about[1])
    _verify_there(each[0], k, "children", schedule.child_row, edges)
    _verify_rising(each[0], k, "children", schedule.child_row[edges], moved[:, None] + own)
    if about[0][GATHERS] and len(child_slot):
        found = child_slot[edges]
        _verify_rising(each[0], k, "slots", found[:1], own[None])
        before = np.concatenate([found[:1, 0], each[:-1, SLOT]])
        if not np.array_equal(found, before[:, None] + own):
            got = f"reads slots {found.tolist()}"
            refuse(each[0], k, got, f"where the rows before are: {before.tolist()}")


def _verify_before(k: int, each: Array, slot: int, schedule: Schedule) -> None:
    """Check that children are the rows of the repetition before."""
    found = schedule.child_row[each[1:, FIRST_EDGE] + slot]
    if not np.array_equal(found, each[:-1, FIRST]):
        refuse(each[0], k, f"has children {found.tolist()}", f"{each[:-1, FIRST].tolist()}")


def _verify_parents(k: int, each: Array, row: Array, schedule: Schedule) -> None:
    """Check the edges to parents that they take from those of the first time.

    Args:
        row: the instruction.
    """
    own, many = np.arange(row[ROWS]), int(row[PARENTS] // row[ROWS])
    rows = each[:, FIRST, None] + own
    first = each[:, FIRST_PARENT, None] + many * own
    _verify_there(row, k, "first parents", schedule.parent_ptr, rows + 1)
    for at, begin in ((rows, first), (rows + 1, first + many)):
        if not np.array_equal(schedule.parent_ptr[at], begin):
            refuse(row, k, f"has first parents {first.tolist()}", f"{many} of each row")
    number = np.arange(len(each))[:, None]
    for which in range(many):
        _verify_there(row, k, "edges to parents", schedule.parent_edge, first + which)
        found = schedule.parent_edge[first + which]
        rise = found[0, 1] - found[0, 0] if row[ROWS] > 1 else 0
        by = number * row[MOVE + which] + own * rise
        _verify_rising(row, k, "edges to parents", found, by)


def _edges_read(k: int, each: Array, rows: Array, schedule: Schedule, slot: int) -> Array:
    """Return the edges in a slot of the rows of all repetitions; each row has as many edges."""
    _verify_there(each[0], k, "rows", schedule.edge_ptr[:-1], rows)
    many = int(each[0, EDGES] // each[0, ROWS])
    first = each[:, FIRST_EDGE, None] + many * np.arange(rows.shape[1])
    if slot >= many or not np.array_equal(schedule.edge_ptr[rows], first):
        refuse(each[0], k, f"has edges {first.tolist()}", f"{many} of each row, one of them read")
    return np.asarray(first + slot)


def _verify_there(row: Array, k: int, name: str, array: Array, at: Array) -> None:
    """Check that what is read of an array lies in it."""
    if at.min() < 0 or at.max() >= len(array):
        refuse(row, k, f"has {name} at {at.tolist()}", f"0..{len(array) - 1}")


def _verify_rising(row: Array, k: int, name: str, found: Array, by: Array) -> None:
    """Check that numbers are none below zero, and by so much more than the first one."""
    if found.min() < 0 or not np.array_equal(found, found.flat[0] + by):
        refuse(row, k, f"has {name} {found.tolist()}", "numbers that rise with the rows")
