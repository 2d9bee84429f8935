"""The text of operands of products that are computed where they are read: see `inline_operands`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from vertexrt.ir.ops import OPS
from vertexrt.ir.passes.fuse import Group
from vertexrt.ir.program import Domain, Node
from vertexrt.kernels.cuda.inline_operands import QUARTET
from vertexrt.kernels.cuda.path_groups import place_group
from vertexrt.kernels.cuda.path_segment import SegmentContext
from vertexrt.kernels.cuda.thread_text import ThreadText
from vertexrt.lower.expressions import J, Leaf
from vertexrt.lower.threads import NEAR, ElementLoop, ThreadKernel
from vertexrt.lower.values import ValuePlaces


def write_operand(context: SegmentContext, x: int, times: int) -> tuple[list[str], dict[str, str]]:
    """Return a function from the row of a product to one from a column to four elements.

    Args:
        x: the operand, one of `PathTask.inlined`.
        times: rows of the product for each row of the tile.
    Returns: its lines, and the words that they name.
    """
    task = context.task
    kernel = ThreadKernel(1, 0, 0, 0, False, False, ())
    text = ThreadText(kernel, task.temporaries.taken, replace(context, by_units=False))
    row = "i" if times == 1 else f"i / {times}"
    if task.nodes[x].op == "concat":
        body = _concat(text, context, x, times)
    else:
        body = _elements(text, context, x)
    lines = [
        "[&](int i) {",
        f"  const int row = (int)a.lo + {row};",
        *(f"  {line}" for line in text.t.head),
        "  return [=](int j) {",
        *(f"    {line}" for line in body),
        "  };",
        "}",
    ]
    return lines, text.t.words


def _concat(text: ThreadText, context: SegmentContext, x: int, times: int) -> list[str]:
    """Write the states that a product of several vectors of each row reads, one after another."""
    inputs = context.task.nodes[x].inputs
    bases = [text.elements.state(_state(context, k)) for k in inputs]
    which = "".join(f"i % {times} == {n} ? {base} : " for n, base in enumerate(bases[:-1]))
    text.t.head.append(f"const real* const from = {which}{bases[-1]};")
    return [f"return load<{QUARTET}>(from + j);"]


def _elements(text: ThreadText, context: SegmentContext, x: int) -> list[str]:
    """Write the elements of a state, or what is computed from several."""
    made = sorted(_inner(context.task.nodes, x))
    place = {  # without states and these values, which no group has stored yet
        k: at
        for k, at in context.place.items()
        if k not in made and context.task.nodes[k].op != "gather"
    }
    here = replace(context, by_units=False, place=place)
    _, parts = place_group(here, Group(Domain.VERTEX, tuple(made)))
    if not parts:
        with text.elements.in_loop() as lines:
            state = text.elements.element(_state(context, x)).removesuffix(".v[c]")
        return [f"constexpr int W = {QUARTET};", *lines, f"return {state};"]
    (loop,) = parts
    assert isinstance(loop, ElementLoop)
    return [f"constexpr int W = {QUARTET};", *text.body(loop), f"return r{x};"]


def _state(context: SegmentContext, k: int) -> Leaf:
    """Return how the state of a child is read in full."""
    values = ValuePlaces(context.task.nodes, context.task.binding)
    leaf = values.expression(k, J)
    assert isinstance(leaf, Leaf)
    return replace(leaf, op=NEAR) if context.ring.gathered(leaf.number) is not None else leaf


def _inner(nodes: Sequence[Node], x: int) -> set[int]:
    """Collect the nodes between an operand and its leaves, itself among them."""
    if OPS[nodes[x].op].role != "scalar":
        return {x}
    found = {x}
    for i in nodes[x].inputs:
        if OPS[nodes[i].op].role == "scalar":
            found |= _inner(nodes, i)
    return found
