"""Where values lie while the source of a kernel is written, and which ops a writer treats alike."""

from __future__ import annotations

from dataclasses import dataclass, replace

SUMS_OVER_EDGES = ("gather_parents", "segment_sum", "segment_max")


@dataclass(frozen=True, slots=True)
class Temporary:
    """Where a temporary starts: after so many elements a row, an edge, and once."""

    rows: int
    edges: int
    once: int


@dataclass(frozen=True, slots=True)
class Location:
    """Where the rows of a value lie: at `base + row * step + start`.

    `row` says what counts the rows: execution rows (`row`), edges (`edge`), the slot of the row's
    edges (`slot0`, ...), rows or edges of the task (`local`, `local_edge`), or nothing (`scratch`).
    `own` says that only what a processor owns is there: the elements of each piece of a value, and
    how many of them it owns.
    """

    base: str  # a word that points to row 0; of temporaries, what `Temporary` says
    size: int
    row: str
    start: int = 0
    stride: int = 0
    temporary: Temporary | None = None
    own: tuple[int, int] | None = None

    def part(self, start: int, size: int) -> Location:
        """Return some elements of each row."""
        stride = self.stride or max(self.size, 1)
        return replace(self, size=size, start=self.start + start, stride=stride)

    @property
    def step(self) -> int:
        """Elements from one row to the next."""
        return self.stride or max(self.size, 1)
