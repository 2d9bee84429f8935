"""The records of the kernel IR: what a task program does, with a place for each value.

A kernel runs over the rows of a launch. Its steps are loops over these rows (or over their edges)
and what works on all rows at once: products, and sums into rows of a table. The body of a loop is
a list of statements; most are fills, which write the elements j of one place from an expression.

    for each row:
      %3 = reduce_sum tensor 2[row][0:16]
      tensor 4[row][0:16] = (tensor 2[row][0:16](j) * %3)

All decisions are in these records: what shares a loop, what is kept where, what is made in place of
what reads it, and which elements each processor makes. What renders them, or runs them, decides
nothing. Source: the split of a schedule from what prints it is Halide's (Ragan-Kelley et al., PLDI
2013); fusing the elementwise work of a vertex function is Cavs, section 3.5.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from vertexrt.lower.expressions import Expression
from vertexrt.lower.places import Span, Spans, Temporary, ValuePlace, spans_text

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
    """

    to: ValuePlace
    sources: tuple[Expression | FromParents, ...]
    spans: Spans
    total: ValuePlace | None
    relation: int = 0

    def __str__(self) -> str:
        how = "largest" if self.total is None else "sum"
        over = f" over relation {self.relation}" if self.relation else ""
        of = ", ".join(map(str, self.sources))
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
