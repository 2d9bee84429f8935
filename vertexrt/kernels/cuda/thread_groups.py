"""Lower a group of a task program to a kernel of threads over the rows of a launch.

Loops come first (`lower.thread_loops`): they say which values must be in memory. These get rows of
scratch in shared memory, or temporaries. Then stores and waits are added (`thread_places`), and
loops take vectors where they can (`width_of`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from vertexrt.config import config
from vertexrt.ir.passes.fuse import Group
from vertexrt.ir.program import Domain
from vertexrt.kernels.cuda.row_text import WARP
from vertexrt.kernels.cuda.thread_places import Placer, loads_of, width_of
from vertexrt.kernels.layout import Binding
from vertexrt.lower.kernel import Memory, PlaceRows, ValuePlace
from vertexrt.lower.lowering import Memories, ValuePlaces
from vertexrt.lower.thread_loops import (
    DraftKernel,
    draft_loops,
    members_of,
)
from vertexrt.lower.threads import (
    ElementLoop,
    ThreadKernel,
    ThreadPart,
)
from vertexrt.lower.verify import verify_threads

ROWS_A_BLOCK = 4  # where a row is a warp's
# Elements of a row that are a warp's where all blocks have as many threads: a processor runs one of
# these at a time, and one row at a time would wait for memory again and again.
OF_A_WARP = 1024
MOST_THREADS = 256  # of a row
SHARED_ELEMENTS = 4096  # of scratch a block; what is larger lies in global memory
LOADED_AHEAD = 16  # elements of all operands that a thread loads before it stores the first result


@dataclass(frozen=True, slots=True)
class GroupContext:
    """What the groups of a task program are lowered with.

    Attributes:
        values: with the places of what earlier steps and stages made, and of groups' own.
        memories: of a launch; groups take more.
        vector: elements of 16 bytes; block: threads of all blocks, 0 for as many as suit.
        listed: a launch may have a list of rows.
        shared: elements of shared memory that a block may have.
    """

    values: ValuePlaces
    memories: Memories
    vector: int
    block: int
    listed: bool
    shared: int = SHARED_ELEMENTS


@dataclass(slots=True)
class RowScratch:
    """Shared memory of a row: the most elements, and those that are taken."""

    most: int
    taken: int = 0

    def take(self, size: int) -> ValuePlace | None:
        """Set aside elements; None where there are too few."""
        padded = -(-size // 4) * 4
        if self.taken + padded > self.most:
            return None
        self.taken += padded
        return ValuePlace(Memory.SCRATCH, self.taken - padded, size, PlaceRows.ONE)


def row_threads(widest: int, vector: int, block: int) -> tuple[int, int]:
    """Return the threads of a row, a warp or a block, and the rows of a block.

    Args:
        widest: elements of the longest value; vector, block: see `GroupContext`.
    """
    if block:
        return (WARP, block // WARP) if widest <= OF_A_WARP else (block, 1)
    threads = WARP
    while threads * vector < widest and threads < MOST_THREADS:
        threads *= 2
    return threads, ROWS_A_BLOCK if threads == WARP else 1


def lower_group(context: GroupContext, group: Group) -> ThreadKernel:
    """Lower a group to a kernel over the rows of a launch."""
    values, vector = context.values, context.vector
    given = members_of(values, group)
    draft = draft_loops(given, values)
    threads, rows = row_threads(given.widest, vector, context.block)
    scratch = RowScratch(context.shared // rows)
    place = place_members(draft, values, context.memories, scratch)
    edges = group.domain == Domain.EDGE
    parts = Placer(place).parts(draft)
    widths = [_with_width(part, vector, threads) for part in parts]
    most, listed = scratch.most, context.listed and not edges
    kernel = ThreadKernel(threads, rows, scratch.taken, most, edges, listed, tuple(widths))
    return verified(with_edges_of(kernel, values.binding))


def with_edges_of(kernel: ThreadKernel, binding: Binding) -> ThreadKernel:
    """Return a kernel that knows how edges lie."""
    return replace(kernel, splits_edges=binding.splits_edges, relations=binding.relations)


def _with_width(part: ThreadPart, vector: int, threads: int) -> ThreadPart:
    """Decide what a thread takes at once, and how often before it stores the first result."""
    if not isinstance(part, ElementLoop):
        return part
    width = width_of(part, vector)
    times = -(-part.size // (threads * width))
    loads = loads_of(part)
    ahead = min(times, LOADED_AHEAD // (width * loads)) if loads else 1
    return replace(part, width=width, ahead=max(1, ahead))


def verified(kernel: ThreadKernel) -> ThreadKernel:
    """Return a kernel, verified where `VERTEXRT_CHECK` asks for it."""
    return verify_threads(kernel) if config().check else kernel


def place_members(
    draft: DraftKernel, values: ValuePlaces, memories: Memories, scratch: RowScratch
) -> dict[int, ValuePlace]:
    """Return where values lie, with what needs memory in a row of scratch or a temporary."""
    place = dict(values.place)

    def join(k: int) -> None:
        for i, start in draft.parts_of.get(k, ()):
            place[i] = place[k].part(start, values.nodes[i].type.size)

    for k in values.place:
        join(k)
    for k in draft.in_memory:
        kind = values.nodes[k].type
        size = max(kind.size, 1)
        place[k] = scratch.take(size) or memories.temporary(size, kind.domain == Domain.EDGE)
        join(k)
    return place
