"""The scheduler of launches: which steps run side by side, and what waits for what.

A step of a launch runs in the first *round* after all that it needs: after the steps of its launch
that made something, and after all that add to the same gradient. Rounds follow each other; within
one, steps run at once. Launches of a stage are independent and begin together. A phase of the path
whose launches are no cells runs *in turn*: they begin together as far as none reads another's rows.

The result is a script, whose rows are those of `instruction.py`. The persistent kernel runs it, and
meets at each wait. A step that is *apart* is launched by the host: where a kernel is cut at wide
products (`cuts.py`), or all of them, on several streams (`streams.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from vertexrt.ir.passes.fuse import TaskProgram
from vertexrt.ir.program import Stage
from vertexrt.kernels.cuda.driver import FUNCTION, IS_GEMM, Grid, extent, sizes_of, splits_of
from vertexrt.kernels.cuda.executable import Uploads
from vertexrt.kernels.cuda.instruction import (
    ACROSS,
    BACKWARD,
    BEFORE,
    CHECK,
    COLUMNS,
    COUNTER,
    DOWN,
    END,
    FINISH,
    FOR_ALL,
    FORWARD,
    LAUNCH,
    SQUARES,
    START,
    STEP,
    UPDATE,
)
from vertexrt.kernels.cuda.launch_text import ONE_A_BLOCK, StepEffects
from vertexrt.kernels.layout import PAD
from vertexrt.native.compiled import compiled
from vertexrt.script.isa import NONE, OP, PROGRAM, ROWS, TEMPORARY, WAIT

Array = np.ndarray[Any, Any]

ALL_APART = -1  # in place of processors of `Launched.wide`: the host launches every step
# Multiplications of a product, for each processor, from which on a cut is worth it.
WORTH = 1_500_000
PATH, LAZY, PATH_BACKWARD = (int(s) for s in (Stage.PATH, Stage.LAZY, Stage.PATH_BACKWARD))


class Facts(NamedTuple):
    """What scripts of a function are written from, whatever the minibatch.

    Attributes:
        stages, phases: [programs], the phases by their places.
        sides: [programs] on which side of the path groups run it; -1 for what all processors run.
        forward: how many sides are forward, the first ones.
        steps_ptr, steps: of `driver.launch`; a function is a number of a script.
        products: of `encode_products`: the steps that are products.
        alone: [steps] which may be kernels of their own, see `cuts`.
        effects: of the steps.
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
    effects: StepEffects
    scratch: Array


def facts_of(
    tasks: Sequence[TaskProgram],
    program: tuple[Array, Array, Array],
    alone: Array,
    of: Uploads,
    sides: Array,
    forward: int = 0,
) -> Facts:
    """Return what scripts of task programs are written from.

    Args:
        program: steps_ptr, steps and products of `Facts`.
    """
    return Facts(
        np.array([int(task.stage) for task in tasks], np.int64),
        np.array([task.phase.place for task in tasks], np.int64),
        sides,
        forward,
        *program,
        alone,
        of.effects,
        np.array(of.scratch, np.int64).reshape(-1, 3),
    )


