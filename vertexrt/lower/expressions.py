"""Expressions of the kernel IR: element j of the value of a row."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from vertexrt.lower.places import Memory, ValuePlace


@dataclass(frozen=True, slots=True)
class Index:
    """Which element an expression reads: `j + shift`, or `shift` alone."""

    moves: bool
    shift: int = 0

    def __str__(self) -> str:
        if not self.moves:
            return str(self.shift)
        return f"j + {self.shift}" if self.shift else "j"


J = Index(True)
FIRST = Index(False)


@dataclass(frozen=True, slots=True)
class Number:
    """A number of this row that a statement has made: it is in a register."""

    value: int

    def __str__(self) -> str:
        return f"%{self.value}"


@dataclass(frozen=True, slots=True)
class Constant:
    """A number that is known; an integer, where it is compared with integers."""

    value: float | int

    def __str__(self) -> str:
        return str(self.value)


@dataclass(frozen=True, slots=True)
class ReadElement:
    """An element of a place."""

    place: ValuePlace
    index: Index

    def __str__(self) -> str:
        return str(self.place) + ("" if self.place.memory == Memory.REGISTER else f"({self.index})")


@dataclass(frozen=True, slots=True)
class Picked:
    """The element of a place that an integer pull names; element 0, where the pull is absent.

    Attributes:
        start: the element of the place that the pull counts from.
    """

    place: ValuePlace
    pull: int
    start: int = 0

    def __str__(self) -> str:
        return f"{self.row}(pull {self.pull})"

    @property
    def row(self) -> ValuePlace:
        """The elements that the pull counts."""
        return (
            self.place.part(self.start, self.place.size - self.start) if self.start else self.place
        )


@dataclass(frozen=True, slots=True)
class Leaf:
    """An input of the function, read where it is used.

    Attributes:
        op: of the op table (`arange` is j itself); of pulls also `integer` (the value),
            `has_integer` and `has_real` (1 where the vertex has one), and `is_index` (1 where j is
            the value).
        number: of the tensor (`gather`), the parameter (`param`, `embed`), the pull or the push.
        slot: of a child; -1 for the child of the edge.
        size: elements a row of what is read.
        pull: the integer pull that `embed` looks up.
        edges: the pull is one of each edge.
        relation: of the edge, where a function reads several relations whole: a child in another
            one is none.
    """

    op: str
    index: Index = FIRST
    number: int = -1
    slot: int = -1
    size: int = 1
    pull: int = -1
    edges: bool = False
    relation: int = 0

    def __str__(self) -> str:
        given = {"number": self.number, "slot": self.slot, "pull": self.pull}
        facts = [f"{name} {value}" for name, value in given.items() if value != -1]
        facts += [f"relation {self.relation}"] if self.relation else []
        facts += ["of the edge"] if self.edges else []
        return f"{self.op}({', '.join([*facts, str(self.index)])})"


@dataclass(frozen=True, slots=True)
class RandomDraw:
    """A factor of dropout: 0, or 1 / (1 - p), drawn by the user's vertex (or edge) and element.

    Attributes:
        p: None for a number between 0 and 1 instead.
        edges: by the edge.
        by: the integer pull that says by which other vertex; -1 for none.

    Source: counter-based random numbers, Salmon et al., SC 2011.
    """

    key: int
    p: float | None
    edges: bool
    by: int = -1

    def __str__(self) -> str:
        by = "" if self.by < 0 else f", by pull {self.by}"
        return f"draw(key {self.key}, p {self.p}{by})"


@dataclass(frozen=True, slots=True)
class Apply:
    """A scalar expression over x0, x1, ... in the language of the op table."""

    expression: str
    operands: tuple[Expression, ...]
    draw: RandomDraw | None = None
    index: Index = J  # of the draw

    def __str__(self) -> str:
        names = {f"x{k}": str(x) for k, x in enumerate(self.operands)}
        names["draw"] = str(self.draw)
        return f"({re.sub('[a-z]+[0-9]?', lambda m: names.get(m[0], m[0]), self.expression)})"


Expression = Number | Constant | ReadElement | Picked | Leaf | Apply


def expressions_in(expression: Expression) -> Iterator[Expression]:
    """Yield an expression and all that it is made from."""
    yield expression
    if isinstance(expression, Apply):
        for operand in expression.operands:
            yield from expressions_in(operand)
