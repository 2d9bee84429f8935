"""Where the weights of the path, and their gradients, lie on chip while a side of it runs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from vertexrt.errors import message, number_of
from vertexrt.kernels.cuda.weight_layout import THREADS, Layout
from vertexrt.lower.threads import Cuts

# As in the CUDA sources; each kernel asserts that it agrees.
SHARED_STATE_BYTES = 16896  # of shared memory, before what the path uses

MOST_PROCESSORS = 128  # of a group

# Places of gradients that are summed up on chip.
REGISTERS, SHARED = "registers", "shared memory"


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
    """A weight, or the gradient of one, that stays on chip while a side of the path runs.

    Attributes:
        word: of the weight or the gradient; pitch: elements of its rows.
        turned: own rows are columns of the weight.
        cuts: where its rows (or columns) are cut in pieces, each divided evenly among processors.
        deep: elements of an own row.
        summed: it is a gradient.
    """

    word: str
    pitch: int
    turned: bool
    cuts: Cuts
    deep: int
    summed: bool = False

    @property
    def name(self) -> str:
        """Name it in the source."""
        turned = "_turned" if self.turned else ""
        return f"{self.word}{turned}_{'_'.join(map(str, self.cuts))}"

    def rows(self, processors: int) -> int:
        """Return the most rows that a processor owns."""
        return sum(most_own(b - a, processors) for a, b in pairwise(self.cuts))

    def layout(self, processors: int) -> Layout:
        """Return how threads hold it."""
        return Layout(self.rows(processors), self.deep, not self.summed)


def own_range(a: int, b: int, processors: int) -> tuple[str, str]:
    """Return the text of a processor's first element of a piece, and of its end."""
    size = b - a
    if processors == 1:
        return str(a), str(b)
    if size % processors == 0:
        each = size // processors
        return f"{a} + rank * {each}", f"{a} + (rank + 1) * {each}"
    return f"{a} + rank * {size} / {processors}", f"{a} + (rank + 1) * {size} / {processors}"


