"""Write the scripts of cells: array code, for every minibatch.

A group follows one script on each side of the path (`cell.cuh` has its words). Its levels are the
launches of the side, a few rows of the group at a time. This module says which rows lie in which
place on chip, when states are taken from memory, and which levels are repeated.

A place is used again when the last reader of its row is over: for what the group sends itself at
once, for what others send after the next meeting, since only then all have read it. Where there is
no place left, a row is not sent, or the place of a row is taken away: all that lies on chip is in
memory too, and is taken from there when it is wanted.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from vertexrt.native.compiled import compiled
from vertexrt.script.groups import Groups, bounds_of

Array = np.ndarray[Any, Any]

END, LEVEL, TAKE, LEAVE, MEET, NEXT = range(6)  # `CellOp` of cell.cuh
MOST_ROWS, PIECE, AHEAD = 8, 1024, 3
EDGES_A_ROW = 4  # of a level whose rows have lists of children
ALL = 1 << 62
MOST_PARENTS = 127  # of a row
MOST_PAIRS = 512  # of edges to parents, after which a level takes no more rows
NONE = -1
FREE, PENDING, USED = range(3)  # places: `PENDING` ones may still be read by other processors
# Columns of what is known of a side.
IS_CELL, BACK, STATE_PLACES, EDGE_PLACES, ROWS, LAYER, READS_ABOVE = range(7)


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


class _Levels(NamedTuple):
    """The levels of a group on a side.

    Attributes:
        program, first, rows: of each its program, where its rows begin among `listed`, and how
            many there are.
        chip: of each, the slots of children that have places.
        listed: [rows] of all levels.
        above: [1] the first edge whose parent is of a layer above.
    """

    program: Array
    first: Array
    rows: Array
    chip: Array
    listed: Array
    above: Array


class _Waiting(NamedTuple):
    """Rows of a group that wait for others, while levels are arranged.

    Attributes:
        program: [rows] of each, NONE for those of no level.
        waits: [rows] for how many others each waits.
        graph: [rows] of each.
        queue: [rows] those that wait for none, in order; NONE for those that have been taken.
        rows, live: [graphs] rows that have not run, and the places that rows may have at once.
    """

    program: Array
    waits: Array
    graph: Array
    queue: Array
    rows: Array
    live: Array


class _Chip(NamedTuple):
    """What lies on chip while a script is written.

    Attributes:
        place: [rows, or edges] of each its place, NONE for none.
        holder: [places] whose it is, NONE for nobody's.
        flag: [places] FREE, PENDING or USED.
        free: a stack of places, of which some may not be free any more; pending: a stack.
        counts: [3] of the stacks, with places that are free or pending in between.
        was: [rows, or edges] the place that a child of the row (or the parent's edge) had, NONE
            for none: in chains places take turns.
    """

    place: Array
    holder: Array
    flag: Array
    free: Array
    pending: Array
    counts: Array
    was: Array


class _Out(NamedTuple):
    """The words that are written.

    Attributes:
        words: int32 [*, 4]; flat: the same, int32 [*].
        state: [7] words so far; where the script begins, where its piece does, and where the word
            is that says how long the piece is, NONE for the first one; how long that one is; where
            the last states are taken, and where that ends.
    """

    words: Array
    flat: Array
    state: Array


@compiled
def write_cells(facts: CellFacts, batch: CellBatch, groups: Groups) -> tuple[Array, Array, bool]:
    """Write the scripts of all groups on all sides that run cells.

    Returns: int32 [*, 4] words; int32 [sides, groups, 2] where each script begins, and how many
        words its first piece has; whether the batch fits cells: else nothing is written.
    """
    table, edge_ptr, parent_ptr = batch.table, batch.edge_ptr, batch.parent_ptr
    launches, sides, number = len(table), len(facts.sides), groups.number
    first = np.empty((launches, number + 1), np.int64)
    bounds = bounds_of(groups.graph_ptr, number)
    words, levels, most, fits = 8, 1, 1, True
    for t in range(launches):
        if facts.side_of[table[t, 0]] < 0:
            continue
        rows, row = table[t, 1], table[t, 2]
        end, slots = row + rows, facts.slots_of[table[t, 0]]
        parents = parent_ptr[end] - parent_ptr[row]
        side = facts.side_of[table[t, 0]]
        above, edges = _above(facts, batch, side), EDGES_A_ROW * facts.sides[side, ROWS]
        for r in range(row, end):
            children = edge_ptr[r + 1] - edge_ptr[r]
            own = _end_of_parents(batch, r, above) - parent_ptr[r]
            fits = fits and own <= MOST_PARENTS
            if facts.sides[side, READS_ABOVE] > 0:
                fits = fits and parent_ptr[r + 1] - parent_ptr[r] - own <= 1
            fits = fits and (slots > 0 or children <= edges)
            words += 10 + 2 * max(slots, children)
        words += 2 * parents
        for g in range(number):
            first[t, g] = row
            while row < end and groups.order[row] < bounds[g + 1]:
                row += 1
        levels += rows
        first[t, number] = end
    for s in range(sides):
        most = max(most, facts.sides[s, STATE_PLACES], facts.sides[s, EDGE_PLACES])
    words += 4 * sides * number + 4 * levels
    if not fits:
        return np.zeros((1, 4), np.int32), np.zeros((sides, number, 2), np.int32), False
    out = np.zeros((words, 4), np.int32)
    written = _Out(out, out.reshape(-1), np.zeros(7, np.int64))
    sections = np.zeros((sides, number, 2), np.int32)
    rows = len(edge_ptr) - 1
    uses, made = np.zeros(rows, np.int64), np.full(rows, NONE, np.int64)
    chip = _Chip(
        np.full(max(rows, len(batch.child_row)), NONE, np.int64),
        np.full(most, NONE, np.int64),
        np.zeros(most, np.int64),
        np.zeros(most + 2 * rows + 2 * len(batch.child_row), np.int64),
        np.zeros(most, np.int64),
        np.zeros(3, np.int64),
        np.full(max(rows, len(batch.child_row)), NONE, np.int64),
    )
    mine = _Levels(
        np.empty(levels, np.int64),
        np.empty(levels, np.int64),
        np.empty(levels, np.int64),
        np.empty(levels, np.int64),
        np.empty(levels, np.int64),
        np.zeros(1, np.int64),
    )
    graphs = len(groups.graph_ptr) - 1
    waiting = _Waiting(
        np.full(rows, NONE, np.int64),
        np.zeros(rows, np.int64),
        np.zeros(rows, np.int64),
        np.zeros(rows, np.int64),
        np.zeros(graphs, np.int64),
        np.zeros(graphs, np.int64),
    )
    for s in range(sides):
        if facts.sides[s, IS_CELL] == 0:
            continue
        back = facts.sides[s, BACK] > 0
        mine.above[0] = _above(facts, batch, s)
        for g in range(number):
            count = _arrange(facts, batch, groups, s, g, first, waiting, mine)
            for k in range(count):
                for n in range(mine.first[k], mine.first[k] + mine.rows[k]):
                    r = mine.listed[n]
                    made[r] = k
                    for e in range(edge_ptr[r], edge_ptr[r + 1]):
                        child = batch.child_row[e]
                        if child >= 0 and _has_place(mine.chip[k], e - edge_ptr[r]):
                            uses[child] += 1
            places = facts.sides[s, EDGE_PLACES] if back else facts.sides[s, STATE_PLACES]
            for k in range(most):  # of the group before, which has rows of its own
                if chip.holder[k] != NONE:
                    chip.place[chip.holder[k]] = NONE
            chip.holder[:] = NONE
            chip.flag[:] = FREE
            chip.counts[:] = 0
            for k in range(places - 1, 0, -1):
                chip.free[chip.counts[0]] = k
                chip.counts[0] += 1
            chip.counts[1] = max(places - 1, 0)
            written.state[1] = written.state[0]
            written.state[2] = written.state[0]
            written.state[3] = NONE
            if back:
                _write_back(facts, batch, mine, count, chip, made, written)
            else:
                _write_forward(facts, batch, mine, count, chip, made, uses, written)
            at = _take_words(written, 1)
            written.words[at, 0] = END
            sections[s, g, 0] = written.state[1]
            _end_piece(written, written.state[0])
            sections[s, g, 1] = written.state[4]
            for k in range(count):
                for n in range(mine.first[k], mine.first[k] + mine.rows[k]):
                    r = mine.listed[n]
                    made[r] = NONE
                    if not back:
                        chip.was[r] = NONE
                    for e in range(edge_ptr[r], edge_ptr[r + 1]):
                        if back:
                            chip.was[e] = NONE
                        if batch.child_row[e] >= 0:
                            uses[batch.child_row[e]] = 0
    return out[: written.state[0]], sections, True


# Levels of a group.


def _arrange(
    facts: CellFacts,
    batch: CellBatch,
    groups: Groups,
    side: int,
    group: int,
    first: Array,
    w: _Waiting,
    levels: _Levels,
) -> int:
    """Put the rows of a group in levels; return how many levels there are.

    A level takes rows that wait for none, the first ones of one program. Graphs begin when there
    are few of these and places for more, so that levels are full and rows keep their places.

    Args:
        first: [launches, groups + 1] where the rows of each group begin.
    """
    back, most = facts.sides[side, BACK] > 0, facts.sides[side, ROWS]
    edge_ptr, child_row = batch.edge_ptr, batch.child_row
    total, slots = 0, 1
    for t in range(len(batch.table)):
        p = batch.table[t, 0]
        if facts.side_of[p] != side:
            continue
        slots = max(slots, facts.slots_of[p])
        for r in range(first[t, group], first[t, group + 1]):
            w.program[r] = p
            w.waits[r] = 0
            levels.listed[total] = r
            total += 1
    ptr = groups.graph_ptr
    begin, end = len(ptr) - 1, 0
    for k in range(total):
        r = levels.listed[k]
        low, high = 0, len(ptr) - 1
        while high - low > 1:
            middle = (low + high) // 2
            if ptr[middle] <= groups.order[r]:
                low = middle
            else:
                high = middle
        w.graph[r] = low
        begin, end = min(begin, low), max(end, low + 1)
    for graph in range(begin, end):
        w.rows[graph] = 0
        w.live[graph] = 0
    for k in range(total):  # how many wait for each, and each for how many
        r = levels.listed[k]
        w.rows[w.graph[r]] += 1
        below = 0
        for e in range(edge_ptr[r], edge_ptr[r + 1]):
            child = child_row[e]
            if child < 0 or not _has_place(facts.chip_of[w.program[r]], e - edge_ptr[r]):
                continue
            if w.program[child] != NONE:
                below += 1
                if back:
                    w.waits[child] += 1
        if not back:
            w.waits[r] = below
        if below == 0:  # about as many rows are live at once as have nothing below them
            w.live[w.graph[r]] += 1
    places = facts.sides[side, EDGE_PLACES] if back else facts.sides[side, STATE_PLACES]
    room = places - 1 - most * slots * (1 if back else AHEAD + 1)
    roots = np.empty(total, np.int64)  # that wait for none from the start, by graph
    root_ptr = np.zeros(max(end - begin, 0) + 2, np.int64)
    for k in range(total):
        r = levels.listed[k]
        if w.waits[r] == 0:
            root_ptr[w.graph[r] - begin + 2] += 1
    for n in range(2, len(root_ptr)):
        root_ptr[n] += root_ptr[n - 1]
    for k in range(total):
        r = levels.listed[k]
        if w.waits[r] == 0:
            at = w.graph[r] - begin + 1
            roots[root_ptr[at]] = r
            root_ptr[at] += 1
    head, tail, ready, live, done, count, graph = 0, 0, 0, 0, 0, 0, begin
    while done < total:
        while graph < end and (live == 0 or (ready < most and live + w.live[graph] <= room)):
            for n in range(root_ptr[graph - begin], root_ptr[graph - begin + 1]):
                w.queue[tail] = roots[n]
                tail += 1
                ready += 1
            live += w.live[graph]
            graph += 1
        while w.queue[head] == NONE:
            head += 1
        p = w.program[w.queue[head]]
        listed, edges, pairs, n, at = facts.slots_of[p] == 0, 0, 0, 0, head
        until = tail
        levels.program[count], levels.first[count], levels.chip[count] = p, done, facts.chip_of[p]
        while at < until and n < most and pairs < MOST_PAIRS:
            r = w.queue[at]
            at += 1
            if r == NONE or w.program[r] != p:
                continue
            edges += edge_ptr[r + 1] - edge_ptr[r]
            if listed and n > 0 and edges > EDGES_A_ROW * most:
                break
            pairs += batch.parent_ptr[r + 1] - batch.parent_ptr[r]
            levels.listed[done + n] = r
            w.queue[at - 1] = NONE
            n += 1
        levels.rows[count] = n
        for k in range(done, done + n):
            r = levels.listed[k]
            w.rows[w.graph[r]] -= 1
            if w.rows[w.graph[r]] == 0:
                live -= w.live[w.graph[r]]
            if back:
                for e in range(edge_ptr[r], edge_ptr[r + 1]):
                    child = child_row[e]
                    if child < 0 or not _has_place(facts.chip_of[p], e - edge_ptr[r]):
                        continue
                    if w.program[child] != NONE:
                        w.waits[child] -= 1
                        if w.waits[child] == 0:
                            w.queue[tail] = child
                            tail += 1
                            ready += 1
            else:
                for q in range(batch.parent_ptr[r], batch.parent_ptr[r + 1]):
                    e = batch.parent_edge[q]
                    parent = batch.edge_row[e]
                    of = w.program[parent]
                    if of == NONE or not _has_place(facts.chip_of[of], e - edge_ptr[parent]):
                        continue
                    w.waits[parent] -= 1
                    if w.waits[parent] == 0:
                        w.queue[tail] = parent
                        tail += 1
                        ready += 1
        ready -= n
        done += n
        count += 1
    for k in range(total):
        w.program[levels.listed[k]] = NONE
    return count


def _end_piece(out: _Out, end: int) -> None:
    """Say how long the piece is that ends here."""
    length = end - out.state[2]
    if out.state[3] >= 0:
        out.words[out.state[3], 2] = length
    else:
        out.state[4] = length


def _take_words(out: _Out, n: int) -> int:
    """Return where so many words go, in a new piece where this one has no room for them."""
    state = out.state
    if state[0] + n + 1 - state[2] > PIECE:
        at = state[0]
        out.words[at, 0], out.words[at, 1] = NEXT, at + 1 - state[1]
        _end_piece(out, at + 1)
        state[3] = at
        state[2] = at + 1
        state[0] = at + 1
    found = state[0]
    state[0] = found + n
    return int(found)


def _above(facts: CellFacts, batch: CellBatch, side: int) -> int:
    """Return the first edge whose parent is of a layer above that of a side; ALL for none."""
    layer = facts.sides[side, LAYER]
    found = ALL
    if layer >= 0 and len(batch.above_edge) > 0:
        found = int(batch.above_edge[layer])
    return found


def _end_of_parents(batch: CellBatch, row: int, above: int) -> int:
    """Return where the edges to the parents of a row end that are of its own layer."""
    end = batch.parent_ptr[row + 1]
    while end > batch.parent_ptr[row] and batch.parent_edge[end - 1] >= above:
        end -= 1
    return int(end)


def _has_place(chip: int, slot: int) -> bool:
    """Tell whether the child in a slot has a place on chip."""
    return chip < 0 or (chip >> slot) & 1 > 0


# Places.


def _give_place(chip: _Chip, of: int, sends: bool, wanted: int) -> int:
    """Give a row or an edge a place; NONE where there is none.

    Args:
        sends: others send to it; wanted: the place that it gets if that is free, or NONE.
    """
    found = NONE
    if wanted > 0 and chip.flag[wanted] == FREE:
        found = wanted
    while found == NONE and chip.counts[0] > 0:
        chip.counts[0] -= 1
        k = chip.free[chip.counts[0]]
        if chip.flag[k] == FREE:
            found = k
    if found == NONE and not sends and chip.counts[2] > 0:
        chip.counts[2] -= 1
        found = chip.pending[chip.counts[2]]
    if found != NONE:
        chip.flag[found] = USED
        chip.holder[found] = of
        chip.place[of] = found
        chip.counts[1] -= 1
    return int(found)


def _take_place(chip: _Chip, of: int, pending: bool) -> None:
    """Take the place of a row or an edge away.

    Args:
        pending: other processors may still read it.
    """
    k = chip.place[of]
    chip.place[of] = NONE
    chip.holder[k] = NONE
    chip.counts[1] += 1
    if pending:
        chip.flag[k] = PENDING
        chip.pending[chip.counts[2]] = k
        chip.counts[2] += 1
    else:
        chip.flag[k] = FREE
        chip.free[chip.counts[0]] = k
        chip.counts[0] += 1


def _have_met(chip: _Chip) -> None:
    """Note that all processors have met: pending places are free."""
    while chip.counts[2] > 0:
        chip.counts[2] -= 1
        k = chip.pending[chip.counts[2]]
        chip.flag[k] = FREE
        chip.free[chip.counts[0]] = k
        chip.counts[0] += 1


# Forward.


def _write_forward(
    facts: CellFacts,
    batch: CellBatch,
    levels: _Levels,
    count: int,
    chip: _Chip,
    made: Array,
    uses: Array,
    out: _Out,
) -> None:
    """Write the script of a group on a forward side."""
    edge_ptr, child_row = batch.edge_ptr, batch.child_row
    taken = 0  # levels whose children from memory have places
    last = NONE  # the word where the last level began, NONE where another instruction follows it
    order = np.empty(MOST_ROWS, np.int64)
    missing = np.empty(MOST_ROWS * 256, np.int64)
    # Of rows from memory, how often the levels read them whose children have places: such a row may
    # have many parents, and leaves when no level reads it soon.
    held = np.zeros(len(edge_ptr) - 1, np.int64)
    for i in range(count):
        p, rows = levels.program[i], levels.rows[i]
        mine = levels.listed[levels.first[i] : levels.first[i] + rows]
        ahead = taken
        while ahead < count and ahead <= i + AHEAD:
            n = _missing(levels, edge_ptr, child_row, chip, made, ahead, ahead == i, missing)
            room = MOST_ROWS * (ahead - i + 1)
            if n > 0 and ahead > i and chip.counts[1] < n + room:
                break
            if n > 0:
                now = ahead < i + AHEAD
                _take_states(batch, levels, chip, made, i, missing[:n], now, out)
                last = NONE
            _hold(batch, levels, made, ahead, held)
            ahead += 1
        taken = ahead
        n = _missing(levels, edge_ptr, child_row, chip, made, i, True, missing)
        if n > 0:  # some that had a place
            _take_states(batch, levels, chip, made, i, missing[:n], True, out)
            last = NONE
        sent, behind = 0, rows
        for r in mine:  # those with a place come first
            found = NONE
            if uses[r] > 0:
                found = _give_place(chip, r, True, _before(chip, batch, r, levels.chip[i]))
            if found == NONE:
                behind -= 1
                order[behind] = r
            else:
                order[sent] = r
                sent += 1
        last = _write_level(facts, batch, levels, chip, p, rows, sent, order, last, out, False)
        for k in range(rows):
            for e in range(edge_ptr[order[k]], edge_ptr[order[k] + 1]):
                child = child_row[e]
                if child >= 0 and _has_place(levels.chip[i], e - edge_ptr[order[k]]):
                    uses[child] -= 1
                    held[child] -= int(made[child] == NONE)
                    over = uses[child] == 0 if made[child] != NONE else held[child] == 0
                    if over and chip.place[child] > 0:
                        chip.was[order[k]] = chip.place[child]
                        _take_place(chip, child, True)
        if sent > 0:
            _have_met(chip)


def _hold(batch: CellBatch, levels: _Levels, made: Array, level: int, held: Array) -> None:
    """Note what a level reads of rows from memory."""
    for n in range(levels.first[level], levels.first[level] + levels.rows[level]):
        r = levels.listed[n]
        for e in range(batch.edge_ptr[r], batch.edge_ptr[r + 1]):
            child = batch.child_row[e]
            inside = child >= 0 and _has_place(levels.chip[level], e - batch.edge_ptr[r])
            if inside and made[child] == NONE:
                held[child] += 1


def _take_states(
    batch: CellBatch,
    levels: _Levels,
    chip: _Chip,
    made: Array,
    level: int,
    missing: Array,
    now: bool,
    out: _Out,
) -> None:
    """Write that states are taken from memory.

    Args:
        level: the next one, whose children stay; now: they are there at once.
    """
    waits = False
    for child in missing:
        waits |= made[child] >= 0
        if chip.counts[1] == 0:
            _evict(levels, batch.edge_ptr, batch.child_row, chip, level)
        _give_place(chip, child, False, NONE)
    if waits:  # others have stored them on this side of the path
        at = _take_words(out, 1)
        out.words[at, 0] = MEET
    at = _take_words(out, 1 + (len(missing) + 1) // 2)
    if now and out.state[6] == at:  # one wait is for both
        out.words[out.state[5], 2] = 0
    out.state[5], out.state[6] = at, out.state[0]
    out.words[at, 0], out.words[at, 1], out.words[at, 2] = TAKE, len(missing), int(now)
    for k in range(len(missing)):
        out.flat[4 * at + 4 + 2 * k] = missing[k]
        out.flat[4 * at + 5 + 2 * k] = chip.place[missing[k]]


def _before(chip: _Chip, batch: CellBatch, row: int, slots: int) -> int:
    """Return the place that a row of a chain is to have: the one that its child's child had."""
    found, several = NONE, False
    for e in range(batch.edge_ptr[row], batch.edge_ptr[row + 1]):
        if batch.child_row[e] >= 0 and _has_place(slots, e - batch.edge_ptr[row]):
            several = found != NONE
            found = int(chip.was[batch.child_row[e]])
    return NONE if several else found


def _missing(
    levels: _Levels,
    edge_ptr: Array,
    child_row: Array,
    chip: _Chip,
    made: Array,
    level: int,
    now: bool,
    found: Array,
) -> int:
    """Find the children of a level that have no place and that no level has still to make.

    Args:
        now: the level comes next: rows that this side has made count, too.
    Returns: how many there are.
    """
    n = 0
    for n_row in range(levels.first[level], levels.first[level] + levels.rows[level]):
        r = levels.listed[n_row]
        for e in range(edge_ptr[r], edge_ptr[r + 1]):
            child = child_row[e]
            wanted = child >= 0 and _has_place(levels.chip[level], e - edge_ptr[r])
            if wanted and chip.place[child] == NONE and (now or made[child] == NONE):
                known = False
                for k in range(n):
                    known |= found[k] == child
                if not known:
                    found[n] = child
                    n += 1
    return n


def _evict(levels: _Levels, edge_ptr: Array, child_row: Array, chip: _Chip, level: int) -> None:
    """Take a place away from a row that a level does not read."""
    for k in range(1, len(chip.holder)):
        holder = chip.holder[k]
        if holder == NONE or chip.counts[1] > 0:
            continue
        read = False
        for n in range(levels.first[level], levels.first[level] + levels.rows[level]):
            r = levels.listed[n]
            for e in range(edge_ptr[r], edge_ptr[r + 1]):
                read |= child_row[e] == holder
        if not read:
            _take_place(chip, holder, True)


# Backward.


def _write_back(
    facts: CellFacts,
    batch: CellBatch,
    levels: _Levels,
    count: int,
    chip: _Chip,
    made: Array,
    out: _Out,
) -> None:
    """Write the script of a group on a backward side: places are of edges."""
    edge_ptr, child_row = batch.edge_ptr, batch.child_row
    last = NONE
    order = np.empty(MOST_ROWS, np.int64)
    above = levels.above[0]
    for i in range(count):
        p, rows = levels.program[i], levels.rows[i]
        mine = levels.listed[levels.first[i] : levels.first[i] + rows]
        missing = 0
        for r in mine:
            for q in range(batch.parent_ptr[r], _end_of_parents(batch, r, above)):
                missing += int(chip.place[batch.parent_edge[q]] == NONE)
        if missing > 0:
            at = _take_words(out, 1 + (missing + 1) // 2)
            out.words[at, 0], out.words[at, 1] = LEAVE, missing
            n = 0
            for r in mine:
                for q in range(batch.parent_ptr[r], _end_of_parents(batch, r, above)):
                    e = batch.parent_edge[q]
                    if chip.place[e] == NONE:
                        if chip.counts[1] == 0:
                            _evict_edge(batch, chip, mine)
                        _give_place(chip, e, False, NONE)
                        out.flat[4 * at + 4 + 2 * n] = e
                        out.flat[4 * at + 5 + 2 * n] = chip.place[e]
                        n += 1
            last = NONE
        for k in range(rows):
            r = mine[k]
            order[k] = r
            for e in range(edge_ptr[r], edge_ptr[r + 1]):
                there = child_row[e] >= 0 and _has_place(levels.chip[i], e - edge_ptr[r])
                if there and made[child_row[e]] >= 0:
                    wanted = NONE
                    if _end_of_parents(batch, r, above) - batch.parent_ptr[r] == 1:
                        wanted = chip.was[batch.parent_edge[batch.parent_ptr[r]]]
                    _give_place(chip, e, False, wanted)
        last = _write_level(facts, batch, levels, chip, p, rows, 0, order, last, out, True)
        for r in mine:
            for q in range(batch.parent_ptr[r], _end_of_parents(batch, r, above)):
                e = batch.parent_edge[q]
                for f in range(edge_ptr[r], edge_ptr[r + 1]):
                    chip.was[f] = chip.place[e]
                _take_place(chip, e, False)


def _evict_edge(batch: CellBatch, chip: _Chip, mine: Array) -> None:
    """Take a place away from an edge that no row of a level reads."""
    for k in range(1, len(chip.holder)):
        holder = chip.holder[k]
        if holder == NONE or chip.counts[1] > 0:
            continue
        read = False
        for r in mine:
            read |= batch.child_row[holder] == r
        if not read:
            _take_place(chip, holder, False)


# Levels.


def _repeats(
    cell: int,
    slots: int,
    mask: int,
    above: int,
    reads_above: bool,
    batch: CellBatch,
    chip: _Chip,
    rows: int,
    sent: int,
    order: Array,
    last: int,
    out: _Out,
    back: bool,
) -> bool:
    """Have the last level repeated, if this one is the same on other rows; return whether it is.

    Of each row one child at most has a place. What must hold is what `next` of cell.cuh does:
    rows, children and edges are equally far from those before, and the two places of each row
    take turns.
    """
    words, flat = out.words, out.flat
    times, chain, bits = words[last, 2], 0, 0
    for slot in range(slots):
        if _has_place(mask, slot):
            chain = slot
            bits += 1
    pairs = slots * rows
    if back:
        pairs += rows * (2 if reads_above else 1)
    if bits != 1 or words[last, 0] != (LEVEL | cell << 8):
        return False
    if words[last, 1] != (rows | sent << 8 | (2 + rows + (pairs + 1) // 2) << 16):
        return False
    lists = 4 * (last + 2 + rows)
    steps = np.zeros(4, np.int64)  # of rows, children, edges, and edges from above
    known = np.zeros(4, np.int64)
    if times > 1:
        steps[0], steps[1] = words[last, 3] * times, words[last + 1, 0] * times
        steps[2], steps[3] = words[last + 1, 1] * times, words[last + 1, 3] * times
        known[:] = 1
    for k in range(rows):
        r = order[k]
        first, word = batch.edge_ptr[r], last + 2 + k
        e, pair = first + chain, lists + 2 * (slots * k + chain)
        if batch.edge_ptr[r + 1] <= e or batch.child_row[e] < 0 or flat[pair] < 0:
            return False
        child = chip.place[batch.child_row[e]]
        here, own = chip.place[r], words[word, 1]  # the places of the row, or of its parent
        parent = lists + 2 * words[word, 1]
        if back:
            end = _end_of_parents(batch, r, above)
            if end - batch.parent_ptr[r] != 1 or words[word, 3] >> 24 != 1:
                return False
            child, here = chip.place[e], chip.place[batch.parent_edge[batch.parent_ptr[r]]]
            own = flat[parent + 1]
            if reads_above:
                now = NONE
                if end < batch.parent_ptr[r + 1]:
                    now = batch.parent_edge[end]
                if not _step(steps, known, 3, now, flat[parent + 2]):
                    return False
        if times % 2 == 0:
            if here != own or child != flat[pair + 1]:
                return False
        elif here != flat[pair + 1] or child != own:
            return False
        if not _step(steps, known, 0, r, words[word, 0]):
            return False
        if not _step(steps, known, 2, first, words[word, 2]):
            return False
        for slot in range(slots):
            now = NONE
            if first + slot < batch.edge_ptr[r + 1]:
                now = batch.child_row[first + slot]
            if not _step(steps, known, 1, now, flat[lists + 2 * (slots * k + slot)]):
                return False
    if times == 1:
        words[last, 3], words[last + 1, 0] = steps[0], steps[1]
        words[last + 1, 1], words[last + 1, 3] = steps[2], steps[3]
    words[last, 2] = times + 1
    return True


def _step(steps: Array, known: Array, of: int, now: int, was: int) -> bool:
    """Tell whether something is as far from where it was as all others; or absent in both."""
    if now < 0 or was < 0:
        return now < 0 and was < 0
    if known[of] == 0:
        known[of] = 1
        steps[of] = now - was
    return bool(now - was == steps[of])


def _write_level(
    facts: CellFacts,
    batch: CellBatch,
    levels: _Levels,
    chip: _Chip,
    program: int,
    rows: int,
    sent: int,
    order: Array,
    last: int,
    out: _Out,
    back: bool,
) -> int:
    """Write a level, or have the last one repeated; return where it begins.

    Args:
        order: its rows; last: where the last level begins, if it may be repeated.
    """
    edge_ptr, parent_ptr, above = batch.edge_ptr, batch.parent_ptr, levels.above[0]
    slots, pairs, mask = facts.slots_of[program], 0, facts.chip_of[program]
    cell, reads_above = facts.cell_of[program], False
    if back:
        reads_above = facts.sides[facts.side_of[program], READS_ABOVE] > 0
    repeats = False
    if slots > 0 and last != NONE:
        repeats = _repeats(
            cell, slots, mask, above, reads_above, batch, chip, rows, sent, order, last, out, back
        )
    if repeats:
        return last
    children = 0
    for k in range(rows):
        r = order[k]
        children += slots if slots > 0 else edge_ptr[r + 1] - edge_ptr[r]
        if back:
            pairs += _end_of_parents(batch, r, above) - parent_ptr[r] + int(reads_above)
    pairs += children
    size = 2 + rows + (pairs + 1) // 2
    at = _take_words(out, size)
    out.words[at, 0] = LEVEL | cell << 8
    out.words[at, 1] = rows | sent << 8 | size << 16
    out.words[at, 2] = 1
    out.words[at + 1, 2] = children
    lists = 4 * (at + 2 + rows)
    n, m = 0, children
    for k in range(rows):
        r = order[k]
        end = _end_of_parents(batch, r, above) if back else parent_ptr[r]
        parents = end - parent_ptr[r]
        edges = slots if slots > 0 else edge_ptr[r + 1] - edge_ptr[r]
        word = at + 2 + k
        out.words[word, 0] = r
        out.words[word, 1] = m if back else max(chip.place[r], 0)
        out.words[word, 2] = edge_ptr[r]
        out.words[word, 3] = n | edges << 16 | parents << 24
        for slot in range(edges):
            e = edge_ptr[r] + slot
            child, place = NONE, 0
            if e < edge_ptr[r + 1]:
                child = batch.child_row[e]
                if child >= 0 and _has_place(mask, slot):
                    place = max(chip.place[e] if back else chip.place[child], 0)
            out.flat[lists + 2 * n], out.flat[lists + 2 * n + 1] = child, place
            n += 1
        for q in range(parent_ptr[r], end):
            e = batch.parent_edge[q]
            out.flat[lists + 2 * m], out.flat[lists + 2 * m + 1] = e, chip.place[e]
            m += 1
        if reads_above:
            e = NONE
            if end < parent_ptr[r + 1]:
                e = batch.parent_edge[end]
            out.flat[lists + 2 * m] = e
            m += 1
    return at
