"""Decide which values of a group are in memory, and where: the others never leave a register."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from vertexrt.ir.ops import OPS
from vertexrt.ir.passes.fuse import TaskProgram
from vertexrt.ir.passes.store import is_free
from vertexrt.ir.program import Domain
from vertexrt.lower.places import PlaceRows, ValuePlace
from vertexrt.lower.shares import Shares
from vertexrt.lower.values import Memories, ValuePlaces

SUMS_OVER_EDGES = ("gather_parents", "segment_sum", "segment_max")
REDUCTIONS = ("reduce_sum", "reduce_max", "logsumexp")
READ_AS_ROWS = (*REDUCTIONS, "nll")


class GroupPlaces:
    """Places of the values of one group after the other.

    Args:
        values: gets them.
    """

    def __init__(
        self, task: TaskProgram, values: ValuePlaces, shares: Shares, memories: Memories
    ) -> None:
        self.task, self.values, self.shares, self.memories = task, values, shares, memories
        self.nodes = task.program.nodes

    def decide(self, members: Sequence[int]) -> None:
        """Give places to what a group must have in memory."""
        # A scratch row holds what the last row of its own loop left.
        self.values.place = {k: p for k, p in self.values.place.items() if p.rows != PlaceRows.ONE}
        self.values.place |= {k: self._home(k) for k in members if k in self.task.homes}
        for k in members:
            if self.nodes[k].op == "concat" and k in self.values.place:
                self._make_parts_in_place(k, set(members))
        self._place_rows(members)

    def _place_rows(self, members: Sequence[int]) -> None:
        """Give a scratch row to what is read as a row, or more than once."""
        uses = Counter(i for k in members for i in self.nodes[k].inputs)
        rows = {self.nodes[r].inputs[0] for r in members if self.nodes[r].op in READ_AS_ROWS}
        for k in members:
            if k not in self.values.place and (k in rows or self._needs_row(k, uses[k])):
                self.values.place[k] = self.memories.scratch(self.nodes[k].type.size)

    def _home(self, k: int) -> ValuePlace:
        """Return where a value is made: its tensor, or, if all processors make it, a temporary."""
        if self.shares.is_private(k):
            kind = self.nodes[k].type
            return self.memories.temporary(kind.size, kind.domain == Domain.EDGE)
        return self.values.home(k, self.task.homes[k])

    def _make_parts_in_place(self, k: int, inside: set[int]) -> None:
        """Let parts of a stored concat be made where they end up, if the same processors do it."""
        start, private = 0, self.shares.is_private(k)
        for i in self.nodes[k].inputs:
            size = self.nodes[i].type.size
            if i in inside and self._is_movable(i) and self.shares.is_private(i) == private:
                self.values.place[i] = self.values.place[k].part(start, size)
            start += size

    def _is_movable(self, i: int) -> bool:
        """Tell whether a part of a concat can be made anywhere."""
        part = self.nodes[i]
        if i in self.values.place or is_free(part) or part.type.size <= 1:
            return False
        return OPS[part.op].role in ("scalar", "row")

    def _needs_row(self, k: int, uses: int) -> bool:
        """Tell whether a value must be in memory, though nothing outside of the group reads it."""
        node = self.nodes[k]
        if node.op in SUMS_OVER_EDGES:
            return True
        if node.type.shape == () or is_free(node) or node.type.domain == Domain.PARAM:
            return False
        scalar = OPS[node.op].role == "scalar"
        return node.op in ("nll_grad", "concat") or (uses > 1 and scalar)
