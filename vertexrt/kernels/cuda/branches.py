"""Several streams share the launches of a step, which otherwise run one after the other.

It is an ablation. A launch is cut into *pieces*: what it makes, and each of its steps that only
adds to gradients. A piece runs after the last pieces that made something of a row that it touches:
of its own rows, of children that it gathers, of parents. Three sorts of pieces keep the order of
the table: those that add to one gradient; those that use the temporaries of one stream; and those
of launches that write to a buffer where another tensor was. When a stream has waited for a piece,
all that it does later comes after that piece. Batches whose layout comes again are captured as a
CUDA graph: streams become its branches, waits its edges.

Source: Cavs section 3.4 (streaming), where eager, path and lazy operators run on several streams.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any, NamedTuple, NoReturn, cast

import numpy as np
import numpy.typing as npt

from vertexrt.config import config
from vertexrt.engine.batched import Run
from vertexrt.engine.variant import Variant
from vertexrt.errors import PlanError
from vertexrt.kernels.cuda.dependences import (
    LaunchedSteps,
    first_conflict,
    gathered_by,
    launched_steps,
    rows_of,
    touched_rows,
)
from vertexrt.kernels.cuda.device import Allocation
from vertexrt.kernels.cuda.driver import (
    RECORD,
    STREAM,
    WAIT,
    extent,
    launch_step,
    record_event,
    room_for_arguments,
    wait_for_event,
)
from vertexrt.kernels.cuda.executable import CudaExecutable
from vertexrt.kernels.cuda.pack import ARRIVED_AT, TEMPORARY
from vertexrt.kernels.cuda.session import COUNTERS, Session
from vertexrt.kernels.task_tensors import tensor_uses
from vertexrt.native.compiled import compiled
from vertexrt.script.verify import REPORT

Array = np.ndarray[Any, Any]

COLUMNS = 6  # of `Order.pieces`
LAUNCH, FIRST, END, ON, FIRST_WAIT, END_WAIT = range(COLUMNS)


class Order(NamedTuple):
    """The pieces of the launches of a table, in its order.

    Attributes:
        pieces: int64 [*, 6] of each piece its launch, the first and the end of its steps, its
            stream (0 for the main one), the first and the end of its waits. The first one and the
            last one have no steps: all begin after the one, and the other comes after all.
        waits: int64 [*] the pieces that streams wait for.
    """

    pieces: npt.NDArray[np.int64]
    waits: npt.NDArray[np.int64]


class Branches:
    """The streams of a session and what each has of its own: temporaries, counters, a handle.

    Args:
        count: of streams, with the main one.
    """

    def __init__(self, session: Session, count: int) -> None:
        self.session, self.count = session, len(session.device.lanes(count))
        self._counters = session.memory.cleared(COUNTERS * (count - 1), "counters")
        self._temporaries = Allocation()
        self._events = np.zeros(0, np.int64)

    def order(self, run: Run, table: Array, lookups: tuple[Array, ...]) -> Order:
        """Share launches of a minibatch among the streams.

        Args:
            table: of launches; lookups: of `driver.launch`.
        Raises: PlanError under VERTEXRT_CHECK=1, when launches that need each other overlap.
        """
        found = _share_out(run, table, lookups, self.count)
        if config().check:
            verify_branches(run, table, lookups, found)
        return found

    def counts(self, run: Run) -> dict[str, float]:
        """Count streams, pieces on others than the main one, and waits for another."""
        table = run.layout.table
        lookups = self.session.sorted_lookups(run, table)[:2]
        pieces, waits = self.order(run, table, lookups)
        on = np.bincount(pieces[1:-1, ON], minlength=1)
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
            if len(self._events) < len(order.pieces):
                more = len(order.pieces) * 5 // 4 - len(self._events)
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
    """Launch all pieces; where one fails the main stream still waits for what others have.

    Args:
        table, program, lookups: of `driver.launch`; words: too, left as they are.
        calls: [streams, CALLS], the main one first.
        given: pieces, waits; int64 [pieces] events of the driver; [streams, 2] addresses of the
            temporaries and the counters of each stream.
    Returns: as `driver.launch`; launch and step are those of the piece for an event.
    """
    _, steps, step_words = program
    pieces, waits, events, places = given
    arguments = room_for_arguments(steps)
    failed = (0, 0, 0)
    for k in range(len(pieces)):
        t, first, end, stream, from_wait, to_wait = pieces[k]
        own, code = calls[stream], 0
        for wait in range(from_wait, to_wait):
            if code == 0:
                code = wait_for_event(own[WAIT], own[STREAM], events[waits[wait]])
        words[TEMPORARY], words[ARRIVED_AT] = places[stream, 0], places[stream, 1]
        at = first
        while at < end and code == 0 and failed[0] == 0:
            grid = extent(steps[at], table[t], lookups[1], lookups[0][t])
            if grid.across > 0:
                code = launch_step(steps[at], table[t], grid, step_words, words, own, arguments)
            if code == 0:
                at += 1
        if code == 0:
            code = record_event(own[RECORD], events[k], own[STREAM])
        if code != 0 and failed[0] == 0:
            failed = code, t, at
    words[TEMPORARY], words[ARRIVED_AT] = places[0, 0], places[0, 1]
    return failed


class _OrderDraft:
    """An order while it is made: what each stream did last, and what it has waited for."""

    def __init__(self, streams: int) -> None:
        self.pieces: list[tuple[int, ...]] = []
        self.waits: list[int] = []
        self.known = np.full((streams, streams), -1)  # the last piece of each that it comes after
        self._done: list[Array] = []  # `known` when each piece is done

    def stream_of(self, wanted: set[int]) -> int:
        """Return the stream whose last piece is the latest wanted, else the one idle longest."""
        last, latest = np.diag(self.known), max(wanted)
        found = self.pieces[latest][ON]
        return found if last[found] == latest > 0 else int(np.argmin(last))

    def give(self, launch: int, steps: tuple[int, int], on: int, want: set[int]) -> int:
        """Let a stream run a piece after the pieces wanted; return its number.

        The latest is waited for first: what it came after needs no wait of its own.
        """
        first = len(self.waits)
        for piece in sorted(want, reverse=True):
            if self.known[on, self.pieces[piece][ON]] < piece:
                self.waits.append(piece)
                self.known[on] = np.maximum(self.known[on], self._done[piece])
        number = len(self.pieces)
        self.pieces.append((launch, *steps, on, first, len(self.waits)))
        self.known[on, on] = number
        self._done.append(self.known[on].copy())
        return number


def _share_out(run: Run, table: Array, lookups: tuple[Array, ...], streams: int) -> Order:
    """Give each piece of each launch a stream, and find what it has to wait for."""
    executable = cast("CudaExecutable", run.ready.executable)
    effects, ptr = executable.effects, executable.program[0]
    launched = {(t, s) for t, s, _ in launched_steps(table, executable.program, lookups)}
    gathered, reused = [gathered_by(task) for task in run.variant.tasks], _reused(run.variant)
    draft = _OrderDraft(streams)
    draft.give(0, (0, 0), 0, set())
    made = np.zeros(len(run.layout.schedule.order), np.int64)  # the last piece of each row
    added: dict[int, int] = defaultdict(int)  # and of each gradient
    ran: dict[int, set[int]] = defaultdict(set)  # pieces of each task program
    for t, row in enumerate(table):
        p, last = int(row[0]), 0
        touched = touched_rows(run, row, False, gathered[p])
        need = {0, *made[touched].tolist()}.union(*(ran[other] for other in reused[p]))
        home = draft.stream_of(need)
        for first, end in _pieces(effects, int(ptr[p]), int(ptr[p + 1])):
            if not any((t, s) in launched for s in range(first, end)):
                continue
            gradients = effects.gradients[effects.ptr[first] : effects.ptr[end]].tolist()
            want = need | {added[g] for g in gradients}
            stays = not effects.only[first] or effects.temporaries[first:end].any()
            k = draft.give(t, (first, end), home if stays else draft.stream_of(want), want)
            added.update(dict.fromkeys(gradients, k))
            ran[p].add(k)
            if not effects.only[first]:
                need.add(k)
                last = k
        if last:
            made[rows_of(run, row)] = last
    draft.give(0, (0, 0), 0, set(np.diag(draft.known).tolist()) - {-1})
    pieces = np.array(draft.pieces, np.int64).reshape(-1, COLUMNS)
    return Order(pieces, np.array(draft.waits, np.int64))


def _pieces(effects: Any, first: int, end: int) -> Iterator[tuple[int, int]]:
    """Cut the steps of a launch: what only adds to gradients is apart from what it makes."""
    for s in range(first + 1, end):
        if effects.only[s] or effects.only[s - 1]:
            yield first, s
            first = s
    if first < end:
        yield first, end


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
    """Check the branches of a table: every step once, after all that it needs.

    Raises: PlanError, which names the launches.
    """
    executable = cast("CudaExecutable", run.ready.executable)
    launched = [(t, s) for t, s, _ in launched_steps(table, executable.program, lookups)]
    piece_of: dict[tuple[int, int], int] = {}
    for k, (t, first, end) in enumerate(order.pieces[:, : END + 1].tolist()):
        for s in range(first, end):
            if (t, s) in piece_of:
                _fail(run, table, t, f"step {s} in two pieces", "one for each that is launched")
            piece_of[t, s] = k
    for t, s in launched:
        if (t, s) not in piece_of:
            _fail(run, table, t, f"no piece for step {s}", "one for each that is launched")
    pieces = np.array([piece_of[each] for each in launched], np.int64)
    done = _done(run, table, order)
    for k in np.unique(pieces).tolist():
        if not (done[k, 0] and done[-1, k]):
            got = f"step {order.pieces[k, FIRST]} does not wait for the start, or nothing for it"
            _fail(run, table, int(order.pieces[k, LAUNCH]), got, "branches that begin and end")
    launch, number = np.array(launched, np.int64).reshape(-1, 2).T
    same = np.tril(pieces[:, None] == pieces, -1)  # a piece runs its steps in order
    stream = order.pieces[pieces, ON]  # whose temporaries it has
    end = stream + executable.effects.temporaries[number]
    steps = LaunchedSteps(launch, number, stream, end, done[pieces][:, pieces] | same)
    found = first_conflict(run, table, run.variant.tasks, steps, executable.effects)
    if found is not None:
        _fail(run, table, int(launch[found.step]), found.got, found.expected)


def _fail(run: Run, table: Array, t: int, got: str, expected: str) -> NoReturn:
    """Raise PlanError about a launch."""
    p, n, lo = table[t, :3].tolist()
    where = f"launch {t} ({run.variant.tasks[p].stage.word}, {n} rows from {lo}): "
    raise PlanError.at("streams", where + got, expected, REPORT)


def _done(run: Run, table: Array, order: Order) -> Array:
    """Mark the pieces that are done before each begins: [pieces, pieces]."""
    count = len(order.pieces)
    done = np.zeros((count, count), np.bool_)
    known = np.zeros((1 + int(order.pieces[:, ON].max()), count), np.bool_)  # of each stream
    for k, piece in enumerate(order.pieces.tolist()):
        for wait in order.waits[piece[FIRST_WAIT] : piece[END_WAIT]].tolist():
            if not 0 <= wait < k:
                expected = "pieces that come before"
                _fail(run, table, piece[LAUNCH], "a wait for a piece to come", expected)
            known[piece[ON]] |= done[wait]
            known[piece[ON], wait] = True
        done[k] = known[piece[ON]]
        known[piece[ON], k] = True
    return done
