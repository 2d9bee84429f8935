"""What one kind of rows does on a side of the path, as records, for the machine of `cell.cuh`.

A cell is a list of stages. A stage has products of vectors that lie on chip, and statements on the
elements that a processor owns: one thread has a unit of a row. `cell_cut.py` makes these records of
task programs, `cell_text.py` prints them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from vertexrt.ir.layers import Phase
from vertexrt.ir.program import Stage
from vertexrt.kernels.cuda.weights import TILE_ROWS, Layout, ResidentWeight, most_own

# In place of a slot: the row (or edge) itself, the parent in a layer above, each child in turn.
ITSELF, ABOVE_IT, EACH = -1, -2, -3
EDGES_A_ROW = 4  # of a level, where rows have lists of children: room is left for so many
ROW_WORDS = {"loss_scale": "scale", "weight": "weight"}  # of ops, what the kernel is given
Sort = Literal[
    "read", "read_number", "full", "folded", "parameter", "carried", "from_parents", "sent"
]
LEVEL_ROWS = (8, 4, 2, 1)  # most of a level: those for which there is room


# Values at a unit of a row.


@dataclass(frozen=True, slots=True)
class FixedNumber:
    """A number that is known."""

    value: float


@dataclass(frozen=True, slots=True)
class Made:
    """A value of this stage: a piece of a node."""

    node: int
    piece: int


@dataclass(frozen=True, slots=True)
class OnChip:
    """What lies on chip, by its number among those of its sort.

    Attributes:
        of: the function of a machine, or of a `Unit` (`cell_unit.cuh`), that returns it. Of what is
            copied ahead: "read" own units, "read_number" a number, "full" a whole vector. "folded"
            a number made of all elements of vectors; "parameter" own units of one, or all of it;
            "carried" from an earlier stage; "from_parents" the sum of what they left of a field;
            "sent" a vector of a buffer.
        edges: it is of the edge, or of the child whose turn it is in a loop.
    """

    of: Sort
    number: int
    edges: bool = False


@dataclass(frozen=True, slots=True)
class OfChild:
    """A vector of a child's state place: one that was sent, or kept by its owner."""

    slot: int
    number: int
    sent: bool


@dataclass(frozen=True, slots=True)
class Total:
    """A piece of own rows of a product, of its row `of` for this row, or of each edge."""

    product: int
    of: int
    piece: int
    edges: bool = False


@dataclass(frozen=True, slots=True)
class RowNumber:
    """A number that is known of a row, by its op: how many children there are, and so on."""

    op: str


@dataclass(frozen=True, slots=True)
class Present:
    """Whether there is a child in a slot, 1 or 0."""

    slot: int


Operand = FixedNumber | Made | OnChip | OfChild | Total | RowNumber | Present


@dataclass(frozen=True, slots=True)
class Make:
    """Make a value by a scalar expression of the op table."""

    to: Made
    expression: str
    operands: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Sum:
    """Add up a value of the edges, or find the largest."""

    to: Made
    value: Operand
    largest: bool


@dataclass(frozen=True, slots=True)
class Give:
    """Say where a value goes.

    Attributes:
        what: "send" to the buffers, "hand" to the state places of all, "keep" in the own one,
            "carry" to later stages, "store" to memory, which is a number where `width` is 1, or
            "leave" for the child in a slot.
        number: of the vector among those that the stage sends, the field, or the tensor.
        width, start: of a row in memory, and where it begins there.
        edge: of what is left, the tensor that has it in memory.
    """

    what: str
    value: Operand
    number: int
    width: int = 0
    start: int = 0
    slot: int = ITSELF
    edge: int = -1


@dataclass(frozen=True, slots=True)
class EachEdge:
    """What is done for each child of a row."""

    statements: tuple[Make | Give | Sum, ...]


Statement = Make | Give | EachEdge

# Vectors on chip, which products read.


@dataclass(frozen=True, slots=True)
class OverChildren:
    """The sum of a vector of each child, or the largest of each element."""

    vector: Vector
    largest: bool


@dataclass(frozen=True, slots=True)
class Combined:
    """Vectors combined, element by element, by an expression of the op table."""

    expression: str
    operands: tuple[Vector, ...]


Vector = OfChild | OnChip | FixedNumber | Combined | OverChildren


