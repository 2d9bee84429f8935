"""Say what segments put into rows of the ring, when they send it, and what they read there.

All of that follows from the steps of the segments: which states are read in full, and what is
stored. An element is sent by the thread that makes it, where a thread has one at most: as a vector
with its neighbours', where all processors have whole vectors, else alone. Alone only what is one
piece: elements of several are many for a thread; all threads send them when the segment is over.
But receiving a processor's data implies that it has finished reading its own inputs. So what is
stored before a step that reads rows of the ring, or in it, is sent when the segment is over.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import NamedTuple

from vertexrt.ir.layers import reads_below
from vertexrt.kernels.cuda.path_task import PathTask
from vertexrt.kernels.cuda.ring import place_rings
from vertexrt.kernels.cuda.ring_script import ALL_READ, OWN_LAYER
from vertexrt.kernels.cuda.ring_steps import RingSteps
from vertexrt.kernels.cuda.segment_accesses import (
    FullRead,
    full_reads,
    is_row,
    loops_of,
    numbered,
    products_of,
)
from vertexrt.kernels.cuda.segments import InRing, PathSegment, RingUse, SendRows
from vertexrt.kernels.cuda.weights import most_own
from vertexrt.lower.threads import Cuts, PublishElements, StoreElements, ThreadKernel


@dataclass(frozen=True, slots=True)
class LoweredTask:
    """A task of the path and its segments."""

    task: PathTask
    segments: tuple[PathSegment, ...]


class Store(NamedTuple):
    """Elements of rows of a tensor that a step stores.

    Attributes:
        step: its number.
        together: so many of the threads that make them may send them as one vector; 0 for none.
    """

    step: int
    tensor: int
    together: int


class _Uses(NamedTuple):
    """What a segment reads in full, and what it stores, in order."""

    reads: list[FullRead]
    stores: list[Store]


def hand_on_rows(tasks: Mapping[int, LoweredTask]) -> dict[int, LoweredTask]:
    """Return the tasks with a ring, by number."""
    uses = {p: _uses(x) for p, x in tasks.items()}
    gathered = {x.tensor for x in _reads(chain.from_iterable(uses.values())) if x.child}
    stored = {p: {x.tensor for use in each for x in use.stores} for p, each in uses.items()}
    rings = place_rings({p: x.task for p, x in tasks.items()}, gathered, stored)
    return {p: _with_ring(x, uses[p], rings[p]) for p, x in tasks.items()}


def children_read(task: PathTask) -> int:
    """Say which children a task of the path reads: of its own layer alone, or of others, too."""
    program, nodes = task.plan.task.program, task.nodes
    read = [nodes[k] for k in task.plan.task.members if nodes[k].op in ("gather", "gather_all")]
    return ALL_READ if any(reads_below(program, node) for node in read) else OWN_LAYER


def _reads(uses: Iterable[_Uses]) -> Iterator[FullRead]:
    return chain.from_iterable(use.reads for use in uses)


def _uses(lowered: LoweredTask) -> list[_Uses]:
    task = lowered.task
    return [_Uses([*full_reads(task, x)], [*_stores(task, x)]) for x in lowered.segments]


def _stores(task: PathTask, segment: PathSegment) -> Iterator[Store]:
    for number, step in numbered(segment):
        for product in products_of(step):
            if is_row(product.to):
                yield Store(number, product.to.number, 0)  # its threads make columns
        for loop in loops_of(step):
            together = _together(task, step, loop.cuts) if isinstance(step, ThreadKernel) else 0
            for x in loop.statements:
                if isinstance(x, StoreElements | PublishElements) and is_row(x.to):
                    yield Store(number, x.to.number, together)


def _together(task: PathTask, kernel: ThreadKernel, cuts: Cuts) -> int:
    """Return how many threads of a row may send their elements together, 0 for none."""
    if kernel.fewer or len(cuts) != 2 or most_own(cuts[1], task.processors) > kernel.threads:
        return 0
    each, rest = divmod(cuts[1], task.processors)
    whole = rest == 0 and each == kernel.threads and each % task.vector == 0
    return task.vector if whole else 1


def _with_ring(lowered: LoweredTask, uses: list[_Uses], rows: Mapping[int, InRing]) -> LoweredTask:
    """Return a task whose segments put elements into the ring, send them, and read there."""
    together = _sent_together(uses, rows)
    late = {tensor for tensor, threads in together.items() if threads == 0}
    segments = []
    for segment, use in zip(lowered.segments, uses, strict=True):
        ring = _ring_use(use, rows, late)
        if lowered.task.processors == 1:
            ring = replace(ring, needs_all=False)  # it makes all itself
        steps = RingSteps(lowered.task, segment, rows, together).steps()
        segments.append(replace(segment, steps=steps, rows=rows, ring=ring))
    return replace(lowered, segments=tuple(segments))


def _sent_together(uses: Iterable[_Uses], rows: Mapping[int, InRing]) -> dict[int, int]:
    """Return of each tensor that is sent how many threads send their elements as one vector.

    0 where they may not send what they make: it is sent when the segment is over.
    """
    found: dict[int, int] = {}
    for use in uses:
        last = max((read.step for read in use.reads if read.tensor in rows), default=-1)
        for step, tensor, together in use.stores:
            cuts = rows[tensor].cuts if tensor in rows else ()
            if cuts:  # else each processor has all of it
                here = _at_once(together, cuts) if step > last else 0
                found[tensor] = min(found.get(tensor, here), here)
    return found


def _at_once(together: int, cuts: Cuts) -> int:
    """Return the same, 0 for elements of several pieces that would be sent one by one."""
    return 0 if together == 1 and len(cuts) > 2 else together


def _ring_use(use: _Uses, rows: Mapping[int, InRing], late: set[int]) -> RingUse:
    puts = _entries((x.tensor for x in use.stores), rows)
    gathers = _entries((x.tensor for x in use.reads if x.child), rows)
    near = [read.child for read in use.reads if read.tensor in rows]
    sends = _joined([x for x in puts if x.tensor in late])
    return RingUse(puts, gathers, not all(near), len(near) < len(use.reads), sends)


def _entries(tensors: Iterable[int], rows: Mapping[int, InRing]) -> tuple[InRing, ...]:
    return tuple(rows[tensor] for tensor in dict.fromkeys(tensors) if tensor in rows)


def _joined(entries: list[InRing]) -> tuple[SendRows, ...]:
    """Send neighbours in the ring together."""
    found: list[SendRows] = []
    for x in sorted(entries, key=lambda x: x.start):
        last = found[-1] if found else None
        if last and last.start + last.size == x.start:
            cuts = (*last.cuts, *(last.size + c for c in x.cuts[1:]))
            tensors = (*last.tensors, x.tensor)
            found[-1] = SendRows(tensors, last.start, last.size + x.size, x.step, cuts)
        else:
            found.append(SendRows((x.tensor,), x.start, x.size, x.step, x.cuts))
    return tuple(found)
