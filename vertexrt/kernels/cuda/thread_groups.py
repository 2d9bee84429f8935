"""Lower a group of a task program to a kernel of threads over the rows of a launch.

Loops come first (`lower.thread_loops`): they say which values must be in memory. These get rows of
scratch in shared memory, or temporaries. Then stores, reads of memory and waits are added: what
other threads of a row have stored is read after a wait. Last, loops take vectors of 16 bytes where
they can.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

from vertexrt.config import config
from vertexrt.ir.passes.fuse import Group
from vertexrt.ir.program import Domain
from vertexrt.kernels.cuda.row_text import WARP
from vertexrt.kernels.layout import Binding
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
from vertexrt.lower.lowering import Memories, ValuePlaces
from vertexrt.lower.thread_loops import (
    DraftKernel,
    DraftLoop,
    DraftStatement,
    JoinPart,
    draft_loops,
    in_register,
    members_of,
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
PARENTS = 4  # elements that must divide rows that parents left, for vectors of them
IN_ROWS = ("gather", "param", "pull", "seed", "embed")  # leaves that are rows in memory


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
    edges, most = group.domain == Domain.EDGE, context.shared // rows
    place, taken = _place_members(draft, values, context.memories, most)
    parts = tuple(_with_width(part, vector, threads) for part in _Placer(place).parts(draft))
    listed = context.listed and not edges
    kernel = ThreadKernel(threads, rows, taken, most, edges, listed, parts)
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


def _place_members(
    draft: DraftKernel, values: ValuePlaces, memories: Memories, most: int
) -> tuple[dict[int, ValuePlace], int]:
    """Return where values lie; what needs memory is in a row of scratch, or a temporary.

    Args:
        most: elements of scratch of a row; how many are taken is returned, too.
    """
    place, taken = dict(values.place), 0

    def join(k: int) -> None:
        for i, start in draft.parts_of.get(k, ()):
            place[i] = place[k].part(start, values.nodes[i].type.size)

    for k in values.place:
        join(k)
    for k in draft.in_memory:
        kind = values.nodes[k].type
        size = max(kind.size, 1)
        padded = -(-size // 4) * 4
        if taken + padded <= most:
            place[k] = ValuePlace(Memory.SCRATCH, taken, size, PlaceRows.ONE)
            taken += padded
        else:
            place[k] = memories.temporary(size, kind.domain == Domain.EDGE)
        join(k)
    return place, taken


class _Placer:
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
        before, width, joined = tuple(self._waits), 1, tuple(_join_sums(statements))
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
            case JoinPart(value=value) if value is not None:  # is copied to its place
                yield MakeElements(x.register, self._read(value))
                yield _store(self.place[x.concat].part(x.start, x.size), x.register)
                written.add(x.concat)

    def _stored_in(self, k: int) -> tuple[ValuePlace, ...]:
        """Return where a number is stored."""
        return (self.place[k],) if k in self.place else ()

    # What is read.

    def _value(self, value: Expression | EdgeSum) -> Expression | EdgeSum:
        if not isinstance(value, EdgeSum):
            return self._read(value)
        sources = [x if isinstance(x, FromParents) else self._read(x) for x in value.sources]
        return replace(value, sources=tuple(sources))

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


def _join_sums(statements: Sequence[ElementStatement]) -> Iterator[ElementStatement]:
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
        found.update(_loads(x.value))
    return len(found)


def _loads(value: Expression) -> Iterator[ReadElement | Leaf]:
    """Yield what an expression loads of each element."""
    for e in expressions_in(value):
        match e:
            case ReadElement(place=place, index=index) if place.memory != Memory.REGISTER:
                if index.moves:
                    yield e
            case Leaf(op=op, index=index) if op in IN_ROWS and index.moves:
                yield e


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
    for e in _loads(value):
        first, step = (e.place.start, e.place.step) if isinstance(e, ReadElement) else (0, e.size)
        yield from (first + e.index.shift, step)
