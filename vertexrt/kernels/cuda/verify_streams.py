"""Verify the streams of a step: what needs each other is never at once.

A launch runs after all that its stream has before it, and after what that waits for. Whether this
is enough is found anew, by the elements of the arena that launches touch.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, cast

import numpy as np

from vertexrt.engine.batched import Run
from vertexrt.errors import PlanError, message
from vertexrt.ir.pretty import STAGE_WORD
from vertexrt.kernels.cuda.driver import IS_GEMM, WHEN, extent
from vertexrt.kernels.cuda.steps import CHUNKED
from vertexrt.kernels.cuda.stream_order import OF_STREAM, Needs, Order
from vertexrt.kernels.layout import tensor_uses
from vertexrt.kernels.touched_rows import Minibatch, touched_rows
from vertexrt.script.verifier import REPORT

if TYPE_CHECKING:
    from vertexrt.kernels.cuda.executable import CudaExecutable

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class StreamStep:
    """A step that is launched.

    Attributes:
        launch, number: of the table, and of the step among all of its executable.
        adds, chunked: see `steps.Kernel`.
        region: whose temporaries it has: those of a stream.
        stream, place: where it runs; place counts from 1 on each stream.
        done_before: [streams] how many of each stream are done before it.
    """

    launch: int
    number: int
    adds: bool
    chunked: bool
    region: int
    stream: int
    place: int
    done_before: Array

    def after(self, other: StreamStep) -> bool:
        """Tell whether another step is done before this one begins."""
        return bool(self.done_before[other.stream] >= other.place)


@dataclass(frozen=True, slots=True)
class Touch:
    """What a launch has of a buffer: elements of the arena, or rows of a tensor."""

    launch: int
    key: Any
    written: bool
    rows: Array
    first: int
    end: int

    def meets(self, other: Touch) -> bool:
        """Tell whether both touch some element, and one writes it."""
        if not (self.written or other.written):
            return False
        if self.key == other.key:
            return bool(np.any(self.rows & other.rows))
        return self.first < other.end and other.first < self.end


def verify_streams(
    run: Run, table: Array, lookups: tuple[Array, ...], order: Order, needs: Needs
) -> None:
    """Check the streams of the launches of a table.

    Every step is there once, in order; a step comes after those of its launch that it needs, those
    that add to the same gradient come in the order of the table, and so do launches of which one
    writes what the other touches: rows of tensors, buffers, and temporaries.

    Raises: PlanError, which names the launches.
    """
    check = _Streams(run, table, order, needs)
    check.list_steps(lookups)
    check.launches()
    check.gradients()
    check.tensors()
    check.temporaries()


class _Streams:
    def __init__(self, run: Run, table: Array, order: Order, needs: Needs) -> None:
        self.run, self.table, self.order, self.needs = run, table, order, needs
        graph_ptr = run.share.batch.graph_ptr
        self.minibatch = Minibatch(table, run.schedule, run.rows, graph_ptr)
        self.stages = [task.stage for task in run.variant.tasks]
        self.steps: list[StreamStep] = []
        self.of_launch: dict[int, list[StreamStep]] = defaultdict(list)

    def fail(self, t: int, got: str, expected: str) -> NoReturn:
        """Raise PlanError about a launch."""
        p, n, lo = self.table[t, :3].tolist()
        where = f"launch {t} ({STAGE_WORD[self.stages[p]]}, {n} rows from {lo}): "
        raise PlanError(message("streams", where + got, expected, REPORT))

    def list_steps(self, lookups: tuple[Array, ...]) -> None:
        """List what is launched, with what is done before it."""
        steps_ptr, steps, _ = cast("CudaExecutable", self.run.ready.executable).program
        order, found = self.order, self.steps
        lookup_ptr, lookup_at = lookups
        streams = 1 + int(order.steps[:, OF_STREAM].max(initial=0))
        done = np.zeros((streams, streams), np.int64)
        come: dict[int, Array] = {}
        for t, row in enumerate(self.table):
            for s in range(steps_ptr[row[0]], steps_ptr[row[0] + 1]):
                step, k = steps[s], len(found)
                if extent(step, row, lookup_at, lookup_ptr[t]).across == 0:
                    continue
                if k >= len(order.steps):
                    self.fail(t, f"no stream for step {s}", "one for each that is launched")
                stream, region, event_behind, first, end = order.steps[k].tolist()
                for event in order.waits[first:end].tolist():
                    if event not in come:
                        self.fail(t, f"a wait for event {event}", "one that is recorded before")
                    done[stream] = np.maximum(done[stream], come[event])
                done_before = done[stream].copy()
                done[stream, stream] += 1
                if event_behind >= 0:
                    come[event_behind] = done[stream].copy()
                chunked = not step[IS_GEMM] and bool(step[WHEN] == CHUNKED)
                place, adds = int(done[stream, stream]), bool(self.needs.adds[s])
                found.append(StreamStep(t, s, adds, chunked, region, stream, place, done_before))
                self.of_launch[t].append(found[-1])
        if len(found) != len(order.steps):
            got = f"streams for {len(order.steps)} steps"
            self.fail(len(self.table) - 1, got, f"{len(found)}, all that are launched")

    def _after(self, later: StreamStep, earlier: StreamStep, what: str) -> None:
        if not later.after(earlier):
            got = f"step {later.number} does not wait for step {earlier.number} of launch "
            self.fail(later.launch, f"{got}{earlier.launch}", what)

    def launches(self) -> None:
        """Check that a step of a launch runs after those of it that it needs."""
        for steps in self.of_launch.values():
            for k, step in enumerate(steps):
                for other in steps[:k]:
                    if not other.adds or (step.chunked and other is steps[k - 1]):
                        self._after(step, other, "the steps of its launch before it")

    def gradients(self) -> None:
        """Check that those that add to the same gradient do so in the order of the table."""
        needs, last = self.needs, dict[int, StreamStep]()
        for step in self.steps:
            first, end = needs.adds_ptr[step.number : step.number + 2]
            for g in needs.added[first:end].tolist():
                if g in last:
                    self._after(step, last[g], f"a wait for what adds to gradient {g} before it")
                last[g] = step

    def tensors(self) -> None:
        """Check that launches that touch what another one writes run in the order of the table."""
        run, table = self.run, self.run.variant.table
        buffer, in_turn = run.ready.sharing.buffer, self._in_turn()
        found: dict[int, list[Touch]] = defaultdict(list)
        for t in range(len(self.table)):
            for key, _, edges, written in tensor_uses(run.variant.tasks[int(self.table[t, 0])]):
                number = table.numbers[key]
                rows = touched_rows(self.minibatch, self.table[t], key, edges, written)
                at, size = np.flatnonzero(rows), table.specs[number].size
                if not len(at):
                    continue
                base = int(run.plan.base[number])
                span = base + int(at[0]) * size, base + (int(at[-1]) + 1) * size
                mine = Touch(t, key, written, rows, *span)
                for other in found[int(buffer[number])]:
                    if not in_turn[other.launch, t] and mine.meets(other):
                        self._apart(other, mine)
                found[int(buffer[number])].append(mine)

    def _in_turn(self) -> Array:
        """Mark pairs of launches of which all of the first is done before any of the second."""
        steps, launches = self.steps, len(self.table)
        streams = len(steps[0].done_before) if steps else 0
        end = np.zeros((launches, streams), np.int64)
        done_before = np.full((launches, streams), len(steps))
        for step in steps:
            end[step.launch, step.stream] = step.place
            done_before[step.launch] = np.minimum(done_before[step.launch], step.done_before)
        found = np.eye(launches, dtype=np.bool_)  # no launch waits for itself
        for t in range(launches):
            found[:, t] |= (end <= done_before[t]).all(axis=1)
        return found

    def _apart(self, earlier: Touch, later: Touch) -> None:
        # A step that only adds to gradients writes no tensor. It may read what its launch wrote;
        # but what two launches write of one tensor are other slots of the same edges.
        both = earlier.written and later.written and earlier.key == later.key
        for before in self.of_launch[earlier.launch]:
            if not before.adds or (later.written and not both):
                for step in self.of_launch[later.launch]:
                    self._after(step, before, f"a wait for {earlier.key} of launch {before.launch}")

    def temporaries(self) -> None:
        """Check that launches with the same temporaries run in the order of the table."""
        last: dict[int, list[StreamStep]] = defaultdict(list)
        for steps in self.of_launch.values():
            mine = [s for s in steps if self.needs.temporaries[s.number]]
            for region in {step.region for step in mine}:
                if len({step.region for step in mine}) > 1:
                    self.fail(mine[0].launch, "temporaries of several streams", "those of one")
                for step in mine:
                    for other in last[region]:
                        self._after(step, other, f"a wait for the temporaries of stream {region}")
                last[region] = mine
