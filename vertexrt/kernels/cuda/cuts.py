"""Steps of a script that the host launches: a persistent launch is cut at wide products.

Kernels of their own make these faster. The kernel runs its script up to a stage that has some. The
steps of this stage follow it on its stream, as the batched engine launches them: several blocks on
a multiprocessor wait for memory side by side, a processor waits alone. Another launch of the kernel
goes on after them. These steps stay in the script, in their order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from vertexrt.kernels.cuda.device import Device
from vertexrt.kernels.cuda.driver import (
    IS_GEMM,
    ITEMSIZE,
    RECORD,
    STREAM,
    WAIT,
    encode,
    extent,
    launch_step,
    order_streams,
    room_for_arguments,
)
from vertexrt.kernels.cuda.executable import kernel_name, kernel_sources
from vertexrt.kernels.cuda.instruction import COUNTER, LAUNCH, STEP
from vertexrt.kernels.cuda.launch_text import Kernel, Launches
from vertexrt.kernels.cuda.pack import ARRIVED_AT, TEMPORARY
from vertexrt.native.compiled import compiled
from vertexrt.script import isa

Array = np.ndarray[Any, Any]
Int64 = npt.NDArray[np.int64]

MOST_SCRATCH = (46 << 10) // 4  # elements of static shared memory, which ends at 48 KiB


class ApartSteps(NamedTuple):
    """The steps of a kernel as the batched engine launches them.

    Attributes:
        steps: int64 [steps, STEP_COLUMNS]; step_words: [*]; of `driver.encode`.
    """

    steps: Int64
    step_words: Int64


def stand_alone(steps: Sequence[Kernel]) -> npt.NDArray[np.bool_]:
    """Tell which steps may be kernels of their own, or products: bool [steps]."""
    return np.array([s.product is not None or s.scratch <= MOST_SCRATCH for s in steps], np.bool_)


def load_apart(
    launches: Sequence[Launches],
    products: Int64,
    numbers: Mapping[str, int],
    device: Device,
    dtype: npt.DTypeLike,
) -> ApartSteps:
    """Compile the kernels of steps that stand alone; the others are never apart.

    Args:
        products: of `encode_products`; numbers: of the words, by name.
    """
    alone = []
    for x in launches:
        own = [s for s in x.steps if isinstance(s, Kernel) and not s.product]
        alone.append(replace(x, steps=tuple(s for s in own if s.scratch <= MOST_SCRATCH)))
    kernels = device.load([*kernel_sources(alone).values()], np.dtype(dtype))
    _, steps, step_words = encode(
        launches, lambda step: kernels.get(kernel_name(step.body), 0), numbers
    )
    is_product = products[:, IS_GEMM] != 0
    steps[is_product] = products[is_product]
    return ApartSteps(steps, step_words)


@compiled
def launch_rounds(
    script: Array,
    table: Array,
    program: tuple[Array, ...],
    words: Array,
    lookups: tuple[Array, ...],
    calls: Array,
    events: Array,
) -> tuple[int, int, int]:
    """Launch steps of a script. Streams share those of a round; the first one waits for the others.

    Args:
        script: int32 [*, COLUMNS] some of its instructions; table: of launches.
        program: steps [steps, STEP_COLUMNS] and step_words, of `driver.encode`.
        words, lookups: of `driver.launch`; calls: [streams, CALLS] too, of each stream.
        events: int64 [streams] of the driver; the first is not used.
    Returns: the error of the driver (or of cuBLAS, plus CUBLAS_CODES), 0 for none; the last launch
        and step.
    """
    (steps, step_words), (lookup_ptr, lookup_at), main = program, lookups, calls[0]
    arguments, temporary, counters = room_for_arguments(steps), words[TEMPORARY], words[ARRIVED_AT]
    begin, code, t, s = 0, 0, 0, 0
    while begin < len(script) and code == 0:
        end = begin + 1
        while end < len(script) and script[end, isa.WAIT] == isa.NONE:
            end += 1
        streams = min(len(calls), end - begin)
        for k in range(1, streams):
            if code == 0:
                code = order_streams(
                    main[RECORD], main[WAIT], events[k], main[STREAM], calls[k, STREAM]
                )
        for at in range(begin, end):
            if code == 0:
                row, own = script[at], calls[(at - begin) % streams]
                t, s = row[LAUNCH], row[STEP]
                grid = extent(steps[s], table[t], lookup_at, lookup_ptr[t])
                words[TEMPORARY] = temporary + main[ITEMSIZE] * row[isa.TEMPORARY]
                words[ARRIVED_AT] = counters + 4 * row[COUNTER]
                code = launch_step(steps[s], table[t], grid, step_words, words, own, arguments)
        for k in range(1, streams):
            joined = order_streams(
                main[RECORD], main[WAIT], events[k], calls[k, STREAM], main[STREAM]
            )
            code = code if code != 0 else joined
        words[TEMPORARY], words[ARRIVED_AT] = temporary, counters
        begin = end
    return code, t, s


class Piece(NamedTuple):
    """What of a script is run by one launch of the kernel, and by steps after it.

    Attributes:
        begin, end: instructions; the kernel is not launched where there are none.
        apart: the steps after them, by their instructions.
    """

    begin: int
    end: int
    apart: Int64

    def launch(self, kernel: Callable[[int, int], None], steps: Callable[[Int64], None]) -> None:
        """Launch it, given what launches instructions of the kernel, and steps after them."""
        if self.begin < self.end:
            kernel(self.begin, self.end)
        if len(self.apart):
            steps(self.apart)


def pieces_of(common: int, apart: Int64) -> list[Piece]:
    """Cut a script of all processors, of so many instructions, at steps that are apart."""
    found, begin = [], 0
    for own in np.split(apart, 1 + np.flatnonzero(np.diff(apart) != 1)):
        if len(own):
            found.append(Piece(begin, int(own[0]), own))
            begin = int(own[-1]) + 1
    return [*found, Piece(begin, common, apart[:0])]
