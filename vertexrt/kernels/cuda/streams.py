"""Several streams share the launches of a step: an ablation, off by default since it is slower.

The launch table stays as it is, and so does the order in which the host asks for launches. Each
goes on with the stream of the last one that it needs, where that is the stream's last; else it
takes the stream that is idle soonest. It waits by events for what it needs of other streams.

A launch needs the last one before it that made something of a row that it touches: of its own, of
children that it gathers, of parents. Whatever else it reads of a row was made earlier still, since
that launch needed it too. Steps that add to a gradient, launches that have temporaries of a stream,
and those that write to a buffer where another tensor was run after all that did before. What a
stream has waited for holds for all that it does later, and for what waits for that; so most waits
are left out.

Source: Cavs section 3.5 (streaming), where eager, path and lazy operators run on several streams.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import numpy as np

from vertexrt.cache.compiled import njit
from vertexrt.config import config
from vertexrt.engine.batched import Run
from vertexrt.kernels.cuda.calls import (
    RECORD,
    STREAM,
    WAIT,
    new_arguments,
    record_event,
    wait_for_event,
)
from vertexrt.kernels.cuda.device import Allocation
from vertexrt.kernels.cuda.device_scripts import inputs_of
from vertexrt.kernels.cuda.driver import (
    MOST_ARGUMENTS,
    TEMPORARY,
    extent,
    launch_step,
)
from vertexrt.kernels.cuda.executable import CudaExecutable
from vertexrt.kernels.cuda.pack import ADDRESSES
from vertexrt.kernels.cuda.session import COUNTERS, Session
from vertexrt.kernels.cuda.stream_order import (
    CHILDREN,
    COLUMNS,
    END_WAIT,
    FIRST_WAIT,
    OF_STREAM,
    PARENTS,
    RECORDED,
    REGION,
    Needs,
    Order,
    needs_of,
    verify_streams,
)

Array = np.ndarray[Any, Any]

ARRIVED_AT = ADDRESSES.index("arrived")
FORK = 0  # the event where all streams begin; that of each stream's end has the stream's number
STEPS, USED, EVENTS = range(3)  # counts of steps, waits and events


class _OrderDraft(NamedTuple):
    """An order while it is made. Steps that are launched count from 1; 0 stands for none.

    Attributes:
        steps, waits: of `Order`; counts: how many there are of them, and of events: see STEPS.
        known: int32 [streams, streams] the last step of others that each has waited for, and of
            its own.
        done: int32 [steps, streams] the last step of each stream that is done when one is.
    """

    steps: Array
    waits: Array
    counts: Array
    known: Array
    done: Array


class _Left(NamedTuple):
    """The last steps that left something to others.

    Attributes:
        rows: int32 [V + 1] the launch that made something of a row, from 1; none of the last one,
            where row -1 is: a child that is absent. makes: int32 [launches + 1] the last step of a
            launch that does. added: int32 [gradients] that added to one.
        programs: int32 [programs, streams] of a program; occupied: int32 [streams, streams] with
            the temporaries of a stream: the last one of each stream.
    """

    rows: Array
    makes: Array
    added: Array
    programs: Array
    occupied: Array


@njit(cache=True, nogil=True)
def _want(wanted: Array, steps: Array, step: Any) -> None:
    """Note that a step has to be done: one, or none."""
    if step > 0:
        stream = steps[step - 1, OF_STREAM]
        wanted[stream] = max(wanted[stream], step)


@njit(cache=True, nogil=True)
def _want_rows(
    rows: Array, gathers: Array, links: Any, left: _Left, wanted: Array, steps: Array
) -> None:
    """Find the steps that made rows which a launch touches.

    Args:
        rows: the launch's; gathers: of its program; links: arrays of the schedule.
        wanted: [streams] gets the last step of each stream that has to be done.
    """
    edge_ptr, child_row, edge_row, parent_ptr, parent_edge = links
    found = np.zeros(len(left.makes), np.bool_)
    for r in rows:
        found[left.rows[r]] = True
        if gathers[CHILDREN]:
            for edge in range(edge_ptr[r], edge_ptr[r + 1]):
                found[left.rows[child_row[edge]]] = True
        if gathers[PARENTS]:
            for at in range(parent_ptr[r], parent_ptr[r + 1]):
                found[left.rows[edge_row[parent_edge[at]]]] = True
    for launch in np.flatnonzero(found):
        _want(wanted, steps, left.makes[launch])


@njit(cache=True, nogil=True)
def _choose(wanted: Array, draft: _OrderDraft) -> Any:
    """Return the stream whose last step is the latest that is wanted, else the one idle longest."""
    idle: Any = 0
    for stream in range(len(wanted)):
        last = draft.known[stream, stream]
        if last > 0 and last == np.max(wanted):
            return stream
        if last < draft.known[idle, idle]:
            idle = stream
    return idle


@njit(cache=True, nogil=True)
def _give(stream: int, region: int, wanted: Array, draft: _OrderDraft) -> Any:
    """Let the next step run on a stream, after what is wanted of the others; return its number.

    The latest is waited for first: what was done before it needs no wait of its own.
    """
    steps, waits, counts, known, done = draft
    counts[STEPS] += 1
    k = counts[STEPS]
    steps[k - 1, OF_STREAM], steps[k - 1, REGION] = stream, region
    steps[k - 1, FIRST_WAIT] = counts[USED]
    while np.any(wanted > known[stream]):
        latest = np.max(np.where(wanted > known[stream], wanted, 0))
        if steps[latest - 1, RECORDED] < 0:
            steps[latest - 1, RECORDED] = counts[EVENTS]
            counts[EVENTS] += 1
        waits[counts[USED]] = steps[latest - 1, RECORDED]
        counts[USED] += 1
        np.maximum(known[stream], done[latest], known[stream])
    steps[k - 1, END_WAIT] = counts[USED]
    known[stream, stream] = k
    done[k] = known[stream]
    return k


@njit(cache=True, nogil=True)
def _share_launch(
    row: Array, batch: Any, needs: Needs, need: Array, draft: _OrderDraft, left: _Left
) -> Any:
    """Give each step of a launch a stream; return the last one that makes something.

    Args:
        row: the launch's, of the table; batch: `program`, and `lookups` of this launch.
        need: [streams] the last step of each stream that has to be done before the launch.
    """
    (steps_ptr, steps, _), lookup_at, lookup = batch
    p, wanted, made = row[0], np.empty_like(need), 0
    home, stream = _choose(need, draft), -1
    some = needs.temporaries[steps_ptr[p] : steps_ptr[p + 1]].any()
    np.maximum(need, left.occupied[home] * some, need)
    for s in range(steps_ptr[p], steps_ptr[p + 1]):
        if extent(steps[s], row, lookup_at, lookup).across == 0:
            continue
        adds = needs.added[needs.adds_ptr[s] : needs.adds_ptr[s + 1]]
        wanted[:] = need
        for g in adds:
            _want(wanted, draft.steps, left.added[g])
        if stream < 0 or not needs.follows[s]:
            stream = _choose(wanted, draft) if needs.adds[s] else home
        k = _give(stream, home, wanted, draft)
        left.added[adds] = k
        left.programs[p, stream] = k
        if needs.temporaries[s]:
            left.occupied[home, stream] = k
        if not needs.adds[s]:
            made = need[home] = k
    return made


@njit(cache=True, nogil=True)
def share_out(
    table: Array,
    program: tuple[Array, ...],
    lookups: tuple[Array, ...],
    of_programs: tuple[Array, ...],
    of_batch: tuple[Array, ...],
    streams: int,
) -> tuple[Array, Array, int]:
    """Give each step of each launch a stream, and find what it has to wait for.

    Args:
        table, program, lookups: of `driver.launch`.
        of_programs: the fields of `Needs`; of_batch: rows of launches that take a list, and links
            of `_want_rows`.
    Returns: steps, waits and events of `Order`.
    """
    needs, steps_ptr, programs = Needs(*of_programs), program[0], len(program[0]) - 1
    listed, links = of_batch[0], of_batch[1:]
    most = (steps_ptr[table[:, 0] + 1] - steps_ptr[table[:, 0]]).sum()
    draft = _OrderDraft(
        np.full((most, COLUMNS), -1, np.int32),
        np.empty(most * (streams - 1), np.int32),
        np.array([0, 0, streams]),
        np.zeros((streams, streams), np.int32),
        np.zeros((most + 1, streams), np.int32),
    )
    left = _Left(
        np.zeros(len(links[0]), np.int32),
        np.zeros(len(table) + 1, np.int32),
        np.zeros(needs.added.max() + 1, np.int32),
        np.zeros((programs, streams), np.int32),
        np.zeros((streams, streams), np.int32),
    )
    for t in range(len(table)):
        row, (lookup_ptr, lookup_at) = table[t], lookups
        need = np.zeros(streams, np.int32)
        rows = np.arange(row[2], row[2] + row[1])
        if row[2] < 0:
            rows = listed[row[3] : row[3] + row[1]].astype(np.int64)
        _want_rows(rows, needs.gathers[row[0]], links, left, need, draft.steps)
        for a in range(programs):
            if needs.reuses[a, row[0]]:
                np.maximum(need, left.programs[a], need)
        made = _share_launch(row, (program, lookup_at, lookup_ptr[t]), needs, need, draft, left)
        if made > 0:
            left.rows[rows] = t + 1
            left.makes[t + 1] = made
    counts = draft.counts
    return draft.steps[: counts[STEPS]], draft.waits[: counts[USED]], counts[EVENTS]


class Streams:
    """The streams of a session and what each has of its own: temporaries, counters, a handle.

    Args:
        count: of streams, with the main one.
    """

    def __init__(self, session: Session, count: int) -> None:
        self.session, self.count = session, len(session.device.lanes(count))
        self._counters = session.memory.cleared(COUNTERS * (count - 1), "counters")
        self._temporaries = Allocation(0, 0, None)
        self._events = np.zeros(0, np.int64)
        self._needs: dict[CudaExecutable, tuple[Array, ...]] = {}

    def order(self, run: Run, table: Array, lookups: tuple[Array, ...]) -> Order:
        """Share launches of a minibatch among the streams.

        Args:
            table: of launches; lookups: of `driver.launch`.
        Raises: PlanError under VERTEXRT_CHECK=1, when launches that need each other overlap.
        """
        executable, s = cast("CudaExecutable", run.ready.executable), run.schedule
        if executable not in self._needs:
            self._needs[executable] = tuple(needs_of(run.variant, executable))
        batch = (run.rows, s.edge_ptr, s.child_row, s.edge_row, s.parent_ptr, s.parent_edge)
        needs, program = self._needs[executable], executable.program
        order = Order(*share_out(table, program, lookups, needs, batch, self.count))
        if config().check:
            verify_streams(run, table, lookups, order, Needs(*needs))
        return order

    def counts(self, run: Run) -> dict[str, float]:
        """Count streams, launches on others than the main one, and waits for another."""
        executable = cast("CudaExecutable", run.ready.executable)
        lookups = self.session.sorted_lookups(executable, run.table, inputs_of(run))
        order = self.order(run, run.table, lookups[:2])
        launches = np.bincount(order.steps[:, OF_STREAM], minlength=1)
        return {
            "streams": int(np.count_nonzero(launches)),
            "on_other_streams": int(launches[1:].sum()),
            "waits": len(order.waits),
        }

    def launch(
        self, run: Run, table: Array, words: Array, lookups: tuple[Array, ...]
    ) -> tuple[int, int, int]:
        """Launch rows of a minibatch's table as `driver.launch` does, on all streams."""
        order, session = self.order(run, table, lookups), self.session
        if len(self._events) < order.events:
            more = order.events * 5 // 4 - len(self._events)
            self._events = np.append(self._events, session.device.events(more))
        room = (run.plan.total - run.plan.temporary) * session.dtype.itemsize
        self._temporaries = session.memory.scratch(self._temporaries, room * (self.count - 1))
        places = np.empty((self.count, 2), np.int64)
        places[0] = words[TEMPORARY], words[ARRIVED_AT]
        others = np.arange(self.count - 1)
        places[1:, 0] = self._temporaries.address + room * others
        places[1:, 1] = self._counters.address + COUNTERS * others
        calls = np.stack([session.calls_of(each) for each in session.device.lanes(self.count)])
        program = cast("CudaExecutable", run.ready.executable).program
        shared = (order.steps, order.waits, self._events, places)
        failed: tuple[int, int, int] = launch_shared(table, program, words, lookups, calls, shared)
        return failed


