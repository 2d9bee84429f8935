"""The records of a segment of the path: what the threads of a processor do on a tile of rows.

A segment is a list of steps. Groups are kernels of threads (`lower.threads`), products multiply by
weights that the processor holds, and barriers stand between what is stored and what reads it.

    temporaries: 24 elements a row, 0 an edge, 0 once
    copy ahead, warps 0 of 8: temporary 0[local][0:4] = own of tensor 2[row][0:8](j), pieces of 8
    ...
    8 rows at a time:
      barrier after the rows before
      sums 11 in 0:1024 = 12 rows of param_2, (0, 8, 16, 24), times r9, where r9 = ...
      wait for copies
      barrier
      load the next instruction
      for each row, 4 threads:
        for elements 0:8, own of (0, 8):
          ...
          r36 = (r34 * r35)
          tensor 5[row][0:8] = r36
          ring, tensor 5 from 0 = r36, sent

`path.py` makes the steps, `ring_uses.py` adds what is put into the ring and read there,
`verify_segments.py` and `verify_puts.py` look for races, and `segment_text.py` prints them as CUDA.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from vertexrt.kernels.cuda.weight_layout import THREADS, TILE_ROWS, Layout
from vertexrt.kernels.cuda.weights import ResidentWeight
from vertexrt.lower.kernel import Expression, FromParents, Leaf, ReadElement, Temporary, ValuePlace
from vertexrt.lower.threads import Cuts, MakeElements, ThreadKernel, expressions_of


@dataclass(frozen=True, slots=True)
class InRing:
    """Where the elements of a tensor are in a row of the ring.

    Attributes:
        tensor: the number of the tensor that has them as well.
        start: first of them; size: how many; step: from one row to the next.
        cuts: where they are cut in pieces that are shared out; () if every processor makes all.
    """

    tensor: int
    start: int
    size: int
    step: int
    cuts: Cuts


@dataclass(frozen=True, slots=True)
class PartialSums:
    """Where the partial sums of a product are that a group adds up.

    Attributes:
        product: its position.
        start: first element; rows: of them that are made at a time.
        own: rows of the weight that the processor has, of `deep` elements.
        times: rows of the product for each row of the tile.
        piece: elements of each piece of the product, of which processors have a share.
    """

    product: int
    start: int
    rows: int
    own: int
    deep: int
    times: int
    piece: int

    @property
    def elements(self) -> int:
        """Count them."""
        return Layout(self.own, self.deep).partial // TILE_ROWS * self.rows

    def __str__(self) -> str:
        return f"sums {self.product} in {self.start}:{self.start + self.elements}"


@dataclass(frozen=True, slots=True)
class TileFacts:
    """What the steps of a segment refer to.

    Attributes:
        processors: of a group.
        taken: the temporaries of its task, by number.
        rows: the tile's rows of the ring, by tensor.
        sums: partial sums, by product.
        copied: weights that are read from a copy in registers.
    """

    processors: int
    taken: Sequence[Temporary]
    rows: Mapping[int, InRing]
    sums: Mapping[int, PartialSums]
    copied: Collection[ResidentWeight] = ()

    def share(self, held: ResidentWeight) -> str:
        """Return the text of the processor's share of a weight."""
        return f"{'copied' if held in self.copied else 'held'}.{held.name}"


@dataclass(frozen=True, slots=True)
class RowsInMemory:
    """An operand of a product that lies in memory.

    Attributes:
        width: elements of a row that a thread reads at once: 1, 2 or 4.
        near: where the tile's row of the ring may have it.
    """

    place: ValuePlace
    width: int
    near: InRing | None = None

    def __str__(self) -> str:
        return f"{self.place}{'' if self.near is None else ', or in the ring'}"


@dataclass(frozen=True, slots=True)
class ComputedRows:
    """An operand that is computed where it is read, a few elements at a time.

    Attributes:
        width: elements of a row that a thread reads at once: 1, 2 or 4.
        made: what is made first, in registers.
        values: the elements of each row of the product, of those for a row of the tile.
    """

    width: int
    made: tuple[MakeElements, ...]
    values: tuple[Expression, ...]

    @property
    def expressions(self) -> Iterator[Expression | FromParents]:
        """Yield all that it is made from."""
        for value in (*(x.value for x in self.made), *self.values):
            yield from expressions_of(value)

    def __str__(self) -> str:
        values = " and ".join(map(str, self.values))
        return ", ".join([values, *(f"where {x}" for x in self.made)])


