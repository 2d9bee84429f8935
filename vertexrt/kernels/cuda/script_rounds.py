"""Put the steps that all processors run in rounds: array code, for every minibatch.

Launches of a stage go side by side: a step runs in the first *round* after all that it needs, and
after all that add to the same gradients. A barrier is between two rounds. A phase of the path that
is no cell runs *in turn*: its launches go side by side as far as none reads another's rows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from vertexrt.ir.program import Stage
from vertexrt.kernels.cuda.cuts import (
    APART_AT,
    APART_LAUNCH,
    APART_STEP,
    APART_TEMPORARY,
    is_worth_a_cut,
)
from vertexrt.kernels.cuda.driver import (
    FUNCTION,
    IS_GEMM,
    Grid,
    extent,
)
from vertexrt.kernels.cuda.instruction import (
    ACROSS,
    BEFORE,
    COUNTER,
    DOWN,
    FINISH,
    FOR_ALL,
    START,
)
from vertexrt.kernels.cuda.launch_text import ONE_A_BLOCK
from vertexrt.kernels.layout import PAD
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

NOTHING, WIDE, ALL = range(3)  # of a stage that the kernel does not run
IN_KERNEL, AFTER_IT = range(2)  # where a step runs
PATH, PATH_BACKWARD = int(Stage.PATH), int(Stage.PATH_BACKWARD)


class Facts(NamedTuple):
    """What scripts of a function are written from, whatever the minibatch.

    Attributes:
        stages, phases: [programs], the phases by their places.
        sides: [programs] on which side of the path groups run it; -1 for what all processors run.
        forward: how many sides are forward, the first ones.
        steps_ptr, steps: of `driver.launch`; a function is a number of a script.
        products: of `encode_products`: the steps that are products.
        alone: [steps] which may be kernels of their own, see `cuts`.
        adds, counters: [steps] see `Kernel`.
        adds_ptr, added: CSR of the gradients that each step adds to.
        scratch: [programs, 3] elements of temporaries.
    """

    stages: Array
    phases: Array
    sides: Array
    forward: int
    steps_ptr: Array
    steps: Array
    products: Array
    alone: Array
    adds: Array
    counters: Array
    adds_ptr: Array
    added: Array
    scratch: Array


class Launched(NamedTuple):
    """The launches that scripts stand for.

    Attributes:
        table: as `kernels.layout` describes.
        lookup_ptr, lookup_at: of `driver.launch`.
        rows: of launches that take a list.
        edge_ptr, every_ptr, child_row: of the schedule.
        gradients: how many there are.
        clips, updates: whether the step ends with a norm, and with an update.
        wide: processors of a device that makes wide products apart, see `cuts`; 0 for no device.
    """

    table: Array
    lookup_ptr: Array
    lookup_at: Array
    rows: Array
    edge_ptr: Array
    every_ptr: Array
    child_row: Array
    gradients: int
    clips: bool
    updates: bool
    wide: int


class Drafts(NamedTuple):
    """Instructions of a stage before they are put in the order of their rounds.

    Attributes:
        rows: int32 [*, COLUMNS], COUNTER being how many counters each needs; rounds: [*] of each.
        apart: int64 [*, APART_COLUMNS] where each belongs; APART_AT is IN_KERNEL or AFTER_IT.
        last: [gradients] the last round in which something is added to each.
        marks: [rows] the launches that last made each, or read it on the way back.
    """

    rows: Array
    rounds: Array
    apart: Array
    last: Array
    marks: Array


def draft_stage(
    launched: Launched, facts: Facts, begin: int, end: int, drafts: Drafts
) -> tuple[int, int]:
    """Find the steps of a stage's launches that are not the groups', and the round of each.

    Args:
        begin, end: launches of the stage.
    Returns: how many there are; elements of temporaries.
    """
    table, scratch = launched.table, facts.scratch
    found, most, first, at = 0, 0, 0, begin
    while at < end:
        until = _end_together(launched, facts, at, end, drafts.marks)
        used, apart = 0, what_is_apart(launched, facts, at, until)
        before = found
        for t in range(at, until):
            p, n, m = table[t, 0], table[t, 1], table[t, 4]
            if facts.sides[p] >= 0:
                continue
            found = _draft_launch(launched, facts, (t, apart, first), (used, found), drafts)
            used += (
                scratch[p, 0] * ((n + PAD - 1) // PAD * PAD)
                + scratch[p, 1] * ((m + PAD - 1) // PAD * PAD)
                + scratch[p, 2]
                + PAD - 1
            ) // PAD * PAD  # fmt: skip
        for k in range(before, found):
            first = max(first, drafts.rounds[k] + 1)
        most, at = max(most, used), until
    return found, most


def _end_together(launched: Launched, facts: Facts, begin: int, end: int, marks: Array) -> int:
    """Return the end of the launches from `begin` on that need nothing of each other.

    On the path, a launch needs those that make its rows' children; on the way back, its parents.
    """
    stage = facts.stages[launched.table[begin, 0]]
    if stage != PATH and stage != PATH_BACKWARD:
        return end
    for t in range(begin, end):
        row = launched.table[t]
        if facts.sides[row[0]] >= 0:
            continue
        back = stage == PATH_BACKWARD
        for k in range(row[1]):
            r = row[2] + k if row[2] >= 0 else launched.rows[row[3] + k]
            if back and marks[r] == begin:
                return t
            for pointers in (launched.edge_ptr, launched.every_ptr):
                for e in range(pointers[r], pointers[r + 1]):
                    child = launched.child_row[e]
                    if not back and child >= 0 and marks[child] == begin:
                        return t
        _mark(launched, t, back, begin, marks)
    return end


def _mark(launched: Launched, t: int, back: bool, number: int, marks: Array) -> None:
    """Mark the rows of a launch or, on the way back, their children."""
    row = launched.table[t]
    for k in range(row[1]):
        r = row[2] + k if row[2] >= 0 else launched.rows[row[3] + k]
        if not back:
            marks[r] = number
            continue
        for pointers in (launched.edge_ptr, launched.every_ptr):
            for e in range(pointers[r], pointers[r + 1]):
                if launched.child_row[e] >= 0:
                    marks[launched.child_row[e]] = number


def what_is_apart(launched: Launched, facts: Facts, begin: int, end: int) -> int:
    """Tell what the kernel does not run of a stage: NOTHING, WIDE products, or ALL.

    Where it does not run a product, nor does it run the rest of the stage, if all of it stands
    alone: another launch would cost more.

    Args:
        begin, end: launches of the stage.
    """
    if launched.wide == 0:
        return NOTHING
    bound, worth = 0, 0
    for t in range(begin, end):
        p = launched.table[t, 0]
        if facts.sides[p] < 0:
            for s in range(facts.steps_ptr[p], facts.steps_ptr[p + 1]):
                bound += 1 - int(facts.alone[s])
                worth += int(_is_worth_a_cut(launched, facts, t, s))
    if worth == 0:
        return NOTHING
    return WIDE if bound else ALL


def _is_worth_a_cut(launched: Launched, facts: Facts, t: int, s: int) -> bool:
    """Tell whether a step of a launch is a product that is faster in a kernel of its own."""
    product = facts.products[s]
    if product[IS_GEMM] == 0:
        return False
    rows = extent(product, launched.table[t], launched.lookup_at, launched.lookup_ptr[t]).across
    return is_worth_a_cut(product, rows, launched.wide)


def _draft_launch(
    launched: Launched,
    facts: Facts,
    which: tuple[int, int, int],
    there: tuple[int, int],
    drafts: Drafts,
) -> int:
    """Find the steps of a launch, and the round of each.

    Args:
        which: the launch, what is apart of its stage, and its first round.
        there: elements of temporaries, and steps, of launches before it.
    Returns: how many steps there are then.
    """
    t, apart, first = which
    used, found = there
    row, lookup = launched.table[t], launched.lookup_ptr[t]
    after = first  # the first round after what was made
    for s in range(facts.steps_ptr[row[0]], facts.steps_ptr[row[0] + 1]):
        step = facts.steps[s]
        grid = extent(step, row, launched.lookup_at, lookup)
        if grid.across == 0:
            continue
        place = drafts.apart[found]
        place[APART_AT] = _where(launched, facts, (t, apart), s)
        place[APART_LAUNCH], place[APART_STEP], place[APART_TEMPORARY] = t, s, used
        turn = _take_turn(facts.added, facts.adds_ptr[s], facts.adds_ptr[s + 1], after, drafts.last)
        if not facts.adds[s]:
            after = turn + 1
        drafts.rounds[found] = turn
        _write_step(drafts.rows[found], step, row, grid, used)
        drafts.rows[found, COUNTER] = counters_of(facts.counters[s], grid)
        found += 1
    return found


def counters_of(counters: int, grid: Grid) -> int:
    """Return how many counters the blocks of a step need."""
    return grid.across * grid.down if counters == ONE_A_BLOCK else counters


def _where(launched: Launched, facts: Facts, which: tuple[int, int], s: int) -> int:
    """Return where a step runs: IN_KERNEL or AFTER_IT.

    Args:
        which: the launch, and what is apart of its stage; s: the step.
    """
    t, apart = which
    leaves = apart == ALL or (apart == WIDE and _is_worth_a_cut(launched, facts, t, s))
    return AFTER_IT if leaves else IN_KERNEL


def _write_step(to: Array, step: Array, row: Array, grid: Grid, used: int) -> None:
    """Write an instruction, but for its counters.

    Args:
        row: of the launch table; used: elements of temporaries before those of the launch.
    """
    p, n, lo, at, m, elo = row
    to[OP], to[PROGRAM], to[TEMPORARY] = step[FUNCTION], p, used
    to[ROWS], to[FIRST], to[LISTED] = n, lo, at
    to[EDGES], to[FIRST_EDGE] = m, elo
    to[START] = grid.first
    to[ACROSS], to[DOWN] = grid.across, grid.down


def _take_turn(added: Array, begin: int, end: int, turn: int, last: Array) -> int:
    """Return the first round from `turn` on in which no launch adds to the same gradients.

    Args:
        added: of `Facts`; a step's own are those from `begin` to `end`.
        last: of `Drafts`; gets that round.
    """
    for k in range(begin, end):
        turn = max(turn, last[added[k]] + 1)
    for k in range(begin, end):
        last[added[k]] = turn
    return turn


def add_rounds(
    script: Array, apart: Array, before: tuple[int, int], drafts: Drafts, found: int
) -> tuple[int, int, int]:
    """Write the steps of a stage round by round; what the kernel does not run ends a round.

    Args:
        apart: int64 [*, APART_COLUMNS] gets what the kernel does not run.
        before: how many instructions there are, and how many that the kernel does not run.
    Returns: how many instructions there are then, and how many that the kernel does not run; the
        most counters that a round needs.
    """
    count, cut = before
    turn, blocks, counters, most = -1, 0, 0, 0
    for k in _in_order(drafts, found):
        row, last = drafts.rows[k], script[max(count - 1, 0), OP]
        fresh = drafts.rounds[k] != turn
        if fresh:
            turn, blocks, counters = drafts.rounds[k], 0, 0
        waits = fresh and count > 0 and last != FINISH
        script[count] = row
        script[count, WAIT] = FOR_ALL if waits else NONE
        script[count, BEFORE], script[count, COUNTER] = blocks, counters
        blocks += row[ACROSS] * row[DOWN]
        counters += row[COUNTER]
        most = max(most, counters)
        if drafts.apart[k, APART_AT] == AFTER_IT:
            apart[cut] = drafts.apart[k]
            apart[cut, APART_AT] = count
            cut += 1
        count += 1
    return count, cut, most


def _in_order(drafts: Drafts, found: int) -> Array:
    """Return the numbers of steps by their rounds; what the kernel does not run ends a round."""
    highest = -1
    for k in range(found):
        highest = max(highest, drafts.rounds[k])
    first, order = np.zeros(2 * highest + 4, np.int64), np.empty(found, np.int64)
    for k in range(found):
        first[2 * drafts.rounds[k] + drafts.apart[k, APART_AT] + 1] += 1
    for place in range(1, 2 * highest + 3):
        first[place] += first[place - 1]
    for k in range(found):
        place = 2 * drafts.rounds[k] + drafts.apart[k, APART_AT]
        order[first[place]] = k
        first[place] += 1
    return order
