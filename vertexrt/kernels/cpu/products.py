"""Write products, each one BLAS call, and sums into rows of a table."""

from __future__ import annotations

from vertexrt.ir.passes.fuse import Product, TaskProgram
from vertexrt.ir.program import Domain, Node
from vertexrt.kernels.cpu.shares import Shares
from vertexrt.kernels.cpu.text import Text
from vertexrt.kernels.cpu.values import Values
from vertexrt.kernels.layout import by_rows, gradients_of


class Products:
    """Writes products into the source of a task program.

    Args:
        values, text, shares: of the source.
    """

    def __init__(self, task: TaskProgram, values: Values, text: Text, shares: Shares) -> None:
        self.task, self.values, self.text, self.shares = task, values, text, shares
        self.nodes, self.listed = task.program.nodes, by_rows(task.stage)

    def write(self, step: Product) -> None:
        """Write one."""
        k = step.node
        node = self.nodes[k]
        if node.op == "embed_grad":
            self._add_lookups(k, node)
            return
        if k in self.task.homes:
            self.values.place[k] = self.values.tensor(k, self.task.homes[k])
        m, n = self.nodes[node.inputs[0]].type.shape if node.op == "matmul" else node.type.shape
        shape_mn = f"{self.text.number(m)}, {self.text.number(n)}"
        if node.op == "outer":
            self._add_outer(k, node, shape_mn)
            return
        weight, x = node.inputs
        call = "product_transposed" if node["transpose"] else "product"
        count = self._rows_of(node.type.domain, node.type.shape)
        target = f"pv, po[{self.values.binding.params[self.nodes[weight]['name']]}]"
        at_x = self._operand(x)
        out, after = self._result(k)
        for lo, hi in self.shares.outputs(k, n if node["transpose"] else m):
            lo, hi = self._variable(lo), self._variable(hi)
            self.text.line(
                f"{call}({target}, ar, {at_x}, ar, {out}, {count}, {shape_mn}, {lo}, {hi})"
            )
        if after:
            self.text.line("if lo < 0:")
            self.text.line(f"    {after}")

    def _add_outer(self, k: int, node: Node, shape_mn: str) -> None:
        """Add the sum over rows of outer products to the gradients of parameters."""
        d, x = node.inputs
        shape = self.nodes[d].type
        count = self._rows_of(shape.domain, shape.shape)
        at_d, at_x = self._operand(d), self._operand(x)
        for name in gradients_of(self.task, k):
            target = f"pg, po[{self.values.binding.params[name]}], ar, {at_d}, ar, {at_x}"
            lo, hi = self.shares.own_rows(name, node.type.shape[0])
            lo, hi = self._variable(lo), self._variable(hi)
            self.text.line(f"product_outer({target}, {count}, {shape_mn}, {lo}, {hi})")

    def _add_lookups(self, k: int, node: Node) -> None:
        """Add rows to the rows of a table's gradient that were looked up."""
        index, d = node.inputs
        place, (rows, size) = self.values.place[d], node.type.shape
        number = self.values.binding.ints[self.nodes[index]["name"]]
        source = f"ar, {place.base} + {place.start}, {self.text.number(place.step)}"
        for name in gradients_of(self.task, k):
            own = ", ".join(self._variable(x) for x in self.shares.own_words(name, rows, size))
            target = f"pg, po[{self.values.binding.params[name]}], {self.text.number(size)}"
            task = f"ints[{number}], order, lo, rows, at, n, {place.row == 'local'}"
            self.text.line(f"add_lookups({target}, {own}, {source}, {task})")

    def _variable(self, text: str) -> str:
        return self.text.number(int(text)) if text.isdigit() else text

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
