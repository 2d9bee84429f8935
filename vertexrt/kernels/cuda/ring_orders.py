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
from numba import njit

from vertexrt.kernels.cuda.instruction import (
    ELO,
    EXPECT,
    FAR,
    FOR_ALL,
    FOR_RING,
    HAS_OPERAND,
    IS_PUT,
    IS_SENT,
    LO,
    OP,
    SLOT,
    USES,
    WAIT,
    M,
    N,
)

Array = np.ndarray[Any, Any]

# Columns of what is known of a segment.
PUTS, SENDS, GATHERS, OPERAND, NEEDS_ALL, EVERYBODY = range(6)


@njit(cache=True, nogil=True)
def write_ring(
    script: Array, lengths: Array, segments: Array, rings: Array, child_row: Array, alone: bool
) -> Array:
    """Complete the scripts of groups that have a ring.

    Args:
        script: int32 [*, COLUMNS] of all groups, forward, then backward; WAIT is not 0 where an
            instruction waits. Gets WAIT, SLOT, USES, FAR and EXPECT.
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
        highest = max(highest, script[k, LO] + script[k, N])
    place = np.empty(highest, np.int64)  # of each row, counted on
    written = np.empty(highest, np.int64)  # the epoch in which it was, -1: before the path
    there = np.empty(highest, np.bool_)  # it was put in the ring
    begin = 0
    for side in range(2):
        rows, far = rings[side]
        place[:], written[:], there[:] = -1, -1, False
        for g in range(lengths.shape[1]):
            part = script[begin : begin + lengths[side, g]]
            begin += len(part)
            epochs = _place_rows(part, segments, rows, alone, place)
            sent = _use_rows(
                part, segments, rows, far, alone, epochs, place, written, there, child_row,
                child_slot,
            )  # fmt: skip
            if not alone:
                for e in range(1, len(sent)):
                    part[epochs[2][e], EXPECT] = sent[e - 1]
    return child_slot


@njit(cache=True, nogil=True)
def _place_rows(
    part: Array, segments: Array, rows: int, alone: bool, place: Array
) -> tuple[Array, Array, Array]:
    """Give the tiles of a group's script places, one after the other.

    Args:
        place: [rows of the schedule] gets that of each row.
    Returns: [instructions] the epoch of each; [epochs] how many places are given when one is over,
        and the instruction that begins it.
    """
    epoch = np.empty(len(part), np.int64)
    top = np.empty(len(part) + 1, np.int64)
    first = np.empty(len(part) + 1, np.int64)
    given, now = 0, 0
    first[0] = 0
    for k in range(len(part)):
        row = part[k]
        if row[WAIT] or (alone and k > 0):
            top[now] = given
            now += 1
            first[now] = k
        epoch[k] = now
        n, lo = row[N], row[LO]
        if segments[row[OP], PUTS] and place[lo] < 0 and n <= rows:
            if given % rows + n > rows:
                given += rows - given % rows
            for i in range(n):
                place[lo + i] = given + i
            given += n
    top[now] = given
    return epoch, top[: now + 1], first[: now + 1]


@njit(cache=True, nogil=True)
def _use_rows(
    part: Array,
    segments: Array,
    rows: int,
    far: int,
    alone: bool,
    epochs: tuple[Array, Array, Array],
    place: Array,
    written: Array,
    there: Array,
    child_row: Array,
    child_slot: Array,
) -> Array:
    """Say what each instruction of a group's script reads and writes of the ring.

    Returns: [epochs] how many elements are sent in each.
    """
    epoch, top, first = epochs
    last = len(top) - 1
    sent = np.zeros(len(top), np.int64)
    all_at = 0  # the epoch that began with the last wait for all
    for k in range(len(part)):
        row = part[k]
        e = epoch[k]
        n, lo = row[N], row[LO]
        about = segments[row[OP]]
        lowest = top[e] - rows  # places before it are, or are about to be, others'
        before = all_at if all_at < e else -1  # what was there before this epoch's wait
        row[SLOT] = place[lo] % rows if place[lo] >= lowest and place[lo] >= 0 else -1
        if about[NEEDS_ALL]:
            all_at = e
        if about[OPERAND]:
            if row[SLOT] >= 0 and there[lo]:
                row[USES] |= HAS_OPERAND
            elif written[lo] >= all_at:
                all_at = e
        if about[GATHERS]:
            copied = 0
            for at in range(row[ELO], row[ELO] + row[M]):
                child = child_row[at]
                if child < 0:
                    continue
                on_path = child < len(written) and written[child] >= 0
                if on_path and there[child] and place[child] >= lowest:
                    child_slot[at] = place[child] % rows
                    continue
                if on_path and written[child] >= all_at:
                    all_at = e
                visible = before if first[e] == k else all_at
                if copied < far and (not on_path or alone or written[child] < visible):
                    child_slot[at] = rows + copied
                    copied += 1
            row[FAR] = copied
        if about[PUTS]:
            put = row[SLOT] >= 0 and (alone or e < last)
            if put:
                row[USES] |= IS_PUT
            if put and about[SENDS]:
                row[USES] |= IS_SENT
                sent[e] += about[SENDS] * n
            there[lo : lo + n] = put
        written[lo : lo + n] = e
        if alone or e == 0:
            continue
        sender = part[k - 1]
        if first[e] == k and not (sender[USES] & IS_SENT and segments[sender[OP], EVERYBODY]):
            all_at = e
        if all_at == e:
            part[first[e], WAIT] = FOR_ALL
        elif row[WAIT]:
            row[WAIT] = FOR_RING
    return sent
