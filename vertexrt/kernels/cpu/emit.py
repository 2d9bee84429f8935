"""Write the numba source of one task program.

A group becomes one loop over rows; inside it, every value that must exist in memory (a tensor, a
temporary, or a scratch row that stays in the first-level cache) becomes one inner loop with one
output, since LLVM vectorises that and not loops with several. Values used once are inlined.
A product becomes one BLAS call.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

from vertexrt.ir.ops import OPS
from vertexrt.ir.passes.fuse import Group, Product, TaskProgram
from vertexrt.ir.passes.segment import SegmentedTask, Split
from vertexrt.ir.passes.store import TENSOR_OF_EFFECT, is_free
from vertexrt.ir.program import Domain, Node
from vertexrt.kernels.cpu.call_arguments import OF_BATCH, OF_LAUNCH, OF_SEGMENT
from vertexrt.kernels.cpu.products import Products
from vertexrt.kernels.cpu.row_sums import RowSums
from vertexrt.kernels.cpu.shares import Shares
from vertexrt.kernels.cpu.text import Text
from vertexrt.kernels.cpu.values import Values
from vertexrt.kernels.layout import (
    Binding,
    by_rows,
    edge_key,
    per_edge,
    stored_size,
)
from vertexrt.kernels.location import SUMS_OVER_EDGES, Location

REDUCTIONS = {
    "reduce_sum": "row_sum",
    "reduce_max": "row_max",
    "logsumexp": "row_logsumexp",
    "nll": "",
}


class Emitter:
    """The source of one task program, built up line by line.

    Args:
        task: the program.
        plan: how processors share it; None, when one runs all of it.
    """

    def __init__(
        self, task: TaskProgram, binding: Binding, plan: SegmentedTask | None = None
    ) -> None:
        self.task = task
        self.plan = plan
        self.nodes = task.program.nodes
        self.text = Text()
        self.values = Values(self.nodes, binding, self.text)
        self.shares = Shares(task, plan, self.text)
        self.sums = RowSums(task, self.values, self.text, self.shares)
        self.products = Products(task, self.values, self.text, self.shares)
        self.listed = by_rows(task.stage)
        self.writers: dict[str, Callable[[int, Node], None]] = {
            "concat": self._concat,
            "nll_grad": self._nll_grad,
            "sum_rows": self.sums.over_rows,
            **dict.fromkeys(SUMS_OVER_EDGES, self.sums.over_edges),
        }

    def source(self) -> str:
        """Return the module: imports and one function `task`."""
        t = self.text
        for i, read in self.task.reads.items():
            whole = self.values.tensor(i, read.key)
            size = max(whole.size, 1)
            self.values.place[i] = (
                whole if read.width == size else replace(whole, start=read.start, stride=read.width)
            )
        for i in sorted(self.task.local):
            edges = self.nodes[i].type.domain == Domain.EDGE
            self.values.place[i] = t.temporary(self.nodes[i].type.size, edges)
        if self.plan is None:
            self._steps(self.task.steps)
            return t.module(f"{OF_LAUNCH}, {OF_BATCH}")
        for number, segment in enumerate(self.plan.segments):
            self.shares.split = segment.split
            t.line(f"if segment == {number}:")
            with t.indent():
                self._steps(segment.steps)
        return t.module(f"{OF_SEGMENT}, {OF_LAUNCH}, {OF_BATCH}")

    def _steps(self, steps: Sequence[Group | Product]) -> None:
        for step in steps:
            if isinstance(step, Group):
                self._group(step)
            else:
                self.products.write(step)

    def _home(self, k: int) -> Location:
        """Return where a value is made: its tensor, or, if all processors make it, a temporary."""
        if self.shares.is_private(k):
            node = self.nodes[k]
            return self.text.temporary(node.type.size, node.type.domain == Domain.EDGE)
        return self.values.tensor(k, self.task.homes[k])

    def _publish(self, k: int) -> None:
        """Copy the processor's share of a value that all processors make to its tensor."""
        place = self.values.place[k]
        to = self.values.tensor(k, self.task.homes[k])
        if place.row in ("local", "local_edge") and to.row in ("row", "edge"):
            size = max(self.nodes[k].type.size, 1)
            assert self.plan is not None
            spans = [self.text.share(a, b - a) for a, b in pairwise(self.plan.cuts[k])]
            with self.text.loop(size, spans):
                value = f"load(ar, {self.values.at(place, 'j')})"
                self.text.line(f"store(ar, {self.values.at(to, 'j')}, {value})")

    # Groups.

    def _group(self, group: Group) -> None:
        members = list(group.nodes)
        self.values.variable = {}
        self._place(members)
        self.text.begin_rows(group.domain == Domain.EDGE, self.listed)
        for k in members:
            self._emit(k)
            if k in self.task.homes:
                self._publish(k)
        self.text.end_rows()

    def _place(self, members: list[int]) -> None:
        """Decide where the values of a group are that are in memory."""
        # A scratch row holds what the last row of its own loop left.
        stays = {k: p for k, p in self.values.place.items() if p.row != "scratch"}
        self.values.place = stays
        for k in members:
            if k in self.task.homes:
                self.values.place[k] = self._home(k)
        self._alias_concat_parts(members, set(members))
        uses = Counter(i for k in members for i in self.nodes[k].inputs)
        for k in members:
            if k not in self.values.place and self._needs_scratch(k, members, uses):
                self.values.place[k] = self.text.scratch(self.nodes[k].type.size)

    def _alias_concat_parts(self, members: list[int], inside: set[int]) -> None:
        """Let the parts of a stored concat be made where they end up."""
        for k in members:
            if self.nodes[k].op != "concat" or k not in self.values.place:
                continue
            start = 0
            for i in self.nodes[k].inputs:
                part = self.nodes[i]
                movable = i in inside and i not in self.values.place and not is_free(part)
                if movable and part.type.size > 1 and OPS[part.op].role in ("scalar", "row"):
                    self.values.place[i] = self.values.place[k].part(start, part.type.size)
                start += part.type.size

    def _needs_scratch(self, k: int, members: list[int], uses: Counter[int]) -> bool:
        node = self.nodes[k]
        role = OPS[node.op].role
        if any(self.nodes[r].op in REDUCTIONS and self.nodes[r].inputs[0] == k for r in members):
            return True
        if node.op in SUMS_OVER_EDGES:
            return True
        if node.type.shape == () or is_free(node) or node.type.domain == Domain.PARAM:
            return False
        return node.op in ("nll_grad", "concat") or (uses[k] > 1 and role == "scalar")

    def _emit(self, k: int) -> None:
        node, role = self.nodes[k], OPS[self.nodes[k].op].role
        read_in_place = is_free(node) or (role == "view" and k not in self.values.place)
        if role == "effect":
            self._effect(k, node)
        elif node.op in self.writers:
            self.writers[node.op](k, node)
        elif node.type.shape == () and not read_in_place:
            self._scalar(k, node)
        elif k in self.values.place:
            self._fill(self.values.place.pop(k), k)

    def _fill(self, to: Location, k: int) -> None:
        """Write a value, element by element, and read it from there from now on."""
        size = max(to.size, 1)
        with self.text.loop(size, self.shares.spans(k)):
            self.text.line(
                f"store(ar, {self.values.at(to, 'j')}, {self.values.element(k, 'j', size)})"
            )
        self.values.place[k] = to

    def _scalar(self, k: int, node: Node) -> None:
        name = f"v{k}"
        place = self.values.place.pop(k, None)  # a view would read itself there
        self.text.line(f"{name} = {self._scalar_value(k, node)}")
        self.values.variable[k] = name
        if place is not None:
            self.values.place[k] = place
            if self.shares.split == Split.UNITS and place.row in ("row", "edge"):
                first, end = self.text.share(0, 1)  # all processors have it, one writes it
                self.text.line(f"if {first} < {end}:")
                self.text.line(f"    store(ar, {self.values.at(place)}, {name})")
            else:
                self.text.line(f"store(ar, {self.values.at(place)}, {name})")

    def _scalar_value(self, k: int, node: Node) -> str:
        if OPS[node.op].role == "scalar":
            return self.values.expression(node, "0")
        if node.op in ("slice", "spread", "to_edges"):
            return self.values.element(k, "0")
        if node.op == "nll":
            logits, label, total = node.inputs
            index = self.values.index(label)
            picked = f"load(ar, {self.values.at(self.values.place[logits])} + max({index}, 0))"
            return f"({self.values.element(total, '0')} - {picked} if {index} >= 0 else F(0.0))"
        (i,) = node.inputs
        at = self.values.at(self.values.place[i])
        return f"{REDUCTIONS[node.op]}(ar, {at}, {self.nodes[i].type.size})"

    def _concat(self, k: int, node: Node) -> None:
        whole, start = self.values.place[k], 0
        for i in node.inputs:
            size = self.nodes[i].type.size
            part = whole.part(start, size)
            if self.values.place.get(i) != part:
                with self.text.loop(size, self.shares.spans(k, start, size)):
                    value = self.values.element(i, "j", size)
                    self.text.line(f"store(ar, {self.values.at(part, 'j')}, {value})")
            start += size

    def _nll_grad(self, k: int, node: Node) -> None:
        logits, label, total, d = node.inputs
        to, index = self.values.place[k], self.values.index(label)
        size = node.type.size
        scale = f"d{k}"
        self.text.line(f"{scale} = {self.values.element(d, '0')} if {index} >= 0 else F(0.0)")
        with self.text.loop(size):
            value = (
                f"exp({self.values.element(logits, 'j', size)} - {self.values.element(total, '0')})"
            )
            self.text.line(f"store(ar, {self.values.at(to, 'j')}, {scale} * {value})")
        picked = f"{self.values.at(to)} + {index}"
        self.text.line(f"if {index} >= 0:")
        self.text.line(f"    store(ar, {picked}, load(ar, {picked}) - {scale})")

    def _effect(self, k: int, node: Node) -> None:
        (i,) = node.inputs
        size = max(stored_size(node, self.nodes[i]), 1)
        if node.op in TENSOR_OF_EFFECT:
            tensor = self.values.binding.tensors[TENSOR_OF_EFFECT[node.op](node)]
            edges = per_edge(node, self.nodes[i])
            to = Location(f"off[{tensor}]", size, "edge" if edges else "row")
        else:
            every = node.op == "scatter_children"
            tensor = self.values.binding.tensors[edge_key(node["field"], every)]
            row = "edge" if every else f"slot{node['slot']}"
            to = Location(f"off[{tensor}]", size, row)
            if not every:  # a vertex may have fewer slots than F
                self.text.line(f"if {self.text.child(node['slot'])} >= 0:")
                with self.text.indent(), self.text.loop(size, self.shares.spans(k)):
                    value = self.values.element(i, "j", size)
                    self.text.line(f"store(ar, {self.values.at(to, 'j')}, {value})")
                return
        if self.values.place.get(i) != to:
            with self.text.loop(size, self.shares.spans(k)):
                value = self.values.element(i, "j", size)
                self.text.line(f"store(ar, {self.values.at(to, 'j')}, {value})")


def emit(
    task: TaskProgram, binding: Binding, plan: SegmentedTask | None = None
) -> tuple[str, int, int, int]:
    """Write a task program as numba source; with a plan, as what one of several processors does.

    Returns: the source, and the elements of scratch that it needs: for each row, for each edge, and
        once.
    """
    emitter = Emitter(task, binding, plan)
    source = emitter.source()
    text = emitter.text
    return source, text.row_elements, text.edge_elements, text.fixed_elements
