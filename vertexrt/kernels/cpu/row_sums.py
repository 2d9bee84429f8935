"""Write sums over the edges of a row, and over the rows of a task."""

from __future__ import annotations

from collections.abc import Callable

from vertexrt.ir.passes.fuse import TaskProgram
from vertexrt.ir.program import Node
from vertexrt.kernels.cpu.shares import Shares
from vertexrt.kernels.cpu.text import Text
from vertexrt.kernels.cpu.values import Values
from vertexrt.kernels.layout import edge_key, gradients_of
from vertexrt.kernels.location import Location


class RowSums:
    """Writes sums into the source of a task program.

    Args:
        values, text, shares: of the source.
    """

    def __init__(self, task: TaskProgram, values: Values, text: Text, shares: Shares) -> None:
        self.task, self.values, self.text, self.shares = task, values, text, shares

    def over_edges(self, k: int, node: Node) -> None:
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
        tensor = self.values.binding.tensors[edge_key(node["field"], node["every"])]
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
                self.text.line("if first:")
                self._combine(k, to, size, source, "{new}")
                self.text.line("else:")
                both = "max({old}, {new})" if largest else "{old} + {new}"
                self._combine(k, to, size, source, both)
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
        with self.text.indent(), self.text.loop(size, self.shares.spans(k)):
            self.text.line(f"store(ar, {self.values.at(to, 'j')}, F(0.0))")
        if node.type.shape == ():
            self.values.variable[k] = f"v{k}"
            self.text.line(f"v{k} = load(ar, {self.values.at(to)})")

    def _combine(
        self, k: int, to: Location, size: int, source: Callable[[], str], both: str
    ) -> None:
        """Write a loop that sets each element of a sum to what it becomes with the next row.

        Args:
            source: returns the text of the row's element; both: pattern of {old} and {new}.
        """
        with self.text.indent(), self.text.loop(size, self.shares.spans(k)):
            old = f"load(ar, {self.values.at(to, 'j')})"
            value = both.format(old=old, new=source())
            self.text.line(f"store(ar, {self.values.at(to, 'j')}, {value})")

    def _add_row(self, k: int, source: Location, to: Location, anew: str) -> None:
        """Add a row to another, or copy it there: sums of sums, so that long ones stay exact."""
        spans = self.shares.spans(k) or [("0", str(max(source.size, 1)))]
        for first, end in spans:
            rows = f"ar, {self.values.at(source)} + {first}, ar, {self.values.at(to)} + {first}"
            self.text.line(f"    add_row({rows}, {end} - ({first}), {anew})")

    def _edge_sources(self, k: int, node: Node):  # type: ignore[no-untyped-def]
        size = max(node.type.size, 1)
        if node.op == "gather_parents":
            for every in (False, True):
                if node["every" if every else "slots"]:
                    tensor = self.values.binding.tensors[edge_key(node["field"], every)]
                    base = f"off[{tensor}] + parent_edge[p] * {size}"
                    yield (lambda: "load(ar, pb + j)"), self.text.parent_loop(base)
        else:
            (i,) = node.inputs
            yield (lambda: self.values.element(i, "j", size)), self.text.edge_loop()

    def over_rows(self, k: int, node: Node) -> None:
        """Add a value of each row of the task to the gradients of parameters."""
        for name in gradients_of(self.task, k):
            base = f"po[{self.values.binding.params[name]}]"
            size = max(node.type.size, 1)
            rows = node.type.shape[0] if node.type.shape else 1
            first, end = self.shares.own_rows(name, rows)
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
