"""How many rows products of the path take at a time, given the shared memory that weights leave.

The warps of a processor share the depth of a product, and leave partial sums of so many rows in
shared memory. The more rows at a time, the fewer barriers a tile has, and the more of its operands
are loaded at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial

from vertexrt.kernels.cuda.ring_uses import LoweredTask
from vertexrt.kernels.cuda.segments import (
    PathSegment,
    PlainStep,
    Products,
    ResidentProduct,
    each_step,
)
from vertexrt.kernels.cuda.weight_layout import TILE_ROWS
from vertexrt.kernels.layout import PAD

# What is tried: matrix units take `MANY_ROWS` of resident_tensor_cores.cuh. With up to 64 rows
# kernels spill more and lose the registers for their weights: on an H200 training steps of an LSTM
# of 512 in groups of 32 take 1.06 to 1.13 times as long as with up to 32, and an LSTM of 1024 in
# inference 1.01 to 1.02 times.
CHOICES = (32, 16)
# Processors of a group that can be a thread-block cluster. There are many such groups, which share
# the rows of a task, and their rings take the shared memory.
MOST_OF_A_CLUSTER = 16


def choose_rows(tasks: Sequence[LoweredTask], room: int, processors: int) -> int:
    """Choose how many rows the products of a side of the path take at a time.

    Args:
        tasks: of the side.
        room: elements of shared memory for partial sums, and for temporaries of a tile.
        processors: of a group.
    """
    if processors <= MOST_OF_A_CLUSTER:
        return TILE_ROWS
    for rows in CHOICES:
        wider = (segment for task in tasks for segment in take_rows(task, rows).segments)
        sums = max((segment.partial for segment in wider), default=0)
        if sums + temporaries_of(tasks, rows) <= room:
            return rows
    return TILE_ROWS


def temporaries_of(tasks: Iterable[LoweredTask], rows: int) -> int:
    """Count the elements of temporaries of tiles with so many rows, two edges a row.

    As many tiles of a task are in flight at once as it has segments; scripts place them so.
    """
    tasks = list(tasks)
    scratch = [segment.scratch for task in tasks for segment in task.segments]
    each = max((rows + 2 * edges for rows, edges, _ in scratch), default=1)
    at_once = max((len(task.segments) for task in tasks), default=1)
    once = max((once for _, _, once in scratch), default=0)
    rows = rows if at_once == 1 else -(-rows // PAD) * PAD
    return at_once * -(-(rows * each + once) // PAD) * PAD


def take_rows(task: LoweredTask, rows: int) -> LoweredTask:
    """Return a task whose products take so many rows at a time."""
    return replace(task, segments=tuple(_segment(segment, rows) for segment in task.segments))


def _segment(segment: PathSegment, rows: int) -> PathSegment:
    return replace(segment, steps=each_step(segment.steps, rows, partial(_plain, rows=rows)))


def _plain(step: PlainStep, rows: int) -> PlainStep:
    return with_rows(step, rows) if isinstance(step, Products) else step


def with_rows(step: Products, rows: int) -> Products:
    """Return products that take so many rows at a time; their partial sums follow each other."""
    if not step.sums:
        return Products(tuple(replace(x, rows=rows) for x in step.products))
    start, found = 0, list[ResidentProduct]()
    for x, sums in zip(step.products, step.sums, strict=True):
        to = replace(sums, start=start, rows=rows * x.times)
        found.append(replace(x, to=to))
        start += to.elements
    return Products(tuple(found))
