"""Instructions that are repeated: levels of chains that follow each other, as one instruction.

Where a group's rows of each level are those of the level before moved on by the same number of
rows, one instruction says how often (TIMES) and how far (STEP). The kernel fetches no script and no
index in such a loop (`repeats.cuh`); `repeated_segments` says which segments it may be.
A level may have two instructions, of two segments between which a group meets; the one that is left
of all is the first one's.
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
    FOR_ALL,
    IS_PUT,
    MOVE,
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
    NONE,
    OP,
    PROGRAM,
    ROWS,
    TEMPORARY,
    WAIT,
)

Array = np.ndarray[Any, Any]

OF_CHILDREN, PARTS = range(2)  # columns of `RepeatFacts.how`
MOST_PARENTS = 2  # of a row: `ParentEdges` of repeats.cuh
SAME = (  # columns that all repetitions share; the others move on
    OP, PROGRAM, ROWS, LISTED, EDGES, WAIT, TEMPORARY, PARENTS, USES, FAR, EXPECT
)  # fmt: skip

ALIKE = (  # columns that both instructions of a level share
    PROGRAM, ROWS, FIRST, LISTED, EDGES, FIRST_EDGE, TEMPORARY, PARENTS, FIRST_PARENT, SLOT, USES,
    FAR, EXPECT,
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
        how: [segments, 2] the slot of children by which each may be repeated (OF_CHILDREN), -1
            where it may not; and the instructions of a level (PARTS), of it and those that follow.
        about, rings: of `write_ring`; forward: how many sides are forward, the first ones.
        near: groups have rings, on the sides on which there is room for one.
    """

    how: Array
    about: Array
    rings: Array
    forward: int
    near: bool


def join_repeats(script: Array, lengths: Array, facts: RepeatFacts, edges: EdgesRead) -> int:
    """Join instructions that repeat those before; what follows moves up.

    Args:
        script: int32 [*, COLUMNS] of all groups, forward, then backward, else complete.
        lengths: [sides, groups] instructions of each; gets what is left.
    Returns: how many instructions are left.
    """
    at, count = 0, 0
    for side in range(len(lengths)):
        for g in range(lengths.shape[1]):
            end = at + lengths[side, g]
            left = _join_group(script, (at, end), count, side, facts, edges)
            lengths[side, g] = left - count
            at, count = end, left
    return count


def _join_group(
    script: Array,
    bounds: tuple[Any, Any],
    count: int,
    side: int,
    facts: RepeatFacts,
    edges: EdgesRead,
) -> int:
    """Join those of a group.

    Args:
        bounds: where they begin and end; count: how many are left of those before.
    Returns: how many are left then.
    """
    k, end = bounds
    head, last = -1, -1
    while k < end:
        parts = max(facts.how[script[k, OP], PARTS], 1)
        parts = parts if k + parts <= end else 0  # of which a part is missing
        if parts and head >= 0 and _repeats(script, head, last, k, side, facts, edges):
            _join(script, head, last, k, side, facts, edges)
            count, last = head + 1, k
        else:
            head, last, parts = count, k, max(parts, 1)
            for i in range(parts):
                script[count] = script[k + i]
                count += 1
        k += parts
    return count


def _repeats(
    script: Array, head: int, last: int, k: int, side: int, facts: RepeatFacts, edges: EdgesRead
) -> bool:
    """Tell whether a level repeats the one before, as the kernel moves on.

    Args:
        head: what it would be joined to; last, k: the first instructions of the two levels.
    """
    slot, back = facts.how[script[k, OP], OF_CHILDREN], side >= facts.forward
    if slot < 0 or not _is_alike(script, last, k, back, slot):
        return False
    return (
        _moves_as(script, head, last, k)
        and _second_follows(script, last, k, facts.how[script[k, OP], PARTS])
        and _edges_follow(script, last, k, slot, back, edges)
        and _ring_follows(script, last, k, facts, side, edges.child_slot)
        and (not back or _parents_follow(script, head, last, k, edges))
    )


