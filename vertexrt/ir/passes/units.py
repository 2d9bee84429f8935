"""Find how the elements of every value are shared out: ranges that stay aligned over gates.

A value is cut into pieces, and each piece is split evenly over the processors. Where two values
meet in an elementwise op their cuts must agree, and a slice hands its cuts to what it slices; so
the output [4 H] of the stacked gates is cut at H, 2 H and 3 H, and processor r owns the same units
of each gate. The cuts are the least fixed point of these rules over all task programs, since a
tensor that one task writes and another reads must have one partition, and so must the rows of a
weight that several task programs multiply by.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from vertexrt.ir.ops import OPS
from vertexrt.ir.passes.fuse import Group, TaskProgram
from vertexrt.ir.passes.store import TENSOR_OF_EFFECT
from vertexrt.ir.program import Node

Cuts = dict[int, tuple[int, ...]]  # position -> first elements of its pieces, and the size


@dataclass(frozen=True, slots=True)
class _Link:
    """The elements of one value from `start` on are those of another from `other_start` on."""

    value: Hashable
    start: int
    other: Hashable
    other_start: int
    size: int


def find_cuts(tasks: Sequence[TaskProgram]) -> list[Cuts]:
    """Return, for each task program, the cuts of all its values."""
    sizes: dict[Hashable, int] = {}
    links: list[_Link] = []
    periods: list[tuple[Hashable, int]] = []
    for t, task in enumerate(tasks):
        _collect(t, task, sizes, links, periods)
    cuts: dict[Hashable, set[int]] = {name: {0, size} for name, size in sizes.items()}
    changed = True
    while changed:
        changed = False
        for link in links:
            for a, at, b, bt in (
                (link.value, link.start, link.other, link.other_start),
                (link.other, link.other_start, link.value, link.start),
            ):
                edges = {at, at + link.size}
                new = {c - at + bt for c in cuts[a] | edges if at <= c <= at + link.size}
                if not new <= cuts[b]:
                    cuts[b] |= new
                    changed = True
        for name, period in periods:
            inner = {c % period for c in cuts[name]}
            new = {i * period + c for i in range(sizes[name] // period) for c in inner}
            if not new <= cuts[name]:
                cuts[name] |= new
                changed = True
    return [
        {k: tuple(sorted(cuts[t, k])) for k in range(len(task.program.nodes)) if (t, k) in cuts}
        for t, task in enumerate(tasks)
    ]


def _collect(
    t: int,
    task: TaskProgram,
    sizes: dict[Hashable, int],
    links: list[_Link],
    periods: list[tuple[Hashable, int]],
) -> None:
    nodes = task.program.nodes

    def name(k: int) -> Hashable:
        sizes[t, k] = max(nodes[k].type.size, 1)
        return (t, k)

    def tensor(key: Hashable, size: int) -> Hashable:
        sizes[key] = size
        return key

    for k, read in task.reads.items():
        whole = tensor(read.key, read.width)
        links.append(_Link(name(k), 0, whole, read.start, max(nodes[k].type.size, 1)))
    for k, home in task.homes.items():
        size = max(nodes[k].type.size, 1)
        links.append(_Link(name(k), 0, tensor(home, size), 0, size))
    members = [k for s in task.steps for k in (s.nodes if isinstance(s, Group) else (s.node,))]
    for k in members:
        node, size = nodes[k], max(nodes[k].type.size, 1)
        value = name(k)
        if OPS[node.op].role == "effect" and node.op != "param_grad":
            size = max(math.prod(node["shape"]), 1)
            sizes[t, k] = size
            (source,) = node.inputs
            if max(nodes[source].type.size, 1) == size:
                links.append(_Link(name(source), 0, value, 0, size))
        for key in _tensors(node):
            links.append(_Link(value, 0, tensor(key, size), 0, size))
        if node.op == "slice":
            links.append(_Link(value, 0, name(node.inputs[0]), node["start"], size))
        elif node.op == "concat":
            start = 0
            for i in node.inputs:
                part = max(nodes[i].type.size, 1)
                links.append(_Link(name(i), 0, value, start, part))
                start += part
        elif OPS[node.op].role in ("scalar", "segment") or node.op == "to_edges":
            for i in node.inputs:
                if max(nodes[i].type.size, 1) == size:
                    links.append(_Link(name(i), 0, value, 0, size))
        elif node.op == "matmul":
            if len(node.type.shape) == 2:
                periods.append((value, node.type.shape[1]))
            start = 0
            for weight in nodes[node.inputs[0]]["name"].split("+"):  # a stack, or one parameter
                rows, columns = task.program.params[weight]
                outputs = columns if node["transpose"] else rows
                whole = tensor(("weight", weight, node["transpose"]), outputs)
                links.append(_Link(value, start, whole, 0, outputs))
                start += 0 if node["transpose"] else rows


def _tensors(node: Node) -> list[Hashable]:
    """Name the tensors that a leaf reads, or an effect writes, element by element."""
    if node.op in TENSOR_OF_EFFECT:
        return [TENSOR_OF_EFFECT[node.op](node)]
    if node.op in ("gather", "gather_all"):
        return [("state", node["field"])]
    if node.op in ("scatter_child", "scatter_children"):
        return [("edge", node["field"])]
    if node.op == "gather_parents":
        return [("edge", node["field"])]
    return []