class Launched(NamedTuple):
    """The launches that scripts stand for.

    Attributes:
        table: as `kernels.layout` describes.
        lookup_ptr, lookup_at: of `driver.launch`.
        rows: of launches that take a list.
        edge_ptr, every_ptr, child_row: of the schedule.
        gradients: how many there are.
        clips, updates: whether the step ends with a norm, and with an update.
        wide: processors of a device that makes wide products apart; 0 for no device; or ALL_APART.
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


@dataclass(slots=True)
class Rounds:
    """Launches in rounds.

    Attributes:
        script: int32 [*, COLUMNS]; apart: int64 [*] the instructions that the host launches.
        elements: of temporaries that a round needs; counters: that it does.
        lookup_ptr, lookup_at, lookups: of `sort_lookups`.
        clips, updates: whether the step ends with a norm, and with an update.
    """

    script: npt.NDArray[np.int32]
    apart: npt.NDArray[np.int64]
    elements: int
    counters: int
    lookup_ptr: npt.NDArray[np.int64]
    lookup_at: npt.NDArray[np.int64]
    lookups: tuple[Array, ...]
    clips: bool
    updates: bool


class Drafts(NamedTuple):
    """Steps that may begin together, before they are put in the order of their rounds.

    Attributes:
        rows: int32 [*, COLUMNS], COUNTER being how many counters each needs.
        places: [*] twice the round of each, and one more where it is apart: that ends a round.
        last: [gradients] the last round in which something is added to each.
        marks: [rows] the launches that last made each, or read it on the way back.
    """

    rows: Array
    places: Array
    last: Array
    marks: Array


@compiled
def write_rounds(launched: Launched, facts: Facts) -> tuple[Array, Array, int, int]:
    """Write the script of launches, in rounds, with the groups' work and the end of the step.

    Returns: int32 [*, COLUMNS]; int64 [*] the instructions that are apart; the elements of
        temporaries that a round needs, and the counters.
    """
    table, launches = launched.table, len(launched.table)
    most = 10 + 2 * launches
    for t in range(launches):
        most += facts.steps_ptr[table[t, 0] + 1] - facts.steps_ptr[table[t, 0]]
    script, apart = np.zeros((most, COLUMNS), np.int32), np.empty(most, np.int64)
    drafts = Drafts(
        np.zeros((most, COLUMNS), np.int32),
        np.empty(most, np.int64),
        np.empty(launched.gradients + 1, np.int64),
        np.full(len(launched.edge_ptr), NONE, np.int64),
    )
    count, cut, temporary, counters, begin, early = 0, 0, 0, 0, 0, False
    while begin < launches:
        now, end, side = facts.stages[table[begin, 0]], begin, -1
        phase = facts.phases[table[begin, 0]]
        while end < launches and facts.phases[table[end, 0]] == phase:
            side = max(side, facts.sides[table[end, 0]])  # some launch is the groups'
            end += 1
        if side >= 0 and now == PATH_BACKWARD:
            count = _add(script, count, BACKWARD, count > 0, side)
        if now > LAZY and launched.updates and not launched.clips and not early:  # loss is known
            count = _add(script, count, FINISH, True)
            early = True
        while begin < end:
            until = _end_together(launched, facts, begin, end, drafts.marks)
            found, elements = _draft(launched, facts, begin, until, drafts)
            count, cut, needed = _add_rounds(script, apart, (count, cut), drafts, found)
            temporary, counters, begin = max(temporary, elements), max(counters, needed), until
        if side >= 0 and now == PATH:
            count = _add(script, count, FORWARD, count > 0, side)
    if launched.updates:
        for op in (SQUARES, FINISH, CHECK, UPDATE):
            if not ((op == SQUARES and not launched.clips) or (op == FINISH and early)):
                count = _add(script, count, op, True)
    count = _add(script, count, END, False)
    return script[:count], apart[:cut], temporary, counters


def _add(script: Array, count: int, op: int, waits: bool, side: int = 0) -> int:
    """Write an instruction that is no step of the function; return how many there are then."""
    script[count, OP], script[count, PROGRAM] = op, side
    script[count, WAIT] = FOR_ALL if waits else NONE
    return count + 1


def _end_together(launched: Launched, facts: Facts, begin: int, end: int, marks: Array) -> int:
    """Return the end of the launches from `begin` on that need nothing of each other.

    On the path, a launch needs those that make its rows' children; on the way back, its parents.
    """
    stage = facts.stages[launched.table[begin, 0]]
    if stage != PATH and stage != PATH_BACKWARD:
        return end
    for t in range(begin, end):
        if facts.sides[launched.table[t, 0]] >= 0:
            continue
        if _visit(launched, t, stage != PATH, begin, marks, False):
            return t
        _visit(launched, t, stage == PATH, begin, marks, True)
    return end


def _visit(launched: Launched, t: int, own: bool, number: int, marks: Array, writes: bool) -> bool:
    """Mark the rows of a launch, or their children; or tell whether some are marked.

    Args:
        own: the rows, else their children; number: the mark; writes: mark them.
    """
    n, lo, at = launched.table[t, 1], launched.table[t, 2], launched.table[t, 3]
    for k in range(n):
        r = lo + k if lo >= 0 else launched.rows[at + k]
        if own:
            if writes:
                marks[r] = number
            elif marks[r] == number:
                return True
            continue
        for pointers in (launched.edge_ptr, launched.every_ptr):
            for e in range(pointers[r], pointers[r + 1]):
                child = launched.child_row[e]
                if child >= 0 and writes:
                    marks[child] = number
                elif child >= 0 and marks[child] == number:
                    return True
    return False


def _draft(
    launched: Launched, facts: Facts, begin: int, end: int, drafts: Drafts
) -> tuple[int, int]:
    """Find the steps of launches that begin together and are not the groups'.

    Where the kernel does not run a product, nor does it run the other steps, if all stand alone:
    another launch would cost more.

    Args:
        begin, end: the launches.
    Returns: how many there are; elements of temporaries.
    """
    table, scratch, effects, found, used = launched.table, facts.scratch, facts.effects, 0, 0
    some, bound = False, False  # steps leave, and are bound to the kernel
    drafts.last[:] = -1
    for t in range(begin, end):
        row, after = table[t], 0
        p, n, m = row[0], row[1], row[4]
        if facts.sides[p] >= 0:
            continue
        for s in range(facts.steps_ptr[p], facts.steps_ptr[p + 1]):
            grid = extent(facts.steps[s], row, launched.lookup_at, launched.lookup_ptr[t])
            if grid.across == 0:
                continue
            turn = after  # the first round after what was made, and what adds to its gradients
            for k in range(effects.ptr[s], effects.ptr[s + 1]):
                turn = max(turn, drafts.last[effects.gradients[k]] + 1)
            for k in range(effects.ptr[s], effects.ptr[s + 1]):
                drafts.last[effects.gradients[k]] = turn
            if not effects.only[s]:
                after = turn + 1
            leaves = _leaves(launched, facts, t, s)
            drafts.places[found] = 2 * turn + int(leaves)
            some |= leaves
            bound |= not facts.alone[s]
            to = drafts.rows[found]
            to[OP], to[PROGRAM], to[TEMPORARY] = facts.steps[s, FUNCTION], p, used
            to[ROWS : ROWS + 5] = row[1:]
            to[START], to[ACROSS], to[DOWN] = grid.first, grid.across, grid.down
            to[COUNTER], to[LAUNCH], to[STEP] = counters_of(effects.counters[s], grid), t, s
            found += 1
        used += (
            scratch[p, 0] * ((n + PAD - 1) // PAD * PAD)
            + scratch[p, 1] * ((m + PAD - 1) // PAD * PAD)
            + scratch[p, 2]
            + PAD - 1
        ) // PAD * PAD  # fmt: skip
    if some and not bound:
        for k in range(found):
            drafts.places[k] |= 1
    return found, used


def counters_of(counters: int, grid: Grid) -> int:
    """Return how many counters the blocks of a step need."""
    return grid.across * grid.down if counters == ONE_A_BLOCK else counters


def _leaves(launched: Launched, facts: Facts, t: int, s: int) -> bool:
    """Tell whether the host launches a step: a product that is faster in a kernel of its own."""
    product = facts.products[s]
    if launched.wide <= 0 or product[IS_GEMM] == 0:
        return launched.wide == ALL_APART
    row, lookup = launched.table[t], launched.lookup_ptr[t]
    m, n, k = sizes_of(product, extent(product, row, launched.lookup_at, lookup).across)
    worth = m * n * k >= WORTH * launched.wide
    return bool(worth and splits_of(m, n, k, launched.wide) > 0)


def _add_rounds(
    script: Array, apart: Array, before: tuple[int, int], drafts: Drafts, found: int
) -> tuple[int, int, int]:
    """Write steps round by round.

    Args:
        apart: gets the instructions that are.
        before: how many instructions there are, and how many that are apart.
    Returns: how many there are then of both; the most counters that a round needs.
    """
    count, cut = before
    turn, blocks, counters, most = -1, 0, 0, 0
    for k in _in_order(drafts.places[:found]):
        row, place, last = drafts.rows[k], drafts.places[k], script[max(count - 1, 0), OP]
        fresh = place // 2 != turn
        if fresh:
            turn, blocks, counters = place // 2, 0, 0
        script[count] = row
        script[count, WAIT] = FOR_ALL if fresh and count > 0 and last != FINISH else NONE
        script[count, BEFORE], script[count, COUNTER] = blocks, counters
        blocks += row[ACROSS] * row[DOWN]
        counters += row[COUNTER]
        most = max(most, counters)
        if place % 2:
            apart[cut] = count
            cut += 1
        count += 1
    return count, cut, most


def _in_order(places: Array) -> Array:
    """Return the numbers of steps by their places."""
    highest = 0
    for place in places:
        highest = max(highest, place)
    first, order = np.zeros(highest + 2, np.int64), np.empty(len(places), np.int64)
    for place in places:
        first[place + 1] += 1
    for k in range(1, highest + 2):
        first[k] += first[k - 1]
    for k in range(len(places)):
        order[first[places[k]]] = k
        first[places[k]] += 1
    return order


def launched_steps(
    table: Array, program: tuple[Array, ...], lookups: tuple[Array, ...]
) -> Iterator[tuple[int, int, Grid]]:
    """List what launches of a table launch: number of the launch, of the step, and how much of it.

    Args:
        program: steps_ptr and steps; lookups: lookup_ptr and lookup_at, of `driver.launch`.
    """
    steps_ptr, steps = program[:2]
    for t, row in enumerate(table):
        for s in range(steps_ptr[row[0]], steps_ptr[row[0] + 1]):
            grid = extent(steps[s], row, lookups[1], int(lookups[0][t]))
            if grid.across:
                yield t, s, grid
