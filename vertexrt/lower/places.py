"""Where values lie while a kernel runs, and which of their elements a processor makes."""

from __future__ import annotations

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
    CARRIED = "carried"  # a temporary of the repetition after this one
    SCRATCH = "scratch"  # one row, which each row of the loop uses again
    CHOSEN = "chosen"  # one row, at the element that `Choose` found for this row
    REGISTER = "register"  # of the thread that makes the element; for one loop over elements
    SUMS = "sums"  # partial sums of a product, by its position; readers add them up


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
        own: only what a processor owns is there: elements of each piece of the value, and how many
            of them a processor owns at most.
    """

    memory: Memory
    number: int
    size: int
    rows: PlaceRows
    start: int = 0
    stride: int = 0
    slot: int = -1
    own: tuple[int, int] | None = None

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
