"""Run scripts on CPU threads: one processor a thread, one compiled call a processor and step.

Counters lie 64 bytes apart. A wait spins, gives its time slice away now and then (there may be more
processors than cores), and ends with an error record when its time is up or another processor has
failed, so that nothing hangs.
"""

from __future__ import annotations

import functools
import time
from typing import Any

import llvmlite.ir as ll
import numpy as np
from numba import njit, types
from numba.extending import intrinsic

from vertexrt.errors import DeviceError, message
from vertexrt.ir.passes.segment import SegmentedTask
from vertexrt.kernels.cpu.backend import arguments, load_source
from vertexrt.kernels.cpu.emit import ARGUMENTS, emit
from vertexrt.kernels.layout import Array, Binding, Buffers

APART = 16  # int32 words from one counter to the next
FAILED, PROCESSOR, INSTRUCTION, WAITED = range(4)  # the error record, before the counters
SECONDS = 2.0


@intrinsic  # type: ignore[untyped-decorator]
def add_one(typing: Any, array: Any, index: Any) -> Any:
    """Add one to array[index] so that who reads the sum sees all that was written before."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        one = ll.Constant(ll.IntType(32), 1)
        builder.atomic_rmw("add", builder.gep(data, [args[1]]), one, "release")
        return context.get_dummy_value()

    return types.void(array, types.int64), code


@intrinsic  # type: ignore[untyped-decorator]
def read_counter(typing: Any, array: Any, index: Any) -> Any:
    """Return array[index]; what was written before its last change can be read afterwards."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        return builder.load_atomic(builder.gep(data, [args[1]]), "acquire", 4)

    return types.int32(array, types.int64), code


@intrinsic  # type: ignore[untyped-decorator]
def cycles(typing: Any) -> Any:
    """Return the processor's cycle counter."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        function = builder.module.declare_intrinsic(
            "llvm.readcyclecounter", fnty=ll.FunctionType(ll.IntType(64), [])
        )
        return builder.call(function, [])

    return types.int64(), code


_give_way = types.ExternalFunction("sched_yield", types.int32())


@njit(cache=True, nogil=True)
def wait_for(counters: Any, counter: int, threshold: int, limit: int) -> bool:
    """Wait until a counter has reached a threshold; False after `limit` cycles or a failure."""
    spins, start = 0, cycles()
    while read_counter(counters, (counter + 1) * APART) < threshold:
        spins += 1
        if spins % 64 == 0:
            _give_way()
            if read_counter(counters, FAILED) != 0 or cycles() - start > limit:
                return False
    return True


@njit(cache=True, nogil=True)
def signal(counters: Any, counter: int) -> None:
    """Add one to a counter."""
    add_one(counters, (counter + 1) * APART)


@njit(cache=True, nogil=True)
def fail(counters: Any, part: int, instruction: int, counter: int) -> None:
    """Leave the error record, unless another processor has left one."""
    if read_counter(counters, FAILED) == 0:
        counters[PROCESSOR] = part
        counters[INSTRUCTION] = instruction
        counters[WAITED] = counter
        add_one(counters, FAILED)


@njit(cache=True, nogil=True)
def _cycles() -> int:
    return cycles()  # type: ignore[no-any-return]


@functools.cache
def cycles_per_second() -> float:
    """Measure the cycle counter against the clock."""
    _cycles()
    start, first = time.perf_counter(), _cycles()
    while time.perf_counter() - start < 0.005:
        pass
    return float((_cycles() - first) / (time.perf_counter() - start))


def driver_source(names: list[str], timed: bool = False) -> str:
    """Write the loop over a script.

    Args:
        timed: it also notes the cycles at the start, the end of the wait and the end of each
            instruction; a loop of its own, so that the other one pays nothing.
    """
    lines = ["from numba import njit"]
    lines += ["from vertexrt.kernels.cpu.processors import cycles, fail, signal, wait_for"]
    lines += [f"from {name} import task as task{k}" for k, name in enumerate(names)]
    lines += ["", "", "@njit(cache=True, nogil=True)"]
    shared = ARGUMENTS.partition("elo, ")[2]
    times = "times, " if timed else ""
    lines += [f"def run(script, counters, part, parts, limit, {times}{shared}):"]
    lines += ["    for t in range(len(script)):"]
    lines += [
        "        number, segment, n, lo, at, m, elo, wait, threshold, done, apart = script[t]"
    ]
    lines += ["        times[t, 0] = cycles()"] if timed else []
    lines += ["        if wait >= 0 and not wait_for(counters, wait, threshold, limit):"]
    lines += ["            fail(counters, part, t, wait)"]
    lines += ["            return"]
    lines += ["        times[t, 1] = cycles()"] if timed else []
    own = shared.replace(" tmp,", " tmp + apart,")  # temporaries of this tile
    for k in range(len(names)):
        lines.append(f"        {'el' if k else ''}if number == {k}:")
        call = f"task{k}(segment, part, parts, n, lo, at, m, elo, {own})"
        lines.append(f"            {call}")
    lines += ["        times[t, 2] = cycles()"] if timed else []
    lines += ["        if done >= 0:", "            signal(counters, done)"]
    return "\n".join(lines) + "\n"


class CpuProcessors:
    """Segments compiled for processors that are threads."""

    def __init__(self, tasks: list[SegmentedTask], binding: Binding) -> None:
        emitted = [emit(t.task, binding, t) for t in tasks]
        self.sources = [source for source, *_ in emitted]
        self.scratch = [(rows, edges, once) for _, rows, edges, once in emitted]
        modules = [load_source(source) for source in self.sources]
        self._names = [m.__name__ for m in modules]
        self.driver: Any = load_source(driver_source(self._names)).run
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
    ) -> None:
        """Run the script of one processor; call it in as many threads as there are parts.

        Args:
            counters: int32 zeros, of `new_counters`; the same array for all parts.
            temporary: element at which this processor's temporaries start.
            times: see `Processors`.
        """
        driver = self.driver if times is None else self._timed()
        noted = () if times is None else (times,)
        driver(
            script,
            counters,
            part,
            parts,
            int(SECONDS * cycles_per_second()) if parts > 1 else 0,
            *noted,
            *arguments(buffers, temporary),
        )

    def _timed(self) -> Any:
        if self._timed_driver is None:
            self._timed_driver = load_source(driver_source(self._names, timed=True)).run
        return self._timed_driver

    def cycles_per_second(self) -> float:
        """Return the rate of the clock in `times`."""
        self._timed()  # before several processors ask for it at once
        return cycles_per_second()

    def new_counters(self, count: int) -> Array:
        """Return counters at zero, and the error record before them."""
        return np.zeros((count + 1) * APART, np.int32)

    def check(self, counters: Array) -> None:
        """Raise DeviceError, when a processor gave up waiting."""
        if not counters[FAILED]:
            return
        part, instruction, counter = counters[PROCESSOR], counters[INSTRUCTION], counters[WAITED]
        raise DeviceError(
            message(
                "persistent",
                f"processor {part} gave up at instruction {instruction}: counter {counter} did "
                f"not arrive within {SECONDS:g} s",
                "every wait is met",
                "report this as a bug; engine='batched' goes on",
            )
        )
