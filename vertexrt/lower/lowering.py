"""Lower a task program to a kernel: what shares a loop is given; here each value gets its place.

A group becomes one loop over rows. Inside it every value that must exist in memory (a tensor, a
temporary, or a scratch row that stays in the first-level cache) becomes one fill with one output,
since LLVM vectorises that and not loops with several. Values used once are part of the expression
that uses them. A product works on all rows at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from vertexrt.ir.ops import OPS
from vertexrt.ir.passes.fuse import Group, Product, TaskProgram
from vertexrt.ir.passes.segment import SegmentedTask, Split
from vertexrt.ir.passes.store import is_free
from vertexrt.ir.program import Domain, Node
from vertexrt.kernels.layout import Binding
from vertexrt.kernels.task_tensors import by_rows, gradients_of
from vertexrt.lower.expressions import FIRST, Expression, J, Number, ReadElement
from vertexrt.lower.group_places import REDUCTIONS, SUMS_OVER_EDGES, GroupPlaces
from vertexrt.lower.kernel import (
    Choose,
    Compute,
    Fill,
    FromParents,
    KernelIR,
    Reduce,
    RowLoop,
    Statement,
    Step,
    SumEdges,
    SumRows,
)
from vertexrt.lower.places import Memory, OwnPart, PlaceRows, Spans, ValuePlace
from vertexrt.lower.products import lower_product
from vertexrt.lower.shares import Shares
from vertexrt.lower.values import Memories, ValuePlaces


def lower(task: TaskProgram, binding: Binding, plan: SegmentedTask | None = None) -> KernelIR:
    """Lower a task program; with a plan, to what one of several processors does of it."""
    return _Lowering(task, binding, plan).kernel()


class _Lowering:
    """The kernel of one task program, built up step by step."""

    def __init__(self, task: TaskProgram, binding: Binding, plan: SegmentedTask | None) -> None:
        self.task, self.plan = task, plan
        self.nodes = task.program.nodes
        self.values = ValuePlaces(self.nodes, binding)
        self.shares = Shares(task, plan)
        self.memories = Memories()
        self.places = GroupPlaces(task, self.values, self.shares, self.memories)
        self.listed = by_rows(task.stage)
        self.body: list[Statement] = []
        self.over_edges = False
        self.copied: set[int] = set()  # values that this segment has put into memory
        self.stored: set[int] = set()  # leaves that some segment has put into a tensor
        self.writers: dict[str, Callable[[int, Node], None]] = {
            "concat": self._concat,
            "nll_grad": self._nll_grad,
            "sum_rows": self._sum_rows,
            **dict.fromkeys(SUMS_OVER_EDGES, self._sum_edges),
        }

    def kernel(self) -> KernelIR:
        """Lower all of it."""
        for i, read in self.task.reads.items():
            self.values.place[i] = self.values.stored(i, read)
        for i in sorted(self.task.local):
            kind = self.nodes[i].type
            place = self.memories.temporary(kind.size, kind.domain == Domain.EDGE)
            self.values.place[i] = place
        if self.plan is None:
            segments = [self._segment(None, self.task.steps)]
        else:
            segments = [self._segment(s.split, s.steps) for s in self.plan.segments]
        taken, needs = self.memories.taken, self.memories.elements
        binding = self.values.binding
        edges = binding.splits_edges, binding.relations
        return KernelIR(tuple(segments), self.listed, tuple(taken), needs, *edges)

    def _segment(self, split: Split | None, steps: Sequence[Group | Product]) -> tuple[Step, ...]:
        self.shares.split, self.copied = split, set()
        found: list[Step] = []
        for step in steps:
            if isinstance(step, Product):
                of = self.task, self.values, self.shares, self.memories
                found += lower_product(step.node, *of)
            else:
                found.append(self._group(step))
        return tuple(found)

    def _group(self, group: Group) -> RowLoop:
        self.body, self.values.numbers = [], set()
        self.over_edges = group.domain == Domain.EDGE
        self.places.decide(group.nodes)
        for k in group.nodes:
            self._lower(k)
            if k in self.task.homes:
                self._publish(k)
        return RowLoop(self.over_edges, tuple(self.body))

    # Statements.

    def _lower(self, k: int) -> None:
        node, role = self.nodes[k], OPS[self.nodes[k].op].role
        if role == "effect":
            self._effect(k, node)
        elif node.op in self.writers:
            self.writers[node.op](k, node)
        elif not self._is_read_in_place(k, node) and node.type.shape == ():
            self._number(k, node)
        elif k in self.values.place and not self._is_copied(k, node):
            self._make(k)

    def _make(self, k: int) -> None:
        """Make a value in its place, element by element."""
        to = self.values.place[k]
        self._fill(to, self.values.expression(k, J), self.shares.of_value(k))
        if to.memory == Memory.TEMPORARY:
            self.copied.add(k)
        elif to.in_tensor:
            self.stored.add(k)

    def _is_read_in_place(self, k: int, node: Node) -> bool:
        """Tell whether a value is a part of the expressions that use it."""
        return is_free(node) or (OPS[node.op].role == "view" and k not in self.values.place)

    def _is_copied(self, k: int, node: Node) -> bool:
        """Tell whether the rows of a leaf are in memory already.

        Those in a tensor are not written again by a later segment: others read them there.
        """
        of_edges = node.type.domain == Domain.EDGE
        written = k in self.copied or k in self.stored
        return is_free(node) and (written or of_edges > self.over_edges)

    def _fill(self, to: ValuePlace, value: Expression, spans: Spans, child: int = -1) -> None:
        self.body.append(Fill(to, value, spans, child))

    def _publish(self, k: int) -> None:
        """Copy the processor's share of a value that all processors make to its tensor."""
        place, to = self.values.place[k], self.values.home(k, self.task.homes[k])
        if place.memory == Memory.TEMPORARY and place.rows != PlaceRows.ONE:
            self._fill(to, ReadElement(place, J), self.shares.published(k))

    def _number(self, k: int, node: Node) -> None:
        place = self.values.place.get(k)
        if node.op in REDUCTIONS:
            self.body.append(Reduce(k, node.op, self.values.place[node.inputs[0]]))
        else:
            self.body.append(Compute(k, self.values.expression(k, FIRST)))
        self.values.numbers.add(k)
        if place is not None:
            whole = place.memory == Memory.TEMPORARY
            self._fill(place, Number(k), ((0, 1),) if whole else self.shares.of_number())

    def _concat(self, k: int, node: Node) -> None:
        whole, start = self.values.place[k], 0
        for i in node.inputs:
            size = self.nodes[i].type.size
            part = whole.part(start, size)
            if self.values.place.get(i) != part:
                self._fill(part, self.values.element(i, J), self.shares.of_value(k, start, size))
            start += size

    def _nll_grad(self, k: int, node: Node) -> None:
        value = self.values.expression(k, J)
        self._fill(self.values.place[k], value, self.shares.of_value(k))

    def _effect(self, k: int, node: Node) -> None:
        (i,) = node.inputs
        to, child = self.values.target(node)
        if self.values.place.get(i) != to:
            spans = self.shares.of_value(k)
            if not isinstance(spans[0], OwnPart):  # an effect has no elements of its own
                spans = ((0, to.size),)
            self._fill(to, self.values.element(i, J), spans, child)

    # Sums over edges and over rows.

    def _sum_edges(self, k: int, node: Node) -> None:
        to, size = self.values.place[k], max(node.type.size, 1)
        total = None if node.op == "segment_max" else self.memories.scratch(size)
        sources, spans = self.values.sources(node), self.shares.of_value(k)
        found = SumEdges(to, sources, spans, total, node.relation)
        slots_or_all = node.op == "gather_parents" and not (node["every"] and node["slots"])
        if slots_or_all and to.memory == Memory.SCRATCH:
            source = found.sources[0]
            assert isinstance(source, FromParents)
            self.body.append(Choose(k, source, size, found))
            self.values.place[k] = ValuePlace(Memory.CHOSEN, k, size, PlaceRows.ONE)
            return
        self.body.append(found)
        if node.type.shape == ():
            self.body.append(Compute(k, ReadElement(to, FIRST)))
            self.values.numbers.add(k)

    def _sum_rows(self, k: int, node: Node) -> None:
        size = max(node.type.size, 1)
        rows = node.type.shape[0] if node.type.shape else 1
        for name in gradients_of(self.task, k):
            own = self.shares.own_rows(name, rows)
            self.body.append(
                SumRows(
                    self.values.binding.params[name],
                    self.values.element(node.inputs[0], J),
                    own,
                    size // rows,
                    self.memories.scratch(size),
                )
            )
