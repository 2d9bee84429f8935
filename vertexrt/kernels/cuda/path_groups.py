"""The groups of a segment: loops of a processor over the rows of a tile and its own elements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from vertexrt.ir.passes.fuse import Group
from vertexrt.ir.program import Domain
from vertexrt.kernels.cuda.path_task import SegmentContext
from vertexrt.kernels.cuda.row_text import WARP
from vertexrt.kernels.cuda.thread_groups import RowScratch, place_members, with_edges_of
from vertexrt.kernels.cuda.thread_places import Placer
from vertexrt.kernels.cuda.thread_widths import width_of
from vertexrt.kernels.cuda.weight_layout import THREADS
from vertexrt.lower.thread_loops import (
    draft_loops,
    members_of,
)
from vertexrt.lower.threads import (
    ElementLoop,
    ThreadKernel,
    ThreadPart,
)

FEW_THREADS = 64  # of a row, so that four rows have all threads


def lower_path_group(context: SegmentContext, group: Group) -> ThreadKernel:
    """Lower a group of a segment to a kernel over the rows of a tile; the ring comes after."""
    in_parts, parts = place_group(context, group)
    edges = group.domain == Domain.EDGE
    kernel = ThreadKernel(1, 0, 0, 0, edges, False, parts)
    kernel = with_edges_of(kernel, context.task.binding)
    wanted = _wanted_threads(context, [k for k in group.nodes if k not in in_parts])
    # Beyond a warp the threads of a row cannot synchronise.
    threads = min(wanted, WARP) if kernel.crosses else wanted
    task = context.task
    found = (
        replace(part, width=width_of(part, task.vector, threads, task))
        if isinstance(part, ElementLoop)
        else part
        for part in parts
    )
    return replace(kernel, threads=threads, parts=tuple(found), fewer=threads < wanted)


def place_group(
    context: SegmentContext, group: Group
) -> tuple[frozenset[int], tuple[ThreadPart, ...]]:
    """Return what is made in parts, and the loops of a group with places; widths come after."""
    task, values = context.task, context.task.values
    values.place = dict(context.place)
    given = members_of(values, group)
    alias = not any(k in task.also for k in group.nodes)  # parts of what is written twice stay
    draft = draft_loops(given, values, context.cuts_of, alias)
    place = place_members(draft, values, task.temporaries, RowScratch(0))
    return given.in_parts, Placer(place, task).parts(draft)


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
