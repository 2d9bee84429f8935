"""Products that copy their operands and results themselves: what they read and write instead."""

from __future__ import annotations

from dataclasses import dataclass

from vertexrt.lower.kernel import MatrixProduct, Operand, register_name
from vertexrt.lower.threads import ElementStatement


@dataclass(frozen=True, slots=True)
class ChildRows:
    """The children's rows of a tensor, or the rows of the edges to them.

    Attributes:
        listed: a launch may have a list of rows, whose children these are.
    """

    tensor: int
    slot: int
    listed: bool = False

    def __str__(self) -> str:
        return f"tensor {self.tensor}[child in slot {self.slot}]"


@dataclass(frozen=True, slots=True)
class TableRows:
    """The rows of a table that an integer pull names."""

    param: int
    pull: int

    def __str__(self) -> str:
        return f"param {self.param}[pull {self.pull}]"


@dataclass(frozen=True, slots=True)
class RowsGiven:
    """The rows of a pull of real numbers."""

    pull: int

    def __str__(self) -> str:
        return f"rows of pull {self.pull}"


@dataclass(frozen=True, slots=True)
class FinishedRows:
    """What a group makes of a product, element by element: the product's is in a register.

    Attributes:
        listed: a launch may have a list of rows.
    """

    register: int
    statements: tuple[ElementStatement, ...]
    listed: bool

    def __str__(self) -> str:
        statements = "; ".join(map(str, self.statements))
        return f"{statements}; where {register_name(self.register)}"


Gathered = ChildRows | TableRows | RowsGiven  # what is read where it lies
Finished = ChildRows | FinishedRows  # what a product writes in place of a group


@dataclass(frozen=True, slots=True)
class CopiedProduct:
    """A product, and what groups copy for it, which some forms of it do themselves.

    Attributes:
        gathered, finished: what is read instead of its operand, and written instead of its result.
    """

    product: MatrixProduct
    gathered: Gathered | None = None
    finished: Finished | None = None

    @property
    def source(self) -> Operand | Gathered:
        """What is read."""
        return self.gathered or self.product.x

    @property
    def target(self) -> Operand | Finished:
        """What is written."""
        return self.finished or self.product.y

    def __str__(self) -> str:
        return f"{self.target} = {self.source} {self.product.weight}, {self.product.counted}"