@njit(cache=True, nogil=True)
def launch_shared(
    table: Array,
    program: tuple[Array, ...],
    words: Array,
    lookups: tuple[Array, ...],
    calls: Array,
    shared: tuple[Array, ...],
) -> tuple[int, int, int]:
    """Launch every step of every row of a table, and let the main stream wait for all of them.

    Args:
        table, program, lookups: of `driver.launch`; words: too, left as they are.
        calls: [streams, CALLS], the main one first.
        shared: steps and waits of `Order`; int64 [*] events of the driver; [streams, 2] addresses
            of the temporaries and the counters of each stream.
    Returns: as `driver.launch`; launch and step are -1 for an event.
    """
    events, places, main = shared[2], shared[3], calls[0]
    code = record_event(main[RECORD], events[FORK], main[STREAM])
    for own in calls[1:]:
        if code == 0:
            code = wait_for_event(own[WAIT], own[STREAM], events[FORK])
    if code != 0:
        return code, -1, -1
    failed = _launch_in_order(table, program, words, lookups, calls, shared)
    words[TEMPORARY], words[ARRIVED_AT] = places[0, 0], places[0, 1]
    for stream in range(1, len(calls)):
        code = record_event(calls[stream, RECORD], events[stream], calls[stream, STREAM])
        if code == 0:
            code = wait_for_event(main[WAIT], main[STREAM], events[stream])
        if code != 0 and failed[0] == 0:
            failed = code, -1, -1
    return failed


