"""Interpret the scripts of all processors of a group: the oracle of the persistent engine.

Processors take turns, one instruction each, in a fixed order or one drawn from a seed, so that a
run repeats bit for bit. A processor sees only what it made itself and what reached it through a
wait (`shared_memory`), so a missing exchange shows whatever the order of the turns.

Source: the interpreter in Megakernels runs scripts in Python too.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np

from vertexrt.errors import DeviceError, message
from vertexrt.ir.passes.segment import SegmentedTask, Split
from vertexrt.kernels.layout import Array, Binding, Buffers
from vertexrt.kernels.reference.segments import Evaluator, View
from vertexrt.kernels.reference.shared_memory import Processor, SharedMemory
from vertexrt.script.isa import NONE, Instruction, decode


def _stuck(processor: Processor, counters: Array) -> DeviceError:
    counter = processor.script[processor.instruction].wait
    return DeviceError(
        message(
            "interpreter",
            f"{processor.where()} waits and no processor moves: counter {counter} stands at "
            f"{counters[counter]}",
            "every wait is met",
            "report this as a bug; engine='batched' goes on",
        )
    )


class ReferenceProcessors:
    """Segments under interpretation: the last processor to arrive runs the scripts of all.

    Args:
        seed: of the order of the turns; None takes processors in turn.
    """

    def __init__(
        self, tasks: list[SegmentedTask], binding: Binding, seed: int | None = None
    ) -> None:
        self.binding = binding
        self.seed = seed
        self.scratch = [(1, 0, 0)] * len(tasks)  # so that tiles under way are told apart
        self.segments = [(t, segment) for t in tasks for segment in t.segments]
        self.names = [
            f"{t.task.stage.name.lower()}.{k}.{s}"
            for k, t in enumerate(tasks)
            for s in range(len(t.segments))
        ]
        self._lock = threading.Lock()
        self._arrived: dict[int, dict[int, tuple[Array, Array]]] = {}

    def new_counters(self, count: int) -> Array:
        """Return counters at zero."""
        return np.zeros(count, np.int64)

    def cycles_per_second(self) -> float:
        """Return the rate of the clock in `times`: an instruction a microsecond."""
        return 1e6

    def check(self, counters: Array) -> None:
        """Do nothing: `run` has raised what there was to raise."""

    def run(
        self,
        script: Array,
        counters: Array,
        part: int,
        parts: int,
        temporary: int,
        buffers: Buffers,
        times: Array,
    ) -> None:
        """Run the scripts of all processors, once all of them are known.

        Args:
            times: see `Processors`; the clock counts instructions of the whole group.
        Raises: DeviceError, when no processor can go on, and for accesses in no order.
        """
        del temporary  # values live in NumPy arrays
        with self._lock:
            arrived = self._arrived.setdefault(id(counters), {})
            arrived[part] = script, times
            if len(arrived) < parts:
                return
            del self._arrived[id(counters)]
        self._run_all(arrived, counters, buffers)

    def _run_all(
        self, arrived: dict[int, tuple[Array, Array]], counters: Array, buffers: Buffers
    ) -> None:
        """Run the scripts of all processors, in turns.

        Args:
            arrived: script and times of each processor.
        """
        parts = len(arrived)
        processors = [
            Processor(r, decode(arrived[r][0]), self.names, np.zeros(parts, np.int64))
            for r in range(parts)
        ]
        arena = SharedMemory(buffers.arena, parts)
        gradients = SharedMemory(buffers.gradients, parts)
        clocks = np.zeros((len(counters), parts), np.int64)
        clock = 0
        while True:
            moved = False
            for processor in self._turn(processors):
                if processor.instruction == len(processor.script):
                    continue
                step = processor.script[processor.instruction]
                if step.wait != NONE:
                    if counters[step.wait] < parts:
                        continue
                    np.maximum(processor.clock, clocks[step.wait], out=processor.clock)
                self._execute(processor, step, arena, gradients, buffers, parts)
                moved = True
                noted = arrived[processor.number][1]
                if len(noted):
                    noted[processor.instruction] = clock, clock, clock + 1
                clock += 1
                processor.clock[processor.number] = processor.instruction + 1
                counters[processor.instruction] += 1
                done = clocks[processor.instruction]
                np.maximum(done, processor.clock, out=done)
                processor.instruction += 1
            waiting = [p for p in processors if p.instruction < len(p.script)]
            if not waiting:
                return
            if not moved:
                raise _stuck(waiting[0], counters)

    def _turn(self, processors: list[Processor]) -> Iterator[Processor]:
        """Yield the processors in the order of this round."""
        if self.seed is None:
            yield from processors
            return
        if not hasattr(self, "_rng"):
            self._rng: Any = np.random.default_rng(self.seed)
        for k in self._rng.integers(len(processors), size=2 * len(processors)):
            yield processors[k]
        yield from processors  # fair: each has a turn in each round

    def _execute(
        self,
        processor: Processor,
        step: Instruction,
        arena: SharedMemory,
        gradients: SharedMemory,
        buffers: Buffers,
        parts: int,
    ) -> None:
        plan, segment = self.segments[step.op]
        begins = segment is plan.segments[0]
        tile = (step.program, step.first, step.listed, step.rows)
        if begins or processor.kept.get(step.temporary, ((), {}))[0] != tile:
            if not begins and segment.split == Split.UNITS:
                raise DeviceError(
                    message(
                        "interpreter",
                        f"{processor.where()} goes on with a tile whose temporaries are gone",
                        "tiles that are under way at once lie apart",
                        "report this as a bug; engine='batched' goes on",
                    )
                )
            processor.kept[step.temporary] = tile, {}
        rows = (
            np.arange(step.first, step.first + step.rows)
            if step.first >= 0
            else buffers.rows[step.listed : step.listed + step.rows]
        )
        first, end = buffers.schedule.edge_ptr[rows], buffers.schedule.edge_ptr[rows + 1]
        owner = np.repeat(np.arange(len(rows)), end - first)
        starts = np.cumsum(end - first) - (end - first)
        edges = np.arange(len(owner)) - np.repeat(starts - first, end - first)
        view = View(self.binding, buffers, rows, edges, owner, arena, processor)
        Evaluator(plan, segment, view, gradients, parts).run()
