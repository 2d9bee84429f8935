"""Sum gradients of the path's weights on chip while its backward side runs (an ablation).

`sum_on_chip` says which of them have room, and writes what a persistent kernel does for them
(`weight_gradients.cuh`); with an empty `Budget.gradients` that is nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from vertexrt.ir.passes.segment import SegmentedTask
from vertexrt.ir.passes.store import Read
from vertexrt.kernels.cuda.gradients import (
    EVERY,
    Child,
    PathSum,
    Sums,
    find_sums,
    parts_of,
    without,
)
from vertexrt.kernels.cuda.path_sides import Additions
from vertexrt.kernels.cuda.placed_path import PlacedPath
from vertexrt.kernels.cuda.weights import (
    REGISTERS,
    SHARED,
    Budget,
    ResidentWeight,
    SideWeights,
    own_row,
)
from vertexrt.kernels.layout import Binding

# Elements of a thread in shared memory, at most: each tile reads and writes them. Of 32 floats that
# is 64 KiB, or 512 cycles at the 128 bytes that a multiprocessor moves in each.
MOST_SHARED = 32
NO_WEIGHTS = SideWeights((), 0, 0, 0, 0, 0)


def sum_on_chip(
    tasks: list[SegmentedTask],
    kinds: npt.NDArray[np.int64],
    path: PlacedPath,
    back: int | None,
    binding: Binding,
    room: int,
) -> GradientSums:
    """Say which gradients the backward side of the path sums up, and where.

    Of several layers the sides come one after the other, and none sums anything up.

    Args:
        kinds: see `layout.Backend`.
        path: that groups run; back: which of its sides is backward, None for several.
        room: bytes of shared memory that nothing else needs.
    """
    budget, sides = path.budget, path.sides
    if back is None:
        return GradientSums(NO_WEIGHTS, {}, tasks, binding, budget)
    multiplied = {h.word for side in sides for h in side.held} if budget.gradients else set()
    sums = find_sums(tasks, kinds, path.tasks, multiplied, binding, budget.processors)
    side = place_gradients(sides[back], list(dict.fromkeys(x.held for x in sums)), budget, room)
    return GradientSums(side, sums, tasks, binding, budget)


def place_gradients(
    side: SideWeights, gradients: Sequence[ResidentWeight], budget: Budget, room: int
) -> SideWeights:
    """Say which gradients are summed up on chip, and where; weights are placed before.

    Args:
        side: the backward one; gradients: of weights that the path multiplies by.
        room: bytes of shared memory that nothing else needs.
    Returns: the side with those that have a place; the others are made after the path.
    """
    left = budget.registers - budget.registers_of(side) if REGISTERS in budget.gradients else 0
    each = MOST_SHARED if SHARED in budget.gradients else 0
    kept: list[ResidentWeight] = []
    shared: list[ResidentWeight] = []
    for h in gradients:
        need = h.layout(budget.processors).elements
        if budget.words(h) <= left:
            kept.append(h)
            left -= budget.words(h)
        elif need <= each and budget.bytes([h]) <= room:
            shared.append(h)
            each -= need
            room -= budget.bytes([h])
    return replace(
        side,
        shared=side.shared + budget.bytes(shared),
        sums=(*kept, *shared),
        sums_in_registers=len(kept),
    )


class GradientSums:
    """The lines of a persistent kernel that make, leave and collect sums.

    Args:
        side: the backward one, whose `sums` are made.
        sums: of `find_sums`; those that do not fit are made after the path.
    """

    def __init__(
        self,
        side: SideWeights,
        sums: Sums,
        tasks: Sequence[SegmentedTask],
        binding: Binding,
        budget: Budget,
    ) -> None:
        self.side, self.binding = side, binding
        self.processors, self.vector = budget.processors, 16 // budget.itemsize
        self.of: dict[tuple[int, int], list[PathSum]] = {}
        self.instead: dict[int, set[int]] = {}
        for one, places in sums.items():
            if one.held not in side.sums:
                continue
            for p in sorted({(place.backward, place.segment) for place in places}):
                self.of.setdefault(p, []).append(one)
            for place in places:
                self.instead.setdefault(place.final, set()).add(place.product)
        self.tasks = [
            replace(plan, task=without(plan.task, self.instead[p])) if p in self.instead else plan
            for p, plan in enumerate(tasks)
        ]
        self.start: dict[ResidentWeight, int] = {}  # in what a processor leaves
        self.elements = 0
        for h in side.sums:
            self.start[h] = self.elements
            self.elements += -(-h.rows(self.processors) * h.deep // self.vector) * self.vector

    @property
    def words(self) -> set[str]:
        """Name the words that are read."""
        found = {h.word for h in self.side.sums}
        for one in (x for sums in self.of.values() for x in sums):
            found |= set(self._operand_words(one))
        return found

    @property
    def gradients(self) -> list[int]:
        """List the numbers of all gradients that share elements with a sum."""
        names = parts_of(self.binding)
        summed = {part for h in self.side.sums for part in names[h.word]}
        return sorted(k for k in self.binding.params.values() if names[f"gradient_{k}"] & summed)

    def _operand_words(self, one: PathSum) -> dict[str, str]:
        words = {self._tensor(one.d): "const real*"}
        if isinstance(one.x, Read):
            return words | {self._tensor(one.x): "const real*"}
        return words | {self._state(one.x): "const real*", "zero": "const real*"}

    def _tensor(self, read: Read) -> str:
        return f"tensor_{self.binding.tensors[read.key]}"

    def _state(self, child: Child) -> str:
        return f"tensor_{self.binding.tensors['state', child.field]}"

    def _kind(self, h: ResidentWeight) -> str:
        return f"{h.rows(self.processors)}, {h.deep}"

    def additions(self, segment_ptr: Sequence[int], numbers: Mapping[str, int]) -> Additions | None:
        """Return what the backward side does for sums; None where there are none.

        Args:
            segment_ptr: number of each program's first segment; numbers: of the words.
        """
        if not self.side.sums:
            return None
        return Additions(self._opening(), self._after_tile(segment_ptr, numbers), self._closing())

    def _opening(self) -> list[str]:
        """Return the statements before the path, where `free` is shared memory."""
        lines = ["  struct {"]
        kinds = [h.layout(self.processors).text for h in self.side.sums]
        for k, h in enumerate(self.side.sums):
            where = "Registers" if k < self.side.sums_in_registers else "SharedMemory"
            lines.append(f"    WeightsIn{where}<{kinds[k]}> {h.name};")
        lines.append("  } sums;")
        for k, h in enumerate(self.side.sums):
            if k >= self.side.sums_in_registers:
                lines.append(f"  sums.{h.name}.take(free);")
                lines.append(f"  free += WeightsInSharedMemory<{kinds[k]}>::BYTES;")
            lines.append(f"  clear<{self._kind(h)}>(sums.{h.name});")
        return lines

    def _after_tile(self, segment_ptr: Sequence[int], numbers: Mapping[str, int]) -> str:
        """Return the function that adds the tile of an instruction, when it is over."""
        head = "[&](const Instruction& in, const Indices& at_hand) VRT_INLINED {"
        cases: dict[str, list[int]] = {}  # several kinds of vertices may do the same
        for (p, s), sums in self.of.items():
            words: dict[str, str] = {}
            for one in sums:
                words |= self._operand_words(one)
            lines = [
                f"        {type_} const {word} = ({type_})job.w[{numbers[word]}];"
                for word, type_ in words.items()
            ]
            lines += [f"        {line}" for one in sums for line in self._accumulate(one)]
            cases.setdefault("\n".join(lines), []).append(segment_ptr[p] + s)
        if not cases:
            return head + "}"
        lines = [
            head,
            "    const Tile a{in.rows, in.first, in.edges, in.first_edge};",
            "    const int rank = this_processor() % PROCESSORS;",
            "    switch (in.op) {",
        ]
        for text, segments in cases.items():
            lines += [f"      case {number}:" for number in segments]
            lines[-1] += " {"
            lines += [text, "        break;", "      }"]
        return "\n".join([*lines, "    }", "  }"])

    def _accumulate(self, one: PathSum) -> list[str]:
        h, d = one.held, one.d
        times, count = one.times, f"a.{'m' if one.edges else 'n'} * {one.times}"
        row = f"(a.{'elo' if one.edges else 'lo'} + i / {times})"
        at = f"{row} * {d.width}ll{_offset(d.start, times, h.cuts[-1])} + j"
        aligned, x = h.deep % self.vector == 0, one.x
        if isinstance(x, Read):
            offset = _offset(x.start, times, h.deep)
            source = f"return {self._tensor(x)} + {row} * {x.width}ll{offset};"
            aligned &= x.width % self.vector == 0 and x.start % self.vector == 0
        else:
            assert times == 1, f"{one} has several rows of one child"
            source = self._child(x, row, h.deep)
        return [
            f"accumulate<{str(aligned).lower()}, {self._kind(h)}>(sums.{h.name}, {count},",
            f"  [&](int i) -> const real* {{ {source} }},",
            "  [&](int i, int q) -> real {",
            f"    const int j = [&](int q) -> int {{ {own_row(h.cuts, self.processors)} }}(q);",
            f"    return j >= 0 ? {self._tensor(d)}[{at}] : real(0);",
            "  });",
        ]

    def _child(self, child: Child, row: str, deep: int) -> str:
        """Return statements that return where the state of a row's (or an edge's) child lies."""
        edge = f"const int e = {row}; const int child = at_hand.child_row[e];"
        if child.slot != EVERY:
            edge = (
                f"const int e = at_hand.edge_ptr[{row}] + {child.slot}; const int child ="
                f" e < at_hand.edge_ptr[{row} + 1] ? at_hand.child_row[e] : -1;"
            )
        return f"{edge} return child >= 0 ? {self._state(child)} + child * {deep}ll : zero;"

    def _closing(self) -> list[str]:
        """Return the statements after the path: leave the sums of a group that had a tile."""
        lines = ["  if (has_backward(job.o, group)) {"]
        lines.append(f"    real* const left = left_by<{self.constant}>(job.o, this_processor());")
        for h in self.side.sums:
            lines.append(f"    leave<{self._kind(h)}>(sums.{h.name}, left + {self.start[h]});")
        return [*lines, "  }"]

    @property
    def constant(self) -> str:
        """The bytes that a processor leaves, as the kernel says it."""
        return f"{self.elements} * (int)sizeof(real)"

    def collect(self, numbers: Mapping[str, int]) -> list[str]:
        """Return the statements that add what all groups left, given the numbers of the words."""
        lines = []
        for h in self.side.sums:
            rows = own_row(h.cuts, self.processors)
            lines += [
                f"collect<PROCESSORS, {self._kind(h)}, {self.constant}>(a.o, {self.start[h]},",
                f"  (real*)a.w[{numbers[h.word]}], [&](int rank, int q) -> int {{ {rows} }});",
            ]
        return lines


def _offset(start: int, times: int, wide: int) -> str:
    """Return the text of the offset of row `i % times`, of so many elements, from a start."""
    inner = f" + i % {times} * {wide}" if times > 1 else ""
    return (f" + {start}" if start else "") + inner
