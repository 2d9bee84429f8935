"""Decide which values of a group share a loop over elements, and which of them need memory.

A loop ends where a value is read in another way than element by element: at another offset, or
after a sum over the row. Then it is read from memory. So two things follow from the order of the
members alone: the loops, and what must be in memory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from vertexrt.ir.ops import OPS
from vertexrt.ir.passes.fuse import Group
from vertexrt.ir.passes.store import is_free
from vertexrt.ir.program import Domain, Node
from vertexrt.lower.kernel import (
    FIRST,
    Expression,
    J,
    Memory,
    Number,
    Picked,
    PlaceRows,
    ReadElement,
    ValuePlace,
)
from vertexrt.lower.lowering import REDUCTIONS, SUMS_OVER_EDGES, ValuePlaces, can_move
from vertexrt.lower.threads import (
    EdgeSum,
    ElementStatement,
    MakeElements,
    MakeNumber,
    PublishElements,
    PublishNumber,
    ReduceElements,
    expressions_of,
)


@dataclass(frozen=True, slots=True)
class GroupMembers:
    """What the kernel of a group makes.

    Attributes:
        members: values that it makes, and effects, by position.
        in_parts: values that are made where slices of them are read.
        widest: elements of the longest value that is made or read.
    """

    members: tuple[int, ...]
    in_parts: frozenset[int]
    widest: int


def members_of(values: ValuePlaces, group: Group) -> GroupMembers:
    """Say what the kernel of a group makes.

    Views and leaves are read where they are used, and so is a value of which slices alone are
    read, unless it is in memory.

    Args:
        values: with the places of what is in memory before, and of what belongs in tensors.
    """
    nodes = values.nodes
    # Rows of which an element is read that no loop has at hand are in memory, too.
    apart = (nodes[k] for k in group.nodes if nodes[k].op in ("nll", "sum_repeated"))
    held = {*values.place, *(values.kept_row(node.inputs[0])[0] for node in apart)}
    made = []
    for k in group.nodes:
        view = OPS[nodes[k].op].role == "view" and nodes[k].op != "concat"
        if k in held or not (is_free(nodes[k]) or view):
            made.append(k)
    # Slices of some values make them, each its own elements.
    in_parts: set[int] = set()
    for k in reversed(made):
        if k in held or OPS[nodes[k].op].role != "scalar":
            continue
        readers = [i for i, node in enumerate(nodes) if k in node.inputs]
        slices = readers and all(nodes[i].op == "slice" and i not in held for i in readers)
        if slices or (len(readers) == 1 and readers[0] in in_parts):
            in_parts.add(k)
    members = tuple(k for k in made if k not in in_parts)
    read = {i for k in made for i in (k, *nodes[k].inputs)}
    sizes = (nodes[i].type.size for i in read if nodes[i].type.domain != Domain.PARAM)
    return GroupMembers(members, frozenset(in_parts), max(sizes, default=1))


@dataclass(frozen=True, slots=True)
class JoinPart:
    """Put a part of a concat in its place.

    Attributes:
        start: its first element in the concat.
        value: what is copied there; None for a part that is made there.
        register: of the copy.
    """

    concat: int
    part: int
    start: int
    size: int
    value: Expression | None = None
    register: int = 0


DraftStatement = ElementStatement | JoinPart


@dataclass(slots=True)
class DraftLoop:
    """A loop that is being filled; its statements read members from registers.

    Attributes:
        made: values whose elements are in registers; written: these, and concats that have a part
            among them: other threads cannot read them before the loop is over.
        pending: numbers that are known once the loop is over.
    """

    size: int
    statements: list[DraftStatement] = field(default_factory=list)
    made: set[int] = field(default_factory=set)
    written: set[int] = field(default_factory=set)
    pending: set[int] = field(default_factory=set)


@dataclass(slots=True)
class DraftKernel:
    """The loops of a group, and the numbers between them.

    Attributes:
        in_memory: members that need memory, in the order in which that turns out.
        parts_of: parts of concats that are made where they end up, with their first elements.
    """

    parts: list[DraftLoop | MakeNumber | PublishNumber | JoinPart] = field(default_factory=list)
    in_memory: list[int] = field(default_factory=list)
    parts_of: dict[int, list[tuple[int, int]]] = field(default_factory=dict)


Kept = Number | ReadElement | Picked  # a member that is read


def draft_loops(given: GroupMembers, values: ValuePlaces) -> DraftKernel:
    """Order the members of a group, and give each its loop.

    Args:
        values: with the places of what is in memory before, and of what belongs in tensors.
    """
    return _Loops(given, values).run()


class _Loops:
    """Fills one loop after the other.

    Attributes:
        place: of what is stored, and of parts; a concat without a tensor stands for its own place.
        copies: registers of copies so far, -1 and below; values have their own numbers.
    """

    def __init__(self, given: GroupMembers, values: ValuePlaces) -> None:
        self.nodes, self.members = values.nodes, given.members
        self.place = dict(values.place)
        self.values = ValuePlaces(values.nodes, values.binding)
        self.values.numbers = {k for k in self.members if self.nodes[k].type.shape == ()}
        self.values.place = values.place | {k: self._register(k) for k in self.members}
        self.draft = DraftKernel()
        self.open: DraftLoop | None = None
        self.copies = 0

    def _register(self, k: int) -> ValuePlace:
        return ValuePlace(Memory.REGISTER, k, max(self.nodes[k].type.size, 1), PlaceRows.ONE)

    def run(self) -> DraftKernel:
        """Return all loops."""
        for k in self.members:
            if self.nodes[k].op == "concat" and k in self.place:
                self._alias_parts(k)
        waiting = list(self.members)
        reads = {k: self._members_read(k) for k in waiting}
        while waiting:
            k = self._next(waiting, reads)
            waiting.remove(k)
            self._add(k, self.nodes[k])
        return self.draft

    def _next(self, waiting: Sequence[int], reads: Mapping[int, set[int]]) -> int:
        """Pick a member whose operands are there, if possible one of the open loop's size."""
        ready = [k for k in waiting if reads[k].isdisjoint(waiting)]
        loop = self.open
        if loop is not None:
            for k in ready:
                if self._loop_size(k) == loop.size and reads[k].isdisjoint(loop.pending):
                    return k
        return ready[0]

    def _loop_size(self, k: int) -> int:
        node = self.nodes[k]
        if node.op in REDUCTIONS or OPS[node.op].role == "effect":
            return max(self.nodes[node.inputs[0]].type.size, 1)
        return 0 if node.type.shape == () or node.op == "concat" else node.type.size

    def _members_read(self, k: int) -> set[int]:
        node = self.nodes[k]
        if node.op in ("concat", *REDUCTIONS) or OPS[node.op].role == "effect":
            read = [e for i in node.inputs for e in _kept(self.values.element(i, J))]
        else:
            read = list(_kept(self._value(k, node)))
        return {e.value if isinstance(e, Number) else e.place.number for e in read}

    def _value(self, k: int, node: Node) -> Expression | EdgeSum:
        bare = node.type.shape == ()
        if node.op in SUMS_OVER_EDGES:
            size = 0 if bare else node.type.size
            largest = node.op == "segment_max"
            of = self.values.sources(node), largest, size, node.relation
            return EdgeSum(*of, self.values.order(node))
        if node.op in REDUCTIONS:  # of one number
            return self.values.element(node.inputs[0], FIRST)
        return self.values.expression(k, FIRST if bare else J)

    # Members.

    def _add(self, k: int, node: Node) -> None:
        """Add what makes a member to the open loop, to a new one, or between loops."""
        if OPS[node.op].role == "effect":
            self._add_effect(k, node)
        elif node.op == "concat":
            self._add_concat(k, node)
        elif node.op in REDUCTIONS and self.nodes[node.inputs[0]].type.shape != ():
            reduced = ReduceElements(k, node.op, self.values.element(node.inputs[0], J))
            self._in_loop(reduced, self._loop_size(k)).pending.add(k)
        elif node.type.shape == ():
            self._between(MakeNumber(k, self._value(k, node)))
        else:
            made = MakeElements(k, self._value(k, node))
            loop = self._in_loop(made, node.type.size)
            loop.made.add(k)
            loop.written.add(k)

    def _add_effect(self, k: int, node: Node) -> None:
        (i,) = node.inputs
        to, child = self.values.target(node)
        if self.place.get(i) == to:
            return
        if to.size == 1 and self.nodes[i].type.shape == ():
            self._between(PublishNumber(to, self.values.element(i, FIRST), child))
            return
        value = self.values.element(i, J)
        self._in_loop(PublishElements(to, value, self._copy(), child), to.size)

    def _copy(self) -> int:
        self.copies -= 1
        return self.copies

    def _between(self, part: MakeNumber | PublishNumber) -> None:
        """Add what needs no loop, once the open one is over."""
        self.open = None
        self._need(_kept(part.value))
        self.draft.parts.append(part)

    def _in_loop(self, statement: DraftStatement, size: int) -> DraftLoop:
        """Add a statement to the open loop if it can stand there, else to a new one."""
        loop, read = self.open, list[Kept]()
        if statement.value is not None:
            read += _kept(statement.value)
        if loop is not None and loop.size != size:
            loop = None
        if loop is not None:
            # What is made in a loop, and read in another way than element by element.
            apart = [
                e.value in loop.pending
                if isinstance(e, Number)
                else e.place.number in loop.written and not in_register(e, loop.made)
                for e in read
            ]
            if any(apart):
                self._need(read[: apart.index(True) + 1])
                loop = None
        if loop is None:
            loop = self.open = DraftLoop(size)
            self.draft.parts.append(loop)
        self._need(read)
        loop.statements.append(statement)
        return loop

    def _need(self, read: Iterable[Kept]) -> None:
        """Note what is read that the open loop does not have in registers."""
        made = self.open.made if self.open is not None else ()
        for e in read:
            if not isinstance(e, Number) and not in_register(e, made):
                self._keep(e.place.number)

    def _keep(self, k: int) -> None:
        """Let a member be in memory."""
        if k not in self.place and k not in self.draft.in_memory:
            self.draft.in_memory.append(k)

    # Concats.

    def _add_concat(self, k: int, node: Node) -> None:
        if k not in self.place:
            self._keep(k)
            self.place[k] = self._register(k)
            self._alias_parts(k)
        start = 0
        for i in node.inputs:
            size = max(self.nodes[i].type.size, 1)
            if self.place.get(i) != self.place[k].part(start, size):
                part = JoinPart(k, i, start, size, self.values.element(i, J), self._copy())
                self._in_loop(part, size).written.add(k)
            elif self.open is None:
                self.draft.parts.append(JoinPart(k, i, start, size))
            else:
                self.open.statements.append(JoinPart(k, i, start, size))
                if i in self.open.made:
                    self.open.written.add(k)
            start += size

    def _alias_parts(self, k: int) -> None:
        """Let the parts of a concat be made where they end up."""
        start = 0
        for i in self.nodes[k].inputs:
            size = self.nodes[i].type.size
            free = i in self.members and i not in self.place and i not in self.draft.in_memory
            if size > 1 and free and can_move(self.nodes[i]):
                self.place[i] = self.place[k].part(start, size)
                self.draft.parts_of.setdefault(k, []).append((i, start))
            start += size


def _kept(value: Expression | EdgeSum) -> Iterator[Kept]:
    """Yield the members that are read."""
    for e in expressions_of(value):
        if isinstance(e, Number) or (
            isinstance(e, ReadElement | Picked) and e.place.memory == Memory.REGISTER
        ):
            yield e


def in_register(e: ReadElement | Picked, made: Collection[int]) -> bool:
    """Tell whether an element is one that the thread has made in its loop."""
    return isinstance(e, ReadElement) and e.index == J and e.place.number in made
