"""Write the numba source of one task program.

A group becomes one loop over rows; inside it, every value that must exist in memory (a tensor, a
temporary, or a scratch row that stays in the first-level cache) becomes one inner loop with one
output, since LLVM vectorises that and not loops with several. Values used once are inlined.
A product becomes one BLAS call.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from vertexrt.ir.ops import OPS
from vertexrt.ir.passes.fuse import Group, Product, TaskProgram
from vertexrt.ir.passes.segment import SegmentedTask, Split, rows_in_storage
from vertexrt.ir.passes.store import TENSOR_OF_EFFECT, is_free
from vertexrt.ir.program import Domain, Node
from vertexrt.kernels.cpu.call_arguments import OF_BATCH, OF_LAUNCH, OF_SEGMENT
from vertexrt.kernels.cpu.text import Spans, Text
from vertexrt.kernels.cpu.values import Values
from vertexrt.kernels.layout import (
    Binding,
    by_rows,
    edge_key,
    gradients_of,
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
        self.split: Split | None = None  # of the segment that is being written
        self.nodes = task.program.nodes
        self.binding = binding
        self.text = Text()
        self.values = Values(self.nodes, binding, self.text)
        self.listed = by_rows(task.stage)

    def source(self) -> str:
        """Return the module: imports and one function `task`."""
        t = self.text
        for i, read in self.task.reads.items():
            whole = self._tensor(i, read.key)
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
            self.split = segment.split
            t.line(f"if segment == {number}:")
            with t.indent():
                self._steps(segment.steps)
        return t.module(f"{OF_SEGMENT}, {OF_LAUNCH}, {OF_BATCH}")

    def _steps(self, steps: Sequence[Group | Product]) -> None:
        for step in steps:
            if isinstance(step, Group):
                self._group(step)
            else:
                self._product(step)

    def _spans(self, k: int, start: int = 0, size: int | None = None) -> Spans:
        """Return the elements of a value that this processor makes; None for all.

        Args:
            start, size: only these elements, counted from `start`.
        """
        if self.plan is None or self.split == Split.ROWS or k in self.plan.whole:
            return None
        whole = max(self.nodes[k].type.size, 1)
        cuts = self.plan.cuts.get(k, (0, whole)) if self.split == Split.UNITS else (0, whole)
        end = cuts[-1] if size is None else start + size
        pieces = [(a - start, b - a) for a, b in pairwise(cuts) if start <= a and b <= end]
        assert sum(n for _, n in pieces) == end - start, f"%{k}: cuts {cuts} do not meet {start}"
        return [self.text.share(a, n) for a, n in pieces]

    def _tensor(self, i: int, key: tuple[object, ...]) -> Location:
        size = self.nodes[i].type.size
        edges = self.nodes[i].type.domain == Domain.EDGE
        return Location(f"off[{self.binding.tensors[key]}]", size, "edge" if edges else "row")

    def _home(self, k: int) -> Location:
        """Return where a value is made: its tensor, or, if all processors make it, a temporary."""
        if self.split == Split.UNITS and self.plan is not None and k in self.plan.whole:
            node = self.nodes[k]
            return self.text.temporary(node.type.size, node.type.domain == Domain.EDGE)
        return self._tensor(k, self.task.homes[k])

    def _publish(self, k: int) -> None:
        """Copy the processor's share of a value that all processors make to its tensor."""
        place = self.values.place[k]
        to = self._tensor(k, self.task.homes[k])
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
        inside = set(members)
        uses = Counter(i for k in members for i in self.nodes[k].inputs)
        self.values.variable = {}
        # A scratch row holds what the last row of its own loop left.
        stays = {k: p for k, p in self.values.place.items() if p.row != "scratch"}
        self.values.place = stays
        for k in members:
            if k in self.task.homes:
                self.values.place[k] = self._home(k)
        self._alias_concat_parts(members, inside)
        for k in members:
            if k not in self.values.place and self._needs_scratch(k, members, uses):
                self.values.place[k] = self.text.scratch(self.nodes[k].type.size)
        self.text.begin_rows(group.domain == Domain.EDGE, self.listed)
        for k in members:
            self._emit(k)
            if k in self.task.homes:
                self._publish(k)
        self.text.end_rows()

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
        if role == "effect":
            self._effect(k, node)
        elif node.op == "sum_rows":
            self._accumulate(k, node)
        elif is_free(node) or (role == "view" and k not in self.values.place):
            if k in self.values.place:
                self._fill(self.values.place.pop(k), k)
        elif node.op == "concat":
            self._concat(k, node)
        elif node.op in SUMS_OVER_EDGES:
            self._sum_over_edges(k, node)
        elif node.op == "nll_grad":
            self._nll_grad(k, node)
        elif node.type.shape == ():
            self._scalar(k, node)
        elif k in self.values.place:
            self._fill(self.values.place.pop(k), k)

    def _fill(self, to: Location, k: int) -> None:
        """Write a value, element by element, and read it from there from now on."""
        size = max(to.size, 1)
        with self.text.loop(size, self._spans(k)):
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
            if self.split == Split.UNITS and place.row in ("row", "edge"):
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
                with self.text.loop(size, self._spans(k, start, size)):
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

    def _sum_over_edges(self, k: int, node: Node) -> None:
        """Add up (or take the largest of) rows of edges, in the order of the edges."""
        to, size = self.values.place[k], max(node.type.size, 1)
        if (
            node.op == "gather_parents"
            and to.row == "scratch"
            and not (node["every"] and node["slots"])
        ):
            self._one_parent(k, node, to)
            return
        self._sum_rows_of_edges(k, node, to, size)

    def _one_parent(self, k: int, node: Node, to: Location) -> None:
        """Read the gradient where the one parent left it; add up only if there are several.

        A root reads the row of zeros at the start of the arena.
        """
        size = node.type.size
        tensor = self.binding.tensors[edge_key(node["field"], node["every"])]
        t, name = self.text, f"q{k}"
        t.line("start = parent_ptr[row]")
        t.line("parents = parent_ptr[row + 1] - start")
        t.line(f"{name} = {to.base}")
        t.line("if parents == 0:")
        t.line(f"    {name} = 0")
        t.line("elif parents == 1:")
        t.line(f"    {name} = off[{tensor}] + parent_edge[start] * {size}")
        t.line("else:")
        with t.indent():
            self._sum_rows_of_edges(k, node, to, size)
        self.values.place[k] = Location(name, size, "scratch")

    def _sum_rows_of_edges(self, k: int, node: Node, to: Location, size: int) -> None:
        largest = node.op == "segment_max"
        total = None if largest else self.text.scratch(size)
        self.text.line("first = True")
        if total:
            self.text.line("added = 0")
        for source, open_loop in self._edge_sources(k, node):
            with open_loop:
                for test, combine in (("first", False), ("else", True)):
                    self.text.line(f"if {test}:" if not combine else "else:")
                    with self.text.indent(), self.text.loop(size, self._spans(k)):
                        old = f"load(ar, {self.values.at(to, 'j')})"
                        new = source()
                        if combine:
                            new = f"max({old}, {new})" if largest else f"{old} + {new}"
                        self.text.line(f"store(ar, {self.values.at(to, 'j')}, {new})")
                self.text.line("first = False")
                if total:
                    self.text.line("added += 1")
                    self.text.line("if added % ROWS_A_SUM == 0:")
                    self._add_row(k, to, total, "added == ROWS_A_SUM")
                    self.text.line("    first = True")
        if total:
            self.text.line("if added >= ROWS_A_SUM:")
            self._add_row(k, total, to, "first")
            self.text.line("    first = False")
        self.text.line("if first:")
        with self.text.indent(), self.text.loop(size, self._spans(k)):
            self.text.line(f"store(ar, {self.values.at(to, 'j')}, F(0.0))")
        if node.type.shape == ():
            self.values.variable[k] = f"v{k}"
            self.text.line(f"v{k} = load(ar, {self.values.at(to)})")

    def _add_row(self, k: int, source: Location, to: Location, anew: str) -> None:
        """Add a row to another, or copy it there: sums of sums, so that long ones stay exact."""
        spans = self._spans(k) or [("0", str(max(source.size, 1)))]
        for first, end in spans:
            rows = f"ar, {self.values.at(source)} + {first}, ar, {self.values.at(to)} + {first}"
            self.text.line(f"    add_row({rows}, {end} - ({first}), {anew})")

    def _edge_sources(self, k: int, node: Node):  # type: ignore[no-untyped-def]
        size = max(node.type.size, 1)
        if node.op == "gather_parents":
            for every in (False, True):
                if node["every" if every else "slots"]:
                    tensor = self.binding.tensors[edge_key(node["field"], every)]
                    base = f"off[{tensor}] + parent_edge[p] * {size}"
                    yield (lambda: "load(ar, pb + j)"), self.text.parent_loop(base)
        else:
            (i,) = node.inputs
            yield (lambda: self.values.element(i, "j", size)), self.text.edge_loop()

    def _accumulate(self, k: int, node: Node) -> None:
        for name in gradients_of(self.task, k):
            base = f"po[{self.binding.params[name]}]"
            size = max(node.type.size, 1)
            rows = node.type.shape[0] if node.type.shape else 1
            first, end = self._own_rows(name, rows)
            each = f" * {size // rows}" if size > rows else ""
            self._sum_rows(node.inputs[0], base, (first + each, end + each), size)

    def _sum_rows(self, k: int, base: str, own: tuple[str, str], size: int) -> None:
        """Add a value of each row to a gradient: some rows to a sum of theirs, and these to it."""
        t, total, (first, end) = self.text, self.text.scratch(size), own
        number, count = t.row_numbers()
        t.line(f"if {number} % ROWS_A_SUM == 0:")
        with t.indent(), t.loop(size, [own]):
            t.line(f"store(ar, {total.base} + j, F(0.0))")
        with t.loop(size, [own]):
            value = self.values.element(k, "j", size)
            t.line(f"store(ar, {total.base} + j, load(ar, {total.base} + j) + {value})")
        t.line(f"if {number} % ROWS_A_SUM == ROWS_A_SUM - 1 or {number} == {count} - 1:")
        rows = f"ar, {total.base} + {first}, pg, {base} + {first}"
        t.line(f"    add_row({rows}, {end} - ({first}), False)")

    def _own_rows(self, name: str, rows: int) -> tuple[str, str]:
        """Return the first and the end row of a gradient that this processor adds to."""
        if self.split != Split.SUMS:
            return "0", str(rows)
        start, whole = rows_in_storage(self.task.program, name)
        return self.text.share_of_part(start, rows, whole)

    def _effect(self, k: int, node: Node) -> None:
        (i,) = node.inputs
        size = max(stored_size(node, self.nodes[i]), 1)
        if node.op in TENSOR_OF_EFFECT:
            tensor = self.binding.tensors[TENSOR_OF_EFFECT[node.op](node)]
            edges = per_edge(node, self.nodes[i])
            to = Location(f"off[{tensor}]", size, "edge" if edges else "row")
        else:
            every = node.op == "scatter_children"
            tensor = self.binding.tensors[edge_key(node["field"], every)]
            row = "edge" if every else f"slot{node['slot']}"
            to = Location(f"off[{tensor}]", size, row)
            if not every:  # a vertex may have fewer slots than F
                self.text.line(f"if {self.text.child(node['slot'])} >= 0:")
                with self.text.indent(), self.text.loop(size, self._spans(k)):
                    value = self.values.element(i, "j", size)
                    self.text.line(f"store(ar, {self.values.at(to, 'j')}, {value})")
                return
        if self.values.place.get(i) != to:
            with self.text.loop(size, self._spans(k)):
                value = self.values.element(i, "j", size)
                self.text.line(f"store(ar, {self.values.at(to, 'j')}, {value})")

    # Products.

    def _product(self, step: Product) -> None:
        k = step.node
        node = self.nodes[k]
        if node.op == "embed_grad":
            self._add_lookups(k, node)
            return
        if k in self.task.homes:
            self.values.place[k] = self._tensor(k, self.task.homes[k])
        m, n = self.nodes[node.inputs[0]].type.shape if node.op == "matmul" else node.type.shape
        shape_mn = f"{self.text.number(m)}, {self.text.number(n)}"
        if node.op == "outer":
            d, x = node.inputs
            shape = self.nodes[d].type
            count = self._rows_of(shape.domain, shape.shape)
            at_d, at_x = self._operand(d), self._operand(x)
            for name in gradients_of(self.task, k):
                target = f"pg, po[{self.binding.params[name]}], ar, {at_d}, ar, {at_x}"
                lo, hi = self._own_rows(name, m)
                lo, hi = self._variable(lo), self._variable(hi)
                self.text.line(f"product_outer({target}, {count}, {shape_mn}, {lo}, {hi})")
            return
        weight, x = node.inputs
        call = "product_transposed" if node["transpose"] else "product"
        count = self._rows_of(node.type.domain, node.type.shape)
        target = f"pv, po[{self.binding.params[self.nodes[weight]['name']]}]"
        at_x = self._operand(x)
        out, after = self._result(k)
        for lo, hi in self._outputs(k, n if node["transpose"] else m):
            lo, hi = self._variable(lo), self._variable(hi)
            self.text.line(
                f"{call}({target}, ar, {at_x}, ar, {out}, {count}, {shape_mn}, {lo}, {hi})"
            )
        if after:
            self.text.line("if lo < 0:")
            self.text.line(f"    {after}")

    def _add_lookups(self, k: int, node: Node) -> None:
        """Add rows to the rows of a table's gradient that were looked up."""
        index, d = node.inputs
        place, (rows, size) = self.values.place[d], node.type.shape
        number = self.binding.ints[self.nodes[index]["name"]]
        source = f"ar, {place.base} + {place.start}, {self.text.number(place.step)}"
        for name in gradients_of(self.task, k):
            words, columns = ("0", str(rows)), ("0", str(size))
            if self.split == Split.SUMS and self.plan is not None and name in self.plan.by_columns:
                columns = self.text.share(0, size)
            else:
                words = self._own_rows(name, rows)
            own = ", ".join(self._variable(x) for x in (*words, *columns))
            target = f"pg, po[{self.binding.params[name]}], {self.text.number(size)}"
            task = f"ints[{number}], order, lo, rows, at, n, {place.row == 'local'}"
            self.text.line(f"add_lookups({target}, {own}, {source}, {task})")

    def _variable(self, text: str) -> str:
        return self.text.number(int(text)) if text.isdigit() else text

    def _outputs(self, k: int, size: int) -> Sequence[tuple[str, str]]:
        """List which outputs of a product this processor makes."""
        if self.plan is None or self.split == Split.ROWS:
            return [("0", str(size))]
        cuts = self.plan.cuts.get(k, (0, size)) if self.split == Split.UNITS else (0, size)
        return [self.text.share(a, b - a) for a, b in pairwise(cuts) if b <= size]

    def _rows_of(self, domain: Domain, shape: tuple[int, ...]) -> str:
        rows = "m" if domain == Domain.EDGE else "n"
        return f"{rows} * {shape[0]}" if len(shape) == 2 else rows

    def _operand(self, k: int) -> str:
        """Return where the rows of an operand start, packing those that are not contiguous."""
        place = self.values.place[k]
        start = self.text.first_row(place)
        if place.row != "row" or not self.listed:
            return start
        packed = self.text.temporary(place.size, False)
        name, size = f"a{k}", self.text.number(place.size)
        self.text.line(f"{name} = {start} if lo >= 0 else {packed.base}")
        self.text.line("if lo < 0:")
        self.text.line(f"    pack(ar, {place.base}, {size}, rows, at, n, {packed.base})")
        return name

    def _result(self, k: int) -> tuple[str, str]:
        place = self.values.place[k]
        start = self.text.first_row(place)
        if place.row != "row" or not self.listed:
            return start, ""
        packed = self.text.temporary(place.size, False)
        name, size = f"y{k}", self.text.number(place.size)
        self.text.line(f"{name} = {start} if lo >= 0 else {packed.base}")
        spread = f"unpack(ar, {place.base}, {size}, rows, at, n, {packed.base})"
        return name, spread


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
