"""What a task program launches, as data: `launch_text` writes it, the driver reads it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from vertexrt.lower.kernel import Memory, Operand, Outer
from vertexrt.lower.launches import LaunchPlan, LibraryProduct, LookupSum, RowRange

Array = np.ndarray[Any, Any]

# What the grid of a kernel covers.
ROWS, EDGES, SEGMENTS, TILES = range(4)
ALWAYS, LISTED = range(2)  # when it is launched: always, or where rows are listed
ONE_A_BLOCK = -1  # counters


@dataclass(frozen=True, slots=True)
class Kernel:
    """A launch of a kernel of this program.

    Attributes:
        body: its source, named NAME.
        words: what it is given, by name.
        over: what its grid covers.
        each: how much of it a block does; blocks across the grid where it covers tiles; its second
            extent where it covers segments.
        rows: for which launches it is there, None for all; tile_rows: of a block, by which the
            second extent follows; down: the most of that, 0 where there is none.
        adds: it makes nothing that a later step of the program reads; it only adds to gradients.
        counters: that blocks need which share work, or ONE_A_BLOCK; zero before and after.
        product: the same as a product of a library, where it is one.
        scratch: elements of shared memory that a block has for its rows.
    """

    body: str
    words: tuple[str, ...]
    over: int
    each: int
    threads: int
    when: int = ALWAYS
    rows: RowRange | None = None
    tile_rows: int = 1
    down: int = 0
    adds: bool = False
    counters: int = 0
    product: LibraryProduct | None = None
    scratch: int = 0


Step = Kernel | LibraryProduct


@dataclass(frozen=True, slots=True)
class Launches:
    """What runs for one row of the launch table.

    Attributes:
        plan: what it was printed from.
        steps: in order.
    """

    plan: LaunchPlan
    steps: tuple[Step, ...] = ()

    @property
    def lookups(self) -> list[int]:
        """Return the integer pull of each step that adds to the rows of a table."""
        sums = (step for step in self.plan.steps if isinstance(step, LookupSum))
        return [-1 - step.pull if step.edges else step.pull for step in sums]


def csr(lists: Sequence[Sequence[int]]) -> tuple[Array, Array]:
    """Return lists of numbers in compressed form, int64, with a zero at the end."""
    ptr = np.cumsum([0, *map(len, lists)]).astype(np.int64)
    return ptr, np.array([*itertools.chain(*lists), 0], np.int64)


class StepEffects(NamedTuple):
    """What the steps of all programs leave to others.

    Attributes:
        only: bool [steps + 1] see `Kernel.adds`; the last is False.
        ptr, gradients: int64, CSR of the gradients that each step adds to, by their numbers.
        temporaries: bool [steps] which read or write temporaries of their launch.
        counters: int64 [steps] see `Kernel.counters`.
    """

    only: Array
    ptr: Array
    gradients: Array
    temporaries: Array
    counters: Array


def effects_of(steps: Sequence[Step], owners: Mapping[int, int]) -> StepEffects:
    """Find what steps leave to others.

    Args:
        owners: of `layout.gradient_owners`.
    """
    ptr, gradients = csr([_added_to(step, owners) for step in steps])
    return StepEffects(
        np.array([*map(_only_adds, steps), False], np.bool_),
        ptr,
        gradients,
        np.array([*map(_takes_temporaries, steps)], np.bool_),
        np.array([*map(_counters_of, steps)], np.int64),
    )


def _only_adds(step: Step) -> bool:
    return step.adds if isinstance(step, Kernel) else isinstance(step.product, Outer)


def _counters_of(step: Step) -> int:
    return step.counters if isinstance(step, Kernel) else 0


def _added_to(step: Step, owners: Mapping[int, int]) -> list[int]:
    """List the numbers of the gradients that a step adds to."""
    if isinstance(step, Kernel):
        words = (w for w in step.words if w.startswith("gradient_"))
        return sorted({owners[int(w.removeprefix("gradient_"))] for w in words})
    return [owners[step.product.param]] if isinstance(step.product, Outer) else []


def _takes_temporaries(step: Step) -> bool:
    if isinstance(step, Kernel):
        return "temporary" in step.words
    return any(map(_is_temporary, step.operands))


def _is_temporary(operand: Operand) -> bool:
    """Tell whether some launch reads or writes a temporary there."""
    return operand.packed is not None or operand.place.memory == Memory.TEMPORARY