def _moves_as(script: Array, head: int, last: int, k: int) -> bool:
    """Tell whether rows move on as they did before, if they did."""
    step = script[k, FIRST] - script[last, FIRST]
    return bool(script[head, TIMES] == 1 or script[head, STEP] == step)


def _join(
    script: Array, head: int, last: int, k: int, side: int, facts: RepeatFacts, edges: EdgesRead
) -> None:
    """Join a level to its head; see `_repeats`."""
    script[head, STEP] = script[k, FIRST] - script[last, FIRST]
    script[head, TIMES] += 1
    if side >= facts.forward:
        for which in range(script[k, PARENTS] // script[k, ROWS]):
            script[head, MOVE + which] = _moved(script, last, k, which, edges)


def _second_follows(script: Array, last: int, k: int, parts: int) -> bool:
    """Tell whether the second instruction of a level, if any, is the first's, alike in both levels.

    The first one waits for no processor; the second one for what all have made in the first one.
    """
    if parts == 1:
        return True
    differ = (script[k, WAIT] ^ NONE) | script[k, USES]
    for at in (last, k):
        differ |= script[at + 1, OP] ^ (script[at, OP] + 1)
        differ |= script[at + 1, WAIT] ^ FOR_ALL
        for c in ALIKE:
            differ |= script[at + 1, c] ^ script[at, c]
    return bool(differ == 0)


def _edges_follow(
    script: Array, last: int, k: int, slot: int, back: bool, edges: EdgesRead
) -> bool:
    """Tell whether rows of an instruction and the last one have as many edges, one of them read.

    Forward the children are the last one's rows.
    """
    rows, step = script[k, ROWS], script[k, FIRST] - script[last, FIRST]
    each = script[k, EDGES] // rows
    at, before = script[k, FIRST_EDGE] + slot, script[last, FIRST_EDGE] + slot
    return (
        slot < each
        and _are_even(edges.edge_ptr, script, last, each)
        and _are_even(edges.edge_ptr, script, k, each)
        and _follow(edges.child_row, at, before, (rows, each), step)
        and (back or edges.child_row[at] == script[last, FIRST])
    )


def _are_even(edge_ptr: Array, script: Array, k: int, each: int) -> bool:
    """Tell whether each row of an instruction has so many edges."""
    first, edge, odd = script[k, FIRST], script[k, FIRST_EDGE], 0
    for i in range(script[k, ROWS] + 1):
        odd |= edge_ptr[first + i] ^ (edge + i * each)
    return bool(odd == 0)


def _is_alike(script: Array, last: int, k: int, back: bool, slot: int) -> bool:
    """Tell whether an instruction and the last one, alike in each row, differ in rows.

    On the way back each row has a parent, or two.
    """
    rows, edges, parents = script[k, ROWS], script[k, EDGES], script[k, PARENTS]
    step = script[k, FIRST] - script[last, FIRST]
    moved = script[k, FIRST_EDGE] - script[last, FIRST_EDGE]
    differ = script[k, FAR] | script[k, TEMPORARY] | (moved * rows - step * edges)
    for c in SAME:
        differ |= script[k, c] ^ script[last, c]
    even = edges >= rows and edges % rows == 0
    if back:  # edges of rows with one are numbered as rows are
        above = script[k, FIRST_PARENT] - script[last, FIRST_PARENT]
        differ |= (parents % rows) | (above * rows - step * parents)
        even = even and (slot > 0 or edges == rows) and rows <= parents <= MOST_PARENTS * rows
    else:
        differ |= parents
    return bool(differ == 0 and rows <= MOST_REPEATED and even)


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


def _ring_follows(
    script: Array, last: int, k: int, facts: RepeatFacts, side: int, slots: Array
) -> bool:
    """Tell whether rows of the ring are those after the last instruction's, if there is a ring.

    A side that has one repeats nothing where groups have none, as its code reads it.
    """
    size = facts.rings[side, 0]
    if size == 0 or not facts.near:
        return bool(size == 0)
    op, rows, slot = script[k, OP], script[k, ROWS], script[last, SLOT]
    of = facts.how[op, OF_CHILDREN]
    if facts.about[op, GATHERS] and not _slots_follow(script, last, k, size, of, slots):
        return False
    if not facts.about[op, PUTS]:
        return bool(script[k, USES] == 0)
    following = slot + rows if slot + 2 * rows <= size else 0
    return bool(script[k, USES] & IS_PUT != 0 and slot >= 0 and script[k, SLOT] == following)


def _slots_follow(script: Array, last: int, k: int, size: int, of: int, slots: Array) -> bool:
    """Tell whether children in a slot are where the last instruction has put its rows."""
    rows, each = script[k, ROWS], script[k, EDGES] // script[k, ROWS]
    at, before = script[k, FIRST_EDGE] + of, script[last, FIRST_EDGE] + of
    if slots[before] + rows > size or slots[at] != script[last, SLOT]:
        return False
    return _follow(slots, at, before, (rows, each), slots[at] - slots[before])


def _parents_follow(script: Array, head: int, last: int, k: int, edges: EdgesRead) -> bool:
    """Tell whether rows have as many parents each, and the edges to them are as far apart."""
    each = script[k, PARENTS] // script[k, ROWS]
    for at in (last, k):
        first, parent = script[at, FIRST], script[at, FIRST_PARENT]
        for i in range(script[k, ROWS] + 1):
            if edges.parent_ptr[first + i] != parent + i * each:
                return False
    for which in range(each):
        moved = _moved(script, last, k, which, edges)
        before = script[head, MOVE + which] if script[head, TIMES] > 1 else moved
        if moved != before or not _rise_alike(script, last, k, which, edges):
            return False
    return True


def _rise_alike(script: Array, last: int, k: int, which: int, edges: EdgesRead) -> bool:
    """Tell whether edges to a parent are as far apart from row to row, and in both levels."""
    rows, each = script[k, ROWS], script[k, PARENTS] // script[k, ROWS]
    at, before = script[k, FIRST_PARENT] + which, script[last, FIRST_PARENT] + which
    found = edges.parent_edge
    rise = found[before + each] - found[before] if rows > 1 else 0
    for i in range(rows):
        if found[before + i * each] != found[before] + i * rise:
            return False
        if found[at + i * each] != found[at] + i * rise:
            return False
    return True


def _moved(script: Array, last: int, k: int, which: int, edges: EdgesRead) -> int:
    """Return by how much the edge to a parent of the first row is more than in the last level."""
    found = edges.parent_edge[script[k, FIRST_PARENT] + which]
    return int(found - edges.parent_edge[script[last, FIRST_PARENT] + which])


def expand_repeats(script: Array, ring_rows: int, how: Array) -> Array:
    """Return instructions of a side with each repetition as instructions of its own.

    Args:
        script: int32 [*, COLUMNS]; ring_rows: of the ring of the side; how: of `RepeatFacts`.
    """
    times = script[:, TIMES]
    found = np.repeat(script, times, 0)
    number = np.arange(len(found)) - np.repeat(np.cumsum(times) - times, times)
    moved, rows = number * found[:, STEP], np.maximum(found[:, ROWS], 1)
    found[:, FIRST] += moved
    found[:, FIRST_EDGE] += moved * (found[:, EDGES] // rows)
    found[:, FIRST_PARENT] += moved * (found[:, PARENTS] // rows)
    for k in np.flatnonzero((number > 0) & (found[:, USES] & IS_PUT != 0)):
        rows, slot = found[k, ROWS], found[k - 1, SLOT]
        found[k, SLOT] = slot + rows if slot + 2 * rows <= ring_rows else 0
    two = found[:, TIMES] > 1
    two[two] = how[found[two, OP], PARTS] > 1
    found[:, TIMES], found[:, STEP : MOVE + MOST_PARENTS] = 1, 0
    each = np.repeat(found, 1 + two, 0)
    second = np.flatnonzero(two) + np.cumsum(two)[two]
    each[second, OP] += 1
    each[second, WAIT] = FOR_ALL
    return np.asarray(each)
