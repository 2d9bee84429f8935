"""Several streams share the launches of a step, which otherwise run one after the other.

It is an ablation. A launch runs after the last launches that made something of a row that it
touches: of its own rows, of children that it gathers, of parents. Two sorts keep the order of the
table: launches that add to one gradient, and those that write to a buffer where another tensor was.
Launches of one stream share temporaries. When a stream has waited for a launch, all that it does
later comes after that launch. Batches whose layout comes again are captured as a CUDA graph:
streams become its branches, waits its edges.

Source: Cavs section 3.4 (streaming), where eager, path and lazy operators run on several streams.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple, NoReturn, cast

import numpy as np
import numpy.typing as npt

from vertexrt.config import config
from vertexrt.engine.batched import Run
from vertexrt.engine.variant import Variant
from vertexrt.errors import PlanError
from vertexrt.kernels.cuda.calls import RECORD, STREAM, WAIT, record_event, wait_for_event
from vertexrt.kernels.cuda.dependences import (
    LaunchedSteps,
    first_conflict,
    gathered_by,
    launched_steps,
    rows_of,
    touched_rows,
)
from vertexrt.kernels.cuda.device import Allocation
from vertexrt.kernels.cuda.driver import extent, launch_step, room_for_arguments
from vertexrt.kernels.cuda.executable import CudaExecutable
from vertexrt.kernels.cuda.pack import ARRIVED_AT, TEMPORARY
from vertexrt.kernels.cuda.session import COUNTERS, Session
from vertexrt.kernels.task_tensors import tensor_uses
from vertexrt.native.compiled import compiled
from vertexrt.script.verify import REPORT

Array = np.ndarray[Any, Any]

ON, FIRST_WAIT, END_WAIT = range(3)  # columns of `Order.launches`


class Order(NamedTuple):
    """The stream of each launch, and what it waits for there.

    Attributes:
        launches: int64 [launches + 2, 3] of each launch its stream (0 for the main one), the first
            and the end of its waits. Before the first one is the start of all, after the last one
            the end; these two launch nothing.
        waits: int64 [*] rows of `launches` that are done before.
    """

    launches: npt.NDArray[np.int64]
    waits: npt.NDArray[np.int64]


class Branches:
    """The streams of a session and what each has of its own: temporaries, counters, a handle.

    Args:
        count: of streams, with the main one.
    """

    def __init__(self, session: Session, count: int) -> None:
        self.session, self.count = session, len(session.device.lanes(count))
        self._counters = session.memory.cleared(COUNTERS * (count - 1), "counters")
        self._temporaries = Allocation(0, 0, None)
        self._events = np.zeros(0, np.int64)

    def order(self, run: Run, table: Array, lookups: tuple[Array, ...]) -> Order:
        """Share launches of a minibatch among the streams.

        Args:
            table: of launches; lookups: of `driver.launch`.
        Raises: PlanError under VERTEXRT_CHECK=1, when launches that need each other overlap.
        """
        found = _share_out(run, table, self.count)
        if config().check:
            verify_branches(run, table, lookups, found)
        return found

    def counts(self, run: Run) -> dict[str, float]:
        """Count streams, launches on others than the main one, and waits for another."""
        table = run.layout.table
        launches, waits = self.order(run, table, self.session.sorted_lookups(run, table)[:2])
        on = np.bincount(launches[1:-1, ON], minlength=1)
        return {
            "streams": int(np.count_nonzero(on)),
            "on_other_streams": int(on[1:].sum()),
            "waits": len(waits),
        }

    def launcher(
        self, run: Run, table: Array, words: Array, lookups: tuple[Array, ...]
    ) -> Callable[[], tuple[int, int, int]]:
        """Return what launches rows of a minibatch's table as `driver.launch` does.

        The order is found when it is first launched, which a captured graph never asks for.
        """
        session, find = self.session, cache(partial(self.order, run, table, lookups))
        program = cast("CudaExecutable", run.ready.executable).program
        room = (run.layout.plan.total - run.layout.plan.temporary) * session.dtype.itemsize

        def launch() -> tuple[int, int, int]:
            order = find()
            if len(self._events) < len(order.launches):
                more = len(order.launches) * 5 // 4 - len(self._events)
                self._events = np.append(self._events, session.device.events(more))
            before = self._temporaries
            self._temporaries = session.memory.scratch(before, room * (self.count - 1))
            if before.size and self._temporaries is not before:  # which captured graphs use
                session.memory.era += 1
            first, apart = (self._temporaries.address, self._counters.address), (room, COUNTERS)
            others = np.add(first, np.multiply.outer(np.arange(self.count - 1), apart))
            places = np.vstack([[words[TEMPORARY], words[ARRIVED_AT]], others])
            calls = np.stack([session.calls_of(lane) for lane in session.device.lanes(self.count)])
            given = (*order, self._events, places)
            found: tuple[int, int, int] = _launch(table, program, words, lookups, calls, given)
            return found

        return launch


@compiled
def _launch(
    table: Array,
    program: tuple[Array, ...],
    words: Array,
    lookups: tuple[Array, ...],
    calls: Array,
    given: tuple[Array, ...],
) -> tuple[int, int, int]:
    """Launch all; where one fails the main stream still waits for what others have.

    Args:
        table, program, lookups: of `driver.launch`; words: too, left as they are.
        calls: [streams, CALLS], the main one first.
        given: launches, waits; int64 [launches + 2] events of the driver; [streams, 2] addresses
            of the temporaries and the counters of each stream.
    Returns: as `driver.launch`.
    """
    steps_ptr, steps, step_words = program
    launches, waits, events, places = given
    arguments = room_for_arguments(steps)
    failed = (0, 0, 0)
    for k in range(len(launches)):
        stream, t, s, code = launches[k, ON], max(k - 1, 0), 0, 0
        own = calls[stream]
        for wait in range(launches[k, FIRST_WAIT], launches[k, END_WAIT]):
            if code == 0:
                code = wait_for_event(own[WAIT], own[STREAM], events[waits[wait]])
        words[TEMPORARY], words[ARRIVED_AT] = places[stream, 0], places[stream, 1]
        if 0 < k < len(launches) - 1:
            s = steps_ptr[table[t, 0]]
            while s < steps_ptr[table[t, 0] + 1] and code == 0 and failed[0] == 0:
                grid = extent(steps[s], table[t], lookups[1], lookups[0][t])
                if grid.across > 0:
                    code = launch_step(steps[s], table[t], grid, step_words, words, own, arguments)
                if code == 0:
                    s += 1
        if code == 0:
            code = record_event(own[RECORD], events[k], own[STREAM])
        if code != 0 and failed[0] == 0:
            failed = code, t, s
    words[TEMPORARY], words[ARRIVED_AT] = places[0, 0], places[0, 1]
    return failed


def _share_out(run: Run, table: Array, streams: int) -> Order:
    """Give each launch a stream, and find what it has to wait for.

    It gets the stream of the latest launch that it needs, if that did nothing since, else the one
    that is idle longest. Of launches that it needs, the latest is waited for first: what that one
    came after needs no wait of its own.
    """
    executable = cast("CudaExecutable", run.ready.executable)
    effects, ptr = executable.effects, executable.program[0]
    gathered, reused = [gathered_by(task) for task in run.variant.tasks], _reused(run.variant)
    made = np.zeros(len(run.layout.schedule.order), np.int64)  # the last launch of each row,
    added: dict[int, int] = defaultdict(int)  # of each gradient,
    ran: dict[int, set[int]] = defaultdict(set)  # and all of each task program
    known = np.full((streams, streams), -1)  # of each stream, the last of each that it comes after
    found, waits, done = [(0, 0, 0)], list[int](), [known[0].copy()]
    known[0, 0] = done[0][0] = 0

    def give(on: int, need: set[int]) -> None:
        first = len(waits)
        for k in sorted(need, reverse=True):
            if known[on, found[k][ON]] < k:
                waits.append(k)
                known[on] = np.maximum(known[on], done[k])
        known[on, on] = len(found)
        found.append((on, first, len(waits)))
        done.append(known[on].copy())

    for t, row in enumerate(table):
        p, k = int(row[0]), t + 1
        touched = touched_rows(run, row, False, gathered[p])
        gradients = effects.gradients[effects.ptr[ptr[p]] : effects.ptr[ptr[p + 1]]].tolist()
        need = {0, *made[touched].tolist(), *(added[g] for g in gradients)}
        need = need.union(*(ran[other] for other in reused[p]))
        last, latest = np.diag(known), max(need)
        on = found[latest][ON]
        give(on if last[on] == latest > 0 else int(np.argmin(last)), need)
        added.update(dict.fromkeys(gradients, k))
        ran[p].add(k)
        if not effects.only[ptr[p] : ptr[p + 1]].all():
            made[rows_of(run, row)] = k
    give(0, set(np.diag(known).tolist()) - {-1})
    return Order(np.array(found, np.int64), np.array(waits, np.int64))


def _reused(variant: Variant) -> list[set[int]]:
    """Return for each task program those with other tensors in a buffer that it writes to.

    It comes after them: the lives of such tensors do not overlap.
    """
    tasks, buffer = variant.tasks, variant.ready().programs.buffer
    uses = [
        (p, key, int(buffer[variant.table.numbers[key]]), written)
        for p, task in enumerate(tasks)
        for key, _, _, written in tensor_uses(task)
    ]
    reused: list[set[int]] = [set() for _ in tasks]
    for p, key, number, written in uses:
        if written:
            reused[p] |= {a for a, other, at, _ in uses if at == number and other != key}
    return reused


def verify_branches(run: Run, table: Array, lookups: tuple[Array, ...], order: Order) -> None:
    """Check the branches of a table: each launch comes after all that it needs.

    Raises: PlanError, which names the launches.
    """
    count = len(table) + 2
    if order.launches.shape != (count, 3):
        _fail(run, table, 0, f"{len(order.launches) - 2} launches", f"{len(table)}")
    done = np.zeros((count, count), np.bool_)  # before each begins
    known = np.zeros((1 + int(order.launches[:, ON].max()), count), np.bool_)  # of each stream
    for k, (on, first, end) in enumerate(order.launches.tolist()):
        for wait in order.waits[first:end].tolist():
            if not 0 <= wait < k:
                _fail(run, table, k - 1, "a wait for what comes later", "earlier launches")
            known[on] |= done[wait]
            known[on, wait] = True
        done[k] = known[on]
        known[on, k] = True
        if not done[k, 0] and k:
            _fail(run, table, k - 1, "does not wait for the start", "branches that begin with it")
    if not done[-1, :-1].all():
        t = int(np.argmin(done[-1])) - 1
        _fail(run, table, t, "nothing waits for it", "an end that comes after all")
    executable = cast("CudaExecutable", run.ready.executable)
    launched = [(t, s) for t, s, _ in launched_steps(table, executable.program, lookups)]
    launch, number = np.array(launched, np.int64).reshape(-1, 2).T
    same = np.tril(launch[:, None] == launch, -1)  # its steps run in order
    stream = order.launches[launch + 1, ON]  # whose temporaries it has
    end = stream + executable.effects.temporaries[number]
    after = done[launch + 1][:, launch + 1] | same
    steps = LaunchedSteps(launch, number, stream, end, after)
    found = first_conflict(run, table, run.variant.tasks, steps, executable.effects)
    if found is not None:
        _fail(run, table, int(launch[found.step]), found.got, found.expected)


def _fail(run: Run, table: Array, t: int, got: str, expected: str) -> NoReturn:
    """Raise PlanError about a launch."""
    p, n, lo = table[min(max(t, 0), len(table) - 1), :3].tolist()
    where = f"launch {t} ({run.variant.tasks[p].stage.word}, {n} rows from {lo}): "
    raise PlanError.at("streams", where + got, expected, REPORT)
