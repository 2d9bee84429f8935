"""Write the lines of a persistent kernel that sum up gradients on chip (`weight_gradients.cuh`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from vertexrt.ir.passes.segment import SegmentedTask
from vertexrt.ir.passes.store import Read
from vertexrt.kernels.cuda.gradients import EVERY, Child, PathSum, Sums, without
from vertexrt.kernels.cuda.weights import Held, Side, own_row
from vertexrt.kernels.layout import Binding


class SumWriter:
    """The lines of a persistent kernel that make, leave and collect sums.

    Args:
        side: the backward one, whose `sums` are made.
        sums: of `find_sums`; those that the side has no room for stay behind the path.
        vector: elements of 16 bytes.
    """

    def __init__(
        self,
        side: Side,
        sums: Sums,
        tasks: Sequence[SegmentedTask],
        binding: Binding,
        processors: int,
        vector: int,
    ) -> None:
        self.side, self.binding = side, binding
        self.processors, self.vector = processors, vector
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
        self.start: dict[Held, int] = {}  # in what a processor leaves
        self.elements = 0
        for h in side.sums:
            self.start[h] = self.elements
            self.elements += -(-h.rows(processors) * h.deep // vector) * vector

    @property
    def words(self) -> set[str]:
        """Name the words that are read."""
        found = {h.word for h in self.side.sums}
        for one in (x for sums in self.of.values() for x in sums):
            found |= set(self._operand_words(one))
        return found

    def _operand_words(self, one: PathSum) -> dict[str, str]:
        words = {self._tensor(one.d): "const real*"}
        if isinstance(one.x, Read):
            return words | {self._tensor(one.x): "const real*"}
        return words | {self._state(one.x): "const real*", "zero": "const real*"}

    def _tensor(self, read: Read) -> str:
        return f"tensor_{self.binding.tensors[read.key]}"

    def _state(self, child: Child) -> str:
        return f"tensor_{self.binding.tensors['state', child.field]}"

    def _kind(self, h: Held) -> str:
        return f"{h.rows(self.processors)}, {h.deep}"

    def opening(self) -> list[str]:
        """Return the statements in front of the path, where `free` is shared memory."""
        lines = ["  struct {"] if self.side.sums else []
        for k, h in enumerate(self.side.sums):
            where = "Registers" if k < self.side.sums_in_registers else "SharedMemory"
            lines.append(f"    WeightsIn{where}<{self._kind(h)}> {h.name};")
        lines += ["  } sums;"] if self.side.sums else []
        for k, h in enumerate(self.side.sums):
            if k >= self.side.sums_in_registers:
                lines.append(f"  sums.{h.name}.take(free);")
                lines.append(f"  free += WeightsInSharedMemory<{self._kind(h)}>::BYTES;")
            lines.append(f"  clear<{self._kind(h)}>(sums.{h.name});")
        return lines

    def behind(self, segment_ptr: Sequence[int], numbers: dict[str, int]) -> str:
        """Return the function that adds the tile of an instruction, when it is over.

        Args:
            segment_ptr: number of each program's first segment; numbers: of the words.
        """
        head = "[&](const Instruction& in, const Indices& at_hand) {"
        cases: dict[str, list[int]] = {}  # kinds of vertices often do the same
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
        h, d, times = one.held, one.d, one.times
        wide = h.cuts[-1]
        count = f"a.{'m' if one.edges else 'n'} * {times}"
        row = f"(a.{'elo' if one.edges else 'lo'} + i / {times})"
        inner = f" + i % {times} * {{}}" if times > 1 else ""
        start = f" + {d.start}" if d.start else ""
        at = f"{row} * {d.width}ll{start}{inner.format(wide)} + j"
        aligned, source = h.deep % self.vector == 0, ""
        if isinstance(one.x, Read):
            x = one.x
            start = f" + {x.start}" if x.start else ""
            source = f"return {self._tensor(x)} + {row} * {x.width}ll{start}{inner.format(h.deep)};"
            aligned &= x.width % self.vector == 0 and x.start % self.vector == 0
        else:
            assert times == 1, f"{one} has several rows of one child"
            edge = f"const int e = {row}; const int child = at_hand.child_row[e];"
            if one.x.slot != EVERY:
                edge = (
                    f"const int e = at_hand.edge_ptr[{row}] + {one.x.slot}; const int child ="
                    f" e < at_hand.edge_ptr[{row} + 1] ? at_hand.child_row[e] : -1;"
                )
            state = f"{self._state(one.x)} + child * {h.deep}ll"
            source = f"{edge} return child >= 0 ? {state} : zero;"
        return [
            f"accumulate<{str(aligned).lower()}, {self._kind(h)}>(sums.{h.name}, {count},",
            f"  [&](int i) -> const real* {{ {source} }},",
            "  [&](int i, int q) -> real {",
            f"    const int j = [&](int q) -> int {{ {own_row(h.cuts, self.processors)} }}(q);",
            f"    return j >= 0 ? {self._tensor(d)}[{at}] : real(0);",
            "  });",
        ]

    def closing(self) -> list[str]:
        """Return the statements behind the path: leave the sums of a group that had a tile."""
        if not self.side.sums:
            return []
        lines = ["  if (has_backward(job.o, group)) {"]
        lines.append(f"    real* const left = left_by<{self.constant}>(job.o, this_processor());")
        for h in self.side.sums:
            lines.append(f"    leave<{self._kind(h)}>(sums.{h.name}, left + {self.start[h]});")
        return [*lines, "  }"]

    @property
    def constant(self) -> str:
        """The bytes that a processor leaves, as the kernel says it."""
        return f"{self.elements} * (int)sizeof(real)"

    def collect(self, numbers: dict[str, int]) -> list[str]:
        """Return the statements that add what all groups left, given the numbers of the words."""
        lines = []
        for h in self.side.sums:
            rows = own_row(h.cuts, self.processors)
            lines += [
                f"collect<PROCESSORS, {self._kind(h)}, {self.constant}>(a.o, {self.start[h]},",
                f"  (real*)a.w[{numbers[h.word]}], [&](int rank, int q) -> int {{ {rows} }});",
            ]
        return lines
