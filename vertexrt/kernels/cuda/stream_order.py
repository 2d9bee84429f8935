"""Share the launches of a step among streams, and find what each stream has to wait for.

The launch table stays as it is, and so does the order in which the host asks for launches. Each
takes the stream on which it can start first, and waits by events for what it needs of the others.

A launch needs the last one before it that made something of a row that it touches: of its own, of
children that it gathers, of parents. Whatever else it reads of a row was made earlier still, since
that launch needed it too. Steps that add to a gradient, launches that have temporaries of a stream,
and those that write to a buffer where another tensor was run after all that did before. What a
stream has waited for holds for all that it does later, and for what waits for that; so most waits
are left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from vertexrt.cache.compiled import njit
from vertexrt.kernels.cuda.driver import IS_GEMM, WHEN, extent
from vertexrt.kernels.cuda.steps import CHUNKED

Array = np.ndarray[Any, Any]

COLUMNS = 5  # of `Order.steps`
OF_STREAM, REGION, RECORDED, FIRST_WAIT, END_WAIT = range(COLUMNS)
CHILDREN, PARENTS = range(2)  # columns of `Needs.gathers`
STEPS, USED, EVENTS = range(3)  # counts of steps, waits and events
# A launch counts as one unit of time: those that can run at the same time as others are
# small, and take about as long as each other. So many units pass until a stream goes on after an
# event of another.
HOP = 1


@dataclass(frozen=True, slots=True)
class Order:
    """The streams of the launches of a step.

    Attributes:
        steps: int32 [*, 5], of each step that is launched, in the order of the table: its stream,
            0 for the main one; the stream whose temporaries its launch has; the event that is
            recorded after it, or -1; the first and the end of its waits.
        waits: int32 [*] the events that streams wait for before steps.
        events: how many there are, with those of beginning and end.
    """

    steps: npt.NDArray[np.int32]
    waits: npt.NDArray[np.int32]
    events: int

    def of_streams(self) -> npt.NDArray[np.int64]:
        """Count the launches of each stream."""
        return np.bincount(self.steps[:, OF_STREAM], minlength=1)


class Needs(NamedTuple):
    """What launches of task programs need of each other, whatever the minibatch.

    Attributes:
        gathers: bool [programs, 2] reads rows of children, and of parents.
        reuses: bool [programs, programs], of an earlier and a later one: the later one writes to a
            buffer where the earlier one has another tensor.
        adds: bool [steps] see `Adding.only`; adds_ptr, added: CSR of the gradients of each step.
        temporaries: bool [steps] which have some.
        gradients: int64 [1] how many there are.
    """

    gathers: Array
    reuses: Array
    adds: Array
    adds_ptr: Array
    added: Array
    temporaries: Array
    gradients: Array


class Links(NamedTuple):
    """Rows of launches that take a list, and arrays of the schedule."""

    rows: Array
    edge_ptr: Array
    child_row: Array
    edge_row: Array
    parent_ptr: Array
    parent_edge: Array


class _Progress(NamedTuple):
    """How far streams are while launches are shared out.

    Attributes:
        place: int32 [streams, steps] which launched step each launch of a stream is.
        length: int32 [streams] how many launches each has; free: when it is done with them.
        known: int32 [streams, streams] how many launches of others each has waited for.
        clock: int32 [steps, streams] what is done when a launched step is; finish: when that is.
    """

    place: Array
    length: Array
    free: Array
    known: Array
    clock: Array
    finish: Array


class _Done(NamedTuple):
    """What was launched so far; a count is of the launches of a stream.

    Attributes:
        last: int32 [V] the last launch that made something of a row, -1 for none.
        made: int32 [launches, 2] stream of a launch, and the count up to its last step that makes
            something.
        programs: int32 [programs, streams] counts up to the last launch of each program.
        occupied: int32 [streams, streams] counts up to the last that has temporaries of a stream.
        last_adds: int32 [gradients, streams] counts up to the last that adds to a gradient.
    """

    last: Array
    made: Array
    programs: Array
    occupied: Array
    last_adds: Array


class _Shared(NamedTuple):
    """Steps and waits of `Order`, and how many there are of them, and of events: see STEPS."""

    steps: Array
    waits: Array
    counts: Array


@njit(cache=True, nogil=True)
def raise_to(counts: Array, others: Array) -> None:
    """Let each count be at least another one."""
    for k in range(len(counts)):
        counts[k] = max(counts[k], others[k])


@njit(cache=True, nogil=True)
def _need_launch(need: Array, done: _Done, row: int) -> None:
    """Note that what the last launch of a row made is needed; there is none before the first."""
    t = done.last[row]
    if t >= 0:
        need[done.made[t, 0]] = max(need[done.made[t, 0]], done.made[t, 1])


@njit(cache=True, nogil=True)
def _need_rows(row: Array, gathers: Array, links: Links, done: _Done, need: Array) -> None:
    """Find the launches that made rows which a launch touches.

    Args:
        row: the launch's, of the table; gathers: of its program.
        need: [streams] gets how many launches of each stream have to be done.
    """
    n, lo, at = row[1], row[2], row[3]
    for i in range(n):
        r = lo + i if lo >= 0 else links.rows[at + i]
        _need_launch(need, done, r)
        if gathers[CHILDREN]:
            for child in links.child_row[links.edge_ptr[r] : links.edge_ptr[r + 1]]:
                if child >= 0:
                    _need_launch(need, done, child)
        if gathers[PARENTS]:
            for edge in links.parent_edge[links.parent_ptr[r] : links.parent_ptr[r + 1]]:
                _need_launch(need, done, links.edge_row[edge])


@njit(cache=True, nogil=True)
def _start_on(stream: int, wanted: Array, at: _Progress) -> int:
    """Estimate when a launch could start on a stream, in units; see `HOP`.

    Args:
        wanted: [streams] how many launches of each stream have to be done.
    """
    start: Any = at.free[stream]
    for other in range(len(wanted)):
        count = wanted[other]
        if count > 0:
            hop = HOP if other != stream and count > at.known[stream, other] else 0
            start = max(start, at.finish[at.place[other, count - 1]] + hop)
    return int(start)


@njit(cache=True, nogil=True)
def _first_to_start(wanted: Array, at: _Progress) -> int:
    """Return the stream on which a launch can start first: see `_start_on`."""
    best, earliest = 0, _start_on(0, wanted, at)
    for stream in range(1, len(wanted)):
        start = _start_on(stream, wanted, at)
        if start < earliest:
            best, earliest = stream, start
    return best


@njit(cache=True, nogil=True)
def _is_implied(stream: int, other: int, wanted: Array, at: _Progress) -> bool:
    """Tell whether a stream need not wait for another: it, or a third that it awaits, did."""
    if other == stream or wanted[other] <= at.known[stream, other]:
        return True
    for o in range(len(wanted)):
        if o == other or wanted[o] <= at.known[stream, o]:
            continue
        if at.clock[at.place[o, wanted[o] - 1], other] >= wanted[other]:
            return True
    return False


@njit(cache=True, nogil=True)
def _give(k: int, wanted: Array, at: _Progress, draft: _Shared) -> None:
    """Let a step run on the stream that its row says, after what is wanted of the others.

    Args:
        k: number of the step among those that are launched.
    """
    steps, waits, counts = draft
    stream = steps[k, OF_STREAM]
    start = _start_on(stream, wanted, at)
    steps[k, FIRST_WAIT] = counts[USED]
    for other in range(len(wanted)):
        if not _is_implied(stream, other, wanted, at):
            step = at.place[other, wanted[other] - 1]
            if steps[step, RECORDED] < 0:
                steps[step, RECORDED] = counts[EVENTS]
                counts[EVENTS] += 1
            waits[counts[USED]] = steps[step, RECORDED]
            counts[USED] += 1
    steps[k, END_WAIT] = counts[USED]
    for other in range(len(wanted)):
        if other != stream and wanted[other] > at.known[stream, other]:
            raise_to(at.known[stream], at.clock[at.place[other, wanted[other] - 1]])
    at.place[stream, at.length[stream]] = k
    at.length[stream] += 1
    at.known[stream, stream] = at.length[stream]
    at.clock[k] = at.known[stream]
    at.finish[k] = at.free[stream] = start + 1


@njit(cache=True, nogil=True)
def _share_launch(
    t: int, batch: Any, needs: Needs, need: Array, at: _Progress, done: _Done, draft: _Shared
) -> None:
    """Give each step of a launch a stream.

    Args:
        batch: table, program and lookups of `driver.launch`.
        need: [streams] how many launches of each have to be done before the launch.
    """
    table, (steps_ptr, steps, _), (lookup_ptr, lookup_at) = batch
    p, wanted = table[t, 0], np.empty_like(need)
    home = _first_to_start(need, at)
    if needs.temporaries[steps_ptr[p] : steps_ptr[p + 1]].any():
        raise_to(need, done.occupied[home])
    done.made[t, 0], previous = home, -1
    for s in range(steps_ptr[p], steps_ptr[p + 1]):
        if extent(steps[s], table[t], lookup_at, lookup_ptr[t]).across == 0:
            continue
        k = draft.counts[STEPS]
        adds = needs.added[needs.adds_ptr[s] : needs.adds_ptr[s + 1]]
        wanted[:] = need
        wanted[home] = max(wanted[home], done.made[t, 1])
        for g in adds:
            raise_to(wanted, done.last_adds[g])
        stream = home
        if not steps[s, IS_GEMM] and steps[s, WHEN] == CHUNKED and previous >= 0:
            stream = draft.steps[previous, OF_STREAM]
            wanted[stream] = max(wanted[stream], at.clock[previous, stream])
        elif needs.adds[s]:
            stream = _first_to_start(wanted, at)
        draft.steps[k, OF_STREAM], draft.steps[k, REGION] = stream, home
        _give(k, wanted, at, draft)
        for g in adds:
            done.last_adds[g, stream] = at.length[stream]
        if needs.temporaries[s]:
            done.occupied[home, stream] = at.length[stream]
        if not needs.adds[s]:
            done.made[t, 1] = at.length[home]
        done.programs[p, stream] = at.length[stream]
        previous = k
        draft.counts[STEPS] += 1


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
        of_programs: the fields of `Needs`; of_batch: of `Links`.
    Returns: steps, waits and events of `Order`.
    """
    needs, links = Needs(*of_programs), Links(*of_batch)
    steps_ptr = program[0]
    programs, launches, most = len(steps_ptr) - 1, len(table), 0
    for t in range(launches):
        most += steps_ptr[table[t, 0] + 1] - steps_ptr[table[t, 0]]
    draft = _Shared(
        np.full((most, COLUMNS), -1, np.int32),
        np.empty(most * (streams - 1), np.int32),
        np.array([0, 0, streams]),
    )
    at = _Progress(
        np.empty((streams, most), np.int32),
        np.zeros(streams, np.int32),
        np.zeros(streams, np.int32),
        np.zeros((streams, streams), np.int32),
        np.zeros((most, streams), np.int32),
        np.zeros(most, np.int32),
    )
    done = _Done(
        np.full(len(links.edge_ptr) - 1, -1, np.int32),
        np.zeros((launches, 2), np.int32),
        np.zeros((programs, streams), np.int32),
        np.zeros((streams, streams), np.int32),
        np.zeros((needs.gradients[0], streams), np.int32),
    )
    need = np.zeros(streams, np.int32)
    for t in range(launches):
        p, n, lo, listed = table[t, 0], table[t, 1], table[t, 2], table[t, 3]
        need[:] = 0
        _need_rows(table[t], needs.gathers[p], links, done, need)
        for a in range(programs):
            if needs.reuses[a, p]:
                raise_to(need, done.programs[a])
        _share_launch(t, (table, program, lookups), needs, need, at, done, draft)
        if done.made[t, 1] > 0:
            for i in range(n):
                done.last[lo + i if lo >= 0 else links.rows[listed + i]] = t
    counts = draft.counts
    return draft.steps[: counts[STEPS]], draft.waits[: counts[USED]], counts[EVENTS]
