"""Verify what the segments of a task put into rows of the ring, send, and read there.

Other processors wait for so many bytes: what is put has to be sent once, after all of it is put.
Receiving a processor's data implies that it has finished reading its own inputs. So nothing is sent
by the threads that make it, while the step or a later one reads the ring.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, NoReturn

from vertexrt.errors import PlanError
from vertexrt.kernels.cuda.ring_uses import LoweredTask
from vertexrt.kernels.cuda.segment_accesses import (
    expressions_read,
    full_reads,
    loops_of,
    numbered,
    products_of,
)
from vertexrt.kernels.cuda.segments import InRing, PathSegment, RowsInMemory
from vertexrt.lower.kernel import Leaf, ValuePlace
from vertexrt.lower.threads import NEAR, PutInRing


class Put(NamedTuple):
    """Elements of a tensor that are put in the tile's row.

    Attributes:
        segment, step: where; barriers begin the next step.
        sent: by the threads that make them.
    """

    segment: int
    step: int
    tensor: int
    start: int
    end: int
    sent: bool


def verify_puts(lowered: LoweredTask) -> None:
    """Verify the segments of a task.

    Raises: PlanError, naming the tensor, when elements are put twice or not at all, when they are
        not sent, or twice, or too early, when they are read before, and when what scripts are told
        of a segment is not what it does.
    """
    puts: list[Put] = []
    for number, segment in enumerate(lowered.segments):
        found = list(_puts(number, segment))
        _verify_reads(lowered, segment, puts, found)
        _verify_told(lowered, segment, {x.tensor for x in found})
        _verify_memory(lowered, segment)
        puts += found
    for tensor in dict.fromkeys(x.tensor for x in puts):
        parts = [x for x in puts if x.tensor == tensor]
        _verify_parts(lowered, tensor, parts)
        _verify_sent(lowered, tensor, parts[0].segment, {x.sent for x in parts})


def _verify_reads(
    lowered: LoweredTask, segment: PathSegment, before: Sequence[Put], puts: Sequence[Put]
) -> None:
    """Verify that rows of the ring are there, and not sent while others may be read.

    Args:
        before: what earlier segments put; puts: what this one does.
    """
    for step, x in _near(segment):
        tensor = x.tensor if isinstance(x, InRing) else x.number
        if isinstance(x, InRing) and tensor not in {put.tensor for put in before}:
            _fail(lowered, tensor, "it is read in the tile's row", "an earlier segment puts it")
        for put in puts:
            if put.sent and put.step <= step:
                expected = "it is sent when the segment is over"
                _fail(lowered, put.tensor, f"it is sent before tensor {tensor} is read", expected)


def _verify_told(lowered: LoweredTask, segment: PathSegment, put: set[int]) -> None:
    """Verify what scripts are told of a segment."""
    ring = segment.ring
    near = [x for _, x in _near(segment)]
    children = {x.number for x in near if isinstance(x, Leaf)}
    done = (put, children, not all(isinstance(x, Leaf) for x in near))
    told = ({x.tensor for x in ring.puts}, {x.tensor for x in ring.gathers}, ring.operand)
    if done != told:
        _fail(lowered, -1, f"it puts, gathers, reads operands {done}", f"{told}, as scripts know")


def _verify_memory(lowered: LoweredTask, segment: PathSegment) -> None:
    """Verify that scripts wait for what is read in full in memory."""
    in_memory = lowered.task.processors > 1 and any(full_reads(lowered.task, segment))
    if in_memory and not segment.ring.needs_all:
        _fail(lowered, -1, "what others make is read in memory", "scripts know that it waits")


def _verify_parts(lowered: LoweredTask, tensor: int, parts: Sequence[Put]) -> None:
    """Verify that all elements of a tensor are put once, by one segment."""
    size, at = lowered.segments[0].rows[tensor].size, 0
    for put in sorted(parts, key=lambda x: x.start):
        if put.start != at or put.segment != parts[0].segment:
            _fail(lowered, tensor, f"{put.start}:{put.end} is put after 0:{at}", "all of it, once")
        at = put.end
    if at != size:
        _fail(lowered, tensor, f"0:{at} is put", f"all {size} elements")


def _verify_sent(lowered: LoweredTask, tensor: int, made: int, at_once: set[bool]) -> None:
    """Verify that elements that are put are sent once, if processors make parts of them.

    Args:
        made: the segment that puts them; at_once: whether its threads send some, or do not.
    """
    each = enumerate(lowered.segments)
    after = [number for number, x in each for sent in x.sent_after if sent == tensor]
    shared = bool(lowered.segments[0].rows[tensor].cuts)
    right = after == [made] * shared if at_once == {False} else shared and not after
    if len(at_once) > 1 or not right:
        got = f"sent at once {sorted(at_once)}, and after segments {after}"
        _fail(lowered, tensor, got, f"all of it is sent once, at once or after segment {made}")


def _puts(number: int, segment: PathSegment) -> Iterator[Put]:
    """Yield what a segment puts into the tile's row."""
    for count, step in numbered(segment):
        for x in products_of(step):
            if x.put is not None and isinstance(x.to, ValuePlace):
                yield Put(number, count, x.put.tensor, x.to.start, x.to.start + x.to.size, False)
        for loop in loops_of(step):
            for s in loop.statements:
                if isinstance(s, PutInRing):
                    yield Put(number, count, s.tensor, s.start, s.start + loop.size, s.sent)


def _near(segment: PathSegment) -> Iterator[tuple[int, InRing | Leaf]]:
    """Yield what is read in the ring, operands and states of children, with numbers of steps."""
    for number, step in numbered(segment):
        for x in products_of(step):
            if isinstance(x.operand, RowsInMemory) and x.operand.near is not None:
                yield number, x.operand.near
        for e in expressions_read(step):
            if isinstance(e, Leaf) and e.op == NEAR:
                yield number, e


def _fail(lowered: LoweredTask, tensor: int, got: str, expected: str) -> NoReturn:
    segments = "\n".join(map(str, lowered.segments))
    do = f"report this as a bug, with the segments:\n{segments}"
    raise PlanError.at("cuda", f"ring, tensor {tensor}: {got}", expected, do)
