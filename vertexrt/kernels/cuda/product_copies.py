"""Copies around products that a kernel of few rows makes itself.

Where a group only gathers rows for products, or only scatters what they make to edges, the products
read the rows of children, of tables or of pulls, and write the rows of edges. They also make what a
group makes of each element of theirs, as a bias and a nonlinearity.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from vertexrt.ir.ops import OPS
from vertexrt.ir.passes.fuse import Group, TaskProgram
from vertexrt.ir.passes.store import is_free
from vertexrt.ir.program import Domain, Node
from vertexrt.kernels.layout import Binding
from vertexrt.kernels.task_tensors import by_rows, edge_key
from vertexrt.lower.launches import (
    ChildRows,
    Finished,
    Gathered,
    RowsGiven,
    TableRows,
)
from vertexrt.lower.lowering import ValuePlaces


@dataclass(slots=True)
class ProductCopies:
    """What groups of a task copy for its products.

    Attributes:
        readers: of each value, among what the task makes.
    """

    task: TaskProgram
    values: ValuePlaces
    readers: dict[int, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for k in self.task.members:
            for i in self._node(k).inputs:
                self.readers.setdefault(i, []).append(k)

    def _node(self, k: int) -> Node:
        return self.task.program.nodes[k]

    def only_gathers(self, group: Group) -> bool:
        """Tell whether a group only copies, for products: rows of children, tables or pulls."""
        local = self.task.local
        return not local.isdisjoint(group.nodes) and all(
            self._is_gathered(k) if k in local else self._is_read_again(k) for k in group.nodes
        )

    def _is_read_again(self, k: int) -> bool:
        """Tell whether a value is a leaf that its readers read where it comes from."""
        return is_free(self._node(k)) and k not in self.task.homes

    def _is_gathered(self, k: int) -> bool:
        """Tell whether a value is rows that are copied, and that products alone read."""
        node = self._node(k)
        return (
            node.op in ("embed", "pull", "gather")
            and node.type.domain == Domain.VERTEX
            and all(self._node(r).op == "matmul" for r in self.readers[k])
        )

    @property
    def binding(self) -> Binding:
        """Where the function's values lie."""
        return self.values.binding

    def scattered(self, group: Group, products: Sequence[int]) -> dict[int, Finished]:
        """Name the edges that products write in place of a group, by product; none for others."""
        if not self._only_scatters(group, products):
            return {}
        nodes = [self._node(k) for k in group.nodes]
        return {n.inputs[0]: self._edges_of(n) for n in nodes}

    def only_finishes(self, group: Group, products: Sequence[int]) -> bool:
        """Tell whether a group makes other elements of those of a product, one by one."""
        if len(products) != 1 or products[0] not in self.task.local:
            return False
        (k,) = products
        made = {i for i in group.nodes if not self._is_read_again(i)}
        read, copied = self.readers.get(k, []), self.task.local.intersection(group.nodes) - made
        alone = bool(read) and made.issuperset(read) and not copied
        return alone and all(map(partial(self._finishes, k), made))

    def _finishes(self, product: int, k: int) -> bool:
        """Tell whether a value needs no number of the row, and is made at a product's places."""
        numbers = [i for i in self._node(k).inputs if self._node(i).type.shape == ()]
        constant = all(self._node(i).op == "const" for i in numbers)
        return constant and self._is_elementwise(k, product)

    def _is_elementwise(self, k: int, product: int) -> bool:
        """Tell whether elements of a value follow from those of a product at the same places."""
        node, row = self._node(k), self._node(product).type
        op = OPS[node.op]
        fits = node.type == row and row.domain == Domain.VERTEX and len(row.shape) == 1
        return op.role == "scalar" and not op.draws and fits

    def _edges_of(self, node: Node) -> ChildRows:
        """Return the rows that an effect scatters to."""
        tensor = self.binding.tensors[edge_key(node["field"], node["every"])]
        return ChildRows(tensor, node["slot"])

    def _only_scatters(self, group: Group, products: Sequence[int]) -> bool:
        """Tell whether a group does nothing but copy what products made to edges."""
        return not by_rows(self.task.stage) and all(
            self._node(k).op == "scatter_child" and self._is_for(k, products) for k in group.nodes
        )

    def _is_for(self, effect: int, products: Sequence[int]) -> bool:
        """Tell whether an effect alone reads what one of the products makes."""
        (i,) = self._node(effect).inputs
        return i in products and i in self.task.local and self.readers[i] == [effect]

    def sources(self, groups: Sequence[Group], products: Sequence[int]) -> dict[int, Gathered]:
        """Name what products read in place of what groups copy, by value."""
        copies = [k for group in groups for k in group.nodes if k in self.task.local]
        return {
            k: self._source(self._node(k))
            for k in copies
            if all(r in products for r in self.readers[k])
        }

    def _source(self, node: Node) -> Gathered:
        if node.op == "pull":
            return RowsGiven(self.binding.floats[node["name"]])
        if node.op != "embed":
            tensor = self.binding.tensors["state", node["field"]]
            return ChildRows(tensor, node["slot"], by_rows(self.task.stage))
        table, index = (self._node(i) for i in node.inputs)
        return TableRows(self.binding.params[table["name"]], self.binding.ints[index["name"]])
