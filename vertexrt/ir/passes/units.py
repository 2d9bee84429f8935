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
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import NamedTuple

from vertexrt.ir.ops import OPS
from vertexrt.ir.passes.fuse import TaskProgram
from vertexrt.ir.passes.store import TENSOR_OF_EFFECT
from vertexrt.ir.program import Node

Cuts = dict[int, tuple[int, ...]]  # position -> first elements of its pieces, and the size


class _Link(NamedTuple):
    """The elements of one value from `start` on are those of another from `other_start` on."""

    value: Hashable
    start: int
    other: Hashable
    other_start: int
    size: int


class _Links:
    """What the cuts of values and tensors have in common.

    Attributes:
        sizes: elements of each.
        links: in both directions.
        periods: values of several rows, which are cut alike: elements of a row.
        t, task: whose links are collected.
    """

    def __init__(self) -> None:
        self.sizes: dict[Hashable, int] = {}
        self.links: list[_Link] = []
        self.periods: dict[Hashable, int] = {}

    def find_cuts(self) -> dict[Hashable, set[int]]:
        """Return the least cuts that fit all links and periods."""
        cuts: dict[Hashable, set[int]] = {name: {0, size} for name, size in self.sizes.items()}
        changed = True
        while changed:
            changed = False
            for name, new in self._demands(cuts):
                if not new <= cuts[name]:
                    cuts[name] |= new
                    changed = True
        return cuts

    def _demands(self, cuts: Mapping[Hashable, set[int]]) -> Iterator[tuple[Hashable, set[int]]]:
        """Yield what the cuts that were found so far ask of each other."""
        for value, start, other, other_start, size in self.links:
            inside = {c for c in (*cuts[value], start, start + size) if start <= c <= start + size}
            yield other, {c - start + other_start for c in inside}
        for name, period in self.periods.items():
            inner = {c % period for c in cuts[name]}
            rows = range(self.sizes[name] // period)
            yield name, {i * period + c for i in rows for c in inner}

    def collect(self, t: int, task: TaskProgram) -> None:
        """Collect the links of a task program."""
        self.t, self.task, self.nodes = t, task, task.program.nodes
        for k, read in task.reads.items():
            self._link(k, 0, self._tensor(read.key, read.width), read.start, _size(self.nodes[k]))
        for k, home in task.homes.items():
            self._all_of(k, home)
        for k in task.members:
            self._value(k)
            for key in _tensors(self.nodes[k]):
                self._all_of(k, key)
            self._operands(k, self.nodes[k])

    def _value(self, k: int) -> Hashable:
        """Name the value of a node; what an effect writes counts as its value."""
        self.sizes[self.t, k] = _size(self.nodes[k])
        return self.t, k

    def _tensor(self, key: Hashable, size: int) -> Hashable:
        self.sizes[key] = size
        return key

    def _link(self, k: int, start: int, other: Hashable, other_start: int, size: int) -> None:
        value = self._value(k)
        self.links.append(_Link(value, start, other, other_start, size))
        self.links.append(_Link(other, other_start, value, start, size))

    def _all_of(self, k: int, key: Hashable) -> None:
        """Say that a value is all of a tensor's row."""
        size = _size(self.nodes[k])
        self._link(k, 0, self._tensor(key, size), 0, size)

    def _operands(self, k: int, node: Node) -> None:
        """Link a value to the operands that have some of its elements."""
        if node.op == "slice":
            self._link(k, 0, self._value(node.inputs[0]), node["start"], _size(node))
        elif node.op == "concat":
            start = 0
            for i in node.inputs:
                self._link(i, 0, self._value(k), start, _size(self.nodes[i]))
                start += _size(self.nodes[i])
        elif node.op == "matmul":
            # Of its weight the rows, or those of the parameters that are stacked in it.
            if len(node.type.shape) == 2:
                self.periods[self._value(k)] = node.type.shape[1]
            start = 0
            for weight in self.nodes[node.inputs[0]]["name"].split("+"):
                rows, columns = self.task.program.params[weight]
                outputs = columns if node["transpose"] else rows
                whole = self._tensor(("weight", weight, node["transpose"]), outputs)
                self._link(k, start, whole, 0, outputs)
                start += 0 if node["transpose"] else rows
        elif _is_elementwise(node):
            for i in node.inputs:
                if _size(self.nodes[i]) == _size(node):
                    self._link(i, 0, self._value(k), 0, _size(node))


def find_cuts(tasks: Sequence[TaskProgram]) -> list[Cuts]:
    """Return, for each task program, the cuts of all its values."""
    links = _Links()
    for t, task in enumerate(tasks):
        links.collect(t, task)
    cuts = links.find_cuts()
    return [
        {k: tuple(sorted(cuts[t, k])) for k in range(len(task.program.nodes)) if (t, k) in cuts}
        for t, task in enumerate(tasks)
    ]


def _size(node: Node) -> int:
    """Return the elements of a value, or of what an effect writes, in a row."""
    writes = OPS[node.op].role == "effect" and node.op != "param_grad"
    return max(math.prod(node["shape"]) if writes else node.type.size, 1)


def _is_elementwise(node: Node) -> bool:
    """Tell whether a node makes, or writes, each element from those at the same place."""
    if OPS[node.op].role == "effect":
        return node.op != "param_grad"
    return OPS[node.op].role in ("scalar", "segment") or node.op == "to_edges"


def _tensors(node: Node) -> list[Hashable]:
    """Name the tensors that a leaf reads, or an effect writes, element by element."""
    if node.op in TENSOR_OF_EFFECT:
        return [TENSOR_OF_EFFECT[node.op](node)]
    if node.op in ("gather", "gather_all"):
        return [("state", node["field"])]
    if node.op in ("scatter_child", "scatter_children", "gather_parents"):
        return [("edge", node["field"])]
    return []
