"""Write which rows of the ring instructions of the path read and write: array code, per minibatch.

Instructions between two waits are an *epoch*. All processors of a group have finished an epoch
when one goes on after the wait, so that a row that an epoch puts into the ring may take the place
of one that no instruction of this epoch or a later one reads. Rows get places one after the other,
round and round. What is no longer there is read from memory, which needs a wait for all that was
written (`FOR_ALL`) between writing and reading; the others are for rows of the ring alone. Since
these come with no more than what was sent, the last instruction of the epoch before has to be one
in which all processors send.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

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
NONE_READ, OWN_LAYER, ALL_READ = range(3)  # which children a segment gathers
BEFORE_PATH = -2  # in place of an epoch, less than all of them and than -1 for none


class _Ring(NamedTuple):
    """The ring of a side: what is known of segments, rows, rows for copies; see `write_ring`.

    Attributes:
        layer: its first row.
    """

    segments: Array
    rows: int
    far: int
    alone: bool
    layer: int


class _RingRows(NamedTuple):
    """What is known of each row of the schedule.

    Attributes:
        place: int64, counted on; slot: int32 the row of the ring that it is, -1 for none.
        written: int64 the epoch in which it was; there: bool, it was put in the ring.
    """

    place: Array
    slot: Array
    written: Array
    there: Array


class _Epochs(NamedTuple):
    """The epochs of a group's script.

    Attributes:
        of: [instructions] the epoch of each.
        top, first: [epochs] how many places are given when one is over, and the instruction that
            begins it.
        sent: [epochs] how many elements are sent in each.
    """

    of: Array
    top: Array
    first: Array
    sent: Array


def write_ring(
    script: Array,
    lengths: Array,
    segments: Array,
    rings: Array,
    first_rows: Array,
    child_row: Array,
    alone: bool,
) -> Array:
    """Complete the scripts of groups that have a ring.

    Args:
        script: int32 [*, COLUMNS] of all groups, forward, then backward; WAIT is NONE where an
            instruction does not wait. Gets WAIT, SLOT, USES, FAR and EXPECT.
        lengths: [sides, groups] instructions of each.
        segments: [segments, 6] whether each puts something in a row of the ring (PUTS), how many
            elements are sent (SENDS), which children it gathers, whether it reads an operand, needs
            all, and whether every processor sends some (EVERYBODY).
        rings: [sides, 2] rows of the ring of each side, and rows for children that are copied.
        first_rows: [sides] the first row of the layer of each.
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
    rows = _RingRows(
        np.empty(highest, np.int64),
        np.empty(highest, np.int32),
        np.empty(highest, np.int64),
        np.empty(highest, np.bool_),
    )
    longest = _longest(lengths)
    epochs = _Epochs(
        np.empty(len(script), np.int64),
        np.empty(longest + 1, np.int64),
        np.empty(longest + 1, np.int64),
        np.empty(longest + 1, np.int64),
    )
    begin = 0
    for side in range(len(rings)):
        ring = _Ring(segments, rings[side, 0], rings[side, 1], alone, first_rows[side])
        rows.place[:], rows.slot[:], rows.there[:] = -1, -1, False
        rows.written[:] = BEFORE_PATH
        for g in range(lengths.shape[1]):
            end = begin + lengths[side, g]
            last = _place_rows(script, begin, end, ring, rows, epochs)
            group = (begin, end, last)
            _use_rows(script, group, ring, rows, epochs, (child_row, child_slot))
            if not alone:
                for e in range(1, last + 1):
                    script[epochs.first[e], EXPECT] = epochs.sent[e - 1]
            begin = end
    return child_slot


def _longest(lengths: Array) -> int:
    found = 0
    for side in range(lengths.shape[0]):
        for g in range(lengths.shape[1]):
            found = max(found, lengths[side, g])
    return found


def _place_rows(
    script: Array, begin: int, end: int, ring: _Ring, rows: _RingRows, epochs: _Epochs
) -> int:
    """Give the tiles of a group's script places, one after the other.

    Args:
        begin, end: where in `script` the group's is.
        rows: place and slot are given; epochs: all but what is sent.
    Returns: the last epoch.
    """
    place, slot_of, _, _ = rows
    epoch, top, first, _ = epochs
    segments, size, _, alone, _ = ring
    given, now = 0, 0
    first[0] = begin
    for k in range(begin, end):
        if script[k, WAIT] != NONE or (alone and k > begin):
            top[now] = given
            now += 1
            first[now] = k
        epoch[k] = now
        n, lo = script[k, ROWS], script[k, FIRST]
        if segments[script[k, OP], PUTS] and place[lo] < 0 and n <= size:
            begins = given % size
            if begins + n > size:
                given += size - begins
                begins = 0
            for i in range(n):
                place[lo + i] = given + i
                slot_of[lo + i] = begins + i
            given += n
    top[now] = given
    return now


def _use_rows(
    script: Array,
    group: tuple[int, int, int],
    ring: _Ring,
    rows: _RingRows,
    epochs: _Epochs,
    children: tuple[Array, Array],
) -> None:
    """Say what each instruction of a group's script reads and writes of the ring.

    Args:
        group: where in `script` the group's begins and ends, and its last epoch.
        epochs: what `_place_rows` found; gets how many elements are sent in each.
        children: child_row, and child_slot of `write_ring`.
    """
    begin, end, last = group
    place, slot_of, written, there = rows
    epoch, top, first, sent = epochs
    child_row, child_slot = children
    segments, size, far, alone, layer = ring
    sent[: last + 1] = 0
    all_at = 0  # the epoch that began with the last wait for all
    for k in range(begin, end):
        op, n, lo = script[k, OP], script[k, ROWS], script[k, FIRST]
        e = epoch[k]
        lowest = top[e] - size  # places before it are, or are about to be, others'
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
            first_row = layer if segments[op, GATHERS] == OWN_LAYER else 0
            # Which children are leaves cannot be predicted, so that little branches on it.
            copied = 0
            for at in range(script[k, FIRST_EDGE], script[k, FIRST_EDGE] + script[k, EDGES]):
                child = child_row[at]
                if child < first_row:
                    continue
                kept = there[child] & (place[child] >= lowest)
                all_at = e if (not kept) & (written[child] >= all_at) else all_at
                visible = before if first[e] == k else all_at
                copy = (not kept) & (copied < far) & (alone | (written[child] < visible))
                child_slot[at] = slot_of[child] if kept else (size + copied if copy else -1)
                copied += int(copy)
            script[k, FAR] = copied
        if segments[op, PUTS]:
            put = slot >= 0 and (alone or e < last)
            if put:
                script[k, USES] |= IS_PUT
            if put and segments[op, SENDS]:
                script[k, USES] |= IS_SENT
                sent[e] += segments[op, SENDS] * n
            for row in range(lo, lo + n):
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
