"""Write the scripts of cells: array code, for every minibatch.

A group follows one script on each side of the path (`cell.cuh` has its words). First the rows of a
side are put in levels, once for a forward and a backward side that have the same rows. Then the
script of each group is written level by level: which rows lie in which place on chip, when states
are taken from memory, and which levels are repeated.

Loops here have no branch on whether a child is of the side or in memory: one is as likely as the
other, and a wrong guess costs as much as the rest of the loop.

A place is used again when the last reader of its row is over: for what a processor copies there
itself at once, for what others send after the next meeting, since only then all have read it.
Where there is no place left, a row is not sent, or the place of a row is taken away: all that lies
on chip is in memory too, and is taken from there when it is wanted.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from vertexrt.native.compiled import compiled
from vertexrt.script.groups import Groups, bounds_of

Array = np.ndarray[Any, Any]

END, LEVEL, TAKE, LEAVE, MEET, NEXT = range(6)  # `CellOp` of cell.cuh
WORD = 16  # bytes
PIECE, AHEAD = 1024, 3
EDGES_A_ROW = 4  # of a level whose rows have lists of children
ALL = 1 << 62
MOST_PARENTS = 127  # of a row
MOST_PAIRS = 512  # of edges to the parents of a level's rows
NONE, NOWHERE = -1, -2
# Columns of what is known of a side.
IS_CELL, BACK, STATE_PLACES, EDGE_PLACES, ROWS, LAYER, READS_ABOVE = range(7)
USE, PLACE = 1 << 16, (1 << 16) - 1  # parts of `_Chip.held`
MANY = 1 << 30  # more uses than a level has edges
PROGRAM, FIRST, COUNT, CHILDREN, PARENTS = range(5)  # columns of levels
AT, BEGIN, PIECE_AT, LINK, LENGTH, FULL = range(6)  # of `_Out.state`
FREE, PENDING, LOST = range(3)  # of `_Chip.counts`


class CellFacts(NamedTuple):
    """What scripts of cells are written from, whatever the minibatch.

    Attributes:
        side_of: [programs] the side on which cells run each, -1 for none.
        cell_of, slots_of: [programs] which cell it is there, and how many children a row has.
        chip_of: [programs] bits of the slots of children that have places.
        sides: int64 [sides, 7] about each: IS_CELL and so on.
    """

    side_of: Array
    cell_of: Array
    slots_of: Array
    chip_of: Array
    sides: Array


class CellBatch(NamedTuple):
    """A scheduled minibatch.

    Attributes:
        table: of launches; the others are of the schedule.
    """

    table: Array
    edge_ptr: Array
    child_row: Array
    parent_ptr: Array
    edge_row: Array
    parent_edge: Array
    above_edge: Array


class _Plan(NamedTuple):
    """The rows of a side, and the levels that they are put in.

    Attributes:
        program: [rows + 1] of each, NONE for those of other sides; the last is NOWHERE.
        uses: [rows + 1] how many edges of the side read each of its rows on chip.
        waits: [rows + 1] for how many rows each waits, before it may be in a level; 0 or less for
            rows that are not of the side.
        on_chip: [edges] the child, if a place is read for it or its parent is not of the side; else
            the number of all rows.
        start: [vertices] rows that wait for none from the start, by their vertex; NONE for others.
        queue: [rows + 1] in the order of levels; behind these, rows that wait for none.
        levels: [*, 5] of each its program, where its rows begin in `queue`, and how many rows,
            slots of children and edges to parents it has.
        ptr: [groups + 1] where the levels of each group begin.
        stored: [edges] children in memory, in the order of levels; stored_ptr: [levels + 1].
        turned: [programs] the program of another side whose rows are the same.
    """

    program: Array
    uses: Array
    waits: Array
    on_chip: Array
    start: Array
    queue: Array
    levels: Array
    ptr: Array
    stored: Array
    stored_ptr: Array
    turned: Array


class _Chip(NamedTuple):
    """What lies on chip while a script is written.

    Attributes:
        held: [rows + 1, or edges] of each its place, 0 for none; and of rows, in units of USE, how
            often levels that are still to be written read each; of rows in memory, only levels
            whose children have places count. The last is for edges without a place.
        holder: [places] whose each was last.
        free, pending: stacks of places; others may still read the pending ones.
        counts: [3] FREE and PENDING: of the stacks; LOST: above 0 when a row has lost its place, or
            was not given one.
        wanted: rows, or edges, that are to be taken from memory.
    """

    held: Array
    holder: Array
    free: Array
    pending: Array
    counts: Array
    wanted: Array


class _Out(NamedTuple):
    """The words that are written.

    Attributes:
        words: int32 [*, 4]; flat: the same, int32 [*].
        state: [6] AT: words so far; BEGIN, PIECE_AT: where the script and its piece begin; LINK:
            the word that says how long the piece is, NONE for the first; LENGTH: of the first;
            FULL: above 0 when there was no room, so that words are written over others.
    """

    words: Array
    flat: Array
    state: Array


class _Work(NamedTuple):
    """All that is read and written while scripts are."""

    facts: CellFacts
    batch: CellBatch
    plan: _Plan
    chip: _Chip
    out: _Out


@compiled
def write_cells(
    facts: CellFacts, batch: CellBatch, groups: Groups, room: Array
) -> tuple[int, Array, bool]:
    """Write the scripts of all groups on all sides that run cells.

    Args:
        room: bytes, at whose beginning they are written.
    Returns: how many words there are, or as a negative number for how many there should be room,
        where there is too little; int32 [sides, groups, 2] where each script begins, and how many
        words its first piece has; whether the batch fits cells: else nothing is written.
    """
    sides, number = len(facts.sides), groups.number
    sections = np.zeros((sides, number, 2), np.int32)
    words, places, most, slots, fits = len(room) // WORD, 1, 1, EDGES_A_ROW, True
    for t in range(len(batch.table)):
        if facts.side_of[batch.table[t, 0]] >= 0:
            fits = fits and _fits(facts, batch, t)
            slots = max(slots, facts.slots_of[batch.table[t, 0]])
    if not fits or words < PIECE:
        return -PIECE * int(fits), sections, fits
    for s in range(sides):
        places = max(places, facts.sides[s, STATE_PLACES], facts.sides[s, EDGE_PLACES])
        most = max(most, facts.sides[s, ROWS])
    rows, edges = len(batch.edge_ptr) - 1, len(batch.child_row)
    plan = _Plan(
        np.empty(rows + 1, np.int32),
        np.empty(rows + 1, np.int32),
        np.empty(rows + 1, np.int32),
        np.empty(edges, np.int32),
        np.empty(groups.graph_ptr[-1], np.int32),
        np.empty(rows + 1, np.int32),
        np.empty((rows, 5), np.int32),
        np.zeros(number + 1, np.int64),
        np.empty(edges + 1, np.int32),
        np.zeros(rows + 1, np.int32),
        np.empty(len(facts.side_of), np.int64),
    )
    chip = _Chip(
        np.empty(max(rows + 1, edges), np.int32),
        np.full(places, NONE, np.int32),
        np.empty(places + 1, np.int32),
        np.empty(places, np.int32),
        np.zeros(3, np.int64),
        np.empty(max((AHEAD + 1) * most * slots, MOST_PAIRS + MOST_PARENTS) + 1, np.int32),
    )
    flat = room[: WORD * words].view(np.int32)
    out = _Out(flat.reshape(words, 4), flat, np.zeros(6, np.int64))
    work = _Work(facts, batch, plan, chip, out)
    bounds = bounds_of(groups.graph_ptr, number)
    done = np.zeros(sides, np.bool_)
    for s in range(sides):
        if facts.sides[s, IS_CELL] == 0 or done[s]:
            continue
        (down, outside), tail = _find_starts(work, groups.order, s), 0
        for g in range(number):
            tail = _arrange(work, s, g, bounds, tail, down)
        for other in range(s, sides):
            if done[other] or not _shares(work, s, other):
                continue
            done[other] = True
            chip.held.fill(0)
            if facts.sides[other, BACK] == 0:
                for r in range(rows):
                    chip.held[r] = plan.uses[r] * USE
            for g in range(number):
                _begin_piece(out, out.state[AT])
                out.state[BEGIN], out.state[LINK] = out.state[AT], NONE
                if facts.sides[other, BACK] > 0:
                    _write_back(work, other, g, not down, outside)
                else:
                    _write_forward(work, other, g, down)
                _alone(out, END)
                _end_piece(out, out.state[AT])
                sections[other, g, 0] = out.state[BEGIN]
                sections[other, g, 1] = out.state[LENGTH]
    if out.state[FULL] > 0:
        return -2 * words, sections, True
    return out.state[AT], sections, True


def _fits(facts: CellFacts, batch: CellBatch, launch: int) -> bool:
    """Tell whether the rows of a launch fit words."""
    p, rows, row = batch.table[launch, 0], batch.table[launch, 1], batch.table[launch, 2]
    edge_ptr, parent_ptr, slots = batch.edge_ptr, batch.parent_ptr, facts.slots_of[p]
    side, most_edges, most_parents = facts.side_of[p], 0, 0
    for r in range(row, row + rows):
        most_edges = max(most_edges, edge_ptr[r + 1] - edge_ptr[r])
        most_parents = max(most_parents, parent_ptr[r + 1] - parent_ptr[r])
    fits = slots > 0 or most_edges <= EDGES_A_ROW * facts.sides[side, ROWS]
    if most_parents > 1:
        above, (most_pairs, _) = _above(facts, batch, side), _limits(facts)
        for r in range(row, row + rows):
            own = _end_of_parents(batch, r, above) - parent_ptr[r]
            others = parent_ptr[r + 1] - parent_ptr[r] - own
            fits = fits and own <= max(1, min(MOST_PARENTS, most_pairs))
            fits = fits and others * facts.sides[side, READS_ABOVE] <= 1
    return bool(fits)


def _limits(facts: CellFacts) -> tuple[int, int]:
    """Return what places there are for.

    Returns: edges to parents of a level, all of which have places; rows that wait for others, of
        which the newest are first where there are more.
    """
    pairs, room = MOST_PAIRS, ALL
    for s in range(len(facts.sides)):
        if facts.sides[s, IS_CELL] == 0:
            continue
        places = facts.sides[s, STATE_PLACES]
        if facts.sides[s, BACK] > 0:
            places = facts.sides[s, EDGE_PLACES]
            pairs = min(pairs, places - 1)
        room = min(room, places // 2 - facts.sides[s, ROWS])
    return int(pairs), int(room)


def _above(facts: CellFacts, batch: CellBatch, side: int) -> int:
    """Return the first edge whose parent is of a layer above that of a side; ALL for none."""
    layer, found = facts.sides[side, LAYER], ALL
    if layer >= 0 and len(batch.above_edge) > 0:
        found = int(batch.above_edge[layer])
    return found


def _end_of_parents(batch: CellBatch, row: int, above: int) -> int:
    """Return where the edges to the parents of a row end that are of its own layer."""
    end = batch.parent_ptr[row + 1]
    while end > batch.parent_ptr[row] and batch.parent_edge[end - 1] >= above:
        end -= 1
    return int(end)


# Levels.


def _find_starts(work: _Work, order: Array, side: int) -> tuple[bool, int]:
    """Note how rows of a side depend on each other, and with which rows levels begin.

    Returns: whether these are the rows that no row of the side reads; else those that read none.
        What there is less of comes first, since then the last levels are full. And how many edges
        have a child on the side, and a parent of the layer that is not.
    """
    facts, batch, plan = work.facts, work.batch, work.plan
    table, edge_ptr, roots, bottoms, outside = batch.table, batch.edge_ptr, 0, 0, 0
    above = _above(facts, batch, side)
    program, uses, waits = plan.program, plan.uses, plan.waits
    rows = len(edge_ptr) - 1
    program.fill(NONE)
    program[rows] = NOWHERE
    uses.fill(0)
    waits.fill(0)
    plan.on_chip.fill(rows)
    plan.start.fill(NONE)
    for t in range(len(table)):
        if facts.side_of[table[t, 0]] == side:
            program[table[t, 2] : table[t, 2] + table[t, 1]] = table[t, 0]
    for r in range(rows):
        if program[r] == NONE:
            for e in range(edge_ptr[r], min(edge_ptr[r + 1], above)):
                child = batch.child_row[e]
                if child >= 0 and program[child] != NONE:
                    plan.on_chip[e] = child
                    outside += 1
            continue
        mask, count = facts.chip_of[program[r]], 0
        for e in range(edge_ptr[r], edge_ptr[r + 1]):
            child = batch.child_row[e]
            own = child if child >= 0 and mask & 1 > 0 else rows
            plan.on_chip[e] = own
            made = int(program[own] >= 0)
            uses[own] += made
            count += made
            mask >>= 1  # all bits stay
        waits[r] = count
        bottoms += int(count == 0)
    for r in range(rows):
        roots += int(program[r] != NONE) * int(uses[r] == 0)
    down = roots < bottoms
    for r in range(rows):
        if program[r] != NONE:
            if down:
                waits[r] = uses[r]
            if waits[r] == 0:
                plan.start[order[r]] = r
    return bool(down), outside


def _arrange(work: _Work, side: int, group: int, bounds: Array, tail: int, down: bool) -> int:
    """Put the rows of a group in levels, from the roots down or from the bottom up.

    A level takes rows of one program that wait for none. Another graph begins when there are fewer
    of these than a level takes: so levels are full, and few rows lie on chip at once.

    Args:
        bounds: [groups + 1] of the vertices of groups; tail: where the queue ends; down: of
            `_find_starts`.
    Returns: where it ends now.
    """
    facts, batch, plan = work.facts, work.batch, work.plan
    parent_ptr, edge_ptr, queue, levels = batch.parent_ptr, batch.edge_ptr, plan.queue, plan.levels
    waits, on_chip, program = plan.waits, plan.on_chip, plan.program
    stored = plan.stored_ptr[plan.ptr[group]]
    most_pairs, room = _limits(facts)
    head, count, most = tail, plan.ptr[group], facts.sides[side, ROWS]
    vertex, end, p, kinds = bounds[group], bounds[group + 1], 0, 0
    for k in range(len(facts.side_of)):
        if facts.side_of[k] == side:
            p = k
            kinds += 1
    ready = np.zeros(len(facts.side_of), np.int64)
    while True:
        while vertex < end and ready[p] < most:
            r = plan.start[vertex]
            vertex += 1
            if r != NONE:
                queue[tail] = r
                tail += 1
                ready[program[r]] += 1
                if ready[program[r]] > ready[p]:
                    p = program[r]
        if head == tail:
            break
        if ready[p] < min(most, tail - head):  # no level is full
            chosen = queue[head]
            for k in range(head + 1, tail):
                chosen = max(chosen, queue[k]) if down else min(chosen, queue[k])
            p = program[chosen]
        begin, until, at, on, children, pairs = head, tail, head, 1, 0, 0
        slots_of = facts.slots_of[p]
        if tail - head > room:  # the newest first, since what they leave is over sooner
            at, on = tail - 1, -1
        while head <= at and at < until and head - begin < most:
            r = queue[at]
            at += on
            if program[r] != p:
                continue
            edges, parents = edge_ptr[r + 1] - edge_ptr[r], parent_ptr[r + 1] - parent_ptr[r]
            slots = slots_of if slots_of > 0 else edges
            full = children + slots > max(slots_of, EDGES_A_ROW) * most
            if head > begin and (full or pairs + parents > most_pairs):
                break
            children += slots
            pairs += parents
            queue[at - on] = queue[head]
            queue[head] = r
            head += 1
            for e in range(edge_ptr[r], edge_ptr[r + 1]):
                child = on_chip[e]
                plan.stored[stored] = child
                stored += int(program[child] == NONE)
                if down:
                    left = waits[child] - 1
                    waits[child] = left
                    queue[tail] = child
                    tail += int(left == 0)
            if not down:
                for q in range(parent_ptr[r], parent_ptr[r + 1]):
                    e = batch.parent_edge[q]
                    other, made = batch.edge_row[e], int(on_chip[e] == r)
                    left = waits[other] - made
                    waits[other] = left
                    queue[tail] = other
                    tail += made * int(left == 0)
        levels[count, PROGRAM], levels[count, FIRST], levels[count, COUNT] = p, begin, head - begin
        levels[count, CHILDREN], levels[count, PARENTS] = children, pairs
        count += 1
        plan.stored_ptr[count] = stored
        ready[p] -= head - begin
        if kinds == 1:
            ready[p] = tail - head
        else:
            for k in range(until, tail):
                ready[program[queue[k]]] += 1
            for k in range(len(ready)):
                if ready[k] > ready[p]:
                    p = k
    plan.ptr[group + 1] = count
    return int(tail)


def _shares(work: _Work, side: int, other: int) -> bool:
    """Tell whether another side has the same rows and children as the one that is arranged.

    If so, `turned` has its programs. Of two forward sides each changes `uses`.
    """
    facts, table, plan, same, rows = work.facts, work.batch.table, work.plan, True, 0
    if side != other:
        same = facts.sides[other, IS_CELL] > 0 and facts.sides[other, BACK] > 0
        same = same and facts.sides[other, ROWS] == facts.sides[side, ROWS]
    plan.turned.fill(NONE)
    for t in range(len(table)):
        p, first, end = table[t, 0], table[t, 2], table[t, 2] + table[t, 1]
        if facts.side_of[p] == side:
            rows += end - first
        if facts.side_of[p] == other and same:
            rows -= end - first
            of = plan.program[first]
            for r in range(first, end):
                same &= plan.program[r] == of
            same = same and of != NONE
            if same and plan.turned[of] == NONE:
                for k in range(len(plan.turned)):  # where kinds are one here, levels are fuller
                    same = same and plan.turned[k] != p
                plan.turned[of] = p
            same = same and plan.turned[of] == p and facts.chip_of[of] == facts.chip_of[p]
            same = same and facts.slots_of[of] == facts.slots_of[p]
    return same and rows == 0


# Words.


def _word(out: _Out, at: int, x: int, y: int, z: int, w: int) -> None:
    out.words[at, 0], out.words[at, 1], out.words[at, 2], out.words[at, 3] = x, y, z, w


def _pair(out: _Out, at: int, of: int, place: int) -> None:
    out.flat[at], out.flat[at + 1] = of, place


def _room_for(out: _Out, n: int) -> int:
    """Return where so many words go, in a new piece where this one has no room for them."""
    state = out.state
    if state[AT] + n + 1 - state[PIECE_AT] > PIECE:
        at = state[AT]
        _word(out, at, NEXT, at + 1 - state[BEGIN], 0, 0)
        _end_piece(out, at + 1)
        state[LINK] = at
        _begin_piece(out, at + 1)
    return int(state[AT])


def _alone(out: _Out, op: int) -> None:
    """Write an instruction of one word."""
    at = _room_for(out, 1)
    _word(out, at, op, 0, 0, 0)
    out.state[AT] = at + 1


def _begin_piece(out: _Out, at: int) -> None:
    """Begin a piece at a word, where there is room for a whole one."""
    if at + PIECE > len(out.words):
        at, out.state[FULL] = 0, 1
    out.state[AT], out.state[PIECE_AT] = at, at


def _end_piece(out: _Out, end: int) -> None:
    """Say how long the piece is that ends here."""
    length = end - out.state[PIECE_AT]
    if out.state[LINK] == NONE:
        out.state[LENGTH] = length
    else:
        out.words[out.state[LINK], 2] = length


def _end_level(
    work: _Work, side: int, p: int, at: int, last: int, counts: int, children: int, pairs: int
) -> int:
    """Write the first words of a level, behind which its rows and pairs are.

    If it is the same as the last one on other rows, that is repeated in its place. What must hold
    is what `next` of cell.cuh does: of each row one child at most has a place; rows, children and
    edges are equally far from those before, and the two places of each row take turns.

    Args:
        p: its program; at: its first word; last: that of the level before, NONE where another
            instruction is between them.
        counts: its rows, and those that are sent; children, pairs: of its lists.
    Returns: the first word of the level that the next one may repeat.
    """
    facts, out, rows = work.facts, work.out, counts & 0xFF
    size = 2 + rows + (pairs + 1) // 2
    now = 4 * (at + 2 + rows)
    _pair(out, now + 2 * pairs, 0, 0)  # where the number is odd
    _word(out, at, LEVEL | facts.cell_of[p] << 8, counts | size << 16, 1, 0)
    _word(out, at + 1, 0, 0, children, 0)
    out.state[AT] = at + size
    back, reads_above = facts.sides[side, BACK] > 0, facts.sides[side, READS_ABOVE] > 0
    slots, mask = facts.slots_of[p], facts.chip_of[p]
    words, flat, chain, bits = out.words, out.flat, 0, 0
    for slot in range(slots):
        if (mask >> slot) & 1 > 0:
            chain = slot
            bits += 1
    if last == NONE or bits != 1:
        return at
    if words[last, 0] != words[at, 0] or words[last, 1] != words[at, 1]:
        return at
    times, then = words[last, 2], 4 * (last + 2 + rows)
    rows_on, edges_on = words[at + 2, 0] - words[last + 2, 0], words[at + 2, 2] - words[last + 2, 2]
    children_on, above_on, above = flat[now + 2 * chain] - flat[then + 2 * chain], 0, False
    for k in range(rows):
        x, y, first = last + 2 + k, at + 2 + k, 2 * slots * k
        own, place, child = words[x, 1], words[y, 1], first + 2 * chain + 1
        if words[x, 3] != words[y, 3] or flat[then + child - 1] < 0:
            return at
        if back:
            if words[x, 3] >> 24 != 1:
                return at
            pair = 2 * words[x, 1]
            own, place = flat[then + pair + 1], flat[now + pair + 1]
            if reads_above:
                was, found = flat[then + pair + 2], flat[now + pair + 2]
                if was >= 0 and not above:
                    above, above_on = True, found - was
                if (found < 0) != (was < 0) or (was >= 0 and found - was != above_on):
                    return at
        was, found = flat[then + child], flat[now + child]
        if times % 2 > 0:
            was, own = own, was
        if was != found or own != place or words[y, 0] - words[x, 0] != rows_on:
            return at
        if words[y, 2] - words[x, 2] != edges_on:
            return at
        for slot in range(slots):
            was, found = flat[then + first + 2 * slot], flat[now + first + 2 * slot]
            if (found < 0) != (was < 0) or (was >= 0 and found - was != children_on):
                return at
    if times == 1:
        words[last, 3], words[last + 1, 0] = rows_on, children_on
        words[last + 1, 1], words[last + 1, 3] = edges_on, above_on
    same = rows_on == times * words[last, 3] and children_on == times * words[last + 1, 0]
    same = same and edges_on == times * words[last + 1, 1]
    same = same and above_on == times * words[last + 1, 3]
    if not same:
        return at
    words[last, 2], out.state[AT] = times + 1, at
    return last


# Places.


def _free_all(chip: _Chip, places: int) -> None:
    """Have all places free but place 0."""
    for k in range(1, places):
        chip.pending[k - 1] = k
    chip.counts[LOST] = 0
    _have_met(chip, 0, max(places - 1, 0))


def _have_met(chip: _Chip, free: int, pending: int) -> None:
    """Note that all processors have met: pending places are free.

    What was given up first is on top: so in chains the two places of each row take turns.

    Args:
        free, pending: how many there are.
    """
    for k in range(pending):
        chip.free[free + k] = chip.pending[pending - 1 - k]
    chip.counts[FREE], chip.counts[PENDING] = free + pending, 0


def _make_room(batch: CellBatch, chip: _Chip, n: int, mine: Array, back: bool) -> None:
    """Take places away from rows, or edges, that a level does not read, until there are n."""
    for k in range(1, len(chip.holder)):
        if chip.counts[FREE] + chip.counts[PENDING] >= n:
            return
        holder = chip.holder[k]
        read = holder == NONE or chip.held[holder] & PLACE != k
        for r in mine:
            if back:
                read = read or batch.child_row[holder] == r
            else:
                for e in range(batch.edge_ptr[r], batch.edge_ptr[r + 1]):
                    read = read or batch.child_row[e] == holder
        if not read:
            chip.held[holder] -= k
            chip.pending[chip.counts[PENDING]] = k
            chip.counts[PENDING] += 1
            chip.counts[LOST] = 1


def _fetch(work: _Work, op: int, n: int, mine: Array, now: bool) -> None:
    """Write that all that is wanted is taken from memory, to places that are free or made so.

    Args:
        op: TAKE or LEAVE; n: how many are wanted, which have PLACE in place of one; mine: the rows
            of the level; now: they are there at once.
    """
    chip, out = work.chip, work.out
    _make_room(work.batch, chip, n, mine, op == LEAVE)
    free, pending = chip.counts[FREE], chip.counts[PENDING]
    at = _room_for(out, 1 + (n + 1) // 2)
    _word(out, at, op, n, int(now), 0)
    for k in range(n):
        of, given = chip.wanted[k], 0
        if pending > 0:
            pending -= 1
            given = chip.pending[pending]
        elif free > 0:
            free -= 1
            given = chip.free[free]
        chip.holder[given] = of
        chip.held[of] += given - PLACE
        _pair(out, 4 * at + 4 + 2 * k, of, given)
    _pair(out, 4 * at + 4 + 2 * n, 0, 0)  # where the number is odd
    chip.counts[FREE], chip.counts[PENDING] = free, pending
    out.state[AT] = at + 1 + (n + 1) // 2


# Sides.


def _write_forward(work: _Work, side: int, group: int, turned: bool) -> None:
    """Write the script of a group on a forward side: places are of rows.

    Args:
        turned: the levels come last to first.
    """
    facts, batch, plan, chip, out = work.facts, work.batch, work.plan, work.chip, work.out
    _free_all(chip, facts.sides[side, STATE_PLACES])
    edge_ptr, child_row, on_chip, held = batch.edge_ptr, batch.child_row, plan.on_chip, chip.held
    wanted, others = chip.wanted, len(edge_ptr) - 1
    levels, queue, most = plan.levels, plan.queue, facts.sides[side, ROWS]
    begin, count = plan.ptr[group], plan.ptr[group + 1] - plan.ptr[group]
    last = NONE  # the word where the last level began, NONE where another instruction follows it
    ahead = 0  # the level whose children from memory come next
    for level in range(count):
        i = begin + (count - 1 - level if turned else level)
        p, first, rows = plan.turned[levels[i, PROGRAM]], levels[i, FIRST], levels[i, COUNT]
        slots, mine, children = facts.slots_of[p], queue[first : first + rows], levels[i, CHILDREN]
        n, near = 0, 0
        while ahead < min(count, level + AHEAD + 1):
            i = begin + (count - 1 - ahead if turned else ahead)
            more, until = plan.stored_ptr[i], plan.stored_ptr[i + 1]
            left = chip.counts[FREE] + chip.counts[PENDING] - most * (ahead - level + 1)
            if more < until and level < ahead and left < n + until - more:
                break
            for k in range(more, until):
                child = plan.stored[k]
                has = held[child] + USE
                missing = int(has & PLACE == 0)
                wanted[n] = child
                held[child] = has + missing * PLACE
                n += missing
            if ahead < level + AHEAD:
                near = n
            ahead += 1
        if n > 0:
            _fetch(work, TAKE, n, mine, near > 0)
            last = NONE
        if chip.counts[LOST] > 0:
            n, there = 0, True
            for r in mine:
                for e in range(edge_ptr[r], edge_ptr[r + 1]):
                    child = on_chip[e]
                    wanted[n] = child
                    if child < others and held[child] & PLACE == 0:
                        held[child] += PLACE
                        n += 1
                        there = there and plan.program[child] < 0
            if not there:  # others have stored them on this side of the path
                _alone(out, MEET)
            if n > 0:
                _fetch(work, TAKE, n, mine, True)
                last = NONE
        at = _room_for(out, 2 + rows + (children + 1) // 2)
        lists, free, pending = 4 * (at + 2 + rows), chip.counts[FREE], chip.counts[PENDING]
        sent, behind, front, back = 0, rows, 0, children
        held[others] = MANY
        for r in mine:  # those with a place come first
            edge, end, found = edge_ptr[r], edge_ptr[r + 1], 0
            edges = slots if slots > 0 else end - edge
            if held[r] > 0 and free > 0:
                free -= 1
                found = chip.free[free]
                chip.holder[found] = r
                k, n = sent, front
                sent += 1
                front += edges
            else:
                behind -= 1
                back -= edges
                k, n = behind, back
                if held[r] > 0:
                    chip.counts[LOST] = 1
            held[r] += found
            _word(out, at + 2 + k, r, found, edge, n | edges << 16)
            for e in range(edge, end):
                child = on_chip[e]
                place, left = held[child] & PLACE, held[child] - USE
                over = int(left < USE)
                held[child] = left - over * place
                chip.pending[pending] = place
                pending += over
                _pair(out, lists + 2 * n, child_row[e], place)
                n += 1
            for _ in range(end - edge, edges):
                _pair(out, lists + 2 * n, NONE, 0)
                n += 1
        chip.counts[FREE], chip.counts[PENDING] = free, pending
        if sent > 0:
            _have_met(chip, free, pending)
        last = _end_level(work, side, p, at, last, rows | sent << 8, children, children)


def _write_back(work: _Work, side: int, group: int, turned: bool, outside: int) -> None:
    """Write the script of a group on a backward side: places are of edges, see `_write_forward`.

    Args:
        outside: how many edges are left in memory by parents that are not of the side.
    """
    facts, batch, plan, chip, out = work.facts, work.batch, work.plan, work.chip, work.out
    _free_all(chip, facts.sides[side, EDGE_PLACES])
    chip.counts[LOST] = outside
    edge_ptr, parent_ptr, parent_edge = batch.edge_ptr, batch.parent_ptr, batch.parent_edge
    held, levels, queue = chip.held, plan.levels, plan.queue
    above, reads_above = _above(facts, batch, side), facts.sides[side, READS_ABOVE] > 0
    begin, count, last = plan.ptr[group], plan.ptr[group + 1] - plan.ptr[group], NONE
    for level in range(count):
        i = begin + (count - 1 - level if turned else level)
        p, first, rows = plan.turned[levels[i, PROGRAM]], levels[i, FIRST], levels[i, COUNT]
        mine, slots, n = queue[first : first + rows], facts.slots_of[p], 0
        if chip.counts[LOST] > 0:
            for r in mine:
                for q in range(parent_ptr[r], _end_of_parents(batch, r, above)):
                    e = parent_edge[q]
                    chip.wanted[n] = e
                    if plan.on_chip[e] == r and held[e] == 0:
                        held[e] = PLACE
                        n += 1
            if n > 0:
                _fetch(work, LEAVE, n, mine, False)
                last = NONE
        children, parents = levels[i, CHILDREN], levels[i, PARENTS]
        at = _room_for(out, 2 + rows + (children + parents + rows * int(reads_above) + 1) // 2)
        lists, n, m = 4 * (at + 2 + rows), 0, children
        free, pending, lost = chip.counts[FREE], chip.counts[PENDING], 0
        for k in range(rows):
            r = mine[k]
            edge, until, end = edge_ptr[r], edge_ptr[r + 1], _end_of_parents(batch, r, above)
            edges = slots if slots > 0 else until - edge
            lengths = edges << 16 | (end - parent_ptr[r]) << 24
            _word(out, at + 2 + k, r, m, edge, n | lengths)
            for e in range(edge, until):
                made = int(plan.program[plan.on_chip[e]] >= 0)
                given = min(made, free)
                lost += made - given
                free -= given
                found = given * chip.free[free]
                chip.holder[found] = e
                held[e] = found
                _pair(out, lists + 2 * n, batch.child_row[e], found)
                n += 1
            for _ in range(until - edge, edges):
                _pair(out, lists + 2 * n, NONE, 0)
                n += 1
            for q in range(parent_ptr[r], end):
                # An edge in a slot that its parent does not read has none: zeros are read.
                e = parent_edge[q]
                found = held[e]
                _pair(out, lists + 2 * m, e, found)
                chip.pending[pending] = found
                pending += int(found > 0)
                held[e] = 0
                m += 1
            if reads_above:
                e = parent_edge[end] if end < parent_ptr[r + 1] else NONE
                _pair(out, lists + 2 * m, e, 0)
                m += 1
        chip.counts[LOST] += lost
        _have_met(chip, free, pending)
        last = _end_level(work, side, p, at, last, rows, children, m)
