"""A side of the path as its function is written from it, and what is written for a segment."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from vertexrt.kernels.cuda.repeated_segments import buffer_elements
from vertexrt.kernels.cuda.ring import RingSize
from vertexrt.kernels.cuda.segment_text import SegmentText
from vertexrt.kernels.cuda.segments import CopyAhead
from vertexrt.kernels.cuda.thread_text import ROW_PAD
from vertexrt.kernels.cuda.weights import ResidentWeight, SideWeights

INDEX_WORDS = ("edge_ptr", "child_row", "child_slot", "parent_ptr", "parent_edge")
# The first threads make the row of a repetition, and the first one waits for other processors.
IDLE_FIRST = "const int thread = PROCESSOR - 1 - this_thread();"
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
        parts: of the level, one or two: between these the group meets.
        carried: copies that only the first repetition makes.
        slot: of the children that it reads.
    """

    parts: tuple[SegmentText, ...]
    carried: Collection[CopyAhead]
    slot: int

    @property
    def copies(self) -> dict[CopyAhead, list[str]]:
        """The blocks that ask for operands."""
        return {copy: text for part in self.parts for copy, text in part.copies.items()}


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
        flagged: a ring for rows that repeated instructions send with flags, instead of `ring`.
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
    flagged: RingSize = field(default_factory=RingSize)


def write_case(
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
