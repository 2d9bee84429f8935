"""Which elements of a value one of several processors makes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from vertexrt.ir.passes.fuse import TaskProgram
from vertexrt.ir.passes.segment import SegmentedTask, Split, rows_in_storage
from vertexrt.lower.places import OwnPart, Span, Spans


class Shares:
    """What a processor makes of each value of a task program.

    Args:
        plan: how processors share the task; None, when one runs all of it.

    Attributes:
        split: of the segment that is being lowered.
    """

    def __init__(self, task: TaskProgram, plan: SegmentedTask | None) -> None:
        self.task, self.plan = task, plan
        self.nodes = task.program.nodes
        self.split: Split | None = None

    def is_private(self, k: int) -> bool:
        """Tell whether all processors make a value for themselves, of a segment split by units."""
        return self.split == Split.UNITS and self.plan is not None and k in self.plan.whole

    def of_value(self, k: int, start: int = 0, size: int | None = None) -> Spans:
        """Return the elements of a value that this processor makes.

        Args:
            start, size: only these elements, counted from `start`.
        """
        whole = max(self.nodes[k].type.size, 1)
        if self.plan is None or self.split == Split.ROWS or k in self.plan.whole:
            return ((0, whole if size is None else size),)
        cuts = self._cuts(k, whole)
        end = cuts[-1] if size is None else start + size
        assert {start, end} <= set(cuts), f"%{k}: cuts {cuts} do not meet {start}"
        inside = cuts[cuts.index(start) : cuts.index(end) + 1]
        return tuple(OwnPart(a - start, b - a) for a, b in pairwise(inside))

    def published(self, k: int) -> Spans:
        """Return what a processor copies to a tensor of a value that all of them make."""
        assert self.plan is not None
        return tuple(OwnPart(a, b - a) for a, b in pairwise(self.plan.cuts[k]))

    def of_number(self) -> Spans:
        """Return which processor writes a number that all of them have made."""
        return (OwnPart(0, 1),) if self.split == Split.UNITS else ((0, 1),)

    def outputs(self, k: int, size: int) -> Spans:
        """Return which outputs of a product this processor makes."""
        if self.plan is None or self.split == Split.ROWS:
            return ((0, size),)
        return tuple(OwnPart(a, b - a) for a, b in pairwise(self._cuts(k, size)) if b <= size)

    def own_rows(self, name: str, rows: int) -> Span:
        """Return the rows of a gradient that this processor adds to."""
        if self.split != Split.SUMS:
            return 0, rows
        begin, whole = rows_in_storage(self.task.program, name)
        return OwnPart(0, rows) if rows == whole else OwnPart(0, rows, whole, begin)

    def own_words(self, name: str, rows: int, size: int) -> tuple[Span, Span]:
        """Return the rows and the columns of a table's gradient that it adds to."""
        if self.split == Split.SUMS and self.plan is not None and name in self.plan.by_columns:
            return (0, rows), OwnPart(0, size)
        return self.own_rows(name, rows), (0, size)

    def _cuts(self, k: int, size: int) -> Sequence[int]:
        """Return where a value is cut into ranges that are shared out one by one."""
        if self.plan is None or self.split != Split.UNITS:
            return (0, size)
        return self.plan.cuts.get(k, (0, size))
