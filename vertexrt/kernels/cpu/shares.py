"""Which elements of a value one of several processors makes, as text of a generated function."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from vertexrt.ir.passes.fuse import TaskProgram
from vertexrt.ir.passes.segment import SegmentedTask, Split, rows_in_storage
from vertexrt.kernels.cpu.text import Spans, Text


class Shares:
    """What a processor makes of each value of a task program.

    Args:
        plan: how processors share the task; None, when one runs all of it.

    Attributes:
        split: of the segment that is being written.
    """

    def __init__(self, task: TaskProgram, plan: SegmentedTask | None, text: Text) -> None:
        self.task, self.plan, self.text = task, plan, text
        self.nodes = task.program.nodes
        self.split: Split | None = None

    def is_private(self, k: int) -> bool:
        """Tell whether all processors make a value for themselves, of a segment split by units."""
        return self.split == Split.UNITS and self.plan is not None and k in self.plan.whole

    def cuts(self, k: int, size: int) -> Sequence[int]:
        """Return where a value is cut into ranges that are shared out one by one."""
        if self.plan is None or self.split != Split.UNITS:
            return (0, size)
        return self.plan.cuts.get(k, (0, size))

    def spans(self, k: int, start: int = 0, size: int | None = None) -> Spans:
        """Return the elements of a value that this processor makes; None for all.

        Args:
            start, size: only these elements, counted from `start`.
        """
        if self.plan is None or self.split == Split.ROWS or k in self.plan.whole:
            return None
        whole = max(self.nodes[k].type.size, 1)
        cuts = self.cuts(k, whole)
        end = cuts[-1] if size is None else start + size
        assert {start, end} <= set(cuts), f"%{k}: cuts {cuts} do not meet {start}"
        inside = cuts[cuts.index(start) : cuts.index(end) + 1]
        return [self.text.share(a - start, b - a) for a, b in pairwise(inside)]

    def outputs(self, k: int, size: int) -> Sequence[tuple[str, str]]:
        """List which outputs of a product this processor makes."""
        if self.plan is None or self.split == Split.ROWS:
            return [("0", str(size))]
        cuts = self.cuts(k, size)
        return [self.text.share(a, b - a) for a, b in pairwise(cuts) if b <= size]

    def own_rows(self, name: str, rows: int) -> tuple[str, str]:
        """Return the first and the end row of a gradient that this processor adds to."""
        if self.split != Split.SUMS:
            return "0", str(rows)
        start, whole = rows_in_storage(self.task.program, name)
        return self.text.share_of_part(start, rows, whole)

    def own_words(self, name: str, rows: int, size: int) -> tuple[str, str, str, str]:
        """Return first and end row, first and end column of a table's gradient that it adds to."""
        if self.split == Split.SUMS and self.plan is not None and name in self.plan.by_columns:
            return ("0", str(rows), *self.text.share(0, size))
        return (*self.own_rows(name, rows), "0", str(size))