@dataclass(frozen=True, slots=True)
class ResidentProduct:
    """A product by a weight that the processor holds.

    Attributes:
        number: its position.
        held: the weight; own: rows that the processor has.
        times: rows of it for each row of the tile (or edge); edges: its rows are edges.
        to: where its own elements are stored, or partial sums of them are left.
        put: where they go in the tile's row of the ring, too.
        rows: of it that are made at a time, where they are stored.
    """

    number: int
    held: ResidentWeight
    own: int
    times: int
    edges: bool
    operand: RowsInMemory | ComputedRows
    to: ValuePlace | PartialSums
    put: InRing | None = None
    rows: int = TILE_ROWS

    @property
    def partial(self) -> int:
        """Count the elements of its partial sums."""
        if isinstance(self.to, PartialSums):
            return self.to.elements
        return Layout(self.own, self.held.deep).partial // TILE_ROWS * self.rows

    def __str__(self) -> str:
        put = "" if self.put is None else f"ring, tensor {self.put.tensor} = "
        each = f", {self.times} a row" if self.times > 1 else ""
        own = f"{self.own} {'columns' if self.held.turned else 'rows'} of {self.held.word}"
        at_once = f", {self.rows} rows at a time" if self.rows > TILE_ROWS else ""
        return f"{put}{self.to} = {own}, {self.held.cuts}{each}, times {self.operand}{at_once}"


# Steps.


class Together(Enum):
    """What all threads of the processor do."""

    BARRIER = "barrier"  # wait for each other
    WAIT_FOR_COPIES = "wait for copies"  # each for its own; others read them after a barrier
    LOAD_NEXT = "load the next instruction"  # of the script, with its indices

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, slots=True)
class Products:
    """Independent products, which share their barriers; results are there after the next one.

    Attributes:
        products: all are stored, or partial sums of all are left for groups to add up.
    """

    products: tuple[ResidentProduct, ...]

    @property
    def sums(self) -> list[PartialSums]:
        """Where partial sums are left."""
        return [x.to for x in self.products if isinstance(x.to, PartialSums)]

    @property
    def partial(self) -> int:
        """Count the elements of partial sums."""
        return sum(product.partial for product in self.products)

    @property
    def one_operand(self) -> bool:
        """Tell whether there are two, whose rows are those of one operand in memory."""
        rows = {(x.operand, x.held.deep, x.times, x.edges, x.rows) for x in self.products}
        in_memory = all(isinstance(x.operand, RowsInMemory) for x in self.products)
        return len(self.products) == 2 and in_memory and len(rows) == 1

    def __str__(self) -> str:
        both = ["both times one operand:"] if self.one_operand and not self.sums else []
        return "\n".join([*both, *map(str, self.products)])


@dataclass(frozen=True, slots=True)
class RowsAtATime:
    """Steps for some rows of the tile after the other.

    Attributes:
        between: steps before all rows but the first; LOAD_NEXT is for the first alone.
    """

    rows: int
    between: tuple[Together, ...]
    steps: tuple[PlainStep, ...]

    def __str__(self) -> str:
        between = [f"{x} after the rows before" for x in self.between]
        inside = [*between, *(line for x in self.steps for line in str(x).splitlines())]
        return "\n".join([f"{self.rows} rows at a time:", *(f"  {line}" for line in inside)])


PlainStep = Together | Products | ThreadKernel
SegmentStep = PlainStep | RowsAtATime


def each_step(
    steps: Sequence[SegmentStep], rows: int, change: Callable[[PlainStep], PlainStep]
) -> tuple[SegmentStep, ...]:
    """Return steps with each plain one changed, those for some rows at a time for so many."""
    return tuple(
        replace(x, rows=rows, steps=tuple(map(change, x.steps)))
        if isinstance(x, RowsAtATime)
        else change(x)
        for x in steps
    )


