"""What a task program launches, as data: `task_launches` writes it, the driver reads it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from vertexrt.lower.places import Temporary
from vertexrt.lower.threads import ThreadKernel

Array = np.ndarray[Any, Any]

CHUNKS = 32  # partial sums over rows, at most
ROWS_A_CHUNK = 64
ROWS_A_SPLIT = 128  # of an outer product that several blocks sum up

# What the grid of a kernel covers.
ROWS, EDGES, FIXED, SEGMENTS, TILES, SPLITS = range(6)
# When it is launched.
ALWAYS, LISTED, CHUNKED = range(3)
# Products: y = x w^T, y = x w, g += d^T x.
PLAIN, TRANSPOSED, OUTER = range(3)
# How the first row of an operand is found.
BY_ROW, BY_EDGE, TEMPORARY, ROW_OR_TEMPORARY = range(4)


NOTHING = Temporary(0, 0, 0)


@dataclass(frozen=True, slots=True)
class Tiles:
    """How many rows the products of a launch have, and for how many a step is there.

    Attributes:
        per_row, per_edge: the most rows of a product are n * per_row or m * per_edge.
        low, high: the step runs if these are more than `low` and at most `high`.
        rows: of a block.
    """

    per_row: int
    per_edge: int
    low: int
    high: int
    rows: int = 1


@dataclass(frozen=True, slots=True)
class Kernel:
    """A launch of a kernel of this program.

    Attributes:
        body: its source, named NAME.
        words: what it is given, by name.
        over: what its grid covers.
        each: how much of it a block does; the blocks of the grid where it covers nothing of the
            launch, tiles, or splits of rows; its second extent where it covers segments.
        edges: of a sum over rows: whether the rows are edges.
        tiles: of products.
        ir: what it was printed from, of a group.
        adds: it makes nothing that a later step of the program reads, except the next one where
            that is CHUNKED; it only adds to gradients.
    """

    body: str
    words: tuple[str, ...]
    over: int
    each: int
    threads: int
    when: int = ALWAYS
    edges: bool = False
    tiles: Tiles | None = None
    adds: bool = False
    ir: ThreadKernel | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class OperandRows:
    """The rows of a product's operand: see BY_ROW and its like."""

    word: str
    by: int
    step: int
    start: int = 0
    temporary: Temporary = NOTHING


@dataclass(frozen=True, slots=True)
class ChildRows:
    """The children's rows of a tensor, or the rows of the edges to them, instead of an operand."""

    word: str
    slot: int


@dataclass(frozen=True, slots=True)
class Lookup:
    """The rows of a table that an integer pull names, instead of an operand."""

    word: str
    pull: str


@dataclass(frozen=True, slots=True)
class Gemm:
    """A product over all rows of a launch: `weight` is [m, k].

    Attributes:
        gathered, scattered: where a kernel of ours reads `x` and writes `y` instead.
    """

    form: int
    weight: str
    m: int
    k: int
    edges: bool
    times: int  # rows of the product for each row of the launch
    x: OperandRows
    y: OperandRows
    tiles: Tiles | None = None
    gathered: ChildRows | Lookup | None = None
    scattered: ChildRows | None = None


@dataclass(slots=True)
class Launches:
    """What runs for one row of the launch table.

    Attributes:
        steps: in order.
        lookups: the integer pull of each step that adds to the rows of a table.
        scratch: elements of temporary memory for each row, for each edge, and once.
    """

    steps: list[Kernel | Gemm] = field(default_factory=list)
    lookups: list[int] = field(default_factory=list)
    scratch: tuple[int, int, int] = (0, 0, 0)


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
        follows: bool [steps] which go on with what the step before them has made.
    """

    only: Array
    ptr: Array
    gradients: Array
    temporaries: Array
    follows: Array


def effects_of(steps: Sequence[Kernel | Gemm], owners: Mapping[int, int]) -> StepEffects:
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
        np.array([*map(_follows, steps)], np.bool_),
    )


def _only_adds(step: Kernel | Gemm) -> bool:
    return step.form == OUTER if isinstance(step, Gemm) else step.adds


def _follows(step: Kernel | Gemm) -> bool:
    return isinstance(step, Kernel) and step.when == CHUNKED


def _added_to(step: Kernel | Gemm, owners: Mapping[int, int]) -> list[int]:
    """List the numbers of the gradients that a step adds to."""
    words = (step.weight,) if isinstance(step, Gemm) else step.words
    numbers = [int(w.removeprefix("gradient_")) for w in words if w.startswith("gradient_")]
    return sorted({owners[g] for g in numbers})


def _takes_temporaries(step: Kernel | Gemm) -> bool:
    if isinstance(step, Kernel):
        return "temporary" in step.words
    return any(operand.by in (TEMPORARY, ROW_OR_TEMPORARY) for operand in (step.x, step.y))
