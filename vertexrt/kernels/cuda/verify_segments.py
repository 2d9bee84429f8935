"""Verify the segments of a task of the path: no thread reads or overwrites too early.

Under VERTEXRT_CHECK and in all tests. A processor has one tile at a time, and what stands between
two segments is a barrier. What a step stores, later ones may read after the next barrier, where the
rows of a tile are the work of other threads; inside of a group `lower.verify_threads` looks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NoReturn

from vertexrt.errors import PlanError
from vertexrt.kernels.cuda.ring_uses import LoweredTask
from vertexrt.kernels.cuda.segment_accesses import expressions_read, products_of, stores_of
from vertexrt.kernels.cuda.segments import (
    PathSegment,
    PlainStep,
    Products,
    RowsAtATime,
    RowsInMemory,
    SegmentStep,
    Together,
)
from vertexrt.kernels.cuda.verify_puts import verify_puts
from vertexrt.lower.kernel import Memory, Picked, PlaceRows, ReadElement, ValuePlace
from vertexrt.lower.threads import ThreadKernel
from vertexrt.lower.verify import share_memory, verify_threads


def verify_segments(lowered: LoweredTask) -> LoweredTask:
    """Return the task.

    Raises: PlanError, naming the step, when memory is read or written that other threads of the
        processor may still write or read, when something is read that nothing has written, when
        temporaries do not fit, or when the ring is not what the segments say, see `verify_puts`.
    """
    made = [place for x in lowered.segments for step in x.flat for place in stores_of(step)]
    stored: list[ValuePlace] = []
    for segment in lowered.segments:
        verifier = _SegmentVerifier(lowered, segment, made, stored)
        verifier.run()
        stored = verifier.stored
    verify_puts(lowered)
    return lowered


@dataclass(slots=True)
class _SegmentVerifier:
    """Walks a segment in the order in which it runs.

    Attributes:
        made: what the task stores; stored: of that, so far, and what is copied ahead.
        unread: what other steps have stored since the last barrier; reading: what they have read.
        asked: what is copied ahead; waited: of this, what each thread has waited for.
        left: products whose partial sums are left since the last barrier; sums: before it.
        in_use: partial sums have been read since the last barrier.
    """

    task: LoweredTask
    segment: PathSegment
    made: list[ValuePlace]
    stored: list[ValuePlace]
    unread: list[ValuePlace] = field(default_factory=list)
    reading: list[ValuePlace] = field(default_factory=list)
    asked: list[ValuePlace] = field(default_factory=list)
    waited: list[ValuePlace] = field(default_factory=list)
    left: set[int] = field(default_factory=set)
    sums: set[int] = field(default_factory=set)
    in_use: bool = False
    what: object = None

    def run(self) -> None:
        """Verify all steps."""
        self._copies()
        for step in self.segment.steps:
            self._step(step)
        loads = sum(step == Together.LOAD_NEXT for step in self.segment.flat)
        if loads != 1:
            self._fail(f"the next instruction is loaded {loads} times", "once")

    def _copies(self) -> None:
        stores = [place for step in self.segment.flat for place in stores_of(step)]
        for copy in self.segment.copies:
            self.what = copy
            place = copy.source.place if isinstance(copy.source, ReadElement) else None
            if place and any(share_memory(place, other) for other in stores):
                self._fail(f"{place} is copied", "what this segment does not store")
            self._fits(copy.to)
            self.asked.append(copy.to)

    def _step(self, step: SegmentStep) -> None:
        if not isinstance(step, RowsAtATime):
            self._plain(step)
            return
        for steps in (step.steps, step.between, step.steps):  # for some rows, and for the next
            for inside in steps:
                self._plain(inside)

    def _plain(self, step: PlainStep) -> None:
        self.what = step
        match step:
            case Together.BARRIER:
                self._barrier()
            case Together.WAIT_FOR_COPIES:
                self.waited += self.asked
                self.asked = []
            case Products():
                self._multiply(step)
            case ThreadKernel():
                verify_threads(step)
        if isinstance(step, ThreadKernel | Products):
            self._access(list(_reads(step)), list(stores_of(step)))

    def _barrier(self) -> None:
        self.unread, self.reading = [], []
        self.stored += self.waited
        self.waited, self.in_use = [], False
        self.sums |= self.left
        self.left = set()

    def _multiply(self, step: Products) -> None:
        if self.in_use or self.left:
            self._fail("partial sums are overwritten", "a barrier after what reads the last ones")
        self.sums, self.in_use = set(), not step.sums
        self.left = {at.product for at in step.sums}
        ends = [0, *(at.start + at.elements for at in step.sums)]
        if [at.start for at in step.sums] != ends[:-1] or ends[-1] > self.segment.partial:
            self._fail("partial sums overlap", f"{self.segment.partial} of them, in order")

    def _access(self, reads: list[ValuePlace], stores: list[ValuePlace]) -> None:
        """Verify what the threads of a step read and store, in whatever order."""
        for place in reads:
            self._read(place, stores)
        for place in stores:
            if _shares(place, self.unread):
                self._fail(f"{place} is stored", "a barrier between, since others store it")
            if _shares(place, self.reading):
                self._fail(f"{place} is stored", "a barrier between, since others read it")
            self._fits(place)
        self.unread += stores
        self.reading += reads
        self.stored += stores

    def _read(self, place: ValuePlace, stores: Iterable[ValuePlace]) -> None:
        if place.memory == Memory.SUMS:
            if place.number not in self.sums:
                self._fail(f"{place} is read", "sums that are left, and a barrier after them")
            self.in_use = True
            return
        if _shares(place, (*self.asked, *self.waited)):
            self._fail(f"{place} is read", "a wait for copies, and a barrier after it")
        if _shares(place, self.unread):
            self._fail(f"{place} is read", "a barrier between, since other threads store it")
        own = place.memory == Memory.TEMPORARY or _shares(place, self.made)
        if own and not _shares(place, (*self.stored, *stores)):
            self._fail(f"{place} is read", "what was stored before")

    def _fits(self, place: ValuePlace) -> None:
        if place.memory != Memory.TEMPORARY:
            return
        edges, taken = place.rows == PlaceRows.LOCAL_EDGE, self.task.task.temporaries.taken
        first = taken[place.number].edges if edges else taken[place.number].rows
        room = self.segment.scratch[1 if edges else 0]
        if first + max(place.step, place.start + place.size) > room:
            self._fail(f"{place} begins at {first}", f"a place in {room} elements of a row")

    def _fail(self, got: str, expected: str) -> NoReturn:
        do = f"report this as a bug, with the segment:\n{self.segment}"
        raise PlanError.at("cuda", f"{self.what}: {got}", expected, do)


def _shares(place: ValuePlace, others: Iterable[ValuePlace]) -> bool:
    return any(share_memory(place, other) for other in others)


def _reads(step: PlainStep) -> Iterator[ValuePlace]:
    """Yield the places that a step reads."""
    for x in products_of(step):
        if isinstance(x.operand, RowsInMemory):
            yield x.operand.place
    for e in expressions_read(step):
        if isinstance(e, ReadElement | Picked) and e.place.memory != Memory.REGISTER:
            yield e.place
