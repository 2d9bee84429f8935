"""The text of values inside a generated loop: loads, leaves, views and scalar expressions."""

from __future__ import annotations

from collections.abc import Sequence

from vertexrt.ir.ops import OPS
from vertexrt.ir.passes.store import Key
from vertexrt.ir.program import Domain, Node
from vertexrt.kernels.cpu.text import Text
from vertexrt.kernels.layout import Binding
from vertexrt.kernels.location import Location
from vertexrt.kernels.render import NUMBA, render


class Values:
    """Where the values of a program are while its source is written.

    Attributes:
        place: position -> where it lies in memory.
        variable: position -> the local variable that holds a scalar of the current row.
    """

    def __init__(self, nodes: Sequence[Node], binding: Binding, text: Text) -> None:
        self.nodes = nodes
        self.binding = binding
        self.text = text
        self.place: dict[int, Location] = {}
        self.variable: dict[int, str] = {}

    def at(self, place: Location, j: str = "") -> str:
        """Return the element at which a row of a location starts, or its element j."""
        base = self.text.base(place)
        return f"{base} + {j}" if j else base

    def tensor(self, i: int, key: Key) -> Location:
        """Return where a value lies in a tensor."""
        size = self.nodes[i].type.size
        edges = self.nodes[i].type.domain == Domain.EDGE
        return Location(f"off[{self.binding.tensors[key]}]", size, "edge" if edges else "row")

    def index(self, k: int) -> str:
        """Return the variable that holds an integer pull of this row (-1: absent)."""
        node = self.nodes[k]
        number = self.binding.ints[node["name"]]
        return self.text.row_value(f"i{number}", f"ints[{number}][{self.text.user_vertex()}]")

    def element(self, k: int, j: str, size: int = 0) -> str:
        """Return the text of element j of a value; scalars stand for each of their elements."""
        node = self.nodes[k]
        if k in self.variable:
            return self.variable[k]
        if k in self.place:
            bare = node.type.shape == ()
            return f"load(ar, {self.at(self.place[k], '' if bare else j)})"
        if OPS[node.op].role == "scalar":
            return self.expression(node, j)
        return self._leaf_or_view(k, node, j)

    def _leaf_or_view(self, k: int, node: Node, j: str) -> str:
        t, bare = self.text, node.type.shape == ()
        if node.op == "slice":
            start = node["start"]
            if bare:
                return self.element(node.inputs[0], str(start))
            return self.element(node.inputs[0], f"({j} + {start})" if start else j)
        if node.op in ("spread", "to_edges"):
            return self.element(node.inputs[0], j)
        if node.op == "const":
            return f"F({node['value']!r})" if node.type.dtype == "float" else f"{node['value']}"
        if node.op == "loss_scale":
            return "scale"
        if node.op == "weight":
            return "load(weight, row)"
        if node.op == "param":
            base = t.row_value(f"p{k}", f"po[{self.binding.params[node['name']]}]")
            return f"load(pv, {base})" if bare else f"load(pv, {base} + {j})"
        if node.op in ("gather", "gather_all"):
            tensor = self.binding.tensors["state", node["field"]]
            child = t.child(node["slot"] if node.op == "gather" else None)
            size = node.type.size
            base = t.row_value(
                f"c{k}",
                f"off[{tensor}] + {child} * {size} if {child} >= 0 else 0",
                node.op != "gather",
            )
            return f"load(ar, {base} + {j})"
        if node.op == "present":
            return f"(F(1.0) if {t.child(node['slot'])} >= 0 else F(0.0))"
        if node.op == "has_child":
            return "(F(1.0) if child_row[e] >= 0 else F(0.0))"
        if node.op == "has_pull":
            name = node["name"]
            source = "ints" if name in self.binding.ints else "findex"
            number = self.binding.ints.get(name, self.binding.floats.get(name))
            return f"(F(1.0) if {source}[{number}][{t.user_vertex()}] >= 0 else F(0.0))"
        if node.op == "degree":
            return t.row_value("degree", "F(max(1, count_children(child_row, edge_ptr, row)))")
        if node.op == "pull" and node.type.dtype == "int":
            return self.index(k)
        if node.op == "pull":
            number = self.binding.floats[node["name"]]
            at = t.row_value(f"x{number}", f"findex[{number}][{t.user_vertex()}]")
            size = max(node.type.size, 1)
            element = "" if bare else f" + {j}"
            return (
                f"(load(floats[{number}], max({at}, 0) * {size}{element}) if {at} >= 0 else F(0.0))"
            )
        if node.op == "seed":
            number, size = self.binding.seeds[node["name"]], max(node.type.size, 1)
            base = t.row_value(f"s{number}", f"{t.user_vertex()} * {size}")
            return f"load(seeds[{number}], {base}" + ("" if bare else f" + {j}") + ")"
        if node.op == "embed":
            table, index = node.inputs
            name, width = self.nodes[table]["name"], node.type.size
            word = self.index(index)
            base = t.row_value(
                f"e{k}", f"po[{self.binding.params[name]}] + max({word}, 0) * {width}"
            )
            return f"(load(pv, {base} + {j}) if {word} >= 0 else F(0.0))"
        raise AssertionError(f"{node.op} (%{k}) has no expression")

    def expression(self, node: Node, j: str) -> str:
        expression = OPS[node.op].scalar
        assert expression is not None
        operands = []
        for position, i in enumerate(node.inputs):
            operand = self.element(i, j)
            if expression.count(f"x{position}") > 1 and "(" in operand:
                operand = self.text.bind(operand)
            operands.append(operand)
        keep = ""
        if node.op == "dropout":
            counter = self.text.counter(node.type.domain == Domain.EDGE)
            threshold = min(int(node["p"] * 2**32), 2**32 - 1)
            factor = 1.0 / (1.0 - node["p"])
            draw = f"uniform(seed, {node['key']}, {counter}, {j})"
            keep = f"(F({factor!r}) if {draw} >= np.uint32({threshold}) else F(0.0))"
        return render(expression, operands, NUMBA, keep)
