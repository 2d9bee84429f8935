"""Interpret the scripts of all processors of a group: the oracle of the persistent engine.

Processors take turns, one instruction each, in a fixed order or one drawn from a seed, so that a
run repeats bit for bit. A processor sees only what it made itself and what reached it through a
wait, so a missing exchange shows whatever the order of the turns: the memory that processors share
knows which wrote and read each element, in which order. An element that no wait has brought to a
processor reads as NaN, and two accesses that no wait puts in order are an error when one of them
writes.

Source: the interpreter in Megakernels runs scripts in Python too; the clocks are those of a race
detector (Fidge 1988, Mattern 1989).
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vertexrt.errors import DeviceError
from vertexrt.ir.passes.segment import SegmentedTask, Split
from vertexrt.kernels.backend import ScriptRun
from vertexrt.kernels.layout import Array, Binding, Buffers, temporaries
from vertexrt.kernels.reference.interpret import Elements, Interpreter, LaunchedRows
from vertexrt.lower.lowering import lower
from vertexrt.lower.verify import verify
from vertexrt.script.isa import NONE, Instruction, decode, describe

Tile = tuple[int, ...]  # program, first row, first entry of the list, rows
EVERYTHING_BEFORE = -1  # writer of what was in memory before the run
ALL = 1 << 40  # more instructions than a script has


def _race(processor: Processor, other: int, verb: str) -> DeviceError:
    what = f"writes what processor {other} has {verb}, in no order"
    return processor.fault(what, "a wait between two processors that share elements")


class SharedMemory(Elements):
    """An array of which every element knows which processor wrote and read it last.

    Attributes:
        writer: [elements] processor, or EVERYTHING_BEFORE; written: its instruction.
        read: [processors, elements] instruction of each processor's last read, -1 for none.
        user: the processor whose turn it is; known: how many instructions of each it knows.
    """

    user: Processor
    known: Array

    def __init__(self, array: Array, processors: int) -> None:
        super().__init__(array)
        self.writer = np.full(len(array), EVERYTHING_BEFORE, np.int32)
        self.written = np.zeros(len(array), np.int32)
        self.read = np.full((processors, len(array)), -1, np.int32)

    def give_to(self, processor: Processor) -> None:
        """Let a processor see the array during an instruction."""
        self.user = processor
        self.known = np.append(processor.clock, ALL)  # the last: of EVERYTHING_BEFORE
        self.known[processor.number] = ALL

    def load(self, at: Array) -> Array:
        """Return elements: NaN where no wait has brought one to the processor."""
        self.read[self.user.number, at] = self.user.instruction
        seen = self.written.take(at) < self.known.take(self.writer.take(at))
        return np.where(seen, self.array.take(at), self.array.dtype.type(np.nan))

    def store(self, at: Array, value: Any) -> None:
        """Set elements.

        Raises: DeviceError, when another processor wrote or read one and nothing says in which
            order.
        """
        writer = self.writer.take(at)
        unknown = self.written.take(at) >= self.known.take(writer)
        if unknown.any():
            raise _race(self.user, int(writer[unknown][0]), "written")
        unknown = self.read.take(at.reshape(-1), axis=1) >= self.known[:-1, None]
        if unknown.any():
            raise _race(self.user, int(np.argwhere(unknown)[0, 0]), "read")
        self.array[at] = value
        self.writer[at] = self.user.number
        self.written[at] = self.user.instruction


@dataclass(slots=True)
class Processor:
    """Where one processor is.

    Attributes:
        instruction: the one that it runs or waits at.
        clock: [processors] how many instructions of each are known to be done.
        temporary: element at which its temporaries start.
        kept: by where their temporaries start from there, the tiles under way.
    """

    number: int
    script: list[Instruction]
    names: list[str]
    clock: Array
    temporary: int
    instruction: int = 0
    kept: dict[int, Tile] = field(default_factory=dict)

    @property
    def ended(self) -> bool:
        """Tell whether it has done all of its script."""
        return self.instruction == len(self.script)

    def where(self) -> str:
        """Name processor and instruction, for messages."""
        line = describe(self.script[self.instruction], self.names)
        return f"processor {self.number}, instruction {self.instruction} ({line})"

    def fault(self, what: str, expected: str) -> DeviceError:
        """Return the error of what it does."""
        action = "report this as a bug; engine='batched' goes on"
        return DeviceError.at("interpreter", f"{self.where()} {what}", expected, action)


@dataclass(slots=True)
class ProcessorGroup:
    """Processors at work, and what they share.

    Attributes:
        counters: [instructions] processors that have done each.
        clocks: [instructions, processors] what a processor that has waited for it knows to be done.
        times: of each processor, see `Processors`; done: instructions of all processors.
    """

    processors: list[Processor]
    buffers: Buffers
    arena: SharedMemory
    gradients: SharedMemory
    counters: Array
    clocks: Array
    times: list[Array]
    done: int = 0

    def may_go_on(self, processor: Processor) -> bool:
        """Tell whether a processor has an instruction whose wait is met; it then knows of it."""
        if processor.ended:
            return False
        wait = processor.script[processor.instruction].wait
        if wait == NONE:
            return True
        met = bool(self.counters[wait] >= len(self.processors))
        if met:
            np.maximum(processor.clock, self.clocks[wait], out=processor.clock)
        return met

    def finish(self, processor: Processor) -> None:
        """Note that a processor has done its instruction."""
        at, times = processor.instruction, self.times[processor.number]
        if len(times):
            times[at] = self.done, self.done, self.done + 1
        self.done += 1
        processor.clock[processor.number] = at + 1
        self.counters[at] += 1
        np.maximum(self.clocks[at], processor.clock, out=self.clocks[at])
        processor.instruction += 1


class ReferenceProcessors:
    """Segments under interpretation: the last processor to arrive runs the scripts of all.

    Args:
        seed: of the order of the turns; None takes processors in turn.
    """

    blas_above = sys.maxsize

    def __init__(
        self, tasks: list[SegmentedTask], binding: Binding, seed: int | None = None
    ) -> None:
        self.seed, self._rng = seed, np.random.default_rng(seed)
        kernels = [verify(lower(t.task, binding, t)) for t in tasks]
        self.scratch = [kernel.needs for kernel in kernels]
        self.segments = [
            (kernel, number, segment.split)
            for kernel, task in zip(kernels, tasks, strict=True)
            for number, segment in enumerate(task.segments)
        ]
        self.names = [
            f"{t.task.stage.name.lower()}.{k}.{s}"
            for k, t in enumerate(tasks)
            for s in range(len(t.segments))
        ]
        self._lock = threading.Lock()
        # By the address of counters, which are kept: another array could come to lie there.
        self._arrived: dict[int, tuple[Array, dict[int, tuple[Processor, Array]]]] = {}

    def new_counters(self, count: int) -> Array:
        """Return counters at zero."""
        return np.zeros(count, np.int64)

    def cycles_per_second(self) -> float:
        """Return the rate of the clock in `times`: an instruction a microsecond."""
        return 1e6

    def check(self, counters: Array) -> None:
        """Do nothing: `run` has raised what there was to raise."""

    def stop(self, counters: Array) -> None:
        """Forget who has arrived: nobody waits."""
        self._arrived.pop(id(counters), None)

    def run(self, run: ScriptRun) -> None:
        """Run the scripts of all processors, once all of them are known.

        The clock counts instructions of the whole group.

        Raises: DeviceError, when no processor can go on, and for accesses in no order.
        """
        counters, parts, buffers = run.counters, run.parts, run.buffers
        clock = np.zeros(parts, np.int64)
        processor = Processor(run.part, decode(run.script), self.names, clock, run.temporary)
        with self._lock:
            _, arrived = self._arrived.setdefault(id(counters), (counters, {}))
            arrived[run.part] = processor, run.times
            if len(arrived) < parts:
                return
            del self._arrived[id(counters)]
        processors, noted = zip(*(arrived[r] for r in range(parts)), strict=True)
        group = ProcessorGroup(
            list(processors),
            buffers,
            SharedMemory(buffers.arena, parts),
            SharedMemory(buffers.gradients, parts),
            counters,
            np.zeros((len(counters), parts), np.int64),
            list(noted),
        )
        while waiting := [p for p in group.processors if not p.ended]:
            before = group.done
            for each in self._turn(group.processors):
                if group.may_go_on(each):
                    self._execute(each, group)
                    group.finish(each)
            if group.done == before:
                counter = waiting[0].script[waiting[0].instruction].wait
                stands = f"counter {counter} stands at {counters[counter]}"
                what = f"waits and no processor moves: {stands}"
                raise waiting[0].fault(what, "every wait is met")

    def _turn(self, processors: list[Processor]) -> Iterator[Processor]:
        """Yield the processors in the order of this round."""
        if self.seed is None:
            yield from processors
            return
        for k in self._rng.integers(len(processors), size=2 * len(processors)):
            yield processors[k]
        yield from processors  # fair: each has a turn in each round

    def _execute(self, processor: Processor, group: ProcessorGroup) -> None:
        """Run the instruction at which a processor is."""
        step = processor.script[processor.instruction]
        kernel, segment, split = self.segments[step.op]
        arena, gradients = group.arena, group.gradients
        arena.give_to(processor)
        gradients.give_to(processor)
        tile = (step.program, step.first, step.listed, step.rows)
        start = processor.temporary + step.temporary
        size = temporaries(kernel.needs, step.rows, step.edges)  # 0: tiles lie nowhere
        if size and (segment == 0 or processor.kept.get(step.temporary) != tile):
            if segment and split == Split.UNITS:
                what = "goes on with a tile whose temporaries are gone"
                raise processor.fault(what, "tiles that are under way at once lie apart")
            processor.kept[step.temporary] = tile
            arena.store(np.arange(start, start + size), np.nan)
        launch = LaunchedRows(
            step.rows,
            step.first,
            step.listed,
            step.edges,
            step.first_edge,
            start,
            segment,
            processor.number,
            len(group.processors),
        )
        Interpreter(kernel, launch, group.buffers, arena, gradients).run()