@dataclass(frozen=True, slots=True)
class CellProduct:
    """A product by a weight that the processor holds.

    Attributes:
        operands: the vectors of each of its rows, for a row of the level, or an edge.
        edges: its rows are edges.
        sums: of the weight's gradient, to which each row adds its operand times values of the row.
        first: of these among what is carried.
    """

    held: ResidentWeight
    operands: tuple[tuple[Vector, ...], ...]
    edges: bool
    sums: ResidentWeight | None = None
    first: int = 0


@dataclass(frozen=True, slots=True)
class CellFold:
    """A number that every processor makes of all elements of vectors of a row, or of an edge.

    Attributes:
        op: of the op table; to: where it goes.
        waits: it is made of another one of this stage.
    """

    op: str
    vectors: tuple[Vector, ...]
    to: OnChip
    waits: bool


@dataclass(frozen=True, slots=True)
class CellStage:
    """What a processor does between two exchanges."""

    products: tuple[CellProduct, ...]
    folds: tuple[CellFold, ...]
    statements: tuple[Statement, ...]

    @property
    def gives(self) -> Iterator[Give]:
        """Yield what it says of values."""
        for x in self.statements:
            for y in x.statements if isinstance(x, EachEdge) else (x,):
                if isinstance(y, Give):
                    yield y

    def count(self, what: str) -> int:
        """Count what it gives so."""
        return sum(x.what == what for x in self.gives)

    @property
    def first_state(self) -> int:
        """Return the first of the vectors that it sends to state places."""
        return min((x.number for x in self.gives if x.what == "hand"), default=0)

    @property
    def vectors(self) -> int:
        """Count the vectors of a row that it sends."""
        return self.count("send") + self.count("hand")


@dataclass(frozen=True, slots=True)
class OperandPlace:
    """Where an operand lies in memory: own units of rows of a tensor, or of a child's row."""

    tensor: int
    width: int
    start: int
    slot: int


@dataclass(frozen=True, slots=True)
class KindCell:
    """What one kind of rows does on a side.

    Attributes:
        task: its number; slots: of children, 0 where rows have lists.
        reads: operands that are copied ahead; edge_reads: those of edges; full_reads: those of
            which every processor gets all elements.
        on_chip: slots of the children whose places it reads, or fills.
    """

    task: int
    slots: int
    stages: tuple[CellStage, ...]
    reads: tuple[OperandPlace, ...]
    edge_reads: tuple[OperandPlace, ...]
    full_reads: tuple[OperandPlace, ...]
    on_chip: frozenset[int]

    @property
    def copied(self) -> tuple[OperandPlace, ...]:
        """All that is copied ahead."""
        return (*self.reads, *self.edge_reads, *self.full_reads)

    def count(self, what: str) -> int:
        """Count what its stages give so."""
        return sum(stage.count(what) for stage in self.stages)

    def folds(self, edges: bool) -> int:
        """Count the numbers of a row, or of an edge, that are made of whole vectors."""
        return sum(x.to.edges == edges for stage in self.stages for x in stage.folds)

    @property
    def chain(self) -> int:
        """Return the one slot whose child is on chip, 0 for none or several."""
        return min(self.on_chip) if len(self.on_chip) == 1 else 0

    @property
    def mask(self) -> int:
        """Return the slots on chip as bits; all of a list."""
        return -1 if self.slots == 0 else sum(1 << slot for slot in self.on_chip)


