"""Run scripts on CPU threads: one processor a thread, one compiled call a processor and step."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import numpy as np

from vertexrt.errors import DeviceError, message
from vertexrt.ir.passes.segment import SegmentedTask
from vertexrt.kernels.cpu.call_arguments import OF_BATCH, OF_LAUNCH, arguments
from vertexrt.kernels.cpu.counters import (
    APART,
    FAILED,
    INSTRUCTION,
    PROCESSOR,
    SECONDS,
    WAITED,
    cycles_per_second,
)
from vertexrt.kernels.cpu.emit import emit
from vertexrt.kernels.cpu.generated import load_source
from vertexrt.kernels.layout import Array, Binding, Buffers
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


def driver_source(names: list[str], segment_ptr: list[int]) -> str:
    """Write the loop over a script; it notes the clock where there is room for the times.

    Args:
        names: modules of the task programs; segment_ptr: number of the first segment of each.
    """
    own = OF_BATCH.replace(" tmp,", " tmp + apart,")  # temporaries of this tile
    lines = [
        "import numpy as np",
        "from vertexrt.cache.compiled import njit",
        "from vertexrt.kernels.cpu.counters import cycles, fail, signal, wait_for",
        *(f"from {name} import task as task{k}" for k, name in enumerate(names)),
        "",
        "",
        "@njit(cache=True, nogil=True)",
        f"def run(script, counters, part, parts, limit, times, {OF_BATCH}):",
        "    for t in range(len(script)):",
        *(f"        {name} = np.int64(script[t, {k}])" for name, k in COLUMNS.items()),
        "        if len(times):",
        "            times[t, 0] = cycles()",
        "        if wait >= 0 and not wait_for(counters, wait, parts, limit):",
        "            fail(counters, part, t, wait)",
        "            return",
        "        if len(times):",
        "            times[t, 1] = cycles()",
    ]
    for k in range(len(names)):
        call = f"task{k}(op - {segment_ptr[k]}, part, parts, {OF_LAUNCH}, {own})"
        lines += [f"        {'el' if k else ''}if program == {k}:", f"            {call}"]
    lines += [
        "        if len(times):",
        "            times[t, 2] = cycles()",
        "        if parts > 1:",
        "            signal(counters, t)",
    ]
    return "\n".join(lines) + "\n"


class CpuProcessors:
    """Segments compiled for processors that are threads.

    Attributes:
        seconds: until a processor gives up waiting.
    """

    def __init__(self, tasks: list[SegmentedTask], binding: Binding) -> None:
        self.seconds = SECONDS
        emitted = [emit(t.task, binding, t) for t in tasks]
        self.sources = [source for source, *_ in emitted]
        self.scratch = [(rows, edges, once) for _, rows, edges, once in emitted]
        modules = [load_source(source) for source in self.sources]
        names = [m.__name__ for m in modules]
        segment_ptr = [0, *accumulate(len(t.segments) for t in tasks)]
        self.driver: Any = load_source(driver_source(names, segment_ptr)).run

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
        """Run the script of one processor; see `Processors`."""
        limit = int(self.seconds * cycles_per_second()) if parts > 1 else 0
        given = arguments(buffers, temporary)
        self.driver(script, counters, part, parts, limit, times, *given)

    def cycles_per_second(self) -> float:
        """Return the rate of the clock in `times`."""
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
                f"processor {part} gave up at instruction {instruction}: counter {counter} did not "
                f"arrive within {self.seconds:g} s",
                "every wait is met",
                "report this as a bug; engine='batched' goes on",
            )
        )
