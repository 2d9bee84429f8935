"""Which segments of the path instructions may repeat, and what a repetition executes.

A level of a chain costs a processor more in fetching instructions and indices than in arithmetic.
Where each level of a group's chains is the one before moved on by the same number of rows, one
instruction says how often, see `repeats`. A repetition is the segment, with two differences:

- Operands are copied two repetitions ahead. So they have to be there before the side begins.
- A processor's own elements of a child's state were made by the repetition before. It leaves them
  in the temporaries of the next one (`Memory.CARRIED`); only the first one copies them.
- The second half of the threads copies, since the first ones make the rows meanwhile. A row has a
  warp, or several; lanes that its elements leave add up partial sums and send. What is sent comes
  before stores: other processors wait for it.

Processors of a group that exchange rows have no barrier of their own between two repetitions: that
all rows have come implies that all have finished the last one. So what is sent is sent by the last
loop, after all that is read.

On the way back a level of a large group has two segments: the first one makes the gradients of what
products make, a share of them on each processor, and the second multiplies all of them. A
repetition executes both, and the group meets between them.

Source: Persistent RNN (Diamos et al., ICML 2016) keeps the state on chip in a loop over time steps.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from vertexrt.ir.layers import chain_slot
from vertexrt.ir.program import Stage
from vertexrt.kernels.cuda.path_task import PathTask
from vertexrt.kernels.cuda.ring_uses import LoweredTask
from vertexrt.kernels.cuda.row_text import WARP
from vertexrt.kernels.cuda.rows_at_once import MOST_OF_A_CLUSTER, with_rows
from vertexrt.kernels.cuda.segment_accesses import (
    expressions_read,
    is_row,
    loops_of,
    parts_of,
    stores_of,
)
from vertexrt.kernels.cuda.segments import (
    CopyAhead,
    PathSegment,
    PlainStep,
    Products,
    RingUse,
    each_step,
)
from vertexrt.kernels.cuda.thread_text import ROW_PAD
from vertexrt.kernels.cuda.weight_layout import THREADS
from vertexrt.lower.kernel import (
    FromParents,
    J,
    Leaf,
    Memory,
    Picked,
    PlaceRows,
    ReadElement,
    ValuePlace,
)
from vertexrt.lower.threads import (
    ElementLoop,
    ElementStatement,
    PublishElements,
    PutInRing,
    StoreElements,
    ThreadKernel,
    ThreadPart,
    read_by,
)

BUFFERS = 3  # of temporaries: REPEAT_BUFFERS of repeats.cuh
COPYING_THREADS = THREADS // 2  # as in repeats.cuh
MOST_REPEATED = ROW_PAD  # rows: REPEATED_ROWS of repeats.cuh; more take matrix units


@dataclass(frozen=True, slots=True)
class RepeatedSegment:
    """A level as a repetition executes it.

    Attributes:
        parts: the segments of the level, one or two: between these the group meets.
        carried: those of their copies that only the first repetition makes.
        slot: in which the vertices have the children that it reads, see `chain_slot`.
    """

    parts: tuple[PathSegment, ...]
    carried: frozenset[CopyAhead]
    slot: int


def repeat_segments(
    tasks: Sequence[tuple[LoweredTask, int]], room: int
) -> dict[int, RepeatedSegment]:
    """Return the levels of a side that may be repeated, by number of their first segment.

    Args:
        tasks: of the side, each with the number of its first segment.
        room: elements of shared memory for temporaries.
    """
    steps = chain.from_iterable(segment.flat for x, _ in tasks for segment in x.segments)
    places = chain.from_iterable(map(stores_of, steps))
    stored = {place.number for place in places if place.in_tensor}
    fit = (x for x in tasks if BUFFERS * buffer_elements(x[0].segments[0]) <= room)
    return _alike({number: _repeated(x) for x, number in fit if _may_repeat(x, stored)})


def _alike(found: dict[int, RepeatedSegment]) -> dict[int, RepeatedSegment]:
    """Leave those by the slot and with the parts of the first: the loop is one for all."""
    kinds = [(x.slot, len(x.parts)) for x in found.values()]
    return {n: x for n, x in found.items() if (x.slot, len(x.parts)) == kinds[0]}


def slot_of(task: PathTask) -> int:
    """Return the slot by which vertices of a task are chains within their layer, -1 for none."""
    program = task.plan.task.program
    return chain_slot(program, program.nodes[0].function)


def _repeated(lowered: LoweredTask) -> RepeatedSegment:
    task = lowered.task
    parts, carried = [], set[CopyAhead]()
    for given in lowered.segments:
        segment = replace(given, copies=tuple(map(_by_half, given.copies)))
        own = frozenset(x for x in segment.copies if _is_carried(x, segment))
        parts.append(_by_warps(_carrying(_few_rows(segment), own), task.processors))
        carried |= own
    return RepeatedSegment(tuple(parts), frozenset(carried), slot_of(task))


def _by_half(copy: CopyAhead) -> CopyAhead:
    """Return a copy that half of the warps make, the parts of which take turns."""
    turns = min(copy.turns, COPYING_THREADS // WARP)
    return replace(copy, turn=copy.turn % turns, turns=turns, threads=COPYING_THREADS)


def _may_repeat(lowered: LoweredTask, stored: Collection[int]) -> bool:
    """Tell whether a task is a level each time, and what it copies is there or carried.

    Args:
        stored: tensors that the side writes.
    """
    task, segments = lowered.task, lowered.segments
    there = not any(
        _is_made_on_path(copy, stored)
        for segment in segments
        for copy in segment.copies
        if not _is_carried(copy, segment)
    )
    if len(segments) == 1:
        exchanges = task.processors == 1 or _exchanges_in_ring(task, segments[0])
    else:
        exchanges = len(segments) == 2 and _exchanges_between(task, *segments)
    return _is_of_chain(lowered) and exchanges and there


def buffer_elements(segment: PathSegment) -> int:
    """Return the elements of temporaries of a repetition, with an edge a row."""
    per_row, per_edge, once = segment.scratch
    return ROW_PAD * (per_row + per_edge) + -(-once // ROW_PAD) * ROW_PAD


def _is_of_chain(lowered: LoweredTask) -> bool:
    """Tell whether vertices read one child at most, within their layer.

    On the way back edges have rows of their own, so that their numbers count: where a row has
    several edges, nothing is made of each.
    """
    task, slot = lowered.task, slot_of(lowered.task)
    binding, nodes = task.binding, task.nodes
    read = {nodes[k]["slot"] for k in task.plan.task.members if nodes[k].op == "gather"}
    chain = slot >= 0 and not binding.splits_edges and binding.relations == 1
    if task.plan.task.stage == Stage.PATH_BACKWARD and slot > 0:
        chain = chain and not any(map(_is_of_edges, lowered.segments))
    return chain and read <= {slot}


def _is_of_edges(segment: PathSegment) -> bool:
    """Tell whether something of a segment is made for each edge of a row."""
    _, per_edge, _ = segment.scratch
    kernels = any(isinstance(x, ThreadKernel) and x.edges for x in segment.flat)
    return per_edge > 0 or kernels or any(x.edges for x in segment.products)


def _is_made_on_path(copy: CopyAhead, stored: Collection[int]) -> bool:
    source = copy.source
    if isinstance(source, ReadElement):
        return source.place.number in stored
    return source.op == "gather"


# What is carried.


def _is_carried(copy: CopyAhead, segment: PathSegment) -> bool:
    """Tell whether a copy is of the child's state, all own elements of which the segment stores."""
    source = copy.source
    if not isinstance(source, Leaf) or source.op != "gather":
        return False
    loops = (loop for step in segment.flat for loop in loops_of(step))
    stores = [x for loop in loops for x in loop.statements if _stores_all(x, source)]
    return len(stores) == 1


