"""Write what the processors of a persistent kernel are to do: array code, for every minibatch.

All processors follow one script outside the path; on the path each group follows its own, which
`script.groups` assembles and this module completes. Both are rows of `instruction.py`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from vertexrt.ir.program import Stage
from vertexrt.kernels.cuda.driver import FUNCTION, WHEN, extent
from vertexrt.kernels.cuda.instruction import (
    ACROSS,
    BACKWARD,
    BEFORE,
    CHECK,
    CHUNKS,
    COLLECT,
    COLUMNS,
    COUNTER,
    DOWN,
    END,
    FINISH,
    FIRST_PARENT,
    FOR_ALL,
    FORWARD,
    PARENTS,
    SQUARES,
    START,
    TIMES,
    UPDATE,
)
from vertexrt.kernels.cuda.repeats import EdgesRead, RepeatFacts, join_repeats
from vertexrt.kernels.cuda.ring_script import write_ring
from vertexrt.kernels.cuda.steps import CHUNKED
from vertexrt.kernels.layout import PAD
from vertexrt.memory.compiled import NO_ROW
from vertexrt.script.isa import (
    EDGES,
    FIRST,
    FIRST_EDGE,
    LISTED,
    NONE,
    OP,
    PROGRAM,
    ROWS,
    TEMPORARY,
    WAIT,
)

Array = np.ndarray[Any, Any]

PATH, LAZY, PATH_BACKWARD = (int(s) for s in (Stage.PATH, Stage.LAZY, Stage.PATH_BACKWARD))

NO_RING, RING_ALONE, RING_OF_SEVERAL = range(3)  # of groups: none, or of how many processors


class Facts(NamedTuple):
    """What scripts of a function are written from, whatever the minibatch.

    Attributes:
        stages, phases: [programs], the phases by their places.
        sides: [programs] on which side of the path groups run it; -1 for what all processors run.
        side_in: [phases] which side each has, -1 for none.
        forward: how many sides are forward, the first ones.
        steps_ptr, steps: of `driver.launch`; a function is a number of a script.
        adds, counters: [steps] see `Kernel`.
        adds_ptr, added: CSR of the gradients that each step adds to.
        scratch: [programs, 3] elements of temporaries.
        segments, rings: of `ring_script.write_ring`.
        repeated: [segments] by which slot each may be repeated, see `repeats`.
    """

    stages: Array
    phases: Array
    sides: Array
    side_in: Array
    forward: int
    steps_ptr: Array
    steps: Array
    adds: Array
    counters: Array
    adds_ptr: Array
    added: Array
    scratch: Array
    segments: Array
    rings: Array
    repeated: Array


class Launched(NamedTuple):
    """The launches that scripts stand for.

    Attributes:
        table: as `kernels.layout` describes.
        lookup_ptr, lookup_at: of `driver.launch`.
        gradients: [gradients] whether the backward side of the path sums it up.
        clips, updates: whether the step ends with a norm, and with an update.
    """

    table: Array
    lookup_ptr: Array
    lookup_at: Array
    gradients: Array
    clips: bool
    updates: bool


class EdgesBetween(NamedTuple):
    """The edges between rows, as the schedule has them."""

    edge_ptr: Array
    parent_ptr: Array
    parent_edge: Array
    child_row: Array


class _Drafts(NamedTuple):
    """Instructions of a stage before they are put in the order of their rounds.

    Attributes:
        rows: int32 [*, COLUMNS], COUNTER being how many counters each needs; rounds: [*] of each.
        last: [gradients] the last round in which something is added to each.
    """

    rows: Array
    rounds: Array
    last: Array


def write_common(launched: Launched, facts: Facts) -> tuple[Array, int, int]:
    """Write the script that all processors follow.

    Launches of a stage go side by side: a step runs in the first *round* after all that it needs,
    and after all that add to the same gradients. A barrier is between two rounds. What the groups
    summed up of gradients is collected in the first round after the backward side of the path.

    Returns: int32 [*, COLUMNS]; the elements of temporaries that a stage needs, and the counters
        that a round does.
    """
    table, gradients, launches = launched.table, launched.gradients, len(launched.table)
    most = 10 + launches + len(facts.rings)
    for t in range(launches):
        most += facts.steps_ptr[table[t, 0] + 1] - facts.steps_ptr[table[t, 0]]
    script = np.zeros((most, COLUMNS), np.int32)
    drafts = _Drafts(
        np.zeros((most, COLUMNS), np.int32),
        np.empty(most, np.int64),
        np.empty(len(gradients) + 1, np.int64),
    )
    sums = False  # which the groups have left and that were not collected
    count, temporary, counters, begin, early = 0, 0, 0, 0, False
    while begin < launches:
        now, end, side = facts.stages[table[begin, 0]], begin, -1
        phase = facts.phases[table[begin, 0]]
        while end < launches and facts.phases[table[end, 0]] == phase:
            side = max(side, facts.sides[table[end, 0]])  # some launch is the groups'
            end += 1
        if side >= 0 and now == PATH_BACKWARD:
            count = _add(script, count, BACKWARD, count > 0)
            script[count - 1, PROGRAM] = side
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
        found, used = _draft_stage(launched, facts, begin, end, drafts)
        temporary = max(temporary, used)
        count, most = _add_rounds(script, count, drafts, found, collects)
        counters = max(counters, most)
        if side >= 0 and now == PATH:
            count = _add(script, count, FORWARD, count > 0)
            script[count - 1, PROGRAM] = side
        begin = end
    if sums:
        count = _add(script, count, COLLECT, True)
    if launched.updates:
        for op in (SQUARES, FINISH, CHECK, UPDATE):
            if not ((op == SQUARES and not launched.clips) or (op == FINISH and early)):
                count = _add(script, count, op, True)
    count = _add(script, count, END, False)
    return script[:count], temporary, counters


def _add(script: Array, count: int, op: int, waits: bool) -> int:
    """Write an instruction that is no step of the function; return how many there are then."""
    script[count, OP] = op
    script[count, WAIT] = FOR_ALL if waits else NONE
    return count + 1


def _draft_stage(
    launched: Launched, facts: Facts, begin: int, end: int, drafts: _Drafts
) -> tuple[int, int]:
    """Find the steps of a stage's launches that are not the groups', and the round of each.

    Args:
        begin, end: launches of the stage.
    Returns: how many there are; elements of temporaries.
    """
    table, lookup_at, scratch = launched.table, launched.lookup_at, facts.scratch
    steps_ptr, steps, adds = facts.steps_ptr, facts.steps, facts.adds
    adds_ptr, added, last = facts.adds_ptr, facts.added, drafts.last
    rows, rounds = drafts.rows, drafts.rounds
    found, used = 0, 0
    for t in range(begin, end):
        p, n, lo, at, m, elo = table[t]
        if facts.sides[p] >= 0:
            continue
        after, previous = 0, -1  # the first round after what was made; the last step's
        for s in range(steps_ptr[p], steps_ptr[p + 1]):
            step = steps[s]
            grid = extent(step, table[t], lookup_at, launched.lookup_ptr[t])
            if grid.across == 0:
                continue
            turn = max(after, previous + 1) if step[WHEN] == CHUNKED else after
            turn = _take_turn(added, adds_ptr[s], adds_ptr[s + 1], turn, last)
            previous = turn
            if not adds[s]:
                after = turn + 1
            rounds[found] = turn
            row = rows[found]
            row[OP], row[PROGRAM], row[TEMPORARY] = step[FUNCTION], p, used
            row[ROWS], row[FIRST], row[LISTED] = n, lo, at
            row[EDGES], row[FIRST_EDGE] = m, elo
            row[START], row[CHUNKS] = grid.first, grid.chunks
            row[ACROSS], row[DOWN] = grid.across, grid.down
            row[COUNTER] = facts.counters[s]
            found += 1
        used += (
            scratch[p, 0] * ((n + PAD - 1) // PAD * PAD)
            + scratch[p, 1] * ((m + PAD - 1) // PAD * PAD)
            + scratch[p, 2]
            + PAD - 1
        ) // PAD * PAD  # fmt: skip
    return found, used


def _take_turn(added: Array, begin: int, end: int, turn: int, last: Array) -> int:
    """Return the first round from `turn` on in which no launch adds to the same gradients.

    Args:
        added: of `Facts`; a step's own are those from `begin` to `end`.
        last: of `_Drafts`; gets that round.
    """
    for k in range(begin, end):
        turn = max(turn, last[added[k]] + 1)
    for k in range(begin, end):
        last[added[k]] = turn
    return turn


def _add_rounds(
    script: Array, count: int, drafts: _Drafts, found: int, collects: bool
) -> tuple[int, int]:
    """Write the steps of a stage round by round.

    Args:
        collects: gradients are collected in the first round of the stage.
    Returns: how many instructions there are then; the most counters that a round needs.
    """
    rows, rounds = drafts.rows, drafts.rounds
    highest, most = -1, 0
    for k in range(found):
        highest = max(highest, rounds[k])
    for turn in range(highest + 1):
        fresh, blocks, counters = True, 0, 0
        for k in range(found):
            if rounds[k] != turn:
                continue
            script[count] = rows[k]
            before = script[max(count - 1, 0), OP]
            waits = fresh and count > 0 and before != FINISH and (turn > 0 or not collects)
            script[count, WAIT] = FOR_ALL if waits else NONE
            script[count, BEFORE], script[count, COUNTER] = blocks, counters
            blocks += rows[k, ACROSS] * rows[k, DOWN]
            counters += rows[k, COUNTER]
            fresh = False
            count += 1
        most = max(most, counters)
    return count, most


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


def write_scripts(
    launched: Launched,
    facts: Facts,
    paths: Array,
    lengths: Array,
    between: EdgesBetween,
    ring: int,
) -> tuple[Array, Array, Array, int, int, int]:
    """Write all scripts of a launch: the first fields of `WrittenScripts`.

    Args:
        paths, lengths: of `GroupScripts`, which are completed.
        ring: NO_RING, RING_ALONE or RING_OF_SEVERAL.
    """
    common, temporary, counters = write_common(launched, facts)
    forward = 0
    for side in range(facts.forward):
        for g in range(lengths.shape[1]):
            forward += lengths[side, g]
    complete_paths(paths, forward, between.parent_ptr)
    child_slot = np.empty(0, np.int32)
    if ring != NO_RING:
        alone = ring == RING_ALONE
        child_row, segments, rings = between.child_row, facts.segments, facts.rings
        first_rows = _first_rows(launched.table, facts)
        child_slot = write_ring(paths, lengths, segments, rings, first_rows, child_row, alone)
        edges = EdgesRead(
            between.edge_ptr, child_row, child_slot, between.parent_ptr, between.parent_edge
        )
        about = RepeatFacts(facts.repeated, segments, rings, facts.forward)
        left = join_repeats(paths, lengths, about, edges)
        paths = paths[:left]
    script = np.empty((len(common) + len(paths), COLUMNS), np.int32)
    script[: len(common)], script[len(common) :] = common, paths
    sections = _sections(lengths, len(common))
    return script, sections, child_slot, len(common), temporary, counters
