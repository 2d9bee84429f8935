"""Which stream each step of a launch has, and what it waits for; and a verifier.

Each step goes on with the stream of the last one that it needs, where that is the stream's last;
else it takes the stream that is idle soonest. It waits by events for what it needs of others.

A launch needs the last one before it that made something of a row that it touches: of its own, of
children that it gathers, of parents. Whatever else it reads of a row was made earlier still, since
that launch needed it too. Steps that add to a gradient, launches that have temporaries of a stream,
and those that write to a buffer where another tensor was run after all that did before. What a
stream has waited for holds for all that it does later, and for what waits for that; so most waits
are left out. The verifier finds anew what steps need (`dependences`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, NoReturn, cast

import numpy as np
import numpy.typing as npt

from vertexrt.engine.batched import Run
from vertexrt.engine.variant import Variant
from vertexrt.errors import PlanError
from vertexrt.kernels.cuda.dependences import LaunchedSteps, first_conflict, launched_steps
from vertexrt.kernels.cuda.driver import extent
from vertexrt.kernels.cuda.executable import CudaExecutable
from vertexrt.kernels.cuda.steps import StepEffects
from vertexrt.kernels.task_tensors import tensor_uses
from vertexrt.native.compiled import compiled
from vertexrt.script.verify import REPORT

Array = np.ndarray[Any, Any]

STEPS, USED, EVENTS = range(3)  # counts of steps, waits and events
CHILDREN, PARENTS = range(2)  # columns of `Needs.gathers`
COLUMNS = 5  # of `Order.steps`
OF_STREAM, REGION, RECORDED, FIRST_WAIT, END_WAIT = range(COLUMNS)


class Order(NamedTuple):
    """The streams of the launches of a step.

    Attributes:
        steps: int32 [*, 5], of each step that is launched, in the order of the table: its stream,
            0 for the main one; the stream whose temporaries its launch has; the event that is
            recorded after it, or -1; the first and the end of its waits.
        waits: int32 [*] the events that streams wait for before steps.
        events: how many there are; those with the number of a stream are for beginning and end.
    """

    steps: npt.NDArray[np.int32]
    waits: npt.NDArray[np.int32]
    events: int


class Needs(NamedTuple):
    """What launches of task programs need of each other, whatever the minibatch.

    Attributes:
        gathers: bool [programs, 2] reads rows of children, and of parents.
        reuses: bool [programs, programs], of an earlier and a later one: the later one writes to a
            buffer where the earlier one has another tensor.
        effects: of all steps.
    """

    gathers: Array
    reuses: Array
    effects: StepEffects


class _OrderDraft(NamedTuple):
    """An order while it is made. Steps that are launched count from 1; 0 stands for none.

    Attributes:
        steps, waits: of `Order`; counts: how many there are of them, and of events: see STEPS.
        known: int32 [streams, streams] the last step of others that each has waited for, and of
            its own.
        done: int32 [steps, streams] the last step of each stream that is done when one is.
        made, added: int32 [V], [gradients] the last step that made something of a row, and that
            added to a gradient.
        programs, occupied: int32 [programs, streams], [streams, streams] the last step of each
            stream of a program, and with the temporaries of a stream.
    """

    steps: Array
    waits: Array
    counts: Array
    known: Array
    done: Array
    made: Array
    added: Array
    programs: Array
    occupied: Array


def needs_of(variant: Variant, executable: CudaExecutable) -> Needs:
    """Find what launches of a variant's task programs need of each other."""
    ops = [{task.program.nodes[k].op for k in task.members} for task in variant.tasks]
    gathers = [(bool(o & {"gather", "gather_all"}), "gather_parents" in o) for o in ops]
    gathered = np.array(gathers, np.bool_).reshape(-1, 2)
    return Needs(gathered, _reuses(variant), executable.effects)


def _reuses(variant: Variant) -> Array:
    """Return `Needs.reuses`: tensors share a buffer where their lives do not overlap."""
    tasks, buffer = variant.tasks, variant.ready().programs.buffer
    uses = [
        (p, key, int(buffer[variant.table.numbers[key]]), written)
        for p, task in enumerate(tasks)
        for key, _, _, written in tensor_uses(task)
    ]
    found = np.zeros((len(tasks), len(tasks)), np.bool_)
    for p, key, number, written in uses:
        if written:
            found[[a for a, other, at, _ in uses if at == number and other != key], p] = True
    return found


def _want(wanted: Array, draft: _OrderDraft, step: int) -> None:
    """Note that a step has to be done: one, or none."""
    if step > 0:
        stream = draft.steps[step - 1, OF_STREAM]
        wanted[stream] = max(wanted[stream], step)


