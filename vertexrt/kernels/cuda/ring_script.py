"""Write which rows of the ring instructions of the path read and write: array code, per minibatch.

Instructions between two waits are an *epoch*. All processors of a group have finished an epoch
when one goes on behind the wait, so that a row that an epoch puts into the ring may take the place
of one that no instruction of this epoch or a later one reads. Rows get places one after the other,
round and round. What is no longer there is read from memory, which needs a wait for all that was
written (`FOR_ALL`) between writing and reading; the others are for rows of the ring alone. Since
these come with no more than what was sent, the last instruction of the epoch before has to be one
in which everybody sends.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from vertexrt.cache.compiled import njit
from vertexrt.kernels.cuda.instruction import (
    EXPECT,
    FAR,
    FOR_ALL,
    FOR_RING,
    HAS_OPERAND,
    IS_PUT,
    IS_SENT,
    SLOT,
    USES,
)
from vertexrt.script.isa import EDGES, FIRST, FIRST_EDGE, NONE, OP, ROWS, WAIT

Array = np.ndarray[Any, Any]

# Columns of what is known of a segment.
PUTS, SENDS, GATHERS, OPERAND, NEEDS_ALL, EVERYBODY = range(6)
BEFORE_PATH = -2  # in place of an epoch, less than all of them and than -1 for none


@njit(cache=True, nogil=True)
def write_ring(
    script: Array, lengths: Array, segments: Array, rings: Array, child_row: Array, alone: bool
) -> Array:
    """Complete the scripts of groups that have a ring.

    Args:
        script: int32 [*, COLUMNS] of all groups, forward, then backward; WAIT is NONE where an
            instruction does not wait. Gets WAIT, SLOT, USES, FAR and EXPECT.
        lengths: [2, groups] instructions of each.
        segments: [segments, 6] whether each puts something in a row of the ring (PUTS), how many
            elements are sent (SENDS), whether it gathers children, reads an operand, needs all, and
            whether every processor sends some (EVERYBODY).
        rings: [2, 2] rows of the ring of each side, and rows for children that are copied.
        child_row: of the schedule.
        alone: groups have one processor, for which each instruction is an epoch.
    Returns: int32 [edges] the row of the ring where the child of an edge is, -1 where it is not.
    """
    child_slot = np.full(max(len(child_row), 1), -1, np.int32)
    highest = 0
    for k in range(len(script)):
        highest = max(highest, script[k, FIRST] + script[k, ROWS])
    for e in range(len(child_row)):
        highest = max(highest, child_row[e] + 1)
    place = np.empty(highest, np.int64)  # of each row, counted on
    slot_of = np.empty(highest, np.int32)  # the row of the ring that it is, -1 for none
    written = np.empty(highest, np.int64)  # the epoch in which it was
    there = np.empty(highest, np.bool_)  # it was put in the ring
    epoch = np.empty(len(script), np.int64)
    longest = 0
    for side in range(2):
        for g in range(lengths.shape[1]):
            longest = max(longest, lengths[side, g])
    top = np.empty(longest + 1, np.int64)
    first = np.empty(longest + 1, np.int64)
    sent = np.empty(longest + 1, np.int64)
    begin = 0
    for side in range(2):
        rows, far = rings[side]
        place[:], slot_of[:], written[:], there[:] = -1, -1, BEFORE_PATH, False
        for g in range(lengths.shape[1]):
            end = begin + lengths[side, g]
            last = _place_rows(
                script, begin, end, segments, rows, alone, place, slot_of, epoch, top, first
            )
            _use_rows(
                script, begin, end, segments, rows, far, alone, epoch, top, first, last, place,
                slot_of, written, there, child_row, child_slot, sent,
            )  # fmt: skip
            if not alone:
                for e in range(1, last + 1):
                    script[first[e], EXPECT] = sent[e - 1]
            begin = end
    return child_slot


@njit(cache=True, nogil=True)
def _place_rows(
    script: Array,
    begin: int,
    end: int,
    segments: Array,
    rows: int,
    alone: bool,
    place: Array,
    slot_of: Array,
    epoch: Array,
    top: Array,
    first: Array,
) -> int:
    """Give the tiles of a group's script places, one after the other.

    Args:
        begin, end: where in `script` the group's is.
        place: [rows of the schedule] gets that of each row; slot_of: the row of the ring.
        epoch: [instructions] gets the epoch of each.
        top, first: [epochs] get how many places are given when one is over, and the instruction
            that begins it.
    Returns: the last epoch.
    """
    given, now = 0, 0
    first[0] = begin
    for k in range(begin, end):  # views of rows would be counted, like objects
        if script[k, WAIT] != NONE or (alone and k > begin):
            top[now] = given
            now += 1
            first[now] = k
        epoch[k] = now
        n, lo = script[k, ROWS], script[k, FIRST]
        if segments[script[k, OP], PUTS] and place[lo] < 0 and n <= rows:
            begins = given % rows
            if begins + n > rows:
                given += rows - begins
                begins = 0
            for i in range(n):
                place[lo + i] = given + i
                slot_of[lo + i] = begins + i
            given += n
    top[now] = given
    return now


@njit(cache=True, nogil=True)
def _use_rows(
    script: Array,
    begin: int,
    end: int,
    segments: Array,
    rows: int,
    far: int,
    alone: bool,
    epoch: Array,
    top: Array,
    first: Array,
    last: int,
    place: Array,
    slot_of: Array,
    written: Array,
    there: Array,
    child_row: Array,
    child_slot: Array,
    sent: Array,
) -> None:
    """Say what each instruction of a group's script reads and writes of the ring.

    Args:
        epoch, top, first, last: what `_place_rows` found.
        sent: [epochs] gets how many elements are sent in each.
    """
    sent[: last + 1] = 0
    all_at = 0  # the epoch that began with the last wait for all
    for k in range(begin, end):
        op, n, lo = script[k, OP], script[k, ROWS], script[k, FIRST]
        e = epoch[k]
        lowest = top[e] - rows  # places before it are, or are about to be, others'
        before = all_at if all_at < e else -1  # what was there before this epoch's wait
        slot = slot_of[lo] if place[lo] >= lowest else -1
        script[k, SLOT] = slot
        if segments[op, NEEDS_ALL]:
            all_at = e
        if segments[op, OPERAND]:
            if slot >= 0 and there[lo]:
                script[k, USES] |= HAS_OPERAND
            elif written[lo] >= all_at:
                all_at = e
        if segments[op, GATHERS]:
            # Which children are leaves cannot be predicted, so that little branches on it.
            copied = 0
            for at in range(script[k, FIRST_EDGE], script[k, FIRST_EDGE] + script[k, EDGES]):
                child = child_row[at]
                if child < 0:
                    continue
                kept = there[child] & (place[child] >= lowest)
                all_at = e if (not kept) & (written[child] >= all_at) else all_at
                visible = before if first[e] == k else all_at
                copy = (not kept) & (copied < far) & (alone | (written[child] < visible))
                child_slot[at] = slot_of[child] if kept else (rows + copied if copy else -1)
                copied += copy
            script[k, FAR] = copied
        if segments[op, PUTS]:
            put = slot >= 0 and (alone or e < last)
            if put:
                script[k, USES] |= IS_PUT
            if put and segments[op, SENDS]:
                script[k, USES] |= IS_SENT
                sent[e] += segments[op, SENDS] * n
            for row in range(lo, lo + n):  # a slice takes as long as all else here
                there[row] = put
        for row in range(lo, lo + n):
            written[row] = e
        if alone or e == 0:
            continue
        sends = script[k - 1, USES] & IS_SENT and segments[script[k - 1, OP], EVERYBODY]
        if first[e] == k and not sends:
            all_at = e
        if all_at == e:
            script[first[e], WAIT] = FOR_ALL
        elif script[k, WAIT] != NONE:
            script[k, WAIT] = FOR_RING