@dataclass(frozen=True, slots=True)
class CopyAhead:
    """Copy a processor's own elements of an operand to shared memory, maybe before the segment.

    Attributes:
        source: what is copied: an element of a row, a child's state, a pull or a parameter.
        to: where it lies then.
        piece: elements of each piece of the operand; each: how many of them are own ones, at most.
            One that is another's may be copied too: nothing reads it.
        width: elements that a thread copies at once.
        turn, turns: which of so many parts of the warps copy it; threads: of all these parts.
    """

    source: ReadElement | Leaf
    to: ValuePlace
    piece: int
    each: int
    width: int
    turn: int
    turns: int
    threads: int = THREADS

    def __str__(self) -> str:
        warps = f", warps {self.turn} of {self.turns}" if self.turns > 1 else ""
        at_once = f", {self.width} at a time" if self.width > 1 else ""
        own = f"own of {self.source}, pieces of {self.piece}" if self.to.own else f"{self.source}"
        return f"copy ahead{warps}: {self.to} = {own}{at_once}"


@dataclass(frozen=True, slots=True)
class SendRows:
    """Send own elements of the tile's rows of the ring to the other processors.

    Attributes:
        tensors: whose elements they are, one after another.
        start: first of them; size: how many; step: from one row to the next.
        cuts: where they are cut in pieces that are shared out.
    """

    tensors: tuple[int, ...]
    start: int
    size: int
    step: int
    cuts: Cuts

    def __str__(self) -> str:
        names = ", ".join(map(str, self.tensors))
        return f"send from the ring tensor {names}, own of {self.cuts}"


@dataclass(frozen=True, slots=True)
class RingUse:
    """What a segment writes to rows of the ring and reads there.

    Attributes:
        puts: what it writes to the tile's rows; gathers: what it reads of children.
        operand: it reads there what an earlier segment has written.
        needs_all: it reads in full what others made in parts and the ring does not have.
        sends: rows that are sent when the segment is over.
    """

    puts: tuple[InRing, ...] = ()
    gathers: tuple[InRing, ...] = ()
    operand: bool = False
    needs_all: bool = False
    sends: tuple[SendRows, ...] = ()


@dataclass(frozen=True, slots=True)
class PathSegment:
    """A segment of a task of the path.

    Attributes:
        copies: operands that are copied ahead.
        in_parts: places of what earlier segments made in parts, so that no processor has all of it.
        scratch: elements of the task's temporaries for each row, for each edge, and once.
        ring: what it reads and writes of the ring; rows: the places there, by tensor.
    """

    copies: tuple[CopyAhead, ...]
    steps: tuple[SegmentStep, ...]
    in_parts: frozenset[ValuePlace] = frozenset()
    scratch: tuple[int, int, int] = (0, 0, 0)
    ring: RingUse = RingUse()
    rows: Mapping[int, InRing] = field(default_factory=dict)

    @property
    def flat(self) -> Iterator[PlainStep]:
        """Yield all steps, those for some rows at a time once."""
        for step in self.steps:
            if isinstance(step, RowsAtATime):
                yield from step.steps
            else:
                yield step

    @property
    def products(self) -> list[ResidentProduct]:
        """All products."""
        multiplied = (step.products for step in self.flat if isinstance(step, Products))
        return [product for products in multiplied for product in products]

    @property
    def sent_after(self) -> list[int]:
        """The tensors of which elements are sent when it is over; may be listed twice."""
        return [tensor for x in self.ring.sends for tensor in x.tensors]

    @property
    def held(self) -> list[ResidentWeight]:
        """The weights that it multiplies by."""
        return list(dict.fromkeys(product.held for product in self.products))

    @property
    def partial(self) -> int:
        """Count the elements of partial sums."""
        return max((x.partial for x in self.flat if isinstance(x, Products)), default=0)

    def __str__(self) -> str:
        rows, edges, once = self.scratch
        title = f"temporaries: {rows} elements a row, {edges} an edge, {once} once"
        all_wait = ["all wait for what is in memory alone"] if self.ring.needs_all else []
        parts = (title, *all_wait, *self.copies, *self.steps, *self.ring.sends)
        return "\n".join(map(str, parts))