def most_own(piece: int, processors: int) -> int:
    """Return the most elements that a processor owns of a piece."""
    return -(-piece // processors)


def first_own(piece: int, processors: int) -> str:
    """Return the text of a processor's first element of a piece that begins at 0."""
    each, rest = divmod(piece, processors)
    return f"rank * {piece} / {processors}" if rest else f"rank * {each}"


def own_row(cuts: Cuts, processors: int) -> str:
    """Return the body of a function from own row `q` to the row of the weight, or -1.

    Each piece has as many rows as any processor owns of it; one that owns fewer has none there.
    """
    lines = []
    for a, b in pairwise(cuts):
        first, end = own_range(a, b, processors)
        each, uneven = most_own(b - a, processors), (b - a) % processors
        row = f"{first} + q < {end} ? {first} + q : -1" if uneven else f"{first} + q"
        lines.append(f"if (q < {each}) return {row};")
        lines.append(f"q -= {each};")
    return " ".join([*lines, "return -1;"])


@dataclass(frozen=True, slots=True)
class SideWeights:
    """The weights of one side of the path, forward or backward, and where they are.

    Attributes:
        held: weights; in_registers: how many of them, the first ones; in_shared: how many of the
            next ones are in shared memory. Each product reads the others from memory.
        partial: elements of partial sums.
        shared, memory: bytes of weights in shared memory, and in memory.
        sums: gradients that are summed up; sums_in_registers: how many of them, the first ones.
            The others are in shared memory, in `shared` bytes of it as well.
        divided: quartets of a thread that registers hold of the first weight in shared memory.
    """

    held: tuple[ResidentWeight, ...]
    in_registers: int
    in_shared: int
    partial: int
    shared: int
    memory: int
    sums: tuple[ResidentWeight, ...] = ()
    sums_in_registers: int = 0
    divided: int = 0

    def divided_quartets(self, k: int) -> int:
        """Return how many quartets registers hold of a weight that lies in both, 0 for others."""
        return self.divided if k == self.in_registers else 0


@dataclass(frozen=True, slots=True)
class Budget:
    """What of each processor the path may take for weights, and for their gradients.

    Attributes:
        processors: of a group; itemsize: bytes of an element.
        shared_bytes: of shared memory; registers: of a thread.
        hold: False to leave all weights in memory (an ablation).
        streams: weights that do not fit on chip stay in memory.
        gradients: where they may be summed up: REGISTERS, SHARED, both or none.
        pairs: weights are held as pairs of bfloat16, in half the room.
        divides: a weight may lie in registers and, for the rest, in shared memory.
        copies: registers of a thread, for weights and for copies of others while instructions are
            repeated.
    """

    processors: int
    itemsize: int
    shared_bytes: int
    registers: int
    hold: bool = True
    streams: bool = False
    gradients: tuple[str, ...] = ()
    pairs: bool = False
    divides: bool = False
    copies: int = 0

    def element(self, held: ResidentWeight) -> int:
        """Return the bytes of an element that is held; sums of gradients stay whole."""
        return self.itemsize // 2 if self.pairs and not held.summed else self.itemsize

    def bytes(self, held: Sequence[ResidentWeight]) -> int:
        """Count the bytes that weights take of a processor."""
        return sum(self.words(h) for h in held) * THREADS * 4

    def words(self, held: ResidentWeight) -> int:
        """Count the registers that a weight takes of a thread."""
        return held.layout(self.processors).elements * self.element(held) // 4

    def registers_of(self, side: SideWeights) -> int:
        """Count the registers of a thread that the weights of a side take."""
        whole = sum(self.words(h) for h in side.held[: side.in_registers])
        if not side.divided:
            return whole
        return whole + side.divided * self.element(side.held[side.in_registers])


def place_weights(
    held: Sequence[ResidentWeight], partial: int, budget: Budget
) -> SideWeights | Misfit:
    """Say where the weights of one side of the path lie.

    In registers, then in shared memory, then in memory, of which the second-level cache keeps what
    is read in each level. If the budget `divides`, the largest weight that registers do not hold
    whole lies in both, where the rest of it has room.

    Args:
        partial: elements of partial sums that products need.
    """
    room = budget.shared_bytes - SHARED_STATE_BYTES - partial * budget.itemsize
    if room < 0:
        return _does_not_fit(held, budget, 0)
    if not budget.hold:
        return SideWeights(tuple(held), 0, 0, partial, 0, budget.bytes(held))
    if placed := _on_chip(held, room, budget):
        return replace(placed, partial=partial)
    if not budget.streams:
        return _does_not_fit(held, budget, room)
    kept, others = _in_registers(held, budget)
    shared, left = _in_shared_memory(others, room, budget)
    sizes = budget.bytes(shared), budget.bytes(left)
    return SideWeights((*kept, *shared, *left), len(kept), len(shared), partial, *sizes)


def _on_chip(held: Sequence[ResidentWeight], room: int, budget: Budget) -> SideWeights | None:
    """Place all weights on chip; None if there is no room.

    Args:
        room: bytes of shared memory.
    """
    kept, others = _in_registers(held, budget)
    if others and budget.divides and (both := _divided(kept, others, room, budget)):
        return both
    need = budget.bytes(others)
    if need > room:
        return None
    return SideWeights((*kept, *others), len(kept), len(others), 0, need, 0)


def _divided(
    kept: Sequence[ResidentWeight], others: Sequence[ResidentWeight], room: int, budget: Budget
) -> SideWeights | None:
    """Fill up registers with a part of the largest of the others; None if the rest does not fit."""
    largest = max(others, key=budget.words)
    left = budget.registers - sum(budget.words(h) for h in kept)
    quartets = left // budget.element(largest)  # of 4 elements, in words of 4 bytes
    shared = [largest, *(h for h in others if h is not largest)]
    need = budget.bytes(shared) - quartets * budget.element(largest) * THREADS * 4
    if quartets == 0 or need > room:
        return None
    return SideWeights((*kept, *shared), len(kept), len(shared), 0, need, 0, divided=quartets)


def copied_weights(
    side: SideWeights, read: Collection[ResidentWeight], budget: Budget
) -> list[ResidentWeight]:
    """Choose weights outside registers of which these get a copy while instructions are repeated.

    Other code of a kernel may need the registers that hold weights throughout.

    Args:
        read: weights that repetitions read.
    """
    others = side.held[side.in_registers + bool(side.divided) :] if budget.hold else ()
    left = replace(budget, registers=budget.copies - budget.registers_of(side))
    return _in_registers([h for h in others if h in read], left)[0]


def _does_not_fit(held: Sequence[ResidentWeight], budget: Budget, room: int) -> Misfit:
    """Say that weights do not fit, and in groups of how many processors they would."""
    processors = budget.processors
    sizes = range(processors + 1, MOST_PROCESSORS + 1)
    larger = (replace(budget, processors=n, divides=True) for n in sizes)
    fitting = tuple(b.processors for b in larger if _on_chip(held, room, b))
    total = budget.bytes(held)
    plain = sum(h.rows(processors) * h.deep * budget.element(h) for h in held)
    return Misfit(
        f"the weights of the path take {total / 1024:,.0f} KiB of each of "
        f"{number_of(processors, 'processor')}, {(total - plain) / 1024:,.0f} KiB of it "
        "padding to tiles of 16 by 16",
        f"each weight whole in {budget.registers * THREADS * 4 / 1024:,.0f} KiB of registers or "
        f"{room / 1024:,.0f} KiB of shared memory, or one of them in both",
        fitting,
    )


def _in_registers(
    held: Sequence[ResidentWeight], budget: Budget
) -> tuple[list[ResidentWeight], list[ResidentWeight]]:
    """Split weights, in order, into those for which registers are left and the others."""
    registers = budget.registers
    kept: list[ResidentWeight] = []
    shared: list[ResidentWeight] = []
    for h in held:
        need = budget.words(h)
        (kept if need <= registers else shared).append(h)
        registers -= need if need <= registers else 0
    return kept, shared


def _in_shared_memory(
    weights: Sequence[ResidentWeight], room: int, budget: Budget
) -> tuple[list[ResidentWeight], list[ResidentWeight]]:
    """Split weights, in order, into those for which shared memory is left and the others."""
    shared: list[ResidentWeight] = []
    left: list[ResidentWeight] = []
    for h in weights:
        need = budget.bytes([h])
        (shared if need <= room else left).append(h)
        room -= need if need <= room else 0
    return shared, left
