"""Where the values of a task program are while it is lowered, and expressions that read them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from vertexrt.ir.ops import OPS
from vertexrt.ir.passes.store import TENSOR_OF_EFFECT, Key, Read
from vertexrt.ir.program import PARENTS, Domain, Node
from vertexrt.kernels.layout import PAD, Binding
from vertexrt.kernels.task_tensors import edge_key, per_edge, stored_size
from vertexrt.lower.kernel import (
    FIRST,
    Apply,
    Constant,
    Expression,
    FromParents,
    Index,
    J,
    Leaf,
    Memory,
    Number,
    Picked,
    PlaceRows,
    RandomDraw,
    ReadElement,
    Temporary,
    ValuePlace,
)

# Absent labels cost nothing: whatever their row holds.
NLL = "x0 - x1 if x2 != 0.0 else 0.0"
NLL_GRAD = "x3 * (exp(x0 - x1) - x2) if x4 != 0.0 else 0.0"


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
        rows = PlaceRows.LOCAL_EDGE if edges else PlaceRows.LOCAL
        number = len(self.taken) - 1
        return ValuePlace(Memory.TEMPORARY, number, size, rows, stride=stride, own=own)

    def scratch(self, size: int) -> ValuePlace:
        """Set aside one row that every row of the loop uses again."""
        size = max(size, 1)
        self.taken.append(self.end)
        self.once += -(-size // PAD) * PAD
        return ValuePlace(Memory.SCRATCH, len(self.taken) - 1, size, PlaceRows.ONE)


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
        self._packed: dict[ValuePlace, ValuePlace] = {}
        self.numbers: set[int] = set()

    def tensor(self, key: Key, size: int, edges: bool) -> ValuePlace:
        """Return where the rows of a tensor lie."""
        rows = PlaceRows.EDGE if edges else PlaceRows.ROW
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

    def pack(self, place: ValuePlace, memories: Memories) -> ValuePlace:
        """Return where rows of a list are copied for products, the same place for the same rows."""
        if place not in self._packed:
            self._packed[place] = memories.temporary(place.size, False)
        return self._packed[place]

    def integer(self, k: int) -> int:
        """Return the number of an integer pull."""
        return self.binding.ints[self.nodes[k]["name"]]

    def element(self, k: int, index: Index) -> Expression:
        """Return an element of a value; a number stands for each of a row's elements."""
        if k in self.numbers:
            return Number(k)
        if k in self.place:
            return ReadElement(self.place[k], FIRST if self.nodes[k].type.shape == () else index)
        return self.expression(k, index)

    def expression(self, k: int, index: Index) -> Expression:
        """Return what makes an element of a value, wherever it is kept."""
        node = self.nodes[k]
        if OPS[node.op].role == "scalar":
            return self._apply(node, index)
        if node.op == "nll":
            return self._nll(node)
        if node.op == "nll_grad":
            return self._nll_grad(node)
        if node.op in ("slice", "spread", "to_edges"):
            return self._view(node, index)
        return self._leaf(node, FIRST if node.type.shape == () else index)

    def _apply(self, node: Node, index: Index) -> Apply:
        """Return an elementwise op of what it reads."""
        expression = OPS[node.op].scalar
        assert expression is not None
        operands = tuple(self.element(i, index) for i in node.inputs)
        if not OPS[node.op].draws:
            return Apply(expression, operands)
        by = self.integer(node.inputs[1]) if node.op == "dropout_by" else -1
        edges = node.type.domain == Domain.EDGE and by < 0
        p = node["p"] if node.has("p") else None
        index = FIRST if node.type.shape == () else index
        return Apply(expression, operands, RandomDraw(node["key"], p, edges, by), index)

    def _nll(self, node: Node) -> Apply:
        logits, label, total = node.inputs
        pull = self.integer(label)
        whole, start = self.kept_row(logits)
        picked = Picked(self.place[whole], pull, start)
        given = Leaf("has_integer", FIRST, pull)
        return Apply(NLL, (self.element(total, FIRST), picked, given))

    def _nll_grad(self, node: Node) -> Apply:
        logits, label, total, d = node.inputs
        pull = self.integer(label)
        operands = (
            self.element(logits, J),
            self.element(total, FIRST),
            Leaf("is_index", J, pull),
            self.element(d, FIRST),
            Leaf("has_integer", FIRST, pull),
        )
        return Apply(NLL_GRAD, operands)

    def kept_row(self, k: int) -> tuple[int, int]:
        """Return the value in whose row the elements of a view begin, and at which of them."""
        start = 0
        while k not in self.place and self.nodes[k].op in ("slice", "to_edges"):
            start += self.nodes[k]["start"] if self.nodes[k].op == "slice" else 0
            (k,) = self.nodes[k].inputs
        return k, start

    def sources(self, node: Node) -> tuple[Expression | FromParents, ...]:
        """Return what a sum over edges adds up: see `SumEdges`."""
        if node.op != "gather_parents":
            index = FIRST if node.type.shape == () else J
            return (self.element(node.inputs[0], index),)
        tensors = self.binding.tensors
        kinds = [every for every in (False, True) if node["every" if every else "slots"]]
        found = (tensors[edge_key(node["field"], every)] for every in kinds)
        if not node.has(PARENTS):
            return tuple(map(FromParents, found))
        layer = self.binding.layers[node.function]
        return tuple(FromParents(tensor, node[PARENTS], layer) for tensor in found)

    def target(self, node: Node) -> tuple[ValuePlace, int]:
        """Return where an effect stores its operand, and the slot that must have a child, or -1."""
        value = self.nodes[node.inputs[0]]
        size = stored_size(node, value)
        if node.op in TENSOR_OF_EFFECT:
            return self.tensor(TENSOR_OF_EFFECT[node.op](node), size, per_edge(node, value)), -1
        to = self.tensor(edge_key(node["field"], node["every"]), size, True)
        if node.op == "scatter_children":
            return to, -1
        slot = node["slot"]  # a vertex may have fewer slots than F
        return replace(to, rows=PlaceRows.SLOT, slot=slot), slot

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
        if node.op in ("arange", "loss_scale", "weight", "has_child", "degree", "present"):
            slot = node["slot"] if node.op == "present" else -1
            return Leaf(node.op, index, slot=slot, relation=node.relation)
        if node.op in ("has_pull", "pull", "edge_pull", "seed"):
            return self._given(node, index, size)
        if node.op == "const":
            is_real = node.type.dtype == "float"
            return Constant(float(node["value"]) if is_real else int(node["value"]))
        if node.op == "param":
            return Leaf("param", index, self.binding.params[node["name"]], size=size)
        if node.op == "embed":
            table, pulled = node.inputs
            param = self.binding.params[self.nodes[table]["name"]]
            edges = self.nodes[pulled].op == "edge_pull"
            return Leaf("embed", index, param, -1, size, self.integer(pulled), edges)
        assert node.op in ("gather", "gather_all"), f"{node.op} has no expression"
        slot = node["slot"] if node.op == "gather" else -1
        tensor = self.binding.tensors["state", node["field"]]
        return Leaf("gather", index, tensor, slot, size, relation=node.relation)

    def _given(self, node: Node, index: Index, size: int) -> Leaf:
        """Return what the user gives with a batch: a pull, whether there is one, or a gradient."""
        name, b = node["name"], self.binding
        if node.op == "seed":
            return Leaf("seed", index, b.seeds[name], size=size)
        if node.op == "has_pull":
            if name in b.ints:
                return Leaf("has_integer", FIRST, b.ints[name])
            return Leaf("has_real", FIRST, b.floats[name])
        edges = node.op == "edge_pull"
        if node.type.dtype == "int":
            return Leaf("integer", FIRST, b.ints[name], edges=edges)
        return Leaf("pull", index, b.floats[name], size=size, edges=edges)