def _stores_all(x: ElementStatement, state: Leaf) -> bool:
    """Tell whether a statement stores all elements of a state that its loop makes."""
    if not isinstance(x, StoreElements | PublishElements) or not is_row(x.to):
        return False
    some = x.own if isinstance(x, StoreElements) else x.child >= 0
    whole = x.to.start == 0 and x.to.size == x.to.step == state.size
    return x.to.number == state.number and whole and not some


def _few_rows(segment: PathSegment) -> PathSegment:
    """Return a segment whose products are of few rows at a time: no matrix units, less spilled."""

    def plain(step: PlainStep) -> PlainStep:
        return with_rows(step, MOST_REPEATED) if isinstance(step, Products) else step

    return _each_step(segment, plain)


def _carrying(segment: PathSegment, carried: Collection[CopyAhead]) -> PathSegment:
    """Return a segment that leaves the next repetition what it would copy."""

    def loop(x: ElementLoop) -> ElementLoop:
        statements = (y for s in x.statements for y in (s, *_left(s, carried)))
        return _stores_last(replace(x, statements=tuple(statements)))

    def plain(step: PlainStep) -> PlainStep:
        if not isinstance(step, ThreadKernel):
            return step
        parts = (loop(x) if isinstance(x, ElementLoop) else x for x in step.parts)
        return replace(step, parts=tuple(parts))

    return _each_step(segment, plain)


