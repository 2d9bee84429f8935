"""Write the function of one side of the path, which follows the script of a processor's group."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vertexrt.ir.program import Stage
from vertexrt.kernels.cuda.path_rows import ROW_PAD
from vertexrt.kernels.cuda.path_segment import PathSegment
from vertexrt.kernels.cuda.ring import RingSize, write_send
from vertexrt.kernels.cuda.weights import Side, own_row

if TYPE_CHECKING:
    from vertexrt.kernels.cuda.kernel import KernelWriter

INDEX_WORDS = ("edge_ptr", "child_row", "child_slot", "parent_ptr", "parent_edge")
OUTSIDE = (  # where temporaries may not fit
    "  const long long room = ring - reinterpret_cast<real*>(free);",
    "  real* const outside = reinterpret_cast<real*>(memory);",
)
OF_RING = "child_slot"  # goes up with the scripts
TILE = "in.rows, in.first, in.edges, in.first_edge"
NOTHING_BEHIND = "[](const Instruction&, const Indices&) {}"


class SideText:
    """One side of the path of a kernel: its weights, the segments, what is done between them."""

    def __init__(self, kernel: KernelWriter, side: Side, stage: Stage) -> None:
        self.kernel, self.side, self.stage = kernel, side, stage
        self.number = int(stage == Stage.PATH_BACKWARD)

    def lines(self) -> list[str]:
        """Write a function that follows a group's script."""
        kernel, side, stage = self.kernel, self.side, self.stage
        name = stage.name.lower()
        lines = [f"struct {name}_weights {{"]
        for k, h in enumerate(side.held):
            kind = "WeightsInRegisters" if k < side.in_registers else "WeightsInSharedMemory"
            lines.append(f"  {kind}<{h.rows(kernel.processors)}, {h.deep}> {h.name};")
        lines += [
            "};",
            f"__device__ __forceinline__ bool {name}(const Work& job, int group, "
            "const Instruction& start, int at, unsigned& met, GroupBarrier& group_barrier, "
            "Timestamps& stamps) {",
            f"  {name}_weights held;",
            "  __syncthreads();  // nobody reads what lies where weights come",
            "  const int rank = this_processor() % PROCESSORS;",
            "  unsigned char* free = shared_memory() + SHARED_STATE_BYTES;",
            "  unsigned char* memory = job.o.spill + blockIdx.x * job.o.spill_bytes;",
            "  real* const partial = reinterpret_cast<real*>(free);",
            f"  free += {side.partial} * sizeof(real);",
        ]
        for k, h in enumerate(side.held):
            kind = f"{h.rows(kernel.processors)}, {h.deep}"
            if k >= side.in_registers:
                where = "memory" if side.memory else "free"
                lines.append(f"  held.{h.name}.take({where});")
                lines.append(f"  {where} += WeightsInSharedMemory<{kind}>::BYTES;")
            weight = f"(const real*)job.w[{kernel.numbers[h.word]}]"
            rows = own_row(h.cuts, kernel.processors)
            lines.append(
                f"  load_weights<{str(h.turned).lower()}, {kind}>(held.{h.name}, {weight}, "
                f"{h.pitch}, [&](int q) -> int {{ {rows} }});"
            )
        sums = kernel.sums if side.sums else None
        lines += sums.opening() if sums else []
        read = kernel.indices(stage)
        far = [
            "nullptr"
            if word not in read
            else "job.o.child_slot"
            if word == OF_RING
            else f"(const int*)job.w[{kernel.numbers[word]}]"
            for word in INDEX_WORDS
        ]
        ring = kernel.rings[self.number]
        lines += [
            f"  const int ring_elements = job.o.child_slot != nullptr ? {ring.elements} : 0;",
            "  real* const ring = reinterpret_cast<real*>(shared_memory() + job.o.shared_bytes)"
            " - ring_elements;",
            "  real* const inside = reinterpret_cast<real*>(free);",
            *(() if kernel.fits(stage) else OUTSIDE),
            "  const Indices in_memory{",
            f"    {', '.join(far)}}};",
            "  stamps.waited();  // weights are there: here the wait comes last",
            "  if (start.wait != NO_WAIT && !grid_barrier(job.o, met, at)) return false;",
            "  stamps.end();",
            "  if (group >= job.o.groups) return true;",
            f"  const bool there = follow<PROCESSORS>(job.o, {self.number}, group,",
            "    group_barrier, stamps, in_memory,",
            "    [&](const Instruction& in, const Indices& at_hand, auto prefetch_next) {",
            f"    const Tile a{{{TILE}, in.slot, group_barrier.turn + 1,",
            "                 (in.uses & HAS_OPERAND) != 0, (in.uses & IS_PUT) != 0,",
            "                 (in.uses & IS_SENT) != 0, job.o.child_slot != nullptr};",
            "    switch (in.op) {",
        ]
        early = sums is None  # what is behind a segment may still read temporaries
        for number, segment in kernel.segments(stage):
            body = segment.lines if early else [*segment.ahead, *segment.lines]
            lines += self._case(number, segment, body)
        behind = sums.behind(kernel.segment_ptr(), kernel.numbers) if sums else NOTHING_BEHIND
        lines += ["    }", "  },", *self._hand(ring, early), f"  {behind}));"]
        lines.append("  if (!there) return false;")
        return [*lines, *(sums.closing() if sums else []), "  return true;", "}"]

    def _case(self, number: int, segment: PathSegment, body: list[str]) -> list[str]:
        """Write statements of a segment over its tile, as a case of its number."""
        per_row, per_edge, once = segment.scratch
        rows, edges = (
            f"(in.{n} + {ROW_PAD - 1}) / {ROW_PAD} * {ROW_PAD}" for n in ("rows", "edges")
        )
        need = f"{rows} * {per_row}ll + {edges} * {per_edge}ll + {once}"
        where = (
            "inside"
            if self.kernel.fits(self.stage)
            else f"(in.temporary + {need} <= room ? inside : outside)"
        )
        lines = [
            f"      case {number}: {{",
            "        const int rank = this_processor() % PROCESSORS;",
            f"        real* const temporary = {where} + in.temporary;",
        ]
        for word, type_ in segment.words.items():
            if word in INDEX_WORDS:
                lines.append(f"        const int* const {word} = at_hand.{word};")
            elif word != "temporary":
                lines.append(
                    f"        {type_.removesuffix('*')}* const {word} = "
                    f"({type_})job.w[{self.kernel.numbers[word]}];"
                )
        return [*lines, *(f"        {line}" for line in body), "        break;", "      }"]

    def _hand(self, ring: RingSize, early: bool) -> list[str]:
        """Write what is done between instructions.

        Args:
            early: operands are asked for there.
        """
        lines = ["  make_between([&](const Sent& last, unsigned turn) {", "    switch (last.op) {"]
        for number, segment in self.kernel.segments(self.stage):
            if late := [
                e for e in segment.ring.puts.values() if e.cuts and e.tensor in segment.ring.late
            ]:
                lines.append(f"      case {number}:")
                lines += [f"        {line}" for line in write_send(late, self.kernel.processors)]
                lines.append("        break;")
        lines += [
            "    }",
            "  }, [&](const Instruction& in, const Indices& at_hand) {",
            "    switch (in.op) {",
        ]
        for number, segment in self.kernel.segments(self.stage):
            if segment.ring.gathers:
                lines.append(f"      case {number}:")
                lines += [
                    f"        copy_far<{e.size}>(ring + {e.start}, {e.step}, {ring.rows}, in, "
                    f"at_hand, (const real*)job.w[{self.kernel.numbers[e.tensor]}]);"
                    for e in segment.ring.gathers.values()
                ]
                lines.append("        break;")
        lines += [
            "    }",
            "  }, [&](const Instruction& in, const Indices& at_hand) {",
            f"    const Tile a{{{TILE}}};",
            "    switch (in.op) {",
        ]
        for number, segment in self.kernel.segments(self.stage):
            if segment.ahead and early:
                lines += self._case(number, segment, segment.ahead)
        return [*lines, "    }", "  },"]
