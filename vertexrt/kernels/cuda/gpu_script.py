"""Write what the processors of a persistent kernel are to do: array code, for every minibatch.

All processors follow one script of launches beside the path; on the path each group follows its
own. Both are rows of `Instruction` of processor.cuh.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from vertexrt.cache.compiled import njit
from vertexrt.kernels.cuda.driver import FUNCTION, OVER, WHEN, applies, extent
from vertexrt.kernels.cuda.instruction import (
    ACROSS,
    AT,
    BACKWARD,
    BEFORE,
    CHECK,
    CHUNKS,
    COLLECT,
    COLUMNS,
    DOWN,
    ELO,
    END,
    FINISH,
    FIRST,
    FIRST_PARENT,
    FORWARD,
    LO,
    OP,
    PARENTS,
    PROGRAM,
    SQUARES,
    TEMPORARY,
    UPDATE,
    WAIT,
    M,
    N,
)
from vertexrt.kernels.cuda.ring_script import write_ring
from vertexrt.kernels.cuda.steps import CHUNKED, SEGMENTS
from vertexrt.kernels.layout import PAD
from vertexrt.script import isa

Array = np.ndarray[Any, Any]


class Facts(NamedTuple):
    """What scripts of a function are written from, whatever the minibatch.

    Attributes:
        stages: [programs]; beside: [programs] see `path.beside_path`.
        steps_ptr, steps: of `driver.launch`; a function is a number of a script.
        adds: [steps] see `Kernel.adds`; adds_ptr, added: CSR of the gradients that each adds to.
        scratch: [programs, 3] elements of temporaries.
        segment_ptr: [programs + 1] first segment of each program.
        segments, rings: of `ring_script.write_ring`.
    """

    stages: Array
    beside: Array
    steps_ptr: Array
    steps: Array
    adds: Array
    adds_ptr: Array
    added: Array
    scratch: Array
    segment_ptr: Array
    segments: Array
    rings: Array


@njit(cache=True, nogil=True)
def write_launches(
    table: Array,
    stages: Array,
    beside: Array,
    path: int,
    lazy: int,
    path_backward: int,
    steps_ptr: Array,
    steps: Array,
    adds: Array,
    adds_ptr: Array,
    added: Array,
    gradients: Array,
    lookup_ptr: Array,
    lookup_at: Array,
    scratch: Array,
    clips: bool,
    updates: bool,
) -> tuple[Array, int]:
    """Write the script that all processors follow.

    Launches of a stage go side by side: a step runs in the first *round* behind all that it needs,
    and behind all that add to the same gradients. A barrier is between two rounds. What the groups
    summed up of gradients is collected in the first round behind the backward side of the path.

    Args:
        table: of launches; stages: [programs].
        beside: [programs] see `path.beside_path`.
        path, lazy, path_backward: numbers of these stages.
        steps_ptr, steps: of `driver.launch`.
        adds: [steps] see `Kernel.adds`.
        adds_ptr, added: CSR of the gradients that each step adds to.
        gradients: [gradients] whether the backward side of the path sums it up.
        lookup_ptr, lookup_at: of `driver.launch`.
        scratch: [programs, 3] elements of temporaries.
        clips, updates: whether the step ends with a norm, and with an update.
    Returns: int32 [*, COLUMNS] and the elements of temporaries that a stage needs.
    """
    launches = len(table)
    most = 10 + launches
    for t in range(launches):
        most += steps_ptr[table[t, 0] + 1] - steps_ptr[table[t, 0]]
    script = np.zeros((most, COLUMNS), np.int32)
    draft = np.zeros((most, COLUMNS), np.int32)
    rounds = np.empty(most, np.int64)
    last = np.empty(len(gradients) + 1, np.int64)
    sums = False  # which the groups have left and nobody has collected
    count, temporary, begin, early = 0, 0, 0, False
    while begin < launches:
        now = stages[table[begin, 0]]
        end = begin
        while end < launches and stages[table[end, 0]] == now:
            end += 1
        follows = False  # some launch is the groups'
        for t in range(begin, end):
            follows |= not beside[table[t, 0]]
        if follows and now == path_backward:
            script[count, OP] = BACKWARD
            script[count, WAIT] = count > 0
            count += 1
            sums = bool(np.any(gradients))
        if now > lazy and updates and not clips and not early:  # the loss is known
            script[count, OP] = FINISH
            script[count, WAIT] = 1
            count += 1
            early = True
        last[:] = -1
        collects = sums and now > path_backward
        if collects:
            script[count, OP] = COLLECT
            script[count, WAIT] = script[count - 1, OP] != FINISH
            count += 1
            sums = False
            for g in range(len(gradients)):
                last[g] += gradients[g]
        found, used, highest = 0, 0, -1
        for t in range(begin, end):
            p, n, lo, at, m, elo = table[t]
            if not beside[p]:
                continue
            lookup = lookup_ptr[t]
            after, previous = 0, -1  # the first round behind what was made; the last step's
            for s in range(steps_ptr[p], steps_ptr[p + 1]):
                step = steps[s]
                if not applies(step, n, m):
                    continue
                across, down, first, chunks = extent(step, n, lo, m, lookup_at, lookup)
                lookup += step[OVER] == SEGMENTS
                if across == 0:
                    continue
                turn = max(after, previous + 1) if step[WHEN] == CHUNKED else after
                for g in range(adds_ptr[s], adds_ptr[s + 1]):
                    turn = max(turn, last[added[g]] + 1)
                for g in range(adds_ptr[s], adds_ptr[s + 1]):
                    last[added[g]] = turn
                previous = turn
                if not adds[s]:
                    after = turn + 1
                rounds[found] = turn
                highest = max(highest, turn)
                row = draft[found]
                row[OP], row[N], row[LO], row[AT], row[M] = step[FUNCTION], n, lo, at, m
                row[ELO], row[FIRST], row[CHUNKS] = elo, first, chunks
                row[ACROSS], row[DOWN], row[TEMPORARY] = across, down, used
                row[PROGRAM] = p
                found += 1
            used += (
                scratch[p, 0] * ((n + PAD - 1) // PAD * PAD)
                + scratch[p, 1] * ((m + PAD - 1) // PAD * PAD)
                + scratch[p, 2]
                + PAD - 1
            ) // PAD * PAD  # fmt: skip
        temporary = max(temporary, used)
        for turn in range(highest + 1):
            fresh, blocks = True, 0
            for k in range(found):
                if rounds[k] == turn:
                    script[count] = draft[k]
                    before = script[count - 1, OP]
                    script[count, WAIT] = (
                        fresh and count > 0 and before != FINISH and (turn > 0 or before != COLLECT)
                    )
                    script[count, BEFORE] = blocks
                    blocks += draft[k, ACROSS] * draft[k, DOWN]
                    fresh = False
                    count += 1
        if follows and now == path:
            script[count, OP] = FORWARD
            script[count, WAIT] = count > 0
            count += 1
        begin = end
    if sums:
        script[count, OP] = COLLECT
        script[count, WAIT] = 1
        count += 1
    if updates:
        for op in (SQUARES, FINISH, CHECK, UPDATE):
            if (op == SQUARES and not clips) or (op == FINISH and early):
                continue
            script[count, OP] = op
            script[count, WAIT] = 1
            count += 1
    script[count, OP] = END
    return script[: count + 1], temporary


@njit(cache=True, nogil=True)
def write_paths(
    words: Array, lengths: Array, segment_ptr: Array, parent_ptr: Array, before: int
) -> tuple[Array, Array]:
    """Write the scripts of the groups behind that of all processors.

    Args:
        words: int64 [*, isa.WORDS] of all groups, forward, then backward; lengths: [2, groups].
        before: instructions in front of them.
        parent_ptr: of the schedule.
    Returns: int32 [*, COLUMNS], and `sections` of processor.cuh.
    """
    groups = lengths.shape[1]
    script = np.zeros((len(words), COLUMNS), np.int32)
    sections = np.empty((2, groups + 1), np.int32)
    at = 0
    for side in range(2):
        for g in range(groups):
            sections[side, g] = before + at
            at += lengths[side, g]
        sections[side, groups] = before + at
    for k in range(len(words)):  # views of rows would be counted, like objects
        first = words[k, isa.FIRST]
        end = first + words[k, isa.ROWS]
        script[k, OP] = segment_ptr[words[k, isa.PROGRAM]] + words[k, isa.SEGMENT]
        script[k, N], script[k, LO] = words[k, isa.ROWS], first
        script[k, M], script[k, ELO] = words[k, isa.EDGES], words[k, isa.FIRST_EDGE]
        script[k, WAIT] = words[k, isa.WAIT] >= 0
        script[k, TEMPORARY] = words[k, isa.TEMPORARY]
        script[k, PROGRAM] = words[k, isa.PROGRAM]
        script[k, FIRST_PARENT] = parent_ptr[first]
        script[k, PARENTS] = parent_ptr[end] - parent_ptr[first]
    return script, sections


@njit(cache=True, nogil=True)
def write_scripts(
    table: Array,
    facts: Facts,
    gradients: Array,
    stages: tuple[int, int, int],
    lookup_ptr: Array,
    lookup_at: Array,
    clips: bool,
    updates: bool,
    words: Array,
    lengths: Array,
    parent_ptr: Array,
    child_row: Array,
    ring: bool,
    alone: bool,
) -> tuple[Array, Array, Array, int, int]:
    """Write all scripts of a launch.

    Args:
        gradients: of `PersistentExecutable`; stages: path, lazy, path_backward.
        words, lengths, parent_ptr: of `write_paths`; the others of `write_launches`.
        ring: whether groups have one; child_row, alone: of `write_ring`.
    Returns: the script, int32 [*, COLUMNS]; `sections`; what `write_ring` returns, or nothing; how
        many instructions all processors follow, and what `write_launches` says of temporaries.
    """
    path, lazy, path_backward = stages
    launches, temporary = write_launches(
        table, facts.stages, facts.beside, path, lazy, path_backward, facts.steps_ptr, facts.steps,
        facts.adds, facts.adds_ptr, facts.added, gradients, lookup_ptr, lookup_at, facts.scratch,
        clips, updates,
    )  # fmt: skip
    paths, sections = write_paths(words, lengths, facts.segment_ptr, parent_ptr, len(launches))
    slots = np.empty(0, np.int32)
    if ring:
        slots = write_ring(paths, lengths, facts.segments, facts.rings, child_row, alone)
    script = np.concatenate((launches, paths))
    return script, sections, slots, len(launches), temporary