def _by_warps(segment: PathSegment, processors: int) -> PathSegment:
    """Return a segment whose rows have whole warps."""

    def part(x: ThreadPart, threads: int) -> ThreadPart:
        if not isinstance(x, ElementLoop):
            return x
        return replace(x, by_warp=x.takes_once(threads, processors))

    def plain(step: PlainStep) -> PlainStep:
        if not isinstance(step, ThreadKernel) or step.threads >= WARP:
            return step
        parts = (part(x, step.threads) for x in step.parts)
        return replace(step, apart=WARP, parts=tuple(parts))

    return _each_step(segment, plain)


def _stores_last(loop: ElementLoop) -> ElementLoop:
    """Return a loop that sends before it stores what nothing in it reads."""
    found = (e.place for e in read_by(loop) if isinstance(e, ReadElement))
    read = {(place.memory, place.number) for place in found}

    def may_wait(x: ElementStatement) -> bool:
        return isinstance(x, StoreElements) and (x.to.memory, x.to.number) not in read

    return replace(loop, statements=tuple(sorted(loop.statements, key=may_wait)))  # keeps the order


def _each_step(segment: PathSegment, plain: Callable[[PlainStep], PlainStep]) -> PathSegment:
    return replace(segment, steps=each_step(segment.steps, MOST_REPEATED, plain))


def _left(x: ElementStatement, carried: Collection[CopyAhead]) -> Iterator[StoreElements]:
    """Yield what is left for the next repetition where elements are stored."""
    for copy in carried:
        assert isinstance(copy.source, Leaf)
        if _stores_all(x, copy.source):
            assert isinstance(x, StoreElements | PublishElements)
            to = replace(copy.to, memory=Memory.CARRIED)
            yield StoreElements(to, _register(x))


def _register(x: StoreElements | PublishElements) -> ReadElement:
    if isinstance(x, StoreElements):
        return x.value
    return ReadElement(ValuePlace(Memory.REGISTER, x.register, x.to.size, PlaceRows.ONE), J)


# Groups of several processors.


def _exchanges_in_ring(task: PathTask, segment: PathSegment) -> bool:
    """Tell whether rows of the ring are all that processors wait for."""
    ring = segment.ring
    forward = task.plan.task.stage == Stage.PATH
    in_ring = not ring.sends and not ring.needs_all and not ring.operand
    own = (e for step in segment.flat for e in expressions_read(step))
    return forward and in_ring and _sends_last(segment) and not any(map(_from_others, own))


def _exchanges_between(task: PathTask, first: PathSegment, second: PathSegment) -> bool:
    """Tell whether what processors wait for is what the first of two segments leaves the second.

    Not in clusters: of a language model of 200 such levels of one row took 0.96 of the time on an
    H200, those of two rows 1.02, and kernels of layers of 256 spilled 196 bytes of a thread.
    """
    if task.plan.task.stage != Stage.PATH_BACKWARD or task.processors <= MOST_OF_A_CLUSTER:
        return False
    puts = replace(first.ring, puts=(), sends=()) == RingUse()
    return puts and bool(first.ring.puts) and second.ring == RingUse(operand=True)


def can_send_flagged(levels: Collection[RepeatedSegment], itemsize: int) -> bool:
    """Tell whether members of a large group can send what levels read with flags: `flagged.cuh`.

    A word has an element of float32 and its flag, and two words are read at once.
    """
    rings = [x.parts[0].ring for x in levels if len(x.parts) == 1]
    return itemsize == 4 and 0 < len(levels) == len(rings) and all(map(_is_sent, rings))


def _is_sent(ring: RingUse) -> bool:
    """Tell whether all that is read of children is sent when it is made."""
    even = [bool(e.cuts) and e.size % 2 == 0 for e in ring.gathers]
    return {*ring.gathers} <= {*ring.puts} and bool(even) and all(even)


def _sends_last(segment: PathSegment) -> bool:
    """Tell whether elements are sent, by the last loop of all alone."""
    *_, last = segment.flat
    parts = [part for step in segment.flat for part in parts_of(step)]
    return [x for x in parts if _sends(x)] == parts[-1:] and bool(parts_of(last))


def _sends(part: ThreadPart) -> bool:
    statements = part.statements if isinstance(part, ElementLoop) else ()
    return any(isinstance(x, PutInRing) and x.sent for x in statements)


def _from_others(e: object) -> bool:
    """Tell whether something is read of another row that only memory has."""
    match e:
        case FromParents() | Picked():
            return True
        case Leaf(op=op):
            return op == "gather"
    return False
