"""The products of a segment: by which weights, what operands, and where results go."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from vertexrt.ir.ops import OPS
from vertexrt.ir.passes.fuse import Group
from vertexrt.ir.program import Domain, Node
from vertexrt.kernels.cuda.inline_operands import QUARTET
from vertexrt.kernels.cuda.partial_sums import pieces_alike
from vertexrt.kernels.cuda.path_groups import place_group
from vertexrt.kernels.cuda.path_task import PathTask, SegmentContext
from vertexrt.kernels.cuda.segments import (
    ComputedRows,
    PartialSums,
    Products,
    ResidentProduct,
    RowsInMemory,
)
from vertexrt.kernels.cuda.weight_layout import TILE_ROWS
from vertexrt.kernels.cuda.weights import ResidentWeight
from vertexrt.lower.kernel import J, Memory, PlaceRows, ReadElement, ValuePlace
from vertexrt.lower.lowering import rows_of
from vertexrt.lower.threads import Cuts, ElementLoop, MakeElements, ThreadPart


def lower_products(context: SegmentContext, products: Sequence[int]) -> Products:
    """Lower products that share their barriers; groups add up their sums if they have no place."""
    found = [_product(context, k) for k in products]
    if not all(context.task.place[k].memory == Memory.SUMS for k in products):
        return Products(tuple(found))
    start, summed = 0, []
    for x in found:
        piece = pieces_alike(context.task.own_cuts(x.number))
        rows = TILE_ROWS * x.times
        at = PartialSums(x.number, start, rows, x.own, x.held.deep, x.times, piece)
        summed.append(replace(x, to=at))
        start += at.elements
    return Products(tuple(summed))


def _product(context: SegmentContext, k: int) -> ResidentProduct:
    task, node = context.task, context.task.nodes[k]
    x, held, (edges, times) = node.inputs[1], _weight(task, k), rows_of(node.type)
    own = held.rows(task.processors)
    operand = (
        _computed(context, x)
        if x in task.inlined
        else _in_memory(context.place[x], held.deep, task.vector)
    )
    return ResidentProduct(k, held, own, times, edges, operand, context.place[k])


def _weight(task: PathTask, k: int) -> ResidentWeight:
    """Return what a product multiplies by."""
    node = task.nodes[k]
    matrix = task.nodes[node.inputs[0]]
    m, n = matrix.type.shape
    turned = bool(node["transpose"])
    deep, wide = (m, n) if turned else (n, m)
    cuts: Cuts = (0, wide)
    if task.processors > 1:
        cuts = tuple(c for c in task.own_cuts(k) if c <= wide)
    return ResidentWeight(f"param_{task.binding.params[matrix['name']]}", n, turned, cuts, deep)


def _in_memory(place: ValuePlace, deep: int, vector: int) -> RowsInMemory:
    return RowsInMemory(place, read_width(deep, vector, place.step, place.start))


def read_width(deep: int, vector: int, *firsts: int) -> int:
    """Return how many elements of an operand's row a thread reads at once.

    Args:
        deep: elements of a row; vector: elements of 16 bytes.
        firsts: multiples of these are where rows begin.
    """
    widths = (QUARTET, QUARTET // 2)
    fitting = (w for w in widths if deep % w == 0 and all(n % min(w, vector) == 0 for n in firsts))
    return next(fitting, 1)


def _computed(context: SegmentContext, x: int) -> ComputedRows:
    """Return an operand that is read where children left it: see `inline_operands`."""
    nodes, values = context.task.nodes, context.task.values
    width = read_width(nodes[x].type.shape[-1], context.task.vector)
    if nodes[x].op == "concat":
        return ComputedRows(width, (), tuple(values.expression(k, J) for k in nodes[x].inputs))
    made = _inner(nodes, x)
    without = {*made, *(k for k in context.place if nodes[k].op == "gather")}
    place = {k: at for k, at in context.place.items() if k not in without}  # not stored yet
    here = replace(context, by_units=False, place=place)
    _, parts = place_group(here, Group(Domain.VERTEX, tuple(sorted(made))))
    if not parts:
        return ComputedRows(width, (), (values.expression(x, J),))
    register = ValuePlace(Memory.REGISTER, x, nodes[x].type.size, PlaceRows.ONE)
    return ComputedRows(width, tuple(_made(parts)), (ReadElement(register, J),))


def _made(parts: Sequence[ThreadPart]) -> Iterator[MakeElements]:
    for loop in parts:
        if isinstance(loop, ElementLoop):
            yield from (x for x in loop.statements if isinstance(x, MakeElements))


def _inner(nodes: Sequence[Node], x: int) -> set[int]:
    """Collect the nodes between an operand and its leaves, itself among them."""
    if OPS[nodes[x].op].role != "scalar":
        return {x}
    found = {x}
    for i in nodes[x].inputs:
        if OPS[nodes[i].op].role == "scalar":
            found |= _inner(nodes, i)
    return found
