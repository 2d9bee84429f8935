"""The text of operands of products that are computed where they are read: see `inline_operands`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from vertexrt.ir.ops import OPS
from vertexrt.ir.passes.fuse import Group
from vertexrt.ir.program import Domain, Node
from vertexrt.kernels.cuda.group_plan import plan_group
from vertexrt.kernels.cuda.inline_operands import QUARTET
from vertexrt.kernels.cuda.path_rows import PathGroup, PathRowText
from vertexrt.kernels.cuda.path_segment import SegmentContext
from vertexrt.kernels.cuda.values import J


def write_operand(context: SegmentContext, x: int, times: int) -> tuple[list[str], dict[str, str]]:
    """Return a function from the row of a product to one from a column to four elements.

    Args:
        x: the operand, one of `PathTask.inlined`.
        times: rows of the product for each row of the tile.
    Returns: its lines, and the words that they name.
    """
    row = "i" if times == 1 else f"i / {times}"
    if context.task.nodes[x].op == "concat":
        writer, body = _concat(context, x, times)
    else:
        writer, body = _elements(context, x)
    lines = [
        "[&](int i) {",
        f"  const int row = (int)a.lo + {row};",
        *(f"  {line}" for line in writer.t.head),
        "  return [=](int j) {",
        *(f"    {line}" for line in body),
        "  };",
        "}",
    ]
    return lines, writer.t.words


def _begin(context: SegmentContext, made: Sequence[int]) -> PathGroup:
    """Begin to write values of one row: all of their elements, and none of them in memory."""
    task = context.task
    plan = plan_group(task.nodes, Group(Domain.VERTEX, tuple(made)), context.place)
    place = {  # without states and these values, which no group has stored yet
        k: at for k, at in context.place.items() if k not in made and task.nodes[k].op != "gather"
    }
    rows = PathRowText(1, task.vector, task.processors, task.temporaries.taken)
    return PathGroup(replace(context, by_units=False), plan, rows, place)


def _concat(context: SegmentContext, x: int, times: int) -> tuple[PathGroup, list[str]]:
    """Write the states that a product of several vectors of each row reads, one after another."""
    writer = _begin(context, [x])
    bases = [
        writer.t.row_value(f"c{k}", "auto", writer.state_of_child(k, node, node.type.size))
        for k, node in ((k, writer.nodes[k]) for k in writer.nodes[x].inputs)
    ]
    which = "".join(f"i % {times} == {n} ? {base} : " for n, base in enumerate(bases[:-1]))
    writer.t.head.append(f"const real* const from = {which}{bases[-1]};")
    return writer, [f"return load<{QUARTET}>(from + j);"]


def _elements(context: SegmentContext, x: int) -> tuple[PathGroup, list[str]]:
    """Write the elements of a state, or what is computed from several."""
    writer = _begin(context, sorted(_inner(context.task.nodes, x)))
    writer.t.open(writer.nodes[x].type.size)
    for k in writer.plan.members:
        writer.write_member(k)
    register = f"r{x}"
    if not writer.plan.members:
        register = writer.element(x, J).removesuffix(".v[c]")
    loop = writer.t.loop
    assert loop is not None
    assert loop.vector == writer.t.vector, "states are whole vectors"
    return writer, [f"constexpr int W = {QUARTET};", *loop.body, f"return {register};"]


def _inner(nodes: Sequence[Node], x: int) -> set[int]:
    """Collect the nodes between an operand and its leaves, itself among them."""
    if OPS[nodes[x].op].role != "scalar":
        return {x}
    found = {x}
    for i in nodes[x].inputs:
        if OPS[nodes[i].op].role == "scalar":
            found |= _inner(nodes, i)
    return found
