"""Run scripts on CPU threads: one processor a thread, one compiled call a processor and step.

A call runs the script and, where a step is to update the parameters, ends with the processor's
share of the update.
"""

from __future__ import annotations

import functools
from itertools import accumulate
from typing import Any

import numpy as np

from vertexrt.errors import DeviceError, message
from vertexrt.ir.passes.segment import SegmentedTask
from vertexrt.kernels.cpu.backend import arguments
from vertexrt.kernels.cpu.counters import (
    APART,
    FAILED,
    INSTRUCTION,
    PROCESSOR,
    SECONDS,
    WAITED,
    cycles_per_second,
    gate_words,
)
from vertexrt.kernels.cpu.emit import ARGUMENTS, emit
from vertexrt.kernels.cpu.generated import load_source
from vertexrt.kernels.cpu.update import AT_THE_GATE, PATIENCE, arguments_of
from vertexrt.kernels.layout import Array, Binding, Buffers, Ending
from vertexrt.script.isa import (
    EDGES,
    FIRST,
    FIRST_EDGE,
    LISTED,
    OP,
    PROGRAM,
    ROWS,
    TEMPORARY,
    WAIT,
)

# What the loop over a script calls the columns of an instruction.
COLUMNS = {
    "op": OP,
    "program": PROGRAM,
    "n": ROWS,
    "lo": FIRST,
    "at": LISTED,
    "m": EDGES,
    "elo": FIRST_EDGE,
    "wait": WAIT,
    "apart": TEMPORARY,
}


@functools.cache
def _no_ending(dtype: np.dtype[Any]) -> tuple[Any, ...]:
    """Return the arguments of an ending that does nothing: its gate is empty."""
    real, none = np.zeros((0, 0), dtype), np.zeros((0, 2), np.int64)
    numbers, spans = np.zeros(0), np.zeros((0, 1, 2), np.int64)
    words, rows = np.zeros(0, np.int32), np.zeros(0, np.int64)
    settings = (0, 0.0, 0.0, 0.0)
    scratch = (numbers, numbers, numbers, numbers)
    return (words, settings, rows, *scratch, real.reshape(-1), real, real, none, spans, rows)


def driver_source(names: list[str], segment_ptr: list[int], timed: bool = False) -> str:
    """Write the loop over a script.

    Args:
        names: modules of the task programs; segment_ptr: number of the first segment of each.
        timed: it also notes the cycles at the start, the end of the wait and the end of each
            instruction; a loop of its own, so that the other one pays nothing.
    """
    lines = ["import numpy as np", "from vertexrt.cache.compiled import njit"]
    lines += ["from vertexrt.kernels.cpu.counters import abandon, cycles, fail, move_on, signal"]
    lines += ["from vertexrt.kernels.cpu.counters import wait_for"]
    lines += ["from vertexrt.kernels.cpu.update import finish"]
    lines += [f"from {name} import task as task{k}" for k, name in enumerate(names)]
    lines += ["", "", "@njit(cache=True, nogil=True)"]
    shared = ARGUMENTS.partition("elo, ")[2]
    times = "times, " if timed else ""
    lines += [f"def run(script, counters, part, parts, group, limit, ending, {times}{shared}):"]
    lines += ["    gate, groups, count = ending[0], len(ending[2]), len(script)"]
    lines += ["    for t in range(count):"]
    lines += [f"        {name} = np.int64(script[t, {k}])" for name, k in COLUMNS.items()]
    lines += ["        times[t, 0] = cycles()"] if timed else []
    lines += ["        if wait >= 0 and not wait_for(counters, wait, parts, limit):"]
    lines += ["            fail(counters, part, t, wait)"]
    lines += ["            if groups:", "                abandon(gate)"]
    lines += ["            return"]
    lines += ["        times[t, 1] = cycles()"] if timed else []
    own = shared.replace(" tmp,", " tmp + apart,")  # temporaries of this tile
    for k in range(len(names)):
        lines.append(f"        {'el' if k else ''}if program == {k}:")
        call = f"task{k}(op - {segment_ptr[k]}, part, parts, n, lo, at, m, elo, {own})"
        lines.append(f"            {call}")
    lines += ["        times[t, 2] = cycles()"] if timed else []
    lines += ["        if parts > 1:", "            signal(counters, t)"]
    lines += ["        if groups:"]
    lines += ["            move_on(gate, groups, group * parts + part, t + 1)"]
    lines += ["    if groups:"]
    lines += ["        times[count, 0] = cycles()"] if timed else []
    call = "finish(counters, part, parts, group, count, limit, ar, len(order), weight, ending)"
    lines += [f"        times[count, 1] = {call}" if timed else f"        {call}"]
    lines += ["        times[count, 2] = cycles()"] if timed else []
    return "\n".join(lines) + "\n"


