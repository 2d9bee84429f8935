"""The records of the kernel IR: where values lie, expressions of elements, what is done with them.

A kernel runs over the rows of a launch. Its steps are loops over these rows (or over their edges)
and what works on all rows at once: products, and sums into rows of a table. The body of a loop is
a list of statements; most are fills, which write the elements j of one place from an expression.

    for each row:
      %3 = reduce_sum tensor 2[row][0:16]
      tensor 4[row][0:16] = (tensor 2[row][0:16](j) * %3)

All decisions are in these records: what shares a loop, what is kept where, what is made in place of
what reads it, and which elements each processor makes. What renders them, or runs them, decides
nothing. Source: the split of a schedule from what prints it is Halide's (Ragan-Kelley et al., PLDI
2013); fusing the elementwise work of a vertex function is Cavs, section 3.4.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum


@dataclass(frozen=True, slots=True)
class Temporary:
    """Where a temporary starts: after so many elements a row, an edge, and once."""

    rows: int
    edges: int
    once: int


class Memory(Enum):
    """Where a place begins."""

    TENSOR = "tensor"  # a dynamic tensor, by its number in the binding
    TEMPORARY = "temporary"  # a row for each row, or edge, of the launch
    SCRATCH = "scratch"  # one row, which each row of the loop uses again
    CHOSEN = "chosen"  # one row, at the element that `Choose` found for this row
    REGISTER = "register"  # of the thread that makes the element; for one loop over elements


class PlaceRows(Enum):
    """What counts the rows of a place."""

    ROW = "row"  # execution rows
    EDGE = "edge"  # edges
    SLOT = "slot"  # the edge of the row's child in a slot
    LOCAL = "local"  # rows of the launch
    LOCAL_EDGE = "local_edge"  # edges of the launch
    ONE = "one"  # there is one row


def register_name(k: int) -> str:
    """Name the register of a value; of a copy, whose numbers are negative."""
    return f"r{k}" if k >= 0 else f"s{-k}"


@dataclass(frozen=True, slots=True)
class ValuePlace:
    """Where the rows of a value lie: elements `start .. start + size` of rows `step` apart.

    Attributes:
        number: of the tensor, or of the temporary, the scratch row or the choice in its kernel.
        slot: where `rows` is SLOT.
    """

    memory: Memory
    number: int
    size: int
    rows: PlaceRows
    start: int = 0
    stride: int = 0
    slot: int = -1

    @property
    def step(self) -> int:
        """Elements from one row to the next."""
        return self.stride or self.size

    @property
    def in_tensor(self) -> bool:
        """Tell whether other kernels read what is written there."""
        return self.memory == Memory.TENSOR

    def __str__(self) -> str:
        if self.memory == Memory.REGISTER:
            return register_name(self.number)
        rows = "" if self.rows == PlaceRows.ONE else f"[{self.rows.value}]"
        rows = f"[slot {self.slot}]" if self.rows == PlaceRows.SLOT else rows
        of = f" of {self.stride}" if self.stride else ""
        elements = f"[{self.start}:{self.start + self.size}{of}]"
        return f"{self.memory.value} {self.number}{rows}{elements}"

    def part(self, start: int, size: int) -> ValuePlace:
        """Return some elements of each row."""
        return replace(self, size=size, start=self.start + start, stride=self.step)


@dataclass(frozen=True, slots=True)
class OwnPart:
    """The elements of `start .. start + size` that this processor makes.

    Attributes:
        of: they are the share of a whole of that many elements, in which they begin at `begin`;
            0, when they are shared out themselves.
    """

    start: int
    size: int
    of: int = 0
    begin: int = 0

    def __str__(self) -> str:
        whole = f" of {self.of} from {self.begin}" if self.of else ""
        return f"own of {self.start}:{self.start + self.size}{whole}"


Span = tuple[int, int] | OwnPart  # first and end element, or a processor's share
Spans = tuple[Span, ...]


def spans_text(spans: Spans) -> str:
    """Print which elements."""
    return "".join(
        f"[{span}]" if isinstance(span, OwnPart) else f"[{span[0]}:{span[1]}]" for span in spans
    )


@dataclass(frozen=True, slots=True)
class Index:
    """Which element an expression reads: `j + shift`, or `shift` alone.

    Attributes:
        repeats: it does not move along with j, but `shift` is added to what these make of j, one
            after the other: (j + first) // each % size.
        terms: it reads the sum of so many, each `step` further; the first is at `stride` times
            what the others say, from `start` on.
    """

    moves: bool
    shift: int = 0
    repeats: tuple[tuple[int, int, int], ...] = ()
    terms: int = 0
    step: int = 1
    stride: int = 1
    start: int = 0

    def __str__(self) -> str:
        if self.terms:
            first = replace(self, terms=0)
            return f"({first}) * {self.stride} + {self.start} + 0:{self.terms} * {self.step}"
        if not self.repeats:
            moved = f"j + {self.shift}" if self.shift else "j"
            return moved if self.moves else str(self.shift)
        text = "(j + c)"  # of lane c
        for begin, each, size in self.repeats:
            text = f"({text} + {begin}) / {each} % {size}"
        return f"{text} + {self.shift}"

    def repeated(self, each: int, size: int) -> Index:
        """Return which element it is of what is repeated."""
        if not self.moves and not self.repeats:
            return Index(False, self.shift // each % size)
        return Index(False, 0, (*self.repeats, (self.shift, each, size)))


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


# Rows that are added up one by one; longer sums are sums of such, or float32 would lose digits.
ROWS_A_SUM = 256


def _of(spans: Spans, place: ValuePlace) -> str:
    """Print which elements of a place, unless it is all of them."""
    return "" if spans == ((0, place.size),) else f", {spans_text(spans)}"


def _rows_text(edges: bool, each: int) -> str:
    return f"{f'{each} x ' if each > 1 else ''}{'edges' if edges else 'rows'}"


# Statements in the body of a loop over rows.


@dataclass(frozen=True, slots=True)
class Fill:
    """Write elements of a place; element j depends on no other element that is written.

    Attributes:
        spans: which elements.
        child: only where the row has a child in this slot; -1 for always.
    """

    to: ValuePlace
    value: Expression
    spans: Spans
    child: int = -1

    def __str__(self) -> str:
        where = f" if child {self.child}" if self.child >= 0 else ""
        return f"{self.to}{_of(self.spans, self.to)} = {self.value}{where}"


@dataclass(frozen=True, slots=True)
class Compute:
    """Make a number of this row."""

    number: int
    value: Expression

    def __str__(self) -> str:
        return f"%{self.number} = {self.value}"


@dataclass(frozen=True, slots=True)
class Reduce:
    """Make a number from a row: its sum, largest element, or log of the sum of exponentials.

    Attributes:
        how: `reduce_sum`, `reduce_max` or `logsumexp`.
    """

    number: int
    how: str
    source: ValuePlace

    def __str__(self) -> str:
        return f"%{self.number} = {self.how} {self.source}"


@dataclass(frozen=True, slots=True)
class FromParents:
    """Rows of a tensor of edges: those that lead from the row's parents to it.

    Attributes:
        parents: which: all (""), those of the row's own layer, or those of the layers above it (OWN
            and ABOVE of `ir.program`); layer: the row's, where they are not all.
    """

    tensor: int
    parents: str = ""
    layer: int = 0

    def __str__(self) -> str:
        of = f"{self.parents} parents'" if self.parents else "parents'"
        return f"{of} tensor {self.tensor}"


@dataclass(frozen=True, slots=True)
class SumEdges:
    """Add up rows of edges, or take their largest elements, in the order of the edges.

    More than ROWS_A_SUM rows are added up in sums of so many, and these to one.

    Attributes:
        sources: what is summed, one after the other: an expression of each of the row's edges that
            holds a child, or what its parents left.
        relation: of the edges, where a function reads several relations whole.
        total: a scratch row for sums of sums; None for the largest.
        order: where the rows are edges, what is summed is of those before each: of larger keys, or
            of its key and earlier; or, with True, of those after. `total` has the edge's key.
    """

    to: ValuePlace
    sources: tuple[Expression | FromParents, ...]
    spans: Spans
    total: ValuePlace | None
    relation: int = 0
    order: tuple[Expression, bool] | None = None

    def __str__(self) -> str:
        how = "largest" if self.total is None else "sum"
        over = f" over relation {self.relation}" if self.relation else ""
        of = ", ".join(map(str, (*self.sources, *(self.order or ()))))
        return f"{self.to}{_of(self.spans, self.to)} = {how}{over} of {of}"


@dataclass(frozen=True, slots=True)
class Choose:
    """Find where the row of what the parents left lies: added up only where there are several.

    With one parent it lies where that one left it; with none it is the row of zeros.
    """

    number: int
    source: FromParents
    size: int
    several: SumEdges

    def __str__(self) -> str:
        return f"chosen {self.number} = that of tensor {self.source.tensor}, or {self.several}"


@dataclass(frozen=True, slots=True)
class SumRows:
    """Add a value of each row to a gradient, by sums of ROWS_A_SUM rows.

    Attributes:
        span: the gradient's rows that this processor adds to; each: elements of one.
        total: a scratch row for the sum of some rows.
    """

    param: int
    value: Expression
    span: Span
    each: int
    total: ValuePlace

    def __str__(self) -> str:
        return f"gradient {self.param}{spans_text((self.span,))} += {self.value}"


Statement = Fill | Compute | Reduce | SumEdges | Choose | SumRows


# Steps.


@dataclass(frozen=True, slots=True)
class RowLoop:
    """Run statements for each row of the launch, or for each of its edges."""

    edges: bool
    body: tuple[Statement, ...]

    def __str__(self) -> str:
        title = "for each edge:" if self.edges else "for each row:"
        return "\n  ".join([title, *map(str, self.body)])


@dataclass(frozen=True, slots=True)
class Operand:
    """The rows of a product's operand or result, which must be contiguous.

    Attributes:
        packed: a temporary that holds them, where a launch takes a list of rows; None, when they
            always are contiguous.
    """

    place: ValuePlace
    packed: ValuePlace | None

    def __str__(self) -> str:
        return f"{self.place} (packed: {self.packed})" if self.packed else str(self.place)


@dataclass(frozen=True, slots=True)
class MatrixProduct:
    """Multiply all rows by a parameter W [m, n]: y = x W^T, or y = x W where it is `transposed`.

    Attributes:
        edges, each: how many rows there are: edges or rows of the launch, times `each`.
        spans: the outputs that are made.
        tiled: most rows that register tiles take, BLAS more; a pass of the CPU decides.
        strips: fewest rows of y = x W^T for which tiles transpose W, strip by strip; so does it.
    """

    param: int
    transposed: bool
    x: Operand
    y: Operand
    edges: bool
    each: int
    m: int
    n: int
    spans: Spans
    tiled: int = 0
    strips: int = 0

    @property
    def weight(self) -> str:
        """Say what the rows are multiplied by."""
        return f"param {self.param} [{self.m}, {self.n}]{'' if self.transposed else '^T'}"

    @property
    def counted(self) -> str:
        """Say what its rows are."""
        return _rows_text(self.edges, self.each)

    @property
    def wide(self) -> int:
        """Return the elements of a row of the result."""
        return self.n if self.transposed else self.m

    @property
    def deep(self) -> int:
        """Return the elements of a row of the operand."""
        return self.m if self.transposed else self.n

    def __str__(self) -> str:
        to = f"{self.y}{_of(self.spans, self.y.place)}"
        return f"{to} = {self.x} {self.weight}, {self.counted}"


@dataclass(frozen=True, slots=True)
class Outer:
    """Add d^T x over all rows to the gradient [m, n] of a parameter; its rows `span` alone.

    Attributes:
        tiled: as of `MatrixProduct`.
    """

    param: int
    d: Operand
    x: Operand
    edges: bool
    each: int
    m: int
    n: int
    span: Span
    tiled: int = 0

    @property
    def counted(self) -> str:
        """Say what its rows are."""
        return _rows_text(self.edges, self.each)

    def __str__(self) -> str:
        to = f"gradient {self.param} [{self.m}, {self.n}], rows {spans_text((self.span,))}"
        return f"{to} += {self.d}^T {self.x}, {self.counted}"


@dataclass(frozen=True, slots=True)
class AddLookups:
    """Add a row of each vertex (or edge) to the row of a table's gradient that it looked up.

    Attributes:
        pull: number of the integer pull that says which; size: elements of a row.
        words, columns: the rows and columns of the gradient that this processor adds to.
        edges: the pull is one of each edge.
    """

    param: int
    pull: int
    size: int
    source: ValuePlace
    words: Span
    columns: Span
    edges: bool = False

    def __str__(self) -> str:
        where = spans_text((self.words, self.columns))
        return f"gradient {self.param}{where}(pull {self.pull}) += {self.source}"


Step = RowLoop | MatrixProduct | Outer | AddLookups


@dataclass(frozen=True, slots=True)
class KernelIR:
    """What one task program does.

    Attributes:
        segments: what is done between two exchanges; one, where processors do not share rows.
        listed: launches may take a list of rows.
        temporaries: by number, of temporaries and scratch rows alike.
        needs: elements of temporary memory for each row, for each edge (both rounded up to PAD),
            and once.
        splits_edges, relations: of `Program`.
    """

    segments: tuple[tuple[Step, ...], ...]
    listed: bool
    temporaries: tuple[Temporary, ...]
    needs: tuple[int, int, int]
    splits_edges: bool = False
    relations: int = 1

    def __str__(self) -> str:
        rows, edges, once = self.needs
        lines = [f"temporaries: {rows} elements a row, {edges} an edge, {once} once"]
        for number, steps in enumerate(self.segments):
            title = [f"segment {number}"] if len(self.segments) > 1 else []
            lines += [*title, *map(str, steps)]
        return "\n".join(lines)

    @property
    def steps(self) -> Iterator[Step]:
        """Yield the steps of all segments."""
        for segment in self.segments:
            yield from segment
