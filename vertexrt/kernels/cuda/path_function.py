"""Write the function of one side of the path, which follows the script of a processor's group."""

from __future__ import annotations

from vertexrt.kernels.cuda.path_sides import (
    IDLE_FIRST,
    INDEX_WORDS,
    Additions,
    PathSide,
    write_case,
)
from vertexrt.kernels.cuda.repeated_text import write_repeats
from vertexrt.kernels.cuda.segment_text import SegmentText
from vertexrt.kernels.cuda.weights import ResidentWeight, own_row

OUTSIDE = (  # where temporaries may not fit
    "  const long long room = ring - reinterpret_cast<real*>(free);",
    "  real* const outside = reinterpret_cast<real*>(memory);",
)
OF_RING = "child_slot"  # uploaded with the scripts
WORDS = "  FlaggedWord* const words = job.o.flagged + group * ring_elements;"
OPENING = "  __syncthreads();  // all have read what lies where weights come"
THREAD = "const int thread = this_thread();"
TILE = "in.rows, in.first, in.edges, in.first_edge"


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
        "  const bool overlapped = begin_overlapped<PROCESSORS>(job.o, at, met, group_barrier);",
        "  if (waits && !overlapped && !wait_for_grid(job.o, met, at)) return false;",
        "  stamps.end();",
        "  const bool there = follow<PROCESSORS>(job.o, side, group,",
        "    group_barrier, stamps, in_memory,",
        *_segments(side),
        *_between(side),
        f"  {added.after_tile}),",
        *write_repeats(side),
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
        f"  const int ring_elements = {_ring_elements(side)};",
        "  real* const ring = reinterpret_cast<real*>(shared_memory() + job.o.shared_bytes)"
        " - ring_elements;",
        "  real* const inside = reinterpret_cast<real*>(free);",
        *(() if side.fits else OUTSIDE),
        *([WORDS] if side.flagged.rows else []),
        "  const Indices in_memory{",
        f"    {', '.join(_index(side, word) for word in INDEX_WORDS)}}};",
    ]


def _ring_elements(side: PathSide) -> str:
    if side.flagged.rows:
        return str(side.flagged.elements)
    return f"job.o.child_slot != nullptr ? {side.ring.elements} : 0"


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
        lines += write_case(side, number, segment, [*late, *segment.lines])
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
            lines += write_case(side, number, segment, [IDLE_FIRST, *segment.prefetch])
    return [*lines, "    }", "  },"]


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
