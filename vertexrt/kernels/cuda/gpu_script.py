"""Write what the processors of a persistent kernel are to do: array code, for every minibatch.

All processors follow one script outside the path; on the path each group follows its own, which
`script.groups` assembles and this module completes. Both are rows of `instruction.py`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from vertexrt.ir.program import Stage
from vertexrt.kernels.cuda.cuts import APART_COLUMNS
from vertexrt.kernels.cuda.instruction import (
    BACKWARD,
    CHECK,
    COLLECT,
    COLUMNS,
    END,
    FINISH,
    FIRST_PARENT,
    FOR_ALL,
    FORWARD,
    PARENTS,
    SQUARES,
    TIMES,
    UPDATE,
)
from vertexrt.kernels.cuda.overlap import is_overlapped, mark_overlapped
from vertexrt.kernels.cuda.repeats import EdgesRead, RepeatFacts, join_repeats
from vertexrt.kernels.cuda.ring_script import write_ring
from vertexrt.kernels.cuda.script_rounds import Drafts, Facts, Launched, add_rounds, draft_stage
from vertexrt.memory.plan import NO_ROW
from vertexrt.script.isa import FIRST, NONE, OP, PROGRAM, ROWS, WAIT

Array = np.ndarray[Any, Any]

PATH, LAZY, PATH_BACKWARD = (int(s) for s in (Stage.PATH, Stage.LAZY, Stage.PATH_BACKWARD))

NO_RING, RING_ALONE, RING_OF_SEVERAL = range(3)  # of groups: none, or of how many processors


class EdgesBetween(NamedTuple):
    """The edges between rows, as the schedule has them."""

    edge_ptr: Array
    parent_ptr: Array
    parent_edge: Array
    child_row: Array


def write_common(launched: Launched, facts: Facts) -> tuple[Array, Array, int, int]:
    """Write the script that all processors follow, in rounds (see `script_rounds`).

    What the groups summed up of gradients is collected in the first round after the backward side
    of the path.

    Returns: int32 [*, COLUMNS]; int64 [*, APART_COLUMNS] what of it the kernel does not run, see
        `cuts`; the elements of temporaries that a stage needs, and the counters that a round does.
    """
    table, gradients, launches = launched.table, launched.gradients, len(launched.table)
    most = 10 + launches + len(facts.rings)
    for t in range(launches):
        most += facts.steps_ptr[table[t, 0] + 1] - facts.steps_ptr[table[t, 0]]
    script, apart = np.zeros((most, COLUMNS), np.int32), np.empty((most, APART_COLUMNS), np.int64)
    drafts = Drafts(
        np.zeros((most, COLUMNS), np.int32),
        np.empty(most, np.int64),
        np.empty((most, APART_COLUMNS), np.int64),
        np.empty(len(gradients) + 1, np.int64),
    )
    sums = False  # which the groups have left and that were not collected
    count, cut, temporary, counters, begin, early, overlapped = 0, 0, 0, 0, 0, False, False
    while begin < launches:
        now, end, side = facts.stages[table[begin, 0]], begin, -1
        phase = facts.phases[table[begin, 0]]
        while end < launches and facts.phases[table[end, 0]] == phase:
            side = max(side, facts.sides[table[end, 0]])  # some launch is the groups'
            end += 1
        if side >= 0 and now == PATH_BACKWARD:
            count = _add(script, count, BACKWARD, count > 0, side)
            for each in gradients:
                sums |= bool(each)
        if now > LAZY and launched.updates and not launched.clips and not early:  # loss is known
            count = _add(script, count, FINISH, True)
            early = True
        drafts.last[:] = -1
        collects = sums and now > PATH_BACKWARD
        if collects:
            count = _add(script, count, COLLECT, script[count - 1, OP] != FINISH)
            sums = False
            for g in range(len(gradients)):
                drafts.last[g] += gradients[g]
        found, used = draft_stage(launched, facts, begin, end, drafts)
        temporary = max(temporary, used)
        count, cut, most = add_rounds(script, apart, (count, cut), drafts, found, collects)
        counters = max(counters, most)
        if side >= 0 and now == PATH:
            overlapped = overlapped or is_overlapped(script, count, cut, launched.idle)
            count = _add(script, count, FORWARD, count > 0, side)
        begin = end
    if sums:
        count = _add(script, count, COLLECT, True)
    if launched.updates:
        for op in (SQUARES, FINISH, CHECK, UPDATE):
            if not ((op == SQUARES and not launched.clips) or (op == FINISH and early)):
                count = _add(script, count, op, True)
    count = _add(script, count, END, False)
    mark_overlapped(script, count, overlapped)
    return script[:count], apart[:cut], temporary, counters


def _add(script: Array, count: int, op: int, waits: bool, side: int = 0) -> int:
    """Write an instruction that is no step of the function; return how many there are then."""
    script[count, OP], script[count, PROGRAM] = op, side
    script[count, WAIT] = FOR_ALL if waits else NONE
    return count + 1


def complete_paths(script: Array, forward: int, parent_ptr: Array) -> None:
    """Complete the scripts of the groups: a wait is a meeting, and parents are fetched ahead.

    Args:
        script: int32 [*, COLUMNS] of all groups, as `script.groups` assembled them.
        forward: how many instructions are forward; there no parents are read.
        parent_ptr: of the schedule.
    """
    for k in range(len(script)):
        script[k, WAIT] = FOR_ALL if script[k, WAIT] != NONE else NONE
        script[k, TIMES] = 1
    for k in range(forward, len(script)):
        first = script[k, FIRST]
        end = first + script[k, ROWS]
        script[k, FIRST_PARENT] = parent_ptr[first]
        script[k, PARENTS] = parent_ptr[end] - parent_ptr[first]


def _sections(lengths: Array, before: int) -> Array:
    """Return where the script of each group starts, after so many instructions of all."""
    sides, groups = lengths.shape
    sections = np.empty((sides, groups + 1), np.int32)
    for side in range(sides):
        for g in range(groups):
            sections[side, g] = before
            before += lengths[side, g]
        sections[side, groups] = before
    return sections


def _first_rows(table: Array, facts: Facts) -> Array:
    """Return [sides] the first row of the layer of each side: of its phase's launches.

    What vertices of the layer do that read none of it is a launch of all processors.
    """
    first = np.full(len(facts.rings), NO_ROW, np.int64)
    for t in range(len(table)):
        side = facts.side_in[facts.phases[table[t, 0]]]
        if side >= 0:
            first[side] = min(first[side], table[t, 2])
    return first


def write_paths(
    table: Array,
    facts: Facts,
    script: Array,
    lengths: Array,
    between: EdgesBetween,
    ring: int,
) -> tuple[Array, Array]:
    """Complete the scripts of the groups; return them, and the `child_slot` of `WrittenScripts`.

    They follow from the layout of a minibatch.

    Args:
        table: of launches.
        script, lengths: of `GroupScripts`; both are changed.
        ring: NO_RING, RING_ALONE or RING_OF_SEVERAL.
    """
    forward = 0
    for side in range(facts.forward):
        for g in range(lengths.shape[1]):
            forward += lengths[side, g]
    complete_paths(script, forward, between.parent_ptr)
    child_slot, child_row = np.empty(0, np.int32), between.child_row
    segments, rings, near = facts.segments, facts.rings, ring != NO_RING
    if near:
        first_rows = _first_rows(table, facts)
        alone = ring == RING_ALONE
        child_slot = write_ring(script, lengths, segments, rings, first_rows, child_row, alone)
    edges = EdgesRead(
        between.edge_ptr, child_row, child_slot, between.parent_ptr, between.parent_edge
    )
    about = RepeatFacts(facts.repeated, segments, rings, facts.forward, near)
    return script[: join_repeats(script, lengths, about, edges)], child_slot


def write_scripts(
    launched: Launched, facts: Facts, paths: Array, lengths: Array, child_slot: Array
) -> tuple[Array, Array, Array, Array, int, int, int]:
    """Write all scripts of a launch: the first fields of `WrittenScripts`.

    Args:
        paths, lengths, child_slot: of `write_paths`.
    """
    common, apart, temporary, counters = write_common(launched, facts)
    script = np.empty((len(common) + len(paths), COLUMNS), np.int32)
    script[: len(common)], script[len(common) :] = common, paths
    sections = _sections(lengths, len(common))
    return script, sections, child_slot, apart, len(common), temporary, counters
