"""Where the weights of the path lie on chip while a side of it runs, and how threads hold them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from vertexrt.errors import message, number_of

# As in the CUDA sources; each kernel asserts that it agrees.
SHARED_STATE_BYTES = 9344  # of shared memory, before what the path uses

Cuts = tuple[int, ...]  # first elements of pieces, and the size
MOST_PROCESSORS = 128  # of a group
MOST_OF_A_CLUSTER = 16  # processors of a group that is a thread-block cluster


def holds_pairs(precision: str, real: np.dtype[Any]) -> bool:
    """Tell whether kernels hold weights as pairs of bfloat16: VRT_PAIRS of mac.cuh."""
    return precision == "bf16" and real == np.float32


@dataclass(frozen=True, slots=True)
class Misfit:
    """Why weights do not fit on chip.

    Attributes:
        got, expected: for the text.
        fitting: sizes of larger groups, ascending, in which they fit; rows are padded to 16, so
            that beyond some size more processors take as much of each.
    """

    got: str
    expected: str
    fitting: tuple[int, ...]

    def text(self, most: int) -> str:
        """Return the text of an error, for a device with so many processors."""
        within = [size for size in self.fitting if size <= most]
        action = "take engine='batched'; more processors a group do not help"
        if within:
            action = f"take processors={within[0]}, or engine='batched'"
        return message("cuda", self.got, self.expected, action)


@dataclass(frozen=True, slots=True)
class ResidentWeight:
    """A weight that stays on chip while a side of the path runs.

    Attributes:
        word: of the weight; pitch: elements of its rows.
        turned: own rows are columns of the weight.
        cuts: where its rows (or columns) are cut in pieces, each divided evenly among processors.
        deep: elements of an own row.
    """

    word: str
    pitch: int
    turned: bool
    cuts: Cuts
    deep: int

    @property
    def is_sum(self) -> bool:
        """Tell whether it is the gradient of a weight, summed up on chip."""
        return self.word.startswith("gradient")

    def rows(self, processors: int) -> int:
        """Return the most rows that a processor owns."""
        return sum(most_own(b - a, processors) for a, b in pairwise(self.cuts))

    def layout(self, processors: int) -> Layout:
        """Return how threads hold it."""
        return Layout(self.rows(processors), self.deep)


def most_own(piece: int, processors: int) -> int:
    """Return the most elements that a processor owns of a piece."""
    return -(-piece // processors)


@dataclass(frozen=True, slots=True)
class SideWeights:
    """The weights of one side of the path, forward or backward, and where they are.

    Attributes:
        held: weights; in_registers: how many of them, the first ones; the others are in shared
            memory.
        shared: bytes of weights in shared memory.
        divided: quartets of a thread that registers hold of the first weight in shared memory.
    """

    held: tuple[ResidentWeight, ...]
    in_registers: int
    shared: int
    divided: int = 0

    def divided_quartets(self, k: int) -> int:
        """Return how many quartets registers hold of a weight that lies in both, 0 for others."""
        return self.divided if k == self.in_registers else 0


@dataclass(frozen=True, slots=True)
class Budget:
    """What of each processor the path may take for weights.

    Attributes:
        processors: of a group; itemsize: bytes of an element.
        shared_bytes: of shared memory; registers: of a thread.
        hold: False to hold no weights: all phases run in turn (an ablation).
        streams: phases whose weights do not fit on chip run in turn.
        pairs: weights are held as pairs of bfloat16, in half the room.
        divides: a weight may lie in registers and, for the rest, in shared memory.
    """

    processors: int
    itemsize: int
    shared_bytes: int
    registers: int
    hold: bool = True
    streams: bool = False
    pairs: bool = False
    divides: bool = False

    @property
    def element(self) -> int:
        """The bytes of an element that is held."""
        return self.itemsize // 2 if self.pairs else self.itemsize

    def bytes(self, held: Sequence[ResidentWeight]) -> int:
        """Count the bytes that weights take of a processor."""
        return sum(self.words(h) for h in held) * THREADS * 4

    def words(self, held: ResidentWeight) -> int:
        """Count the registers that a weight takes of a thread."""
        return held.layout(self.processors).elements * self.element // 4

    def registers_of(self, side: SideWeights) -> int:
        """Count the registers of a thread that the weights of a side take."""
        whole = sum(self.words(h) for h in side.held[: side.in_registers])
        if not side.divided:
            return whole
        return whole + side.divided * self.element


def place_weights(
    held: Sequence[ResidentWeight], others: int, budget: Budget
) -> SideWeights | Misfit:
    """Say where the weights of one side of the path lie: in registers, then in shared memory.

    If the budget `divides`, the largest weight that registers do not hold whole lies in both, where
    the rest of it has room.

    Args:
        others: elements of shared memory that are taken by something else.
    """
    room = budget.shared_bytes - SHARED_STATE_BYTES - others * budget.itemsize
    if room < 0:
        return _does_not_fit(held, budget, 0)
    return _on_chip(held, room, budget) or _does_not_fit(held, budget, room)


def _on_chip(held: Sequence[ResidentWeight], room: int, budget: Budget) -> SideWeights | None:
    """Place all weights on chip; None if there is no room.

    Args:
        room: bytes of shared memory.
    """
    registers = budget.registers
    kept: list[ResidentWeight] = []
    others: list[ResidentWeight] = []
    for h in held:  # in order, those for which registers are left
        words = budget.words(h)
        (kept if words <= registers else others).append(h)
        registers -= words if words <= registers else 0
    if others and budget.divides and (both := _divided(kept, others, room, budget)):
        return both
    need = budget.bytes(others)
    if need > room:
        return None
    return SideWeights((*kept, *others), len(kept), need)


def _divided(
    kept: Sequence[ResidentWeight], others: Sequence[ResidentWeight], room: int, budget: Budget
) -> SideWeights | None:
    """Fill up registers with a part of the largest of the others; None if the rest does not fit."""
    largest = max(others, key=budget.words)
    left = budget.registers - sum(budget.words(h) for h in kept)
    quartets = left // budget.element  # of 4 elements, in words of 4 bytes
    shared = [largest, *(h for h in others if h is not largest)]
    need = budget.bytes(shared) - quartets * budget.element * THREADS * 4
    if quartets == 0 or need > room:
        return None
    return SideWeights((*kept, *shared), len(kept), need, quartets)


def _does_not_fit(held: Sequence[ResidentWeight], budget: Budget, room: int) -> Misfit:
    """Say that weights do not fit, and in groups of how many processors they would."""
    processors = budget.processors
    sizes = range(processors + 1, MOST_PROCESSORS + 1)
    larger = (replace(budget, processors=n, divides=True) for n in sizes)
    fitting = tuple(b.processors for b in larger if _on_chip(held, room, b))
    total = budget.bytes(held)
    plain = sum(h.rows(processors) * h.deep * budget.element for h in held)
    return Misfit(
        f"the weights of the path take {total / 1024:,.0f} KiB of each of "
        f"{number_of(processors, 'processor')}, {(total - plain) / 1024:,.0f} KiB of it "
        "padding to tiles of 16 by 16",
        f"each weight whole in {budget.registers * THREADS * 4 / 1024:,.0f} KiB of registers or "
        f"{room / 1024:,.0f} KiB of shared memory, or one of them in both",
        fitting,
    )


# As in the CUDA sources; each kernel asserts that they agree.
THREADS = 256  # of a processor
WARPS = THREADS // 32
TILE_ROWS = 8  # that products take at a time
MOST_BLOCKS = 2  # of columns of an operand that a lane holds, where fewer warps share the depth
MOST_BLOCKS_OF_FEW = 4  # where no warps share it, or a warp has two slabs
MOST_FOLDS = 8  # parts of the depth below each other, where a processor owns few rows


@dataclass(frozen=True, slots=True)
class Layout:
    """How threads of a processor hold its rows of a weight: `Layout` of resident_weights.cuh."""

    rows: int
    deep: int

    @property
    def fold(self) -> int:
        """Return how many parts of the depth lie below each other."""
        fold = 1
        while 2 * fold <= MOST_FOLDS and self.rows * 2 * fold <= 16:
            if self.deep < 2 * fold * 16 * WARPS:
                break
            fold *= 2
        return fold if fold > 2 else 1  # two parts would take no less than half a slab does

    @property
    def _shape(self) -> tuple[int, int]:
        """Return parts of 16 rows, and of 16 columns."""
        fold = self.fold
        return (1 if fold > 1 else -(-self.rows // 16)), -(-self.deep // (16 * fold))

    @property
    def _wide(self) -> int:
        _, parts = self._shape
        wide = WARPS if parts >= WARPS else 1 << (parts.bit_length() - 1)
        while wide > 1:
            narrow = wide // 2
            few = narrow == 1 or self._slabs(narrow) == 2
            if self._blocks(narrow) > (MOST_BLOCKS_OF_FEW if few else MOST_BLOCKS):
                break
            if self._slabs(narrow) * self._blocks(narrow) > self._slabs(wide) * self._blocks(wide):
                break
            wide = narrow
        return wide

    def _blocks(self, wide: int) -> int:
        return -(-self._shape[1] // wide)

    def _slabs(self, wide: int) -> int:
        return -(-self._shape[0] * wide // WARPS)

    @property
    def elements(self) -> int:
        """Count the elements of a thread."""
        return self._halves * self._blocks(self._wide) * 4

    @property
    def _halves(self) -> int:
        """Count the slabs of 8 rows of a warp."""
        if self.fold == 1 and self._wide == WARPS:
            return -(-self.rows // 8)
        return 2 * self._slabs(self._wide)

    @property
    def partial(self) -> int:
        """Count the elements of its partial sums."""
        if self.fold > 1:
            return TILE_ROWS * self._wide * max(16 // self.fold, 4)
        return TILE_ROWS * self._halves * WARPS * 8

    @property
    def agrees(self) -> str:
        """Return the text that asserts the same of the kernel's `Layout`."""
        name = f"Layout<{self.rows}, {self.deep}>"
        return (
            f"static_assert({name}::FLOATS == {self.elements} && "
            f'{name}::WIDE * TILE_ROWS * {name}::PADDED == {self.partial}, "as placed");'
        )
