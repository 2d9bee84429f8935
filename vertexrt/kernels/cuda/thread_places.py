"""Add to the loops of a group where its values lie: stores, reads of memory, waits for them.

What other threads of a row have stored is read after a wait. On the path it is noted here what a
segment reads and writes of the ring.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from vertexrt.kernels.cuda.path_segment import SegmentContext
from vertexrt.lower.expressions import (
    Apply,
    Expression,
    J,
    Leaf,
    Picked,
    ReadElement,
)
from vertexrt.lower.kernel import FromParents
from vertexrt.lower.places import Memory, Rows, ValuePlace
from vertexrt.lower.thread_loops import (
    DraftKernel,
    DraftLoop,
    DraftStatement,
    JoinPart,
    in_register,
)
from vertexrt.lower.threads import (
    NEAR,
    Cuts,
    EdgeSum,
    ElementLoop,
    ElementStatement,
    MakeElements,
    MakeNumber,
    PublishElements,
    PublishNumber,
    PutInRing,
    ReduceElements,
    RowWait,
    StoreElements,
    ThreadPart,
)


class Placer:
    """Replaces members by where they lie, and adds stores and waits.

    Args:
        place: where values lie; edges: the rows are edges.
        path: what a segment has at hand; None outside the path.
    """

    def __init__(
        self, place: Mapping[int, ValuePlace], edges: bool, path: SegmentContext | None
    ) -> None:
        self.place, self.edges, self.path = place, edges, path
        self.also: Mapping[int, ValuePlace] = {} if path is None else path.task.also
        self._parts: list[ThreadPart] = []
        self._waits: list[RowWait | int] = []  # before the loop
        self._unread: set[int] = set()  # stored by other threads since the last wait
        self._cuts: Cuts = ()
        self._made: set[int] = set()  # in registers of the loop
        self._near: dict[tuple[int, int], bool] = {}  # by tensor and slot
        self._in_full: set[ValuePlace] = set()  # what earlier segments made in parts
        if path is not None:
            self._in_full = {place[k] for k in path.ring.before if k in place}

    def parts(self, draft: DraftKernel) -> tuple[ThreadPart, ...]:
        """Return the parts of the kernel."""
        for part in draft.parts:
            match part:
                case DraftLoop():
                    self._loop(part)
                case JoinPart(concat=k):
                    self._unread.add(k)
                case MakeNumber(number=k):
                    to = self._stored_in(k)
                    self._number(replace(part, value=self._value(part.value), to=to))
                    if to:
                        self._unread.add(k)
                case PublishNumber():
                    self._number(replace(part, value=self._read(part.value)))
        return tuple(self._parts)

    def _number(self, part: ThreadPart) -> None:
        self._parts += [x for x in self._waits if isinstance(x, RowWait)]
        self._parts.append(part)
        self._waits = []

    def _loop(self, loop: DraftLoop) -> None:
        self._cuts, self._made = loop.cuts, set()
        written: set[int] = set()
        statements = [x for draft in loop.statements for x in self._statement(draft, written)]
        before, width = tuple(self._waits), 1
        self._parts.append(ElementLoop(loop.size, loop.cuts, width, before, tuple(statements)))
        self._unread |= written
        self._waits, self._cuts = [], ()

    def _statement(self, x: DraftStatement, written: set[int]) -> Iterator[ElementStatement]:
        """Yield a statement, and those that store what it makes."""
        match x:
            case MakeElements(register=k):
                yield MakeElements(k, self._value(x.value))
                self._made.add(k)
                if k in self.place:
                    yield from self._store(self.place[k], k)
                    written.add(k)
                if k in self.also:
                    yield from self._store_own(k, 0, self.also[k], k)
            case PublishElements():
                yield replace(x, value=self._read(x.value))
                yield from self._put(x.to, x.register)
            case ReduceElements(number=k):
                yield replace(x, value=self._read(x.value), to=self._stored_in(k))
                self._waits.append(k)
            case JoinPart(value=None):
                (written if x.part in self._made else self._unread).add(x.concat)
            case JoinPart():
                yield from self._join(x)
                written.add(x.concat)

    def _join(self, x: JoinPart) -> Iterator[ElementStatement]:
        """Yield what copies a part of a concat to its place."""
        assert x.value is not None
        value = self._read(x.value)
        yield MakeElements(x.register, value)
        yield from self._store(self.place[x.concat].part(x.start, x.size), x.register)
        if x.concat in self.also:
            yield MakeElements(x.register - 1, value)
            home = self.also[x.concat].part(x.start, x.size)
            yield from self._store_own(x.concat, x.start, home, x.register - 1)

    def _store(self, to: ValuePlace, register: int) -> Iterator[ElementStatement]:
        yield StoreElements(to, _register(register, to.size))
        yield from self._put(to, register)

    def _store_own(
        self, k: int, start: int, home: ValuePlace, register: int
    ) -> Iterator[ElementStatement]:
        """Yield what writes a register to a tensor where its elements are own ones."""
        assert self.path is not None
        yield from self._put(home, register)
        cuts = self.path.task.own_cuts(k)
        inside = [c - start for c in cuts if start < c < start + home.size]
        yield StoreElements(home, _register(register, home.size), (0, *inside, home.size))

    def _put(self, home: ValuePlace, register: int) -> Iterator[ElementStatement]:
        """Yield what puts stored elements into the tile's row of the ring, too."""
        if self.path is not None and self.path.ring.put(home) is not None:
            yield PutInRing(home.number, home.start, register)

    def _stored_in(self, k: int) -> tuple[ValuePlace, ...]:
        """Return where a number is stored; every processor stores its own, as all have the same."""
        return tuple(places[k] for places in (self.place, self.also) if k in places)

    # What is read.

    def _value(self, value: Expression | EdgeSum) -> Expression | EdgeSum:
        if isinstance(value, EdgeSum):
            return replace(value, sources=tuple(map(self._source, value.sources)))
        return self._read(value)

    def _source(self, source: Expression | FromParents) -> Expression | FromParents:
        if not isinstance(source, FromParents):
            return self._read(source)
        if self.path is not None and not self._cuts:
            self.path.ring.reads_all()
        return source

    def _read(self, e: Expression) -> Expression:
        match e:
            case Apply():
                return replace(e, operands=tuple(map(self._read, e.operands)))
            case ReadElement() if not in_register(e, self._made):
                return replace(e, place=self._where(e.place))
            case Picked():
                return replace(e, place=self._where(e.place))
            case Leaf(op="gather"):
                return self._gathered(e)
        return e

    def _where(self, place: ValuePlace) -> ValuePlace:
        """Return where the row of a value lies, after a wait if other threads stored it."""
        if place.memory == Memory.REGISTER:
            k = place.number
            place = self.place[k]
            if k in self._unread:
                self._waits.append(RowWait())
                self._unread.clear()
        if place in self._in_full and not self._cuts:
            assert self.path is not None
            self.path.ring.reads_all()
        return place

    def _gathered(self, e: Leaf) -> Leaf:
        """Return how the state of a child is read; in full it may be in the ring."""
        if self.path is None:
            return e
        is_near = not self._cuts and self.path.ring.gathered(e.number) is not None
        if e.slot >= 0 or self.edges:  # found once a row
            is_near = self._near.setdefault((e.number, e.slot), is_near)
        return replace(e, op=NEAR) if is_near else e


def _register(k: int, size: int) -> ReadElement:
    return ReadElement(ValuePlace(Memory.REGISTER, k, size, Rows.ONE), J)
