"""Run scripts on CPU threads: one processor a thread, one compiled call a processor and step."""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence

import numpy as np

from vertexrt.errors import DeviceError
from vertexrt.kernels.backend import ScriptRun
from vertexrt.kernels.cpu.drivers import (
    APART,
    CLOCK,
    FAILED,
    INSTRUCTION,
    PROCESSOR,
    WAITED,
    Member,
    follow,
    system,
)
from vertexrt.kernels.cpu.kernels import LoadedKernels
from vertexrt.kernels.layout import Array

SECONDS = 30.0  # of a wait: on a machine with much to do a thread may not run for a while


@functools.cache
def cycles_per_second() -> float:
    """Measure the cycle counter against the clock; where others run meanwhile, it seems slower."""
    clock, found = system().clock, []
    for _ in range(5):
        start, first = time.perf_counter(), CLOCK(clock)
        while time.perf_counter() - start < 0.002:
            pass
        found.append(float((CLOCK(clock) - first) / (time.perf_counter() - start)))
    return max(found)


class CpuProcessors:
    """Segments compiled for processors that are threads.

    Args:
        counts: of the segments of each task program.
    Attributes:
        seconds: until a processor gives up waiting.
    """

    def __init__(self, loaded: LoadedKernels, counts: Sequence[int]) -> None:
        self.seconds = SECONDS
        self.loaded = loaded
        self.scratch, self.calls_blas = loaded.scratch, loaded.calls_blas
        self._first = np.cumsum([0, *counts], dtype=np.int64)  # segment of each task program

    def run(self, run: ScriptRun) -> None:
        """Run the script of one processor; see `Processors`."""
        limit = int(self.seconds * cycles_per_second()) if run.parts > 1 else 0
        programs = self.loaded.addresses, self._first
        memory = run.temporary, self.loaded.contexts.of(run.buffers)
        member = Member(run.part, run.parts, limit)
        follow(run.script, run.counters, member, run.times, programs, memory, system())

    def cycles_per_second(self) -> float:
        """Return the rate of the clock in `times`."""
        return cycles_per_second()

    def new_counters(self, count: int) -> Array:
        """Return counters at zero, and the error record before them."""
        return np.zeros((count + 1) * APART, np.int32)

    def stop(self, counters: Array) -> None:
        """Let no processor wait any longer."""
        counters[FAILED] = 1

    def check(self, counters: Array) -> None:
        """Raise DeviceError, when a processor gave up waiting."""
        if not counters[FAILED]:
            return
        part, instruction, counter = counters[PROCESSOR], counters[INSTRUCTION], counters[WAITED]
        raise DeviceError.at(
            "persistent",
            f"processor {part} gave up at instruction {instruction}: counter {counter} did not "
            f"arrive within {self.seconds:g} s",
            "every wait is met",
            "report this as a bug; engine='batched' goes on",
        )
