"""Write the function of one side of the path, which follows the script of a processor's group."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from vertexrt.kernels.cuda.repeated_segments import buffer_elements
from vertexrt.kernels.cuda.ring import RingSize
from vertexrt.kernels.cuda.segment_text import SegmentText
from vertexrt.kernels.cuda.segments import CopyAhead
from vertexrt.kernels.cuda.thread_text import ROW_PAD
from vertexrt.kernels.cuda.weights import ResidentWeight, SideWeights, own_row

INDEX_WORDS = ("edge_ptr", "child_row", "child_slot", "parent_ptr", "parent_edge")
OUTSIDE = (  # where temporaries may not fit
    "  const long long room = ring - reinterpret_cast<real*>(free);",
    "  real* const outside = reinterpret_cast<real*>(memory);",
)
OF_RING = "child_slot"  # uploaded with the scripts
OPENING = "  __syncthreads();  // all have read what lies where weights come"
THREAD = "const int thread = this_thread();"
# The first threads make the row of a repetition, and the first one waits for other processors.
IDLE_FIRST = "const int thread = PROCESSOR - 1 - this_thread();"
TILE = "in.rows, in.first, in.edges, in.first_edge"
REPEATED_TILE = "rows, in.first, rows, in.first_edge"
NOTHING_AFTER = "[](const Instruction&, const Indices&) {}"


@dataclass(frozen=True, slots=True)
class Additions:
    """What a side of the path does in addition to its segments.

    Attributes:
        opening: statements before the first instruction, where `free` is shared memory.
        after_tile: a function that is called when the tile of an instruction is over.
        closing: statements after the last instruction.
    """

    opening: Sequence[str] = ()
    after_tile: str = NOTHING_AFTER
    closing: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class RepeatedText:
    """The text of what a repetition executes.

    Attributes:
        carried: copies that only the first repetition makes.
        slot: of the children that it reads.
        second: what is executed when the group has met, of a level of two segments.
    """

    carried: Collection[CopyAhead]
    slot: int
    segment: SegmentText
    second: SegmentText | None = None

    @property
    def copies(self) -> dict[CopyAhead, list[str]]:
        """The blocks that ask for operands."""
        return self.segment.copies | ({} if self.second is None else self.second.copies)


@dataclass(frozen=True, slots=True)
class PathSide:
    """One side of the path of a kernel.

    Attributes:
        number: among all sides; processors: of a group.
        weights: which it keeps on chip, and where.
        segments: with their numbers over all tasks.
        indices: those that it reads, of INDEX_WORDS.
        fits: temporaries are always in shared memory.
        words: numbers of what the kernel is given, by name.
        additions: to its segments, if there are any.
        repeated: what instructions may repeat, by number of the segment.
        copied: weights of which registers get a copy before instructions are repeated.
    """

    number: int
    processors: int
    weights: SideWeights
    segments: Sequence[tuple[int, SegmentText]]
    ring: RingSize
    indices: Collection[str]
    fits: bool
    words: Mapping[str, int]
    additions: Additions | None = None
    repeated: Mapping[int, RepeatedText] = field(default_factory=dict)
    copied: Sequence[ResidentWeight] = ()


def write_side(side: PathSide) -> list[str]:
    """Write the function of a side, and the struct of its weights."""
    name, weights = f"side_{side.number}", side.weights
    added = side.additions or Additions()
    lines = [f"struct {name}_weights {{"]
    lines += [f"  {_share(side, k)} {h.name};" for k, h in enumerate(weights.held)]
    return [
        *lines,
        "};",
        f"__device__ __forceinline__ bool {name}(const Work& job, int group, "
        "int side, bool waits, int at, unsigned& met, GroupBarrier& group_barrier, "
        "Timestamps& stamps) {",
        "  if (waits) come_to_grid(job.o);",
        "  if (group >= job.o.groups) {  // which has no weights",
        "    stamps.waited();",
        "    const bool all = !waits || wait_for_grid(job.o, met, at);",
        "    stamps.end();",
        "    return all;",
        "  }",
        f"  {name}_weights held;",
        "  struct {",
        *(f"    {_kind('Registers', side, h)} {h.name};" for h in side.copied),
        "  } copied;",
        *_load_weights(side),
        *added.opening,
        *_indices_and_memory(side),
        "  stamps.waited();  // weights are there: here the wait comes last",
        "  if (waits && !wait_for_grid(job.o, met, at)) return false;",
        "  stamps.end();",
        "  const bool there = follow<PROCESSORS>(job.o, side, group,",
        "    group_barrier, stamps, in_memory,",
        *_segments(side),
        *_between(side),
        f"  {added.after_tile}),",
        *_repeats(side),
        "  );",
        "  if (!there) return false;",
        *added.closing,
        "  return true;",
        "}",
    ]


def _share(side: PathSide, k: int) -> str:
    """Return the type of a share of a weight."""
    weights, h = side.weights, side.weights.held[k]
    kind = f"{h.rows(side.processors)}, {h.deep}"
    if quartets := weights.divided_quartets(k):
        return f"WeightsInBoth<{kind}, {quartets}>"
    return _kind("Registers" if k < weights.in_registers else "SharedMemory", side, h)


def _kind(where: str, side: PathSide, h: ResidentWeight) -> str:
    return f"WeightsIn{where}<{h.rows(side.processors)}, {h.deep}>"


def _load_weights(side: PathSide) -> list[str]:
    """Write the statements that load the weights."""
    weights = side.weights
    lines = [
        OPENING,
        "  const int rank = this_processor() % PROCESSORS;",
        "  unsigned char* free = shared_memory() + SHARED_STATE_BYTES;",
        "  unsigned char* memory = job.o.spill + blockIdx.x * job.o.spill_bytes;",
        "  real* const partial = reinterpret_cast<real*>(free);",
        f"  free += {weights.partial} * sizeof(real);",
    ]
    for k, h in enumerate(weights.held):
        kind = f"{h.rows(side.processors)}, {h.deep}"
        if k >= weights.in_registers:
            where = "free" if k < weights.in_registers + weights.in_shared else "memory"
            lines.append(f"  held.{h.name}.take({where});")
            lines.append(f"  {where} += {_share(side, k)}::BYTES;")
        weight = f"(const real*)job.w[{side.words[h.word]}]"
        rows = own_row(h.cuts, side.processors)
        lines.append(
            f"  load_weights<{str(h.turned).lower()}, {kind}>(held.{h.name}, {weight}, "
            f"{h.pitch}, [&](int q) -> int {{ {rows} }});"
        )
    return lines


def _indices_and_memory(side: PathSide) -> list[str]:
    """Write where indices, the ring and temporaries are."""
    return [
        f"  const int ring_elements = job.o.child_slot != nullptr ? {side.ring.elements} : 0;",
        "  real* const ring = reinterpret_cast<real*>(shared_memory() + job.o.shared_bytes)"
        " - ring_elements;",
        "  real* const inside = reinterpret_cast<real*>(free);",
        *(() if side.fits else OUTSIDE),
        "  const Indices in_memory{",
        f"    {', '.join(_index(side, word) for word in INDEX_WORDS)}}};",
    ]


def _index(side: PathSide, word: str) -> str:
    """Return the pointer to some indices in memory."""
    if word not in side.indices:
        return "nullptr"
    if word == OF_RING:
        return "job.o.child_slot"
    return f"(const int*)job.w[{side.words[word]}]"


def _segments(side: PathSide) -> list[str]:
    """Write the function that runs the segment of an instruction."""
    lines = [
        "    [&](const Instruction& in, const Indices& at_hand, auto wait_for_operands,",
        "        auto prefetch_next) VRT_INLINED {",
        f"    const Tile a{{{TILE}, in.slot, group_barrier.turn + 1,",
        "                 (in.uses & HAS_OPERAND) != 0, (in.uses & IS_PUT) != 0,",
        "                 (in.uses & IS_SENT) != 0, job.o.child_slot != nullptr};",
        "    switch (in.op) {",
    ]
    for number, segment in side.segments:
        # After a tile its temporaries may still be read when the next tile could prefetch.
        late = [THREAD, *segment.prefetch] if side.additions and segment.prefetch else []
        lines += _case(side, number, segment, [*late, *segment.lines])
    return [*lines, "    }", "  },"]


def _between(side: PathSide) -> list[str]:
    """Write what is done between instructions: send, copy children, prefetch operands."""
    lines = ["  make_between([&](const Sent& last, unsigned turn) VRT_INLINED {"]
    lines.append("    switch (last.op) {")
    for number, segment in side.segments:
        if sends := segment.sends(side.processors):
            lines.append(f"      case {number}:")
            lines += [f"        {line}" for line in sends]
            lines.append("        break;")
    lines += [
        "    }",
        "  }, [&](const Instruction& in, const Indices& at_hand) VRT_INLINED {",
        "    switch (in.op) {",
    ]
    for number, segment in side.segments:
        if segment.segment.ring.gathers:
            lines += _copy_children(side, number, segment)
    lines += [
        "    }",
        "  }, [&](const Instruction& in, const Indices& at_hand) VRT_INLINED {",
        f"    const Tile a{{{TILE}}};",
        "    switch (in.op) {",
    ]
    for number, segment in side.segments:
        if segment.prefetch and side.additions is None:
            lines += _case(side, number, segment, [IDLE_FIRST, *segment.prefetch])
    return [*lines, "    }", "  },"]


def _repeats(side: PathSide) -> list[str]:
    """Write how levels are executed that instructions repeat, on a row at a time."""
    if not side.repeated:
        return ["  NoRepeats{}"]
    near = side.ring.rows > 0
    sends, children = str(near and side.processors > 1).lower(), str(near).lower()
    ((slot, two),) = {(x.slot, x.second is not None) for x in side.repeated.values()}
    at_hand = f"(const Instruction& in, auto rows, const RepeatedIndices<{slot}>& at_hand,"
    lines = [
        f"  make_repeats<{side.ring.rows}, {slot}, {2 if two else 1}>(",
        f"    [&]{at_hand}",
        "        auto wait_for_operands, auto prefetch_next) VRT_INLINED {",
        "    switch (in.op) {",
    ]
    for number, x in side.repeated.items():
        puts = str(near and bool(x.segment.segment.ring.puts)).lower()
        ring = f"in.slot, group_barrier.turn + 1, false, {puts}, {sends}, {children}"
        tile = f"const Tile a{{{REPEATED_TILE}, {ring}}};"
        lines += _case(side, number, x.segment, [tile, *x.segment.lines], True)
    lines += ["    }", *_copies_ahead(side, at_hand)]
    to_registers = [f"    copy_weights(copied.{h.name}, held.{h.name});" for h in side.copied]
    lines += ["    }", "  }, [&]() VRT_INLINED {", *to_registers]
    return [*lines, *_second_parts(side, at_hand), "  })"]


def _copies_ahead(side: PathSide, at_hand: str) -> list[str]:
    """Write what is copied ahead of a repetition."""
    lines = [f"  }}, [&]{at_hand}", "        bool first) VRT_INLINED {", "    switch (in.op) {"]
    for number, x in side.repeated.items():
        if copies := x.copies:
            body = [f"const Tile a{{{REPEATED_TILE}}};", IDLE_FIRST]
            for copy, text in copies.items():
                body += [f"if (first) {text[0]}", *text[1:]] if copy in x.carried else text
            lines += _case(side, number, x.segment, body, True)
    return lines


def _second_parts(side: PathSide, at_hand: str) -> list[str]:
    """Write the second parts of levels, by numbers of the first: an operand is in the ring then."""
    lines = [f"  }}, [&]{at_hand}", "        auto wait_for_operands) VRT_INLINED {"]
    seconds = {number: x.second for number, x in side.repeated.items() if x.second is not None}
    if not seconds:
        return lines
    near = str(side.ring.rows > 0).lower()
    tile = f"const Tile a{{{REPEATED_TILE}, in.slot, 0, {near}, false, false, {near}}};"
    lines += ["    auto prefetch_next = []() {};", "    switch (in.op) {"]
    for number, second in seconds.items():
        lines += _case(side, number, second, [tile, *second.lines], True)
    return [*lines, "    }"]


def _copy_children(side: PathSide, number: int, segment: SegmentText) -> list[str]:
    """Write statements that copy the states of children to the ring, as a case."""
    ring = side.ring
    return [
        f"      case {number}:",
        *(
            f"        copy_far<{e.size}>(ring + {e.start}, {e.step}, {ring.rows}, in, "
            f"at_hand, (const real*)job.w[{side.words[f'tensor_{e.tensor}']}]);"
            for e in segment.segment.ring.gathers
        ),
        "        break;",
    ]


def _case(
    side: PathSide, number: int, segment: SegmentText, body: Sequence[str], repeated: bool = False
) -> list[str]:
    """Write statements of a segment over its tile, as a case of its number.

    Args:
        repeated: temporaries are in one of several buffers.
    """
    temporaries = _buffers(segment) if repeated else _temporaries(side, segment)
    lines = [
        f"      case {number}: {{",
        "        const int rank = this_processor() % PROCESSORS;",
        *(f"        {line}" for line in temporaries),
    ]
    for word, type_ in segment.words.items():
        if word in INDEX_WORDS:
            lines.append(f"        const auto {word} = at_hand.{word};")
        elif word != "temporary":
            lines.append(f"        {type_} const {word} = ({type_})job.w[{side.words[word]}];")
    return [*lines, *(f"        {line}" for line in body), "        break;", "      }"]


def _temporaries(side: PathSide, segment: SegmentText) -> list[str]:
    """Write where the temporaries of an instruction begin."""
    per_row, per_edge, once = segment.segment.scratch
    rows, edges = (f"(in.{n} + {ROW_PAD - 1}) / {ROW_PAD} * {ROW_PAD}" for n in ("rows", "edges"))
    need = f"{rows} * {per_row}ll + {edges} * {per_edge}ll + {once}"
    where = "inside" if side.fits else f"(in.temporary + {need} <= room ? inside : outside)"
    return [f"real* const temporary = {where} + in.temporary;"]


def _buffers(segment: SegmentText) -> list[str]:
    """Write where the temporaries of a repetition begin, and how far it is to the next one's."""
    size = buffer_elements(segment.segment)
    return [
        f"real* const temporary = inside + at_hand.buffer * {size};",
        f"const int to_next = at_hand.to_next() * {size};",
    ]
