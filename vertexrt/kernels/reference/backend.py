"""The `reference` backend: every node of a task program in turn, in NumPy, with no fusion.

It reads and writes the same tensors as the other backends, so any of them can be compared to it
launch by launch. `watch` sees every value; that is how the origin of a NaN is found.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import numpy.typing as npt

from vertexrt.ir.ops import OPS
from vertexrt.ir.passes.fuse import TaskProgram
from vertexrt.ir.passes.segment import SegmentedTask
from vertexrt.ir.passes.store import TENSOR_OF_EFFECT, Key
from vertexrt.ir.program import Domain, Node
from vertexrt.ir.updates import UpdateRule
from vertexrt.kernels.layout import (
    Array,
    Binding,
    Buffers,
    Processors,
    StoreUpdate,
    edge_key,
    gradients_of,
    per_edge,
    stored_size,
)
from vertexrt.kernels.reference.ops import FUNCTIONS, Frame, child_rows
from vertexrt.kernels.reference.processors import ReferenceProcessors
from vertexrt.kernels.reference.update import finish

Watch = Callable[[Node, Array, Array], None]  # node, its value, the user's vertices


class ReferenceExecutable:
    """Task programs under interpretation."""

    def __init__(self, programs: list[TaskProgram], binding: Binding) -> None:
        self.programs = programs
        self.binding = binding
        self.scratch = [(0, 0, 0)] * len(programs)  # values live in NumPy arrays
        self.watch: Watch | None = None

    def run(self, table: npt.NDArray[np.int64], buffers: Buffers) -> None:
        """Run the launches of a table in order."""
        for number, n, lo, at, m, elo in table.tolist():
            rows = np.arange(lo, lo + n) if lo >= 0 else buffers.rows[at : at + n]
            del m, elo  # the rows say which edges
            first, end = buffers.schedule.edge_ptr[rows], buffers.schedule.edge_ptr[rows + 1]
            owner = np.repeat(np.arange(n), end - first)
            starts = np.cumsum(end - first) - (end - first)
            edges = np.arange(len(owner)) - np.repeat(starts - first, end - first)
            frame = Frame(self.binding, buffers, rows, edges, owner)
            self._launch(self.programs[number], frame)

    def _launch(self, task: TaskProgram, frame: Frame) -> None:
        nodes = task.program.nodes
        values: dict[int, Array] = {}
        dtype = frame.buffers.arena.dtype

        def tensor(key: Key) -> int:
            return self.binding.tensors[key]

        for i, read in task.reads.items():
            edges = nodes[i].type.domain == Domain.EDGE
            where = frame.edges if edges else frame.rows
            whole = frame.read(tensor(read.key), read.width, where)
            values[i] = whole[:, read.start : read.start + max(nodes[i].type.size, 1)]
        for k in task.members:
            node = nodes[k]
            if OPS[node.op].role == "effect":
                self._effect(node, nodes[node.inputs[0]], values[node.inputs[0]], frame)
                continue
            operands = [
                frame.weight(nodes[i]["name"], nodes[i].type.shape)
                if node.op in ("matmul", "embed") and p == 0
                else values[i]
                for p, i in enumerate(node.inputs)
            ]
            if node.op in ("sum_rows", "outer"):  # a row that stands for all counts as often
                domain = max(Domain.VERTEX, *(nodes[i].type.domain for i in node.inputs))
                operands = [frame.all_rows(x, domain) for x in operands]
            with np.errstate(all="ignore"):  # what empty slots make may be anything
                value = FUNCTIONS[node.op](frame, node, operands)
            if node.type.dtype != "int":
                value = frame.all_rows(value.astype(dtype, copy=False), node.type.domain)
            values[k] = value
            if self.watch and node.type.domain == Domain.EDGE:
                # Empty slots read anything.
                child = frame.buffers.schedule.child_row[frame.edges] >= 0
                self.watch(node, value[child], frame.vertices[frame.owner[child]])
            elif self.watch:
                self.watch(node, value, frame.vertices)
            if k in task.homes:
                edges = node.type.domain == Domain.EDGE
                where = frame.edges if edges else frame.rows
                frame.write(tensor(task.homes[k]), max(node.type.size, 1), where, values[k])
            for name in gradients_of(task, k) if node.type.domain == Domain.PARAM else ():
                target = frame.gradient(name, node.type.shape)
                target += values[k].reshape(node.type.shape)

    def _effect(self, node: Node, source: Node, value: Array, frame: Frame) -> None:
        size = max(stored_size(node, source), 1)
        if node.op in TENSOR_OF_EFFECT:
            where = frame.edges if per_edge(node, source) else frame.rows
            key = TENSOR_OF_EFFECT[node.op](node)
        elif node.op == "scatter_children":
            where, key = frame.edges, edge_key(node["field"], True)
        else:  # a vertex may have fewer slots than F: only where there is a child
            has = child_rows(frame, node["slot"]) >= 0
            where = (frame.buffers.schedule.edge_ptr[frame.rows] + node["slot"])[has]
            value = np.broadcast_to(value, (len(has), value.shape[1]))[has]
            key = edge_key(node["field"], False)
        frame.write(self.binding.tensors[key], size, where, value)


class ReferenceBackend:
    """NumPy, node by node.

    Args:
        turns: seed of the order in which the interpreter runs processors; None takes them in turn.
    """

    name = "reference"
    where = "reference"
    apart: frozenset[str] = frozenset()
    shares_graphs = False
    publishes = False
    most_scratch = 8 << 20

    def __init__(self, turns: int | None = None) -> None:
        self.turns = turns

    def alone(self) -> AbstractContextManager[object]:
        """Change nothing: the reference may use all threads of BLAS."""
        return nullcontext()

    def load(self, programs: list[TaskProgram], binding: Binding) -> ReferenceExecutable:
        """Take the task programs as they are."""
        return ReferenceExecutable(programs, binding)

    def update(self, update: StoreUpdate) -> None:
        """Evaluate the expressions of the rule."""
        finish(update)

    def written_for(self, processors: int) -> int:
        """Return 1 or 2: several are told how many they are."""
        return min(processors, 2)

    def load_segments(
        self,
        tasks: list[SegmentedTask],
        binding: Binding,
        processors: int,
        kinds: npt.NDArray[np.int64],
        rule: UpdateRule | None,
    ) -> Processors:
        """Take the segments as they are: an interpreter runs the scripts."""
        return ReferenceProcessors(tasks, binding, self.turns)
