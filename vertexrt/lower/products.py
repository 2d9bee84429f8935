"""Lower what works on all rows at once: products, and sums into rows of a table."""

from __future__ import annotations

from collections.abc import Sequence

from vertexrt.ir.passes.fuse import TaskProgram
from vertexrt.ir.program import Domain, Node, Type
from vertexrt.kernels.task_tensors import by_rows, gradients_of
from vertexrt.lower.kernel import AddLookups, MatrixProduct, Operand, Outer, Step
from vertexrt.lower.places import PlaceRows
from vertexrt.lower.shares import Shares
from vertexrt.lower.values import Memories, ValuePlaces


def lower_product(
    k: int, task: TaskProgram, values: ValuePlaces, shares: Shares, memories: Memories
) -> Sequence[Step]:
    """Lower one; its result lies where the task program says."""
    nodes = task.program.nodes
    node = nodes[k]
    if k in task.homes:
        values.place[k] = values.home(k, task.homes[k])

    def operand(i: int) -> Operand:
        """Return rows of memory, which are packed where they are not contiguous."""
        place = values.place[i]
        scattered = place.rows == PlaceRows.ROW and by_rows(task.stage)
        return Operand(place, values.pack(place, memories) if scattered else None)

    if node.op == "embed_grad":
        return _add_lookups(k, node, task, values, shares)
    if node.op == "outer":
        d, x = (operand(i) for i in node.inputs)
        (m, n), rows = node.type.shape, rows_of(nodes[node.inputs[0]].type)
        return [
            Outer(values.binding.params[name], d, x, *rows, m, n, shares.own_rows(name, m))
            for name in gradients_of(task, k)
        ]
    weight, x_at = node.inputs
    m, n = nodes[weight].type.shape
    param = values.binding.params[nodes[weight]["name"]]
    spans = shares.outputs(k, n if node["transpose"] else m)
    rows = rows_of(node.type)
    x = operand(x_at)
    return [MatrixProduct(param, node["transpose"], x, operand(k), *rows, m, n, spans)]


def rows_of(kind: Type) -> tuple[bool, int]:
    """Return whether a product has rows of edges, and how many for each."""
    return kind.domain == Domain.EDGE, kind.shape[0] if len(kind.shape) == 2 else 1


def _add_lookups(
    k: int, node: Node, task: TaskProgram, values: ValuePlaces, shares: Shares
) -> Sequence[Step]:
    pull, d = node.inputs
    rows, size = node.type.shape
    return [
        AddLookups(
            values.binding.params[name],
            values.integer(pull),
            size,
            values.place[d],
            *shares.own_words(name, rows, size),
            task.program.nodes[pull].op == "edge_pull",
        )
        for name in gradients_of(task, k)
    ]