def _want_rows(
    rows: Array, gathers: Array, links: tuple[Array, ...], wanted: Array, draft: _OrderDraft
) -> None:
    """Find the steps that made rows which a launch touches.

    Args:
        rows: the launch's; gathers: of its program; links: of `share_out`.
        wanted: [streams] gets the last step of each stream that has to be done.
    """
    edge_ptr, every_ptr, child_row, edge_row, parent_ptr, parent_edge = links
    for r in rows:
        _want(wanted, draft, draft.made[r])
        for ptr in (edge_ptr, every_ptr):
            for edge in range(ptr[r], ptr[r + 1] if gathers[CHILDREN] else 0):
                if child_row[edge] >= 0:
                    _want(wanted, draft, draft.made[child_row[edge]])
        for at in range(parent_ptr[r], parent_ptr[r + 1] if gathers[PARENTS] else 0):
            _want(wanted, draft, draft.made[edge_row[parent_edge[at]]])


def _choose(wanted: Array, draft: _OrderDraft) -> int:
    """Return the stream whose last step is the latest that is wanted, else the one idle longest."""
    latest, idle = 0, 0
    for step in wanted:
        latest = max(latest, step)
    for stream in range(len(wanted)):
        last = draft.known[stream, stream]
        if 0 < last == latest:
            return stream
        if last < draft.known[idle, idle]:
            idle = stream
    return idle


def _advance(known: Array, steps: Array) -> None:
    """Take the later of two steps for each stream."""
    for stream in range(len(known)):
        known[stream] = max(known[stream], steps[stream])


def _give(stream: int, region: int, wanted: Array, draft: _OrderDraft) -> int:
    """Let the next step run on a stream, after what is wanted of the others; return its number.

    The latest is waited for first: what was done before it needs no wait of its own.
    """
    steps, waits, counts, known, done = draft[:5]
    counts[STEPS] += 1
    k = counts[STEPS]
    steps[k - 1, OF_STREAM], steps[k - 1, REGION] = stream, region
    steps[k - 1, FIRST_WAIT] = counts[USED]
    while True:
        latest = 0
        for other in range(len(wanted)):
            if wanted[other] > known[stream, other]:
                latest = max(latest, wanted[other])
        if latest == 0:
            break
        if steps[latest - 1, RECORDED] < 0:
            steps[latest - 1, RECORDED] = counts[EVENTS]
            counts[EVENTS] += 1
        waits[counts[USED]] = steps[latest - 1, RECORDED]
        counts[USED] += 1
        _advance(known[stream], done[latest])
    steps[k - 1, END_WAIT] = counts[USED]
    known[stream, stream] = k
    done[k] = known[stream]
    return int(k)


def _share_launch(
    p: int, steps: tuple[int, Array], effects: StepEffects, need: Array, draft: _OrderDraft
) -> int:
    """Give each step of a launch a stream; return the last one that makes something.

    Args:
        p: its program; steps: the first of it, and which of them are launched.
        need: [streams] the last step of each stream that has to be done before the launch.
    """
    first, launched = steps
    made, home, stream = 0, _choose(need, draft), -1
    if _any(effects.temporaries[first : first + len(launched)]):
        _advance(need, draft.occupied[home])
    for at in range(len(launched)):
        if not launched[at]:
            continue
        s = first + at
        only, wanted = effects.only[s], need.copy()
        for g in effects.gradients[effects.ptr[s] : effects.ptr[s + 1]]:
            _want(wanted, draft, draft.added[g])
        if stream < 0 or not effects.follows[s]:
            stream = _choose(wanted, draft) if only else home
        k = _give(stream, home, wanted, draft)
        draft.programs[p, stream] = k
        _note(k, s, effects, draft)
        if not only:
            need[home] = k
            made = k
    return made


def _any(truths: Array) -> bool:
    found = False
    for each in truths:
        found |= bool(each)
    return found


def _note(k: int, s: int, effects: StepEffects, draft: _OrderDraft) -> None:
    """Note what step `k` of an order does, which is step `s` of all programs."""
    for g in effects.gradients[effects.ptr[s] : effects.ptr[s + 1]]:
        draft.added[g] = k
    if effects.temporaries[s]:
        row = draft.steps[k - 1]
        draft.occupied[row[REGION], row[OF_STREAM]] = k


def _new_draft(most: int, sizes: tuple[int, int, int], streams: int) -> _OrderDraft:
    """Return a draft for at most so many steps.

    Args:
        sizes: rows, gradients and programs.
    """
    rows, gradients, programs = sizes
    counts = np.zeros(3, np.int64)
    counts[EVENTS] = streams
    return _OrderDraft(
        np.full((most, COLUMNS), -1, np.int32),
        np.empty(most * (streams - 1), np.int32),
        counts,
        np.zeros((streams, streams), np.int32),
        np.zeros((most + 1, streams), np.int32),
        np.zeros(rows, np.int32),
        np.zeros(gradients, np.int32),
        np.zeros((programs, streams), np.int32),
        np.zeros((streams, streams), np.int32),
    )


