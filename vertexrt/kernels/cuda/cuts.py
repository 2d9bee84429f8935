"""Cut a persistent launch at wide products, which kernels of their own make faster.

The kernel runs its script up to a stage that has some. The steps of this stage follow it on its
stream, as the batched engine launches them: several blocks on a multiprocessor wait for memory side
by side, a processor waits alone. Another launch of the kernel goes on after them. These steps stay
in the script, in their order; `apart` lists them.
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
    encode,
    extent,
    launch_step,
    room_for_arguments,
    sizes_of,
    splits_of,
)
from vertexrt.kernels.cuda.executable import kernel_name, kernel_sources
from vertexrt.kernels.cuda.launch_text import Kernel, Launches, Step
from vertexrt.kernels.cuda.pack import TEMPORARY
from vertexrt.native.compiled import compiled

Array = np.ndarray[Any, Any]
Int64 = npt.NDArray[np.int64]

# Columns of `apart`: the instruction, the launch of the table, the step among those of all
# programs, and where the temporaries of the launch begin.
APART_AT, APART_LAUNCH, APART_STEP, APART_TEMPORARY = range(4)
APART_COLUMNS = 4
# Multiplications of a product, for each processor, from which on a cut is worth it.
WORTH = 1_500_000
MOST_SCRATCH = (46 << 10) // 4  # elements of static shared memory, which ends at 48 KiB


def is_worth_a_cut(product: Array, rows: int, processors: int) -> bool:
    """Tell whether a product is faster in a kernel of its own.

    Args:
        product: of `encode_products`; rows: of it, 0 where a launch has it in another form.
        processors: of the device.
    """
    m, n, k = sizes_of(product, rows)
    return bool(m * n * k >= WORTH * processors) and splits_of(m, n, k, processors) > 0


class ApartSteps(NamedTuple):
    """The steps of a kernel as the batched engine launches them.

    Attributes:
        steps: int64 [steps, STEP_COLUMNS]; step_words: [*]; of `driver.encode`.
    """

    steps: Int64
    step_words: Int64


def stand_alone(steps: Sequence[Step]) -> npt.NDArray[np.bool_]:
    """Tell which steps may be kernels of their own, or products: bool [steps]."""
    found = [s.product is not None or s.scratch <= MOST_SCRATCH for s in _all(steps)]
    return np.array(found, np.bool_)


def _all(steps: Sequence[Step]) -> list[Kernel]:
    """Return the steps of a persistent kernel, which are all kernels."""
    return [step for step in steps if isinstance(step, Kernel)]


def _kernels_of(steps: Sequence[Step]) -> tuple[Kernel, ...]:
    """List the steps that are kernels of their own: no products."""
    return tuple(s for s in _all(steps) if s.product is None and s.scratch <= MOST_SCRATCH)


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
    alone = [replace(x, steps=_kernels_of(x.steps)) for x in launches]
    kernels = device.load([*kernel_sources(alone).values()], np.dtype(dtype))
    _, steps, step_words = encode(
        launches, lambda step: kernels.get(kernel_name(step.body), 0), numbers
    )
    is_product = products[:, IS_GEMM] != 0
    steps[is_product] = products[is_product]
    return ApartSteps(steps, step_words)


@compiled
def launch_apart(
    apart: Array,
    table: Array,
    program: tuple[Array, ...],
    words: Array,
    lookups: tuple[Array, ...],
    calls: Array,
) -> tuple[int, int, int]:
    """Launch steps that are apart.

    Args:
        apart: int64 [*, APART_COLUMNS] some of them; table: of launches.
        program: the fields of `ApartSteps`.
        words, lookups, calls: of `driver.launch`.
    Returns: the error of the driver (or of cuBLAS, plus CUBLAS_CODES), 0 for none; launch and step.
    """
    steps, step_words = program
    lookup_ptr, lookup_at = lookups
    arguments, first = room_for_arguments(steps), words[TEMPORARY]
    for each in apart:
        t, s = each[APART_LAUNCH], each[APART_STEP]
        grid = extent(steps[s], table[t], lookup_at, lookup_ptr[t])
        words[TEMPORARY] = first + calls[ITEMSIZE] * each[APART_TEMPORARY]
        code = launch_step(steps[s], table[t], grid, step_words, words, calls, arguments)
        words[TEMPORARY] = first
        if code != 0:
            return code, t, s
    return 0, 0, 0


class Piece(NamedTuple):
    """What of a script is run by one launch of the kernel, and by steps after it.

    Attributes:
        begin, end: instructions; the kernel is not launched where there are none.
        apart: the steps after them: rows of `apart`.
    """

    begin: int
    end: int
    apart: Int64

    def launch(self, kernel: Callable[[int, int], None], steps: Callable[[Int64], None]) -> None:
        """Launch it, given what launches instructions of the kernel, and rows of `apart`."""
        if self.begin < self.end:
            kernel(self.begin, self.end)
        if len(self.apart):
            steps(self.apart)


def pieces_of(common: int, apart: Int64) -> list[Piece]:
    """Cut a script of all processors, of so many instructions, at steps that are apart."""
    found, begin, first = [], 0, 0
    places = apart[:, APART_AT].tolist()
    for k, at in enumerate(places, 1):
        if k == len(places) or places[k] != at + 1:
            found.append(Piece(begin, places[first], apart[first:k]))
            begin, first = at + 1, k
    return [*found, Piece(begin, common, apart[:0])]
