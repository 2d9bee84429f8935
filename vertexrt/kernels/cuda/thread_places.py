"""Add to the loops of a group where its values lie: stores, reads of memory, waits for them.

What other threads of a row have stored is read after a wait.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import TypeGuard

from vertexrt.lower.kernel import (
    Apply,
    Expression,
    FromParents,
    J,
    Leaf,
    Memory,
    Picked,
    PlaceRows,
    ReadElement,
    ValuePlace,
    expressions_in,
)
from vertexrt.lower.thread_loops import (
    DraftKernel,
    DraftLoop,
    DraftStatement,
    JoinPart,
    in_register,
)
from vertexrt.lower.threads import (
    EdgeSum,
    ElementLoop,
    ElementStatement,
    MakeElements,
    MakeNumber,
    PublishElements,
    PublishNumber,
    ReduceElements,
    RowWait,
    StoreElements,
    ThreadPart,
)


class Placer:
    """Replaces members by where they lie, and adds stores and waits.

    Args:
        place: where values lie.
    """

    def __init__(self, place: Mapping[int, ValuePlace]) -> None:
        self.place = place
        self._parts: list[ThreadPart] = []
        self._waits: list[RowWait | int] = []  # before the loop
        self._unread: set[int] = set()  # stored by other threads since the last wait
        self._made: set[int] = set()  # in registers of the loop

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
        self._made = set()
        written: set[int] = set()
        statements = [x for draft in loop.statements for x in self._statement(draft, written)]
        before, width, joined = tuple(self._waits), 1, tuple(join_sums(statements))
        self._parts.append(ElementLoop(loop.size, width, before, joined))
        self._unread |= written
        self._waits = []

    def _statement(self, x: DraftStatement, written: set[int]) -> Iterator[ElementStatement]:
        """Yield a statement, and those that store what it makes."""
        match x:
            case MakeElements(register=k):
                yield MakeElements(k, self._value(x.value))
                self._made.add(k)
                if k in self.place:
                    yield _store(self.place[k], k)
                    written.add(k)
            case PublishElements():
                yield replace(x, value=self._read(x.value))
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
        yield MakeElements(x.register, self._read(x.value))
        yield _store(self.place[x.concat].part(x.start, x.size), x.register)

    def _stored_in(self, k: int) -> tuple[ValuePlace, ...]:
        """Return where a number is stored."""
        return (self.place[k],) if k in self.place else ()

    # What is read.

    def _value(self, value: Expression | EdgeSum) -> Expression | EdgeSum:
        if isinstance(value, EdgeSum):
            return replace(value, sources=tuple(map(self._source, value.sources)))
        return self._read(value)

    def _source(self, source: Expression | FromParents) -> Expression | FromParents:
        return source if isinstance(source, FromParents) else self._read(source)

    def _read(self, e: Expression) -> Expression:
        match e:
            case Apply():
                return replace(e, operands=tuple(map(self._read, e.operands)))
            case ReadElement() if not in_register(e, self._made):
                return replace(e, place=self._where(e.place))
            case Picked():
                return replace(e, place=self._where(e.place))
        return e

    def _where(self, place: ValuePlace) -> ValuePlace:
        """Return where the row of a value lies, after a wait if other threads stored it."""
        if place.memory == Memory.REGISTER:
            k = place.number
            place = self.place[k]
            if k in self._unread:
                self._waits.append(RowWait())
                self._unread.clear()
        return place


def _store(to: ValuePlace, register: int) -> StoreElements:
    place = ValuePlace(Memory.REGISTER, register, to.size, PlaceRows.ONE)
    return StoreElements(to, ReadElement(place, J))


def join_sums(statements: Sequence[ElementStatement]) -> Iterator[ElementStatement]:
    """Yield statements, of which sums over parents that follow each other are joined."""
    for x, after in zip_longest(statements, statements[1:]):
        if isinstance(x, MakeElements) and _over_parents(x) and _over_parents(after):
            yield replace(x, joined=True)
        else:
            yield x


def _over_parents(x: ElementStatement | None) -> bool:
    """Tell whether a statement adds up what the parents of a row left in one tensor."""
    if not isinstance(x, MakeElements) or not isinstance(x.value, EdgeSum):
        return False
    value = x.value
    alone = len(value.sources) == 1 and isinstance(value.sources[0], FromParents)
    return alone and value.size > 0 and not value.largest


PARENTS = 4  # elements that must divide rows that parents left, for vectors of them
IN_ROWS = ("gather", "param", "pull", "seed", "embed")  # leaves that are rows in memory


def width_of(loop: ElementLoop, vector: int) -> int:
    """Return how many elements a thread of a loop takes at once.

    Args:
        vector: elements of 16 bytes.
    """
    accessed = (n for x in loop.statements for n in _accessed(x))
    return 1 if loop.size % vector or any(n % vector for n in accessed) else vector


def loads_of(loop: ElementLoop) -> int:
    """Count what a loop loads of each element; 0 where it sums over edges."""
    found: set[ReadElement | Leaf] = set()
    for x in loop.statements:
        if isinstance(x.value, EdgeSum):
            return 0
        found |= {e for e in expressions_in(x.value) if _is_load(e)}
    return len(found)


def _is_load(e: Expression) -> TypeGuard[ReadElement | Leaf]:
    if isinstance(e, ReadElement):
        return e.place.memory != Memory.REGISTER and e.index.moves
    return isinstance(e, Leaf) and e.op in IN_ROWS and e.index.moves


def _accessed(x: ElementStatement) -> Iterator[int]:
    """Yield what must be whole vectors: where a statement reads and writes, rows and offsets."""
    if isinstance(x, (StoreElements, PublishElements)):
        yield from (x.to.start, x.to.step)
    if not isinstance(x.value, EdgeSum):
        yield from _read(x.value)
        return
    for source in x.value.sources:
        if isinstance(source, FromParents):
            yield x.value.size if x.value.size % PARENTS == 0 else 1
        else:
            yield from _read(source)


def _read(value: Expression) -> Iterator[int]:
    for e in expressions_in(value):
        if isinstance(e, ReadElement) and e.place.memory != Memory.REGISTER:
            if e.index.moves:
                yield from (e.place.start + e.index.shift, e.place.step)
        elif isinstance(e, Leaf) and e.op in IN_ROWS and e.index.moves:
            yield from (e.size, e.index.shift)
