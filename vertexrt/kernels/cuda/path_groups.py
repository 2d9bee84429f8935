"""The groups of a segment: loops of a processor over the rows of a tile and its own elements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from vertexrt.ir.passes.fuse import Group
from vertexrt.ir.program import Domain
from vertexrt.kernels.cuda.path_segment import SegmentContext
from vertexrt.kernels.cuda.path_task import PathTask
from vertexrt.kernels.cuda.row_text import WARP, RowText
from vertexrt.kernels.cuda.thread_groups import RowScratch, place_members, verified
from vertexrt.kernels.cuda.thread_places import Placer
from vertexrt.kernels.cuda.thread_text import ROW_PAD, ThreadText
from vertexrt.kernels.cuda.thread_widths import width_of
from vertexrt.kernels.cuda.weights import THREADS
from vertexrt.lower.thread_loops import (
    draft_loops,
    members_of,
)
from vertexrt.lower.threads import (
    ElementLoop,
    PutInRing,
    ThreadKernel,
    ThreadPart,
)
from vertexrt.lower.values import ValuePlaces

FEW_THREADS = 64  # of a row, so that four rows have all threads


def tile_text(task: PathTask) -> RowText:
    """Return the text of what works on a tile, whose temporaries are few."""
    return RowText(task.temporaries.taken, ROW_PAD, "int")


def write_path_group(context: SegmentContext, group: Group) -> ThreadText:
    """Write a group of a segment."""
    return ThreadText(lower_path_group(context, group), context.task.temporaries.taken, context)


def lower_path_group(context: SegmentContext, group: Group) -> ThreadKernel:
    """Lower a group of a segment to a kernel over the rows of a tile."""
    in_parts, parts = place_group(context, group)
    kernel = ThreadKernel(1, 0, 0, 0, group.domain == Domain.EDGE, False, parts)
    wanted = _wanted_threads(context, [k for k in group.nodes if k not in in_parts])
    # Beyond a warp the threads of a row cannot synchronise.
    threads = min(wanted, WARP) if kernel.crosses else wanted
    senders = threads if threads == wanted else 0
    found = tuple(_with_threads(part, threads, senders, context) for part in parts)
    return verified(replace(kernel, threads=threads, parts=found))


def place_group(
    context: SegmentContext, group: Group
) -> tuple[frozenset[int], tuple[ThreadPart, ...]]:
    """Return what is made in parts, and the loops of a group with places; widths come after."""
    task = context.task
    values = ValuePlaces(task.nodes, task.binding)
    values.place = dict(context.place)
    given = members_of(values, group)
    alias = not any(k in task.also for k in group.nodes)  # parts of what is written twice stay
    draft = draft_loops(given, values, context.cuts_of, alias)
    place = place_members(draft, values, task.temporaries, RowScratch(0))
    edges = group.domain == Domain.EDGE
    return given.in_parts, Placer(place, edges, context).parts(draft)


def _wanted_threads(context: SegmentContext, made: Sequence[int]) -> int:
    """Give each row as many threads as it has elements of one kind, or vectors of many."""
    nodes, vector, most = context.task.nodes, context.task.vector, 1
    for k in made:
        if nodes[k].op == "concat":
            continue  # its parts count
        size = max(nodes[k].type.size, 1)
        cuts = context.cuts_of(k)
        if cuts:
            each = max(-(-(b - a) // context.task.processors) for a, b in pairwise(cuts))
        else:
            vectors = -(-size // vector) if size % vector == 0 else size
            each = max(vectors, min(size, FEW_THREADS))
        most = max(most, each)
    threads = 1
    while threads < min(most, THREADS):
        threads *= 2
    return threads


def _with_threads(
    loop: ThreadPart, threads: int, senders: int, context: SegmentContext
) -> ThreadPart:
    """Say how wide a loop over the elements of a tile's row is, and what it sends at once.

    Args:
        threads: of a row; senders: of these, those that may send, all or none.
    """
    if not isinstance(loop, ElementLoop):
        return loop
    ring = context.ring
    statements = tuple(
        replace(x, sent=ring.sends_at_once(x.tensor, senders, loop.cuts))
        if isinstance(x, PutInRing)
        else x
        for x in loop.statements
    )
    width = width_of(loop, context.task.vector, threads, context)
    return replace(loop, width=width, statements=statements)
