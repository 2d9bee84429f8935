"""Several streams share the launches of a step: an ablation, off by default since it is slower.

Source: Cavs section 3.5 (streaming), where eager, path and lazy operators run on several streams.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from vertexrt.cache.compiled import njit
from vertexrt.config import config
from vertexrt.engine.batched import Run
from vertexrt.engine.variant import Variant
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
from vertexrt.kernels.cuda.driver import MOST_ARGUMENTS, TEMPORARY, extent, launch_step
from vertexrt.kernels.cuda.executable import CudaExecutable
from vertexrt.kernels.cuda.pack import ADDRESSES
from vertexrt.kernels.cuda.session import COUNTERS, Session
from vertexrt.kernels.cuda.steps import adding, takes_temporaries
from vertexrt.kernels.cuda.stream_order import (
    END_WAIT,
    FIRST_WAIT,
    OF_STREAM,
    RECORDED,
    REGION,
    Links,
    Needs,
    Order,
    share_out,
)
from vertexrt.kernels.cuda.verify_streams import verify_streams
from vertexrt.kernels.layout import gradient_owners, tensor_uses

Array = np.ndarray[Any, Any]

ARRIVED_AT = ADDRESSES.index("arrived")
FORK = 0  # the event where all streams begin; that of each stream's end has the stream's number


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
        Raises: PlanError under VERTEXRT_CHECK=1, when two launches that need each other are at
            once.
        """
        executable, s = cast("CudaExecutable", run.ready.executable), run.schedule
        if executable not in self._needs:
            self._needs[executable] = tuple(needs_of(run.variant, executable))
        links = Links(run.rows, s.edge_ptr, s.child_row, s.edge_row, s.parent_ptr, s.parent_edge)
        needs, program = self._needs[executable], executable.program
        order = Order(*share_out(table, program, lookups, needs, tuple(links), self.count))
        if config().check:
            verify_streams(run, table, lookups, order, Needs(*needs))
        return order

    def counts(self, run: Run) -> dict[str, float]:
        """Count streams, launches on others than the main one, and waits for another."""
        executable = cast("CudaExecutable", run.ready.executable)
        lookups = self.session.sorted_lookups(executable, run.table, inputs_of(run))
        order = self.order(run, run.table, lookups[:2])
        launches = order.of_streams()
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


def needs_of(variant: Variant, executable: CudaExecutable) -> Needs:
    """Find what launches of a variant's task programs need of each other."""
    ops = [{task.program.nodes[k].op for k in task.members} for task in variant.tasks]
    gathers = [(bool(o & {"gather", "gather_all"}), "gather_parents" in o) for o in ops]
    every = [step for x in executable.launches for step in x.steps]
    adds = adding(every, gradient_owners(executable.params))
    return Needs(
        gathers=np.array(gathers, np.bool_).reshape(-1, 2),
        reuses=_reuses(variant),
        adds=adds.only,
        adds_ptr=adds.ptr,
        added=adds.gradients,
        temporaries=np.array([takes_temporaries(s) for s in every], np.bool_),
        gradients=np.array([len(executable.params)]),
    )


def _reuses(variant: Variant) -> Array:
    """Return `Needs.reuses`: tensors share a buffer where their lives do not overlap."""
    tasks, buffer = variant.tasks, variant.ready().sharing.buffer
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
    _, _, events, places = shared
    code = record_event(calls[0, RECORD], events[FORK], calls[0, STREAM])
    for stream in range(1, len(calls)):
        if code == 0:
            code = wait_for_event(calls[stream, WAIT], calls[stream, STREAM], events[FORK])
    if code != 0:
        return code, -1, -1
    failed = _launch_in_order(table, program, words, lookups, calls, shared)
    words[TEMPORARY], words[ARRIVED_AT] = places[0, 0], places[0, 1]
    for stream in range(1, len(calls)):
        code = record_event(calls[stream, RECORD], events[stream], calls[stream, STREAM])
        if code == 0:
            code = wait_for_event(calls[0, WAIT], calls[0, STREAM], events[stream])
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
    lookup_ptr, lookup_at = lookups
    order, waits, events, places = shared
    arguments = new_arguments(MOST_ARGUMENTS)
    k = 0
    for t in range(len(table)):
        row = table[t]
        for s in range(steps_ptr[row[0]], steps_ptr[row[0] + 1]):
            grid = extent(steps[s], row, lookup_at, lookup_ptr[t])
            if grid.across == 0:
                continue
            own, region = calls[order[k, OF_STREAM]], places[order[k, REGION]]
            words[TEMPORARY], words[ARRIVED_AT] = region[0], places[order[k, OF_STREAM], 1]
            code = _wait_for(waits[order[k, FIRST_WAIT] : order[k, END_WAIT]], events, own)
            if code == 0:
                code = launch_step(steps[s], row, grid, step_words, words, own, arguments)
            if code == 0 and order[k, RECORDED] >= 0:
                code = record_event(own[RECORD], events[order[k, RECORDED]], own[STREAM])
            if code != 0:
                return code, t, s
            k += 1
    return 0, 0, 0