@dataclass(frozen=True, slots=True)
class CellSide:
    """A side of the path that runs cells.

    Attributes:
        units: elements of a vector; processors: of a group.
        sent, kept: tensors of the states whose vectors lie in state places, in full or own units.
        left: tensors of what lies in edge places.
        parameters: those that are held: number, and first element.
        rows: of a level, at most; layer: see `PARENTS`, -1 where there is one alone.
        summed: parameters whose gradients it sums up.
    """

    phase: Phase
    units: int
    processors: int
    cells: tuple[KindCell, ...]
    sent: tuple[int, ...]
    kept: tuple[int, ...]
    left: tuple[int, ...]
    parameters: tuple[tuple[int, int], ...]
    rows: int
    layer: int
    summed: Collection[str]

    @property
    def edges(self) -> int:
        """Return the most edges of a level whose rows have lists of children."""
        return EDGES_A_ROW * self.rows

    @property
    def above(self) -> bool:
        """Tell whether it reads what parents in a layer above have left."""
        return any(x.slot == ABOVE_IT for cell in self.cells for x in cell.reads)

    @property
    def scaled(self) -> bool:
        """Tell whether it reads the factor on the loss."""
        return any(RowNumber("loss_scale") in operands_of(x.statements) for x in self.stages)

    @property
    def back(self) -> bool:
        """Tell whether it is backward."""
        return self.phase.stage == Stage.PATH_BACKWARD

    @property
    def stages(self) -> Iterator[CellStage]:
        """Yield the stages of all cells."""
        for cell in self.cells:
            yield from cell.stages

    @property
    def held(self) -> list[ResidentWeight]:
        """The weights that it multiplies by, and then the gradients that it sums up."""
        products = [p for stage in self.stages for p in stage.products]
        sums = [p.sums for p in products if p.sums is not None]
        return list(dict.fromkeys([*(p.held for p in products), *sums]))

    @property
    def own(self) -> int:
        """Return the places of a processor's part of a vector: `Units` of product.cuh."""
        return own_places(self.units, self.processors)

    @property
    def on_chip(self) -> int:
        """Return the places of a vector on chip."""
        return self.own * self.processors

    @property
    def reads_numbers(self) -> bool:
        """Tell whether some operands are numbers."""
        return any(x.width == 1 for cell in self.cells for x in cell.copied)

    def most(self, product: CellProduct) -> int:
        """Return for how many rows partial sums of a product are made."""
        return self.edges if product.edges else self.rows * len(product.operands)

    def partial_at(self, stage: CellStage, product: int) -> int:
        """Return where the partial sums of a product of a stage begin; past the last, their end."""
        before = stage.products[:product]
        return sum(partial_elements(x.held, self.processors, self.most(x)) for x in before)

    @property
    def sizes(self) -> dict[str, int]:
        """Count what a level has of each sort, the most of a cell, by names of its facts."""
        stages, cells = [*self.stages], self.cells
        return {
            "UNITS": self.units,
            "CELLS": len(cells),
            "READS": max(1, *(len(x.reads) for x in cells)),
            "EDGE_READS": max(len(x.edge_reads) for x in cells),
            "FULL_READS": max(len(x.full_reads) for x in cells),
            "STAGED_EDGES": max(x.count("send_edge") for x in stages),
            "EXCHANGED_EDGES": max(x.count("send_edge") for x in cells),
            "PARAMETERS": len(self.parameters),
            "STAGED": max(x.vectors for x in stages),
            "CARRIED": max(x.count("carry") for x in cells),
            "EXCHANGED": max(x.count("send") for x in cells),
            "FOLDS": max(x.folds(False) for x in cells),
            "EDGE_FOLDS": max(x.folds(True) for x in cells),
            "PARTIAL": max(self.partial_at(x, len(x.products)) for x in stages),
            "SENT": len(self.sent),
            "KEPT": len(self.kept),
            "STATE": len(self.sent) * self.on_chip + len(self.kept) * self.own,
            "LEFT": len(self.left),
        }

    @property
    def room(self) -> int:
        """Return the reals that a level sends at most, of all processors together."""
        n = self.sizes
        return (self.rows * n["STAGED"] + self.edges * n["STAGED_EDGES"]) * self.on_chip


def own_places(units: int, processors: int) -> int:
    """Return the places of a processor's part of a vector on chip, which begins on 16 bytes."""
    return -(-most_own(units, processors) // 4) * 4


def partial_elements(held: ResidentWeight, processors: int, rows: int) -> int:
    """Count the elements of partial sums of so many rows."""
    return Layout(held.rows(processors), held.deep).partial // TILE_ROWS * rows


def operands_of(statements: Iterable[Statement | Sum]) -> list[Operand]:
    """List what is loaded for some statements, and for those of their loops."""
    found: dict[Operand, None] = {}
    for x in statements:
        if isinstance(x, EachEdge):
            found |= dict.fromkeys(operands_of(x.statements))
        else:
            values = x.operands if isinstance(x, Make) else (x.value,)
            found |= dict.fromkeys(y for y in values if not isinstance(y, Made | FixedNumber))
    return list(found)
