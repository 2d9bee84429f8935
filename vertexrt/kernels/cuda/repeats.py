"""Instructions that are repeated: levels of chains that follow each other, as one instruction.

Where a group's rows of each level are those of the level before moved on by the same number of
rows, one instruction says how often (TIMES) and how far (STEP). The kernel fetches no script and no
index in such a loop (`repeats.cuh`); `repeated_segments` says which segments it may be.
`join_repeats` is the last pass over the scripts of groups; `expand_repeats` undoes it, for
verifiers.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from vertexrt.kernels.cuda.instruction import (
    EXPECT,
    FAR,
    FIRST_PARENT,
    IS_PUT,
    PARENTS,
    SLOT,
    STEP,
    TIMES,
    USES,
)
from vertexrt.kernels.cuda.repeated_segments import MOST_REPEATED
from vertexrt.kernels.cuda.ring_script import GATHERS, PUTS
from vertexrt.script.isa import (
    EDGES,
    FIRST,
    FIRST_EDGE,
    LISTED,
    OP,
    PROGRAM,
    ROWS,
    TEMPORARY,
    WAIT,
)

Array = np.ndarray[Any, Any]

SAME = (  # columns that all repetitions share; the others move on
    OP, PROGRAM, ROWS, LISTED, EDGES, WAIT, TEMPORARY, PARENTS, USES, FAR, EXPECT
)  # fmt: skip


class EdgesRead(NamedTuple):
    """What of a schedule's edges repetitions read.

    Attributes:
        edge_ptr, child_row, parent_ptr, parent_edge: of the schedule; child_slot: of `write_ring`.
    """

    edge_ptr: Array
    child_row: Array
    child_slot: Array
    parent_ptr: Array
    parent_edge: Array


class RepeatFacts(NamedTuple):
    """What is known of segments whatever the minibatch.

    Attributes:
        slot: [segments] of children by which each may be repeated, -1 for those that may not.
        about, rings: of `write_ring`; forward: how many sides are forward, the first ones.
        near: groups have rings, on the sides on which there is room for one.
    """

    slot: Array
    about: Array
    rings: Array
    forward: int
    near: bool


def join_repeats(script: Array, lengths: Array, facts: RepeatFacts, edges: EdgesRead) -> int:
    """Join instructions that repeat the one before; what follows moves up.

    Args:
        script: int32 [*, COLUMNS] of all groups, forward, then backward, else complete.
        lengths: [sides, groups] instructions of each; gets what is left.
    Returns: how many instructions are left.
    """
    at, count = 0, 0
    for side in range(len(lengths)):
        for g in range(lengths.shape[1]):
            begin, end, first = at, at + lengths[side, g], count
            for k in range(begin, end):
                if k > begin and _repeats(script, count - 1, k, side, facts, edges):
                    script[count - 1, STEP] = script[k, FIRST] - script[k - 1, FIRST]
                    script[count - 1, TIMES] += 1
                else:
                    if count != k:
                        script[count] = script[k]
                    count += 1
            lengths[side, g] = count - first
            at = end
    return count


def _repeats(
    script: Array, head: int, k: int, side: int, facts: RepeatFacts, edges: EdgesRead
) -> bool:
    """Tell whether an instruction repeats the one before, as the kernel moves on.

    Args:
        head: what it would be joined to; k: the instruction.
    """
    back = side >= facts.forward
    step = script[k, FIRST] - script[k - 1, FIRST]
    if script[head, TIMES] > 1 and script[head, STEP] != step:
        return False
    slot = facts.slot[script[k, OP]]
    if slot < 0 or not _is_alike(script, k, back, step):
        return False
    return (
        _edges_follow(script, k, slot, edges)
        and _ring_follows(script, k, facts, side, edges.child_slot)
        and (not back or _parents_follow(script, k, step, edges))
    )


def _edges_follow(script: Array, k: int, slot: int, edges: EdgesRead) -> bool:
    """Tell whether rows of an instruction and the last one have as many edges, one of them read."""
    rows, step = script[k, ROWS], script[k, FIRST] - script[k - 1, FIRST]
    each = script[k, EDGES] // rows
    at, before = script[k, FIRST_EDGE] + slot, script[k - 1, FIRST_EDGE] + slot
    return (
        slot < each
        and _are_even(edges.edge_ptr, script, k - 1, each)
        and _are_even(edges.edge_ptr, script, k, each)
        and _follow(edges.child_row, at, before, (rows, each), step)
    )


def _are_even(edge_ptr: Array, script: Array, k: int, each: int) -> bool:
    """Tell whether each row of an instruction has so many edges."""
    first, edge, odd = script[k, FIRST], script[k, FIRST_EDGE], 0
    for i in range(script[k, ROWS] + 1):
        odd |= edge_ptr[first + i] ^ (edge + i * each)
    return bool(odd == 0)


def _is_alike(script: Array, k: int, back: bool, step: int) -> bool:
    """Tell whether an instruction and the last one, alike in each row, differ in rows.

    On the way back a row has a child and a parent.
    """
    rows, edges = script[k, ROWS], script[k, EDGES]
    moved = script[k, FIRST_EDGE] - script[k - 1, FIRST_EDGE]
    differ = script[k, FAR] | script[k, TEMPORARY] | (script[k, PARENTS] - int(back) * rows)
    differ |= moved * rows - step * edges
    for c in SAME:
        differ |= script[k, c] ^ script[k - 1, c]
    even = edges >= rows and edges % rows == 0
    return bool(differ == 0 and rows <= MOST_REPEATED and even and not (back and edges > rows))


def _follow(numbers: Array, at: int, last: int, run: tuple[Any, Any], step: int) -> bool:
    """Tell whether two runs of numbers, none below zero, rise by one, the second further by a step.

    Args:
        run: how many numbers, and how far it is from one to the next.
    """
    for i in range(run[0]):
        first, second = numbers[last + i * run[1]], numbers[at + i * run[1]]
        if first != numbers[last] + i or second != numbers[last] + i + step:
            return False
    return bool(numbers[last] >= 0 and numbers[at] >= 0)  # a child may be absent: -1


def _ring_follows(script: Array, k: int, facts: RepeatFacts, side: int, slots: Array) -> bool:
    """Tell whether rows of the ring are those after the last instruction's, if there is a ring.

    A side that has one repeats nothing where groups have none, as its code reads it.
    """
    size = facts.rings[side, 0]
    if size == 0 or not facts.near:
        return bool(size == 0)
    op, rows, slot = script[k, OP], script[k, ROWS], script[k - 1, SLOT]
    if facts.about[op, GATHERS] and not _slots_follow(script, k, size, facts.slot[op], slots):
        return False
    if not facts.about[op, PUTS]:
        return bool(script[k, USES] == 0)
    following = slot + rows if slot + 2 * rows <= size else 0
    return bool(script[k, USES] & IS_PUT != 0 and slot >= 0 and script[k, SLOT] == following)


def _slots_follow(script: Array, k: int, size: int, of: int, slots: Array) -> bool:
    """Tell whether children in a slot are where the last instruction has put its rows."""
    rows, each = script[k, ROWS], script[k, EDGES] // script[k, ROWS]
    at, before = script[k, FIRST_EDGE] + of, script[k - 1, FIRST_EDGE] + of
    if slots[before] + rows > size or slots[at] != script[k - 1, SLOT]:
        return False
    return _follow(slots, at, before, (rows, each), slots[at] - slots[before])


def _parents_follow(script: Array, k: int, step: int, edges: EdgesRead) -> bool:
    """Tell whether each row has one parent, and the edges to them move on as rows do."""
    first, rows, parent = script[k, FIRST], script[k, ROWS], script[k, FIRST_PARENT]
    for i in range(rows + 1):
        for row in (first + i, first - step + i):
            if edges.parent_ptr[row] != row + parent - first:
                return False
    return _follow(edges.parent_edge, parent, parent - step, (rows, 1), step)


def expand_repeats(script: Array, ring_rows: int) -> Array:
    """Return instructions of a side with each repetition as one of its own.

    Args:
        script: int32 [*, COLUMNS]; ring_rows: of the ring of the side.
    """
    times = script[:, TIMES]
    found = np.repeat(script, times, 0)
    number = np.arange(len(found)) - np.repeat(np.cumsum(times) - times, times)
    moved = number * found[:, STEP]
    found[:, FIRST] += moved
    found[:, FIRST_EDGE] += moved * (found[:, EDGES] // np.maximum(found[:, ROWS], 1))
    found[:, FIRST_PARENT] += moved * (found[:, PARENTS] != 0)
    for k in np.flatnonzero((number > 0) & (found[:, USES] & IS_PUT != 0)):
        rows, slot = found[k, ROWS], found[k - 1, SLOT]
        found[k, SLOT] = slot + rows if slot + 2 * rows <= ring_rows else 0
    found[:, TIMES], found[:, STEP] = 1, 0
    return np.asarray(found)
