"""Several streams share the launches of a step: an ablation, off by default since it is slower.

The launch table stays as it is, and so does the order in which the host asks for launches;
`stream_order` gives each a stream.

Source: Cavs section 3.5 (streaming), where eager, path and lazy operators run on several streams.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from vertexrt.config import config
from vertexrt.engine.batched import Run
from vertexrt.kernels.cuda.calls import (
    RECORD,
    STREAM,
    WAIT,
    record_event,
    wait_for_event,
)
from vertexrt.kernels.cuda.device import Allocation
from vertexrt.kernels.cuda.driver import TEMPORARY, extent, launch_step, room_for_arguments
from vertexrt.kernels.cuda.executable import CudaExecutable
from vertexrt.kernels.cuda.pack import ADDRESSES
from vertexrt.kernels.cuda.session import COUNTERS, Session
from vertexrt.kernels.cuda.stream_order import (
    OF_STREAM,
    Needs,
    Order,
    needs_of,
    share_out,
    verify_streams,
)
from vertexrt.native.compiled import compiled

Array = np.ndarray[Any, Any]

ARRIVED_AT = ADDRESSES.index("arrived")


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
        self._needs: dict[CudaExecutable, Needs] = {}

    def order(self, run: Run, table: Array, lookups: tuple[Array, ...]) -> Order:
        """Share launches of a minibatch among the streams.

        Args:
            table: of launches; lookups: of `driver.launch`.
        Raises: PlanError under VERTEXRT_CHECK=1, when launches that need each other overlap.
        """
        executable, s = cast("CudaExecutable", run.ready.executable), run.layout.schedule
        if executable not in self._needs:
            self._needs[executable] = needs_of(run.variant, executable)
        needs, program = self._needs[executable], executable.program
        links = (
            s.edge_ptr, s.every_ptr, s.child_row, s.edge_row, s.parent_ptr, s.parent_edge,
        )  # fmt: skip
        order: Order = share_out(table, program, lookups, needs, run.layout.rows, links, self.count)
        if config().check:
            verify_streams(run, table, lookups, order)
        return order

    def counts(self, run: Run) -> dict[str, float]:
        """Count streams, launches on others than the main one, and waits for another."""
        lookups = self.session.sorted_lookups(run, run.layout.table)
        order = self.order(run, run.layout.table, lookups[:2])
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
        room = (run.layout.plan.total - run.layout.plan.temporary) * session.dtype.itemsize
        self._temporaries = session.memory.scratch(self._temporaries, room * (self.count - 1))
        first, apart = (self._temporaries.address, self._counters.address), (room, COUNTERS)
        others = np.add(first, np.multiply.outer(np.arange(self.count - 1), apart))
        places = np.vstack([[words[TEMPORARY], words[ARRIVED_AT]], others])
        calls = np.stack([session.calls_of(each) for each in session.device.lanes(self.count)])
        program = cast("CudaExecutable", run.ready.executable).program
        failed: tuple[int, int, int] = launch_shared(
            table, program, words, lookups, calls, (order, self._events, places)
        )
        return failed


def _after(event: Any, earlier: Array, later: Array) -> Any:
    """Let a stream go on when another has done all that it has; return the driver's error."""
    code = record_event(earlier[RECORD], event, earlier[STREAM])
    return wait_for_event(later[WAIT], later[STREAM], event) if code == 0 else code


def _wait_for(waits: Array, events: Array, calls: Array) -> Any:
    """Let a stream wait for some of the events; return the driver's error."""
    for wait in waits:
        code = wait_for_event(calls[WAIT], calls[STREAM], events[wait])
        if code != 0:
            return code
    return 0


@compiled
def launch_shared(
    table: Array,
    program: tuple[Array, ...],
    words: Array,
    lookups: tuple[Array, ...],
    calls: Array,
    shared: tuple[Order, Array, Array],
) -> tuple[int, int, int]:
    """Launch every step of every row of a table, and let the main stream wait for all of them.

    Args:
        table, program, lookups: of `driver.launch`; words: too, left as they are.
        calls: [streams, CALLS], the main one first.
        shared: order; int64 [*] events of the driver; [streams, 2] addresses of the temporaries and
            the counters of each stream.
    Returns: as `driver.launch`; launch and step are -1 for an event.
    """
    events, places = shared[1:]
    for stream in range(1, len(calls)):
        code = _after(events[stream], calls[0], calls[stream])
        if code != 0:
            return code, -1, -1
    failed = _launch_in_order(table, program, words, lookups, calls, shared)
    words[TEMPORARY], words[ARRIVED_AT] = places[0, 0], places[0, 1]
    for stream in range(1, len(calls)):
        code = _after(events[stream], calls[stream], calls[0])
        if code != 0 and failed[0] == 0:
            failed = code, -1, -1
    return failed


def _launch_in_order(
    table: Array,
    program: tuple[Array, ...],
    words: Array,
    lookups: tuple[Array, ...],
    calls: Array,
    shared: tuple[Order, Array, Array],
) -> tuple[int, int, int]:
    """Launch all steps, each after the events that it waits for; arguments as `launch_shared`."""
    steps_ptr, steps, step_words = program
    order, events, places = shared
    arguments = room_for_arguments(steps)
    k = 0
    for t in range(len(table)):
        row = table[t]
        for s in range(steps_ptr[row[0]], steps_ptr[row[0] + 1]):
            grid = extent(steps[s], row, lookups[1], lookups[0][t])
            if grid.across == 0:
                continue
            stream, region, event, first, end = order.steps[k]
            own = calls[stream]
            code = _wait_for(order.waits[first:end], events, own)
            words[TEMPORARY], words[ARRIVED_AT] = places[region, 0], places[stream, 1]
            if code == 0:
                code = launch_step(steps[s], row, grid, step_words, words, own, arguments)
            if code == 0 and event >= 0:
                code = record_event(own[RECORD], events[event], own[STREAM])
            if code != 0:
                return code, t, s
            k += 1
    return 0, 0, 0