@njit(cache=True, nogil=True)
def _wait_for(waits: Array, events: Array, calls: Array) -> int:
    """Let a stream wait for some of the events; return the error of the driver."""
    for wait in waits:
        code = wait_for_event(calls[WAIT], calls[STREAM], events[wait])
        if code != 0:
            return int(code)
    return 0


@njit(cache=True, nogil=True)
def _launch_in_order(
    table: Array,
    program: tuple[Array, ...],
    words: Array,
    lookups: tuple[Array, ...],
    calls: Array,
    shared: tuple[Array, ...],
) -> tuple[int, int, int]:
    """Launch all steps, each after the events that it waits for; arguments as `launch_shared`."""
    steps_ptr, steps, step_words = program
    order, waits, events, places = shared
    arguments = new_arguments(MOST_ARGUMENTS)
    k = 0
    for t in range(len(table)):
        row = table[t]
        for s in range(steps_ptr[row[0]], steps_ptr[row[0] + 1]):
            grid = extent(steps[s], row, lookups[1], lookups[0][t])
            if grid.across == 0:
                continue
            stream, region, event, first, end = order[k]
            own = calls[stream]
            words[TEMPORARY], words[ARRIVED_AT] = places[region, 0], places[stream, 1]
            code = _wait_for(waits[first:end], events, own)
            if code == 0:
                code = launch_step(steps[s], row, grid, step_words, words, own, arguments)
            if code == 0 and event >= 0:
                code = record_event(own[RECORD], events[event], own[STREAM])
            if code != 0:
                return code, t, s
            k += 1
    return 0, 0, 0
