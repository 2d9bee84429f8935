"""Which launches of a step run beside each other: a stream for each, and what it waits for.

The launch table stays as it is, and so does the order in which the host asks for launches. Each
takes the stream on which it can start first, and waits by events for what it needs of the others.
Source: Cavs section 3.5 (streaming), where eager, path and lazy operators run on several streams.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from vertexrt.cache.compiled import njit
from vertexrt.ir.program import Stage
from vertexrt.kernels.cuda.driver import (
    END_WAIT,
    FIRST_WAIT,
    IS_GEMM,
    OF_STREAM,
    OVER,
    RECORDED,
    REGION,
    WHEN,
    applies,
    is_launched,
)
from vertexrt.kernels.cuda.executable import CudaExecutable, Relations
from vertexrt.kernels.cuda.steps import CHUNKED, SEGMENTS
from vertexrt.kernels.layout import CHILDREN, OWN, PARENTS

Array = np.ndarray[Any, Any]
Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]

STAGES = int(max(Stage)) + 1
# A launch counts as one unit of time: those that can run beside others are small, and take about as
# long as each other. So many units pass until a stream goes on behind an event of another.
HOP = 1


@dataclass(frozen=True, slots=True)
class Order:
    """The streams of the launches of a step.

    Attributes:
        steps: int32 [*, 5], of each step that is launched, in the order of the table, columns of
            `driver`: its stream, 0 for the main one; the stream whose temporaries its launch has;
            the event that is recorded behind it, or -1; the first and the end of its waits.
        waits: int32 [*] the events that streams wait for in front of steps.
        events: how many there are, with those of beginning and end.
        room: elements of the temporaries of a stream.
        lookups: what `driver.sort_lookups` returned.
    """

    steps: Int32
    waits: Int32
    events: int
    room: int
    lookups: Sequence[Array]

    def of_streams(self) -> Int64:
        """Count the launches of each stream."""
        return np.bincount(self.steps[:, OF_STREAM], minlength=1)


NO_STEPS, NO_WAITS = np.zeros((0, 5), np.int32), np.zeros(0, np.int32)


def order_launches(
    table: Int64,
    executable: CudaExecutable,
    relations: Relations,
    graph: tuple[Array, ...],
    lookups: Sequence[Array],
    streams: int,
    room: int,
) -> Order:
    """Share launches of a minibatch among streams.

    Args:
        table: of launches.
        graph: rows of launches that take a list; edge_ptr, child_row, edge_row, parent_ptr and
            parent_edge of the schedule.
        lookups: what `driver.sort_lookups` returns for the table.
        room: elements of the temporaries of a stream.
    """
    adds = executable.adding
    r = relations
    steps, waits, events = share_out(
        table,
        (r.stage, r.reads, r.wanted, r.reuses),
        executable.steps_ptr,
        executable.steps,
        (adds.only, adds.ptr, adds.gradients, executable.temporaries),
        executable.gradients,
        graph,
        lookups[0],
        lookups[1],
        streams,
    )
    return Order(steps, waits, events, room, lookups)


@njit(cache=True, nogil=True)
def raise_to(counts: Array, others: Array) -> None:
    """Let each count be at least another one."""
    for k in range(len(counts)):
        counts[k] = max(counts[k], others[k])


@njit(cache=True, nogil=True)
def need_launch(need: Array, made: Array, t: int) -> None:
    """Note that what a launch makes is needed.

    Args:
        made: int32 [launches, 2] stream of a launch, and how many launches there are on it up to
            its last one that makes something.
    """
    need[made[t, 0]] = max(need[made[t, 0]], made[t, 1])


@njit(cache=True, nogil=True)
def need_rows(
    t: int, table: Array, relations: Any, graph: Any, cover: Array, made: Array, need: Array
) -> None:
    """Find the launches that make rows of tensors that a launch reads.

    Args:
        cover: int32 [STAGES, V] the launch of a stage that has a row, -1 for none so far.
        need: [streams] gets how many launches of each stream have to be done.
    """
    _, reads, wanted, _ = relations
    rows, edge_ptr, child_row, edge_row, parent_ptr, parent_edge = graph
    p, n, lo, at = table[t, 0], table[t, 1], table[t, 2], table[t, 3]
    for stage in range(STAGES):
        by, bit = cover[stage], 1 << stage
        own, children, parents = wanted[p, 0] & bit, wanted[p, 1] & bit, wanted[p, 2] & bit
        if not (own or children or parents):
            continue
        i: Any = 0
        last: Any = np.int64(-1)
        while own and i < n:
            a: Any = by[lo + i if lo >= 0 else rows[at + i]]
            i += 1
            if a < 0 or a == last:
                continue
            last = a
            if reads[table[a, 0], p] & OWN:
                need_launch(need, made, a)
            if lo >= 0 and table[a, 2] >= 0:  # both are slices: the rest of it is known
                i = max(i, table[a, 2] + table[a, 1] - lo)
        last = np.int64(-1)
        for i in range(n if children or parents else 0):
            row = lo + i if lo >= 0 else rows[at + i]
            if children:
                for e in range(edge_ptr[row], edge_ptr[row + 1]):
                    a = by[child_row[e]] if child_row[e] >= 0 else -1
                    if a >= 0 and a != last and reads[table[a, 0], p] & CHILDREN:
                        need_launch(need, made, a)
                        last = a
            if parents:
                for k in range(parent_ptr[row], parent_ptr[row + 1]):
                    a = by[edge_row[parent_edge[k]]]
                    if a >= 0 and a != last and reads[table[a, 0], p] & PARENTS:
                        need_launch(need, made, a)
                        last = a


@njit(cache=True, nogil=True)
def start_on(
    stream: int, need: Array, more: Array, free: Array, known: Array, place: Array, finish: Array
) -> int:
    """Estimate when a launch could start on a stream, in units; see `HOP`.

    Args:
        need, more: [streams] how many launches of each stream have to be done.
        free: [streams] when each is done with what it has.
        known: [streams, streams] how many launches of others each has waited for.
        place: [streams, *] which launched step each launch of a stream is; finish: when it is done.
    """
    start: Any = free[stream]
    for other in range(len(free)):
        count = max(need[other], more[other])
        if count > 0:
            hop = HOP if other != stream and count > known[stream, other] else 0
            start = max(start, finish[place[other, count - 1]] + hop)
    return int(start)


@njit(cache=True, nogil=True)
def first_to_start(
    need: Array, more: Array, free: Array, known: Array, place: Array, finish: Array
) -> int:
    """Return the stream on which a launch can start first: see `start_on`."""
    best, earliest = 0, start_on(0, need, more[0], free, known, place, finish)
    for stream in range(1, len(free)):
        start = start_on(stream, need, more[stream], free, known, place, finish)
        if start < earliest:
            best, earliest = stream, start
    return best


@njit(cache=True, nogil=True)
def let_wait(
    stream: int,
    wanted: Array,
    known: Array,
    clock: Array,
    place: Array,
    order: Array,
    waits: Array,
    used: int,
    events: int,
) -> tuple[int, int]:
    """Let a stream wait until enough of the others is done, by as few events as that takes.

    Args:
        wanted: [streams] how many launches of each have to be done.
        known, place: of `start_on`; known gets what the stream knows then.
        clock: [steps, streams] what is done when a launched step is.
        order, waits: of `Order`; used, events: how many there are.
    Returns: used and events, with the new ones.
    """
    for other in range(len(wanted)):
        implied = other == stream or wanted[other] <= known[stream, other]
        for o in range(len(wanted)):  # by another that is waited for
            if wanted[o] > known[stream, o] and o != other and not implied:
                implied = clock[place[o, wanted[o] - 1], other] >= wanted[other]
        if implied:
            continue
        step = place[other, wanted[other] - 1]
        if order[step, RECORDED] < 0:
            order[step, RECORDED] = events
            events += 1
        waits[used] = order[step, RECORDED]
        used += 1
    for other in range(len(wanted)):
        if other != stream and wanted[other] > known[stream, other]:
            raise_to(known[stream], clock[place[other, wanted[other] - 1]])
    return used, events


@njit(cache=True, nogil=True)
def share_out(
    table: Array,
    relations: Any,
    steps_ptr: Array,
    steps: Array,
    facts: Any,
    gradients: int,
    graph: Any,
    lookup_ptr: Array,
    lookup_at: Array,
    streams: int,
) -> tuple[Array, Array, int]:
    """Give each step of each launch a stream, and find what it has to wait for.

    A step needs those of its launch that make something, and its launch needs those that made rows
    which it reads. Who adds to a gradient, who has temporaries of a stream, and who writes to a
    buffer where another tensor was, comes behind all who did before. What a stream has waited for
    holds for all that it does later, and for who waits for that; so most waits are not there.

    Args:
        table, steps_ptr, steps, lookup_ptr, lookup_at: of `driver.launch`.
        relations: of `Relations`.
        facts: of `steps.Adding`, and `CudaExecutable.temporaries`.
        graph: of `order_launches`.
    Returns: steps, waits and events of `Order`.
    """
    stages, _, _, reuses = relations
    adds, adds_ptr, added, temporaries = facts
    launches, programs, vertices = len(table), len(stages), len(graph[1]) - 1
    most = 0
    for t in range(launches):
        most += steps_ptr[table[t, 0] + 1] - steps_ptr[table[t, 0]]
    order = np.full((most, 5), -1, np.int32)
    waits = np.empty(most * (streams - 1), np.int32)
    clock = np.zeros((most, streams), np.int32)  # what is done when a step is
    known = np.zeros((streams, streams), np.int32)
    length, free = np.zeros(streams, np.int32), np.zeros(streams, np.int32)
    place, finish = np.empty((streams, most), np.int32), np.zeros(most, np.int32)
    cover = np.full((STAGES, vertices), -1, np.int32)
    made = np.zeros((launches, 2), np.int32)
    done = np.zeros((programs, streams), np.int32)  # up to the last launch of a program
    occupied = np.zeros((streams, streams), np.int32)  # who has temporaries of a stream
    last_adds = np.zeros((gradients, streams), np.int32)
    need, wanted = np.zeros(streams, np.int32), np.zeros(streams, np.int32)
    nothing = np.zeros((streams, streams), np.int32)
    count, used, events = 0, 0, streams
    for t in range(launches):
        p, n, lo, at, m, _ = table[t]
        for other in range(streams):
            need[other] = 0
        need_rows(t, table, relations, graph, cover, made, need)
        takes = False
        for s in range(steps_ptr[p], steps_ptr[p + 1]):
            takes |= temporaries[s]
        for a in range(programs):
            if reuses[a, p]:
                raise_to(need, done[a])
        home = first_to_start(need, occupied if takes else nothing, free, known, place, finish)
        if takes:
            raise_to(need, occupied[home])
        made[t, 0] = home
        lookup, previous, count_made = lookup_ptr[t], -1, np.int32(0)
        for s in range(steps_ptr[p], steps_ptr[p + 1]):
            step = steps[s]
            there = is_launched(step, n, lo, m, lookup_at, lookup)
            lookup += not step[IS_GEMM] and step[OVER] == SEGMENTS and applies(step, n, m)
            if not there:
                continue
            for other in range(streams):
                wanted[other] = need[other]
            wanted[home] = max(wanted[home], count_made)
            for g in range(adds_ptr[s], adds_ptr[s + 1]):
                raise_to(wanted, last_adds[added[g]])
            stream = home
            if not step[IS_GEMM] and step[WHEN] == CHUNKED and previous >= 0:
                stream = order[previous, OF_STREAM]
                wanted[stream] = max(wanted[stream], clock[previous, stream])
            elif adds[s]:
                stream = first_to_start(wanted, nothing, free, known, place, finish)
            order[count, OF_STREAM], order[count, REGION] = stream, home
            order[count, FIRST_WAIT] = used
            start = start_on(stream, wanted, wanted, free, known, place, finish)
            used, events = let_wait(stream, wanted, known, clock, place, order, waits, used, events)
            place[stream, length[stream]] = count
            length[stream] += 1
            known[stream, stream] = length[stream]
            for other in range(streams):
                clock[count, other] = known[stream, other]
            finish[count] = free[stream] = start + 1
            for g in range(adds_ptr[s], adds_ptr[s + 1]):
                last_adds[added[g], stream] = max(last_adds[added[g], stream], length[stream])
            if temporaries[s]:
                occupied[home, stream] = length[stream]
            if not adds[s]:
                count_made = length[home]
            done[p, stream] = length[stream]
            previous = count
            order[count, END_WAIT] = used
            count += 1
        made[t, 1] = count_made
        by = cover[stages[p]]
        if lo >= 0:
            by[lo : lo + n] = t
        else:
            for i in range(n):
                by[graph[0][at + i]] = t
    return order[:count], waits[:used], events
