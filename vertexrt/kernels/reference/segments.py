"""Interpret one segment of one processor: the elements of each value that it makes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from vertexrt.ir.ops import OPS
from vertexrt.ir.passes.segment import Segment, SegmentedTask, Split, rows_in_storage
from vertexrt.ir.passes.store import TENSOR_OF_EFFECT, Key
from vertexrt.ir.program import Domain, Node
from vertexrt.kernels.layout import Array, edge_key, gradients_of, per_edge, stored_size
from vertexrt.kernels.reference.ops import FUNCTIONS, Frame, child_rows
from vertexrt.kernels.reference.shared_memory import Processor, SharedMemory


@dataclass(slots=True)
class View(Frame):
    """A frame whose memory is seen by one processor."""

    arena: SharedMemory
    processor: Processor
    only: Array | None = None  # the elements of a row that are read; None for all

    def read(self, tensor: int, size: int, rows: Array) -> Array:
        """Return rows of a tensor, [len(rows), size]; NaN where not received."""
        elements = np.arange(size) if self.only is None else np.flatnonzero(self.only)
        at = self.buffers.base[tensor] + rows.astype(np.int64) * size
        out = np.full((len(rows), size), np.nan, self.buffers.arena.dtype)
        out[:, elements] = self.arena.load(at[:, None] + elements, self.processor)
        return out

    def write_part(
        self, tensor: int, size: int, rows: Array, value: Array, own: Array | None
    ) -> None:
        """Set some elements of rows of a tensor."""
        elements = np.arange(size) if own is None else np.flatnonzero(own)
        value = np.broadcast_to(value, (len(rows), size))[:, elements]
        at = self.buffers.base[tensor] + rows.astype(np.int64) * size
        self.arena.store(at[:, None] + elements, value, self.processor)


class Evaluator:
    """One segment of one processor: a straight line of nodes."""

    def __init__(
        self,
        plan: SegmentedTask,
        segment: Segment,
        view: View,
        gradients: SharedMemory,
        parts: int,
    ) -> None:
        self.plan, self.segment, self.view = plan, segment, view
        self.gradients, self.parts = gradients, parts
        self.nodes = plan.task.program.nodes
        self.made: dict[int, Array] = {}

    def run(self) -> None:
        """Run the steps in order."""
        for step in self.segment.steps:
            for k in step.nodes:
                node = self.nodes[k]
                if OPS[node.op].role == "effect":
                    self._effect(k, node)
                else:
                    self._node(k, node)
        self.view.processor.values.update(self.made)

    def _own(self, k: int, size: int) -> Array | None:
        """Return which elements of a value this processor makes; None for all."""
        if self.segment.split == Split.ROWS:
            return None
        by_units = self.segment.split == Split.UNITS
        cuts = self.plan.cuts.get(k, (0, size)) if by_units else (0, size)
        own = np.zeros(size, np.bool_)
        part = self.view.processor.number
        for a, b in pairwise(cuts):
            own[a + (b - a) * part // self.parts : a + (b - a) * (part + 1) // self.parts] = True
        return own

    def _rows(self, node: Node) -> Array:
        return self.view.edges if node.type.domain == Domain.EDGE else self.view.rows

    def _value(self, i: int) -> Array:
        """Return an operand as the processor has it."""
        if i in self.made:
            return self.made[i]
        task, node = self.plan.task, self.nodes[i]
        if i in task.reads:
            read = task.reads[i]
            whole = self.view.read(
                self.view.binding.tensors[read.key], read.width, self._rows(node)
            )
            self.made[i] = whole[:, read.start : read.start + max(node.type.size, 1)]
        elif i in task.homes and i not in self.plan.whole:
            tensor = self.view.binding.tensors[task.homes[i]]
            self.made[i] = self.view.read(tensor, max(node.type.size, 1), self._rows(node))
        elif i in self.view.processor.values:
            return self.view.processor.values[i]
        else:
            self._compute(i, node)  # read again where it is used
        return self.made[i]

    def _compute(self, k: int, node: Node) -> None:
        view = self.view
        operands = [
            view.weight(self.nodes[i]["name"], self.nodes[i].type.shape)
            if node.op in ("matmul", "embed") and p == 0
            else self._value(i)
            for p, i in enumerate(node.inputs)
        ]
        if node.op in ("sum_rows", "outer"):  # a row that stands for all counts as often
            domain = max(Domain.VERTEX, *(self.nodes[i].type.domain for i in node.inputs))
            operands = [view.all_rows(x, domain) for x in operands]
        if node.op == "gather_parents":  # the parents left own units; others are not looked at
            view.only = self._own(k, max(node.type.size, 1))
        with np.errstate(all="ignore"):
            value = FUNCTIONS[node.op](view, node, operands)
        view.only = None
        if node.type.dtype != "int":
            value = value.astype(view.buffers.arena.dtype, copy=False)
            value = view.all_rows(value, node.type.domain)
        self.made[k] = value

    def _node(self, k: int, node: Node) -> None:
        task = self.plan.task
        self._compute(k, node)
        names = gradients_of(task, k)
        if names:
            self._add_gradient(k, node, names)
            return
        own = self._own(k, max(node.type.size, 1))
        if own is not None and self._is_made_in_parts(k, node):
            self.made[k] = np.where(own, self.made[k], np.nan).astype(self.made[k].dtype)
        if k in task.homes:
            size = max(node.type.size, 1)
            tensor = self.view.binding.tensors[task.homes[k]]
            self.view.write_part(tensor, size, self._rows(node), self.made[k], self._own(k, size))

    def _is_made_in_parts(self, k: int, node: Node) -> bool:
        """Tell whether the processor makes only its own units of a value."""
        if self.segment.split != Split.UNITS or k in self.plan.whole or not node.type.shape:
            return False
        stored = k in self.plan.task.homes or k in self.plan.task.local
        return stored or OPS[node.op].role in ("product", "scalar")

    def _add_gradient(self, k: int, node: Node, names: list[str]) -> None:
        """Add own rows (or own columns) of a sum over all rows."""
        size = max(node.type.size, 1)
        value = np.broadcast_to(self.made[k].reshape(-1), size)
        for name in names:
            own = self._owned(name, node.type.shape)
            if node.op == "embed_grad":
                touched = self._value(node.inputs[0])[:, 0]
                own &= np.isin(np.arange(len(own)), touched)[:, None]
            elements = np.flatnonzero(own)
            at = int(self.view.buffers.param_at[self.view.binding.params[name]]) + elements
            old = self.gradients.load(at, self.view.processor)
            self.gradients.store(at, old + value[elements], self.view.processor)

    def _owned(self, name: str, shape: tuple[int, ...]) -> Array:
        """Return which elements of a gradient this processor adds to: [rows, elements of a row]."""
        rows = shape[0] if shape else 1
        own = np.ones((rows, max(math.prod(shape), 1) // rows), np.bool_)
        if self.segment.split == Split.ROWS:
            return own
        start, whole = rows_in_storage(self.plan.task.program, name)
        by_columns = name in self.plan.by_columns
        part, total = self.view.processor.number, own.shape[1] if by_columns else whole
        first, end = total * part // self.parts, total * (part + 1) // self.parts
        if by_columns:
            mine = np.arange(total)
            return own & ((first <= mine) & (mine < end))
        mine = np.arange(start, start + rows)
        return own & ((first <= mine) & (mine < end))[:, None]

    def _effect(self, k: int, node: Node) -> None:
        (i,) = node.inputs
        source, value = self.nodes[i], self._value(i)
        size = max(stored_size(node, source), 1)
        key: Key
        if node.op in TENSOR_OF_EFFECT:
            where = self.view.edges if per_edge(node, source) else self.view.rows
            key = TENSOR_OF_EFFECT[node.op](node)
        elif node.op == "scatter_children":
            where, key = self.view.edges, edge_key(node["field"], True)
        else:  # a vertex may have fewer slots than F: only where there is a child
            has = child_rows(self.view, node["slot"]) >= 0
            where = (self.view.buffers.schedule.edge_ptr[self.view.rows] + node["slot"])[has]
            value = np.broadcast_to(value, (len(has), value.shape[1]))[has]
            key = edge_key(node["field"], False)
        own = self._own(k, size)
        self.view.write_part(self.view.binding.tensors[key], size, where, value, own)
