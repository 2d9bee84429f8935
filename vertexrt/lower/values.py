"""Where the values of a task program are while it is lowered, and expressions that read them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from vertexrt.ir.ops import OPS
from vertexrt.ir.passes.store import Key, Read
from vertexrt.ir.program import Domain, Node
from vertexrt.kernels.layout import PAD, Binding
from vertexrt.lower.expressions import (
    FIRST,
    Apply,
    Constant,
    Expression,
    Index,
    Leaf,
    Number,
    RandomFactor,
    ReadElement,
)
from vertexrt.lower.places import Memory, Rows, Temporary, ValuePlace


class Memories:
    """Temporary memory that a kernel takes, piece by piece."""

    def __init__(self) -> None:
        self.taken: list[Temporary] = []
        self.rows = self.edges = self.once = 0

    @property
    def elements(self) -> tuple[int, int, int]:
        """Return the elements for each row, for each edge, and once."""
        return self.rows, self.edges, self.once

    @property
    def end(self) -> Temporary:
        """Return where the next temporary starts."""
        return Temporary(*self.elements)

    def temporary(
        self, size: int, edges: bool, stride: int = 0, own: tuple[int, int] | None = None
    ) -> ValuePlace:
        """Set aside elements for each row (or edge) of a launch.

        Args:
            stride: elements from one row to the next, 0 for no gap.
            own: see `ValuePlace`.
        """
        size = max(size, 1)
        self.taken.append(self.end)
        if edges:
            self.edges += stride or size
        else:
            self.rows += stride or size
        rows = Rows.LOCAL_EDGE if edges else Rows.LOCAL
        number = len(self.taken) - 1
        return ValuePlace(Memory.TEMPORARY, number, size, rows, stride=stride, own=own)

    def scratch(self, size: int) -> ValuePlace:
        """Set aside one row that every row of the loop uses again."""
        size = max(size, 1)
        self.taken.append(self.end)
        self.once += -(-size // PAD) * PAD
        return ValuePlace(Memory.SCRATCH, len(self.taken) - 1, size, Rows.ONE)


class ValuePlaces:
    """Where the values of a program are while it is lowered.

    Attributes:
        place: position -> where it lies in memory.
        numbers: positions of the numbers of the current row that are in registers.
    """

    def __init__(self, nodes: Sequence[Node], binding: Binding) -> None:
        self.nodes = nodes
        self.binding = binding
        self.place: dict[int, ValuePlace] = {}
        self.numbers: set[int] = set()

    def tensor(self, key: Key, size: int, edges: bool) -> ValuePlace:
        """Return where the rows of a tensor lie."""
        rows = Rows.EDGE if edges else Rows.ROW
        return ValuePlace(Memory.TENSOR, self.binding.tensors[key], max(size, 1), rows)

    def home(self, k: int, key: Key) -> ValuePlace:
        """Return where a value lies in a tensor of its own rows."""
        kind = self.nodes[k].type
        return self.tensor(key, kind.size, kind.domain == Domain.EDGE)

    def stored(self, k: int, read: Read) -> ValuePlace:
        """Return where a value lies that another stage has stored, maybe as a part of a tensor."""
        whole = self.home(k, read.key)
        if read.width == whole.size:
            return whole
        return replace(whole, start=read.start, stride=read.width)

    def integer(self, k: int) -> int:
        """Return the number of an integer pull."""
        return self.binding.ints[self.nodes[k]["name"]]

    def element(self, k: int, index: Index) -> Expression:
        """Return an element of a value; a number stands for each of a row's elements."""
        node = self.nodes[k]
        if k in self.numbers:
            return Number(k)
        if k in self.place:
            return ReadElement(self.place[k], FIRST if node.type.shape == () else index)
        if OPS[node.op].role == "scalar":
            return self.apply(node, index)
        if node.op in ("slice", "spread", "to_edges"):
            return self._view(node, index)
        return self._leaf(node, FIRST if node.type.shape == () else index)

    def apply(self, node: Node, index: Index) -> Apply:
        """Return an elementwise op of what it reads."""
        expression = OPS[node.op].scalar
        assert expression is not None
        operands = tuple(self.element(i, index) for i in node.inputs)
        if node.op != "dropout":
            return Apply(expression, operands)
        draw = RandomFactor(node["key"], node["p"], node.type.domain == Domain.EDGE)
        return Apply(expression, operands, draw, index)

    def _view(self, node: Node, index: Index) -> Expression:
        (i,) = node.inputs
        if node.op != "slice":
            return self.element(i, index)
        bare = node.type.shape == ()
        moves, shift = (False, 0) if bare else (index.moves, index.shift)
        return self.element(i, Index(moves, shift + node["start"]))

    def _leaf(self, node: Node, index: Index) -> Expression:
        """Return an input of the function."""
        size = max(node.type.size, 1)
        if node.op in ("loss_scale", "weight", "has_child", "degree", "present"):
            return Leaf(node.op, slot=node["slot"] if node.op == "present" else -1)
        if node.op in ("has_pull", "pull", "seed"):
            return self._given(node, index, size)
        if node.op == "const":
            is_real = node.type.dtype == "float"
            return Constant(float(node["value"]) if is_real else int(node["value"]))
        if node.op in ("param", "embed"):
            return self._of_parameter(node, index, size)
        assert node.op in ("gather", "gather_all"), f"{node.op} has no expression"
        slot = node["slot"] if node.op == "gather" else -1
        return Leaf("gather", index, self.binding.tensors["state", node["field"]], slot, size)

    def _of_parameter(self, node: Node, index: Index, size: int) -> Leaf:
        if node.op == "param":
            return Leaf("param", index, self.binding.params[node["name"]])
        table, pulled = node.inputs
        param = self.binding.params[self.nodes[table]["name"]]
        return Leaf("embed", index, param, -1, size, self.integer(pulled))

    def _given(self, node: Node, index: Index, size: int) -> Leaf:
        """Return what the user gives with a batch: a pull, whether there is one, or a gradient."""
        name, b = node["name"], self.binding
        if node.op == "seed":
            return Leaf("seed", index, b.seeds[name], size=size)
        if node.op == "has_pull":
            integer = name in b.ints
            return (
                Leaf("has_integer", FIRST, b.ints[name])
                if integer
                else Leaf("has_real", FIRST, b.floats[name])
            )
        if node.type.dtype == "int":
            return Leaf("integer", FIRST, b.ints[name])
        return Leaf("pull", index, b.floats[name], size=size)