def _rows_of(row: Array, listed: Array) -> Array:
    """Return the rows of a launch, of which there may be a list."""
    rows = np.empty(row[1], np.int64)
    for k in range(len(rows)):
        rows[k] = row[2] + k if row[2] >= 0 else listed[row[3] + k]
    return rows


def _launched(steps: Array, row: Array, lookups: tuple[Array, ...], t: int) -> Array:
    """Tell which steps of a launch, number `t` of the table, have something to do."""
    lookup_ptr, lookup_at = lookups
    launched = np.empty(len(steps), np.bool_)
    for s in range(len(steps)):
        launched[s] = extent(steps[s], row, lookup_at, lookup_ptr[t]).across > 0
    return launched


@compiled
def share_out(
    table: Array,
    program: tuple[Array, ...],
    lookups: tuple[Array, ...],
    needs: Needs,
    listed: Array,
    links: tuple[Array, ...],
    streams: int,
) -> Order:
    """Give each step of each launch a stream, and find what it has to wait for.

    Args:
        table, program, lookups: of `driver.launch`.
        listed: rows of launches that take a list.
        links: edge_ptr, every_ptr, child_row, edge_row, parent_ptr and parent_edge of the schedule.
    """
    steps_ptr, steps, effects = program[0], program[1], needs.effects
    most, gradients = 0, 0
    for t in range(len(table)):
        most += steps_ptr[table[t, 0] + 1] - steps_ptr[table[t, 0]]
    for g in effects.gradients:
        gradients = max(gradients, g + 1)
    programs = len(needs.reuses)  # without alternatives, of `in_place`
    draft = _new_draft(most, (len(links[0]) - 1, gradients, programs), streams)
    for t in range(len(table)):
        row, p = table[t], table[t, 0]
        rows = _rows_of(row, listed)
        need = np.zeros(streams, np.int32)
        _want_rows(rows, needs.gathers[p], links, need, draft)
        for a in range(programs):
            if needs.reuses[a, p]:
                _advance(need, draft.programs[a])
        launched = _launched(steps[steps_ptr[p] : steps_ptr[p + 1]], row, lookups, t)
        made = _share_launch(p, (steps_ptr[p], launched), effects, need, draft)
        if made > 0:
            for r in rows:
                draft.made[r] = made
    counts = draft.counts
    return Order(draft.steps[: counts[STEPS]], draft.waits[: counts[USED]], counts[EVENTS])


def verify_streams(run: Run, table: Array, lookups: tuple[Array, ...], order: Order) -> None:
    """Check the streams of the launches of a table: every step once, after all that it needs.

    Raises: PlanError, which names the launches.
    """
    executable, region = cast("CudaExecutable", run.ready.executable), order.steps[:, REGION]
    launched = [(t, s) for t, s, _ in launched_steps(table, executable.program, lookups)]
    if len(order.steps) < len(launched):
        t, s = launched[len(order.steps)]
        _fail(run, table, t, f"no stream for step {s}", "one for each that is launched")
    if len(order.steps) > len(launched):
        got = f"streams for {len(order.steps)} steps"
        _fail(run, table, len(table) - 1, got, f"{len(launched)}, all that are launched")
    launch, number = np.array(launched, np.int64).reshape(-1, 2).T
    after = np.zeros((len(launched), len(launched)), np.bool_)
    for k, done in enumerate(_done(order)):
        if done is None:
            expected = "events that are recorded before"
            _fail(run, table, int(launch[k]), "a wait for events to come", expected)
        after[k] = done
    end = region + executable.effects.temporaries[number]
    steps = LaunchedSteps(launch, number, region, end, after)
    found = first_conflict(run, table, run.variant.tasks, steps, executable.effects)
    if found is not None:
        _fail(run, table, int(launch[found.step]), found.got, found.expected)


def _fail(run: Run, table: Array, t: int, got: str, expected: str) -> NoReturn:
    """Raise PlanError about a launch."""
    p, n, lo = table[t, :3].tolist()
    where = f"launch {t} ({run.variant.tasks[p].stage.word}, {n} rows from {lo}): "
    raise PlanError.at("streams", where + got, expected, REPORT)


def _done(order: Order) -> Iterator[Array | None]:
    """Mark the steps that are done before each begins; None where it waits for no step before."""
    streams = 1 + int(max(order.steps[:, OF_STREAM], default=0))
    known = np.zeros((streams, len(order.steps)), np.bool_)  # what is done when a stream goes on
    come: dict[int, Array] = {}
    for k, (stream, _, event, first, end) in enumerate(order.steps.tolist()):
        waits = order.waits[first:end].tolist()
        if not come.keys() >= set(waits):
            yield None
        for wait in waits:
            known[stream] |= come[wait]
        yield known[stream].copy()
        known[stream, k] = True
        come[event] = known[stream].copy()
