"""The `reference` backend: kernels under interpretation in NumPy.

They are lowered as those of a CPU are, and read and write the same tensors. `watch` sees every
value; that is how the origin of a NaN is found.
"""

from __future__ import annotations

import math
import sys
from functools import partial

import numpy as np
import numpy.typing as npt

from vertexrt.ir.passes.fuse import Product, TaskProgram
from vertexrt.ir.passes.segment import SegmentedTask
from vertexrt.ir.program import Node, relation_of
from vertexrt.ir.updates import UpdateRule
from vertexrt.kernels.backend import Processors, Watch
from vertexrt.kernels.cpu.costs import HostCosts
from vertexrt.kernels.layout import Array, Binding, Buffers, temporaries
from vertexrt.kernels.reference.interpret import Elements, Interpreter, LaunchedRows, Points
from vertexrt.kernels.reference.processors import ReferenceProcessors
from vertexrt.kernels.store_update import (
    FOUND_DONE,
    FOUND_NORM,
    FOUND_TRIED,
    StoreUpdate,
    elements,
    factor,
    moved_at,
)
from vertexrt.kernels.task_tensors import gradients_of
from vertexrt.kernels.ways import Configuration, Work
from vertexrt.lower.lowering import lower
from vertexrt.lower.verify import verify
from vertexrt.native.at_once import write_at_once
from vertexrt.scheduler.batch_shape import BatchShape


class ReferenceExecutable:
    """Kernels of task programs under interpretation.

    Attributes:
        watch: sees what each step makes: steps of one node, where nothing is fused.
    """

    blas_above = sys.maxsize  # NumPy's products are not kept to one thread

    def __init__(self, programs: list[TaskProgram], binding: Binding) -> None:
        self.kernels = [verify(lower(program, binding)) for program in programs]
        self.scratch = [kernel.needs for kernel in self.kernels]
        self.watch: Watch | None = None
        self._nodes = [_node_of_each_step(program) for program in programs]

    def run(self, table: npt.NDArray[np.int64], buffers: Buffers) -> None:
        """Run the launches of a table in order."""
        arena, gradients = Elements(buffers.arena), Elements(buffers.gradients)
        for number, *columns in table.tolist():
            launch = LaunchedRows(*(*columns, buffers.temporary))
            kernel = self.kernels[number]
            size = temporaries(kernel.needs, launch.rows, launch.edges)
            buffers.arena[buffers.temporary : buffers.temporary + size] = np.nan
            running = Interpreter(kernel, launch, buffers, arena, gradients)
            for step, made in zip(running.steps, self._nodes[number], strict=True):
                if self.watch:
                    running.seen = partial(_show, self.watch, made, running)
                running.step(step)


def _node_of_each_step(task: TaskProgram) -> list[tuple[Node, int]]:
    """Return the last node of each step of a task's kernel: what it reads comes before it.

    Returns: the node, and the relation of its edges, where it is of edges.
    """
    nodes, found = task.program.nodes, []
    for step in task.steps:
        steps = max(1, len(gradients_of(task, step.node))) if isinstance(step, Product) else 1
        last = max(step.nodes)
        found += [(nodes[last], relation_of(nodes, last))] * steps
    return found


def _show(
    watch: Watch, made: tuple[Node, int], running: Interpreter, value: Array, at: Points | None
) -> None:
    """Hand values to what watches them: those of edges only where there is a child."""
    node, relation = made
    if at is None:
        watch(node, value.reshape(1, -1), np.zeros(0, np.int64))
        return
    if len(at.edge):
        child = running.child(-1, at, relation) >= 0
        value, at = value[child], at.of(child)
    watch(node, value, running.vertex(at))


INTERPRETED = 60.0  # seconds: what runs scripts in NumPy is never chosen, only asked for


class ReferenceBackend(HostCosts):
    """Kernels interpreted in NumPy.

    Args:
        turns: seed of the order in which the interpreter runs processors; None takes them in turn.
    """

    name = "reference"
    where = "reference"
    publishes = False

    def __init__(self, turns: int | None = None) -> None:
        self.turns = turns

    def seconds(self, way: Configuration, work: Work, batch: BatchShape) -> float:
        """Predict what a way takes."""
        return super().seconds(way, work, batch) + (INTERPRETED if way.persistent else 0)

    def load(self, programs: list[TaskProgram], binding: Binding) -> ReferenceExecutable:
        """Lower."""
        return ReferenceExecutable(programs, binding)

    def apply_update(self, update: StoreUpdate) -> None:
        """Do an update: nothing changes unless the norm and all that would be written are finite.

        It makes what the loops of other backends must make, in the same order of roundings: all
        elements that a step updates are gathered, moved and, if all are finite, written back.
        """
        e, groups = update, elements(update)
        gradients = e.gradients[np.concatenate(groups)].astype(np.float64)
        norm = float(np.linalg.norm(gradients)) if e.clip_norm > 0.0 else 0.0
        e.found[FOUND_NORM] = norm
        if not math.isfinite(norm):
            return
        e.found[FOUND_TRIED] = 1.0
        scale = factor(norm, e.clip_norm)
        made = [moved_at(e, at, scale, own) for at, own in zip(groups, e.scalars, strict=True)]
        if all(np.isfinite(numbers).all() for each in made for numbers in each):
            whole = [array.copy() for array in (e.values, e.moments, e.gradients)]
            for at, (values, state) in zip(groups, made, strict=True):
                whole[0][at], whole[1][:, at], whole[2][at] = values, state, 0.0
            pairs = zip((e.values, e.moments, e.gradients), whole, strict=True)
            e.found[FOUND_DONE] = 1.0
            write_at_once([*pairs, *((count, count + 1) for count in e.counts)])

    def made_by(self, program: TaskProgram, binding: Binding) -> list[str]:
        """Say nothing: NumPy makes products."""
        return []

    def text(self, program: TaskProgram, binding: Binding, name: str) -> str:
        """Print the kernel IR, which has no functions."""
        return str(lower(program, binding))

    def load_segments(
        self,
        tasks: list[SegmentedTask],
        binding: Binding,
        processors: int,
        rule: UpdateRule | None,
    ) -> Processors:
        """Lower segments: an interpreter runs the scripts."""
        return ReferenceProcessors(tasks, binding, self.turns)