class CpuProcessors:
    """Segments compiled for processors that are threads.

    Attributes:
        seconds: until a processor gives up waiting for another.
    """

    def __init__(self, tasks: list[SegmentedTask], binding: Binding) -> None:
        self.seconds = SECONDS
        emitted = [emit(t.task, binding, t) for t in tasks]
        self.sources = [source for source, *_ in emitted]
        self.scratch = [(rows, edges, once) for _, rows, edges, once in emitted]
        modules = [load_source(source) for source in self.sources]
        self._names = [m.__name__ for m in modules]
        self._segment_ptr = [0, *accumulate(len(t.segments) for t in tasks)]
        self.driver: Any = load_source(driver_source(self._names, self._segment_ptr)).run
        self._timed_driver: Any = None

    def run(
        self,
        script: Array,
        counters: Array,
        part: int,
        parts: int,
        temporary: int,
        buffers: Buffers,
        times: Array | None = None,
        ending: Ending | None = None,
        group: int = 0,
    ) -> None:
        """Run the script of one processor; call it in as many threads as there are parts.

        Args:
            counters: int32 zeros, of `new_counters`; the same array for all parts.
            temporary: element at which this processor's temporaries start.
            times, ending, group: see `Processors`.
        """
        several = parts > 1 or (ending is not None and len(ending.loss_at) > 1)
        dtype = buffers.params.dtype
        driver = self.driver if times is None else self._timed()
        noted = () if times is None else (times,)
        driver(
            script,
            counters,
            part,
            parts,
            group,
            int(self.seconds * cycles_per_second()) if several else 0,
            _no_ending(dtype) if ending is None else arguments_of(ending),
            *noted,
            *arguments(buffers, temporary),
        )

    def _timed(self) -> Any:
        if self._timed_driver is None:
            source = driver_source(self._names, self._segment_ptr, timed=True)
            self._timed_driver = load_source(source).run
        return self._timed_driver

    def cycles_per_second(self) -> float:
        """Return the rate of the clock in `times`."""
        self._timed()  # before several processors ask for it at once
        return cycles_per_second()

    def new_counters(self, count: int) -> Array:
        """Return counters at zero, and the error record before them."""
        return np.zeros((count + 1) * APART, np.int32)

    def new_gate(self, groups: int, processors: int) -> Array:
        """Return a gate that nobody has reached, for all processors of all groups."""
        return np.zeros(gate_words(groups, processors), np.int32)

    def check(self, counters: Array) -> None:
        """Raise DeviceError, when a processor gave up waiting."""
        if not counters[FAILED]:
            return
        part, instruction, counter = counters[PROCESSOR], counters[INSTRUCTION], counters[WAITED]
        at, missing, seconds = f"instruction {instruction}", f"counter {counter}", self.seconds
        if counter == AT_THE_GATE:
            at, missing, seconds = "the update", "another processor", PATIENCE * self.seconds
        raise DeviceError(
            message(
                "persistent",
                f"processor {part} gave up at {at}: {missing} did not arrive within {seconds:g} s",
                "every wait is met",
                "report this as a bug; engine='batched' goes on",
            )
        )
