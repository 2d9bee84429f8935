"""The records of a kernel whose rows are the work of several threads each: what a GPU runs.

A group of a task program becomes such a kernel. Values of one size share a loop over elements, of
which each thread of the row takes some, a vector at a time. In the loop a value is a register of
the thread that makes the element. Between loops are numbers, which every thread makes, and waits
for the other threads of the row.

    for each row, 32 threads, 8 elements of scratch:
      for elements 0:8, 4 at a time:
        r9 = (sigmoid(tensor 0[row][0:8](j)))
        scratch 0[0:8] = r9
        %10 += reduce_sum r9
      %12 = (%10 + 1.0)
      wait for the threads of the row
      for elements 0:8, 4 at a time:
        r13 = (scratch 0[0:8](j) / %12)
        tensor 1[row][0:8] = r13

What shares a loop is decided in `thread_loops`; what lies in memory, waits and widths where the
kernel of a group is lowered for a device. `verify_threads` looks for races.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from vertexrt.lower.kernel import (
    Apply,
    Expression,
    FromParents,
    Memory,
    PlaceRows,
    ReadElement,
    ValuePlace,
    expressions_in,
    register_name,
)


@dataclass(frozen=True, slots=True)
class EdgeSum:
    """The sum, or the largest, of what the edges of a row have.

    Attributes:
        sources: what is summed, one after the other, see `SumEdges`.
        size: elements of a row of edges; 0 for a number.
        relation, order: see `SumEdges`.
    """

    sources: tuple[Expression | FromParents, ...]
    largest: bool
    size: int
    relation: int = 0
    order: tuple[Expression, bool] | None = None

    def __str__(self) -> str:
        how = "largest" if self.largest else "sum"
        over = f"relation {self.relation}" if self.relation else "edges"
        of = ", ".join(map(str, (*self.sources, *(self.order or ()))))
        return f"{how} over {over} of {of}"


# Statements of a loop over elements.


@dataclass(frozen=True, slots=True)
class MakeElements:
    """Make elements in a register of each thread.

    Attributes:
        joined: a sum over parents that is added up together with the next statement's, so that
            what both load is on its way at once.
    """

    register: int
    value: Expression | EdgeSum
    joined: bool = False

    def __str__(self) -> str:
        joined = ", joined with the next" if self.joined else ""
        return f"{register_name(self.register)} = {self.value}{joined}"


@dataclass(frozen=True, slots=True)
class StoreElements:
    """Store a register, or what was read just so."""

    to: ValuePlace
    value: ReadElement

    def __str__(self) -> str:
        return f"{self.to} = {self.value}"


@dataclass(frozen=True, slots=True)
class PublishElements:
    """Store what an effect publishes; this kernel does not read it.

    Attributes:
        register: that holds it before.
        child: only where the row has a child in this slot; -1 for always.
    """

    to: ValuePlace
    value: Expression
    register: int
    child: int = -1

    def __str__(self) -> str:
        where = f" if child {self.child}" if self.child >= 0 else ""
        return f"{self.to} = {register_name(self.register)} = {self.value}{where}"


@dataclass(frozen=True, slots=True)
class ReduceElements:
    """Reduce a row to a number, which is known when the loop is over.

    Attributes:
        how: `reduce_sum`, `reduce_max` or `logsumexp`.
        to: where it is stored.
    """

    number: int
    how: str
    value: Expression
    to: tuple[ValuePlace, ...] = ()

    def __str__(self) -> str:
        return f"{' = '.join([*map(str, self.to), f'%{self.number}'])} += {self.how} {self.value}"


ElementStatement = MakeElements | StoreElements | PublishElements | ReduceElements


# Parts of a kernel.


@dataclass(frozen=True, slots=True)
class RowWait:
    """Wait until all threads of the row are here, and what they stored can be read."""

    def __str__(self) -> str:
        return "wait for the threads of the row"


@dataclass(frozen=True, slots=True)
class ElementLoop:
    """A loop over the elements of a row.

    Attributes:
        width: elements that a thread takes at once; ahead: how often, with all loads first.
        before: waits, and the numbers whose partial results begin, in order.
    """

    size: int
    width: int
    before: tuple[RowWait | int, ...]
    statements: tuple[ElementStatement, ...]
    ahead: int = 1

    @property
    def sums_edges(self) -> bool:
        """Whether edges are summed up in it: what else it loads is on its way meanwhile."""
        made = (x.value for x in self.statements if isinstance(x, MakeElements))
        return any(isinstance(value, EdgeSum) for value in made)

    def __str__(self) -> str:
        waits = [str(x) for x in self.before if isinstance(x, RowWait)]
        at_once = f", {self.width} at a time" if self.width > 1 else ""
        ahead = f", {self.ahead} loads ahead" if self.ahead > 1 else ""
        title = f"for elements 0:{self.size}{at_once}{ahead}:"
        return "\n".join([*waits, title, *(f"  {x}" for x in self.statements)])


@dataclass(frozen=True, slots=True)
class MakeNumber:
    """Make a number of the row, in every thread; one of them stores it."""

    number: int
    value: Expression | EdgeSum
    to: tuple[ValuePlace, ...] = ()

    def __str__(self) -> str:
        return f"{' = '.join([*map(str, self.to), f'%{self.number}'])} = {self.value}"


@dataclass(frozen=True, slots=True)
class PublishNumber:
    """Store a number that an effect publishes; `child` is that of `PublishElements`."""

    to: ValuePlace
    value: Expression
    child: int = -1

    def __str__(self) -> str:
        where = f" if child {self.child}" if self.child >= 0 else ""
        return f"{self.to} = {self.value}{where}"


ThreadPart = ElementLoop | MakeNumber | PublishNumber | RowWait


@dataclass(frozen=True, slots=True)
class ThreadKernel:
    """What the threads of each row do.

    Attributes:
        threads: of a row; rows: of a block.
        scratch: elements of shared memory of a row; most: that it may have.
        edges: the rows are edges.
        listed: a launch may have a list of rows.
        splits_edges, relations: of `Program`.
    """

    threads: int
    rows: int
    scratch: int
    most: int
    edges: bool
    listed: bool
    parts: tuple[ThreadPart, ...]
    splits_edges: bool = False
    relations: int = 1

    def __str__(self) -> str:
        what = "edge" if self.edges else "row"
        scratch = f", {self.scratch} elements of scratch" if self.scratch else ""
        lines = [f"for each {what}, {self.threads} threads{scratch}:"]
        lines += [f"  {line}" for part in self.parts for line in str(part).splitlines()]
        return "\n".join(lines)


def expressions_of(value: Expression | EdgeSum) -> Iterator[Expression | FromParents]:
    """Yield all that a value is made from."""
    sources = value.sources if isinstance(value, EdgeSum) else (value,)
    key = value.order[:1] if isinstance(value, EdgeSum) and value.order else ()
    for source in (*sources, *key):
        if isinstance(source, FromParents):
            yield source
        else:
            yield from expressions_in(source)


def read_by(x: ElementStatement | ThreadPart) -> Iterator[Expression | FromParents]:
    """Yield all that a statement, or a part of a kernel, reads."""
    if isinstance(x, ElementLoop):
        for statement in x.statements:
            yield from read_by(statement)
    elif not isinstance(x, RowWait):
        yield from expressions_of(x.value)


def stored_by(x: ElementStatement | ThreadPart) -> tuple[ValuePlace, ...]:
    """Return where a statement stores what it makes."""
    match x:
        case StoreElements() | PublishElements() | PublishNumber():
            return (x.to,)
        case MakeNumber() | ReduceElements():
            return x.to
    return ()


def with_register(x: ElementStatement, place: ValuePlace, register: int) -> ElementStatement:
    """Return a statement that reads a register in place of elements in memory."""
    held = ValuePlace(Memory.REGISTER, register, place.size, PlaceRows.ONE)

    def read(e: Expression) -> Expression:
        if isinstance(e, ReadElement) and e.place == place:
            return replace(e, place=held)
        return replace(e, operands=tuple(map(read, e.operands))) if isinstance(e, Apply) else e

    if isinstance(x.value, EdgeSum):
        return x
    value: Any = read(x.value)
    return replace(x, value=value)
