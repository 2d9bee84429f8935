"""Verify task programs: whatever is read was written, by what ran before on the way to it.

A vertex runs the task programs of its two kinds, stage by stage. Each element of a tensor that one
of them reads must have been written by an earlier stage, in the rows of the vertex itself, of its
children or of its parents; within a task program each operand is made by an earlier step, which
leaves it where a later one finds it; and every effect of the program happens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from vertexrt.engine.variant import Kind, Variant
from vertexrt.errors import PlanError
from vertexrt.ir.ops import OPS
from vertexrt.ir.passes.fuse import Group, Product, TaskProgram, stored_inputs
from vertexrt.ir.passes.segment import SegmentedTask, Split
from vertexrt.ir.passes.store import TENSOR_OF_EFFECT, Key
from vertexrt.ir.pretty import format_node
from vertexrt.ir.program import Domain, Node, Program, Stage, slots_with_gradient
from vertexrt.kernels.task_tensors import by_rows, edge_key, gradients_of, per_edge, stored_size

TO_CHILDREN = ("scatter_child", "scatter_children")


def refuse(task: TaskProgram, k: int, got: str, expected: str) -> NoReturn:
    """Raise PlanError about a node of a task program."""
    where = f"stage {task.stage.word}, {format_node(k, task.program.nodes[k])}"
    raise PlanError.at("tasks", f"{where}: {got}", expected, "report this as a bug")


@dataclass(slots=True)
class WrittenElements:
    """What the stages of a vertex have written so far.

    Attributes:
        rows: key -> elements of a row, and whether rows are those of edges.
        slots: (field, slot, tensor of `edge_key`) of the edges that got a gradient; the slot of
            all children is -1.
    """

    rows: dict[Key, tuple[int, bool]] = field(default_factory=dict)
    slots: set[tuple[str, int, bool]] = field(default_factory=set)

    def write(self, key: Key, size: int, edges: bool) -> None:
        """Note that all elements of a row are written."""
        self.rows[key] = max(size, 1), edges

    def has(self, key: Key, start: int, size: int, width: int, edges: bool) -> bool:
        """Tell whether elements of a row of so many are there."""
        return self.rows.get(key) == (width, edges) and 0 <= start <= width - size


def verify_tasks(variant: Variant) -> None:
    """Check all task programs of a variant.

    Raises: PlanError, which names what is read, and the node that reads it.
    """
    for task in variant.tasks:
        _walk(task, task.steps, set())
    written: list[tuple[Kind, WrittenElements]] = []  # by lazy kind: it says which slots there are
    for lazy in variant.lazy_kinds.values():
        known = variant.atoms.on_path(lazy.bits)
        for path in variant.path_kinds.values():
            if path.bits == known:
                written.append((lazy, _verify_kind(variant, path, lazy)))
    keys = variant.pushes.keys
    for name in variant.use.outputs:
        if name in keys and any(keys[name] not in found.rows for _, found in written):
            raise PlanError.at(
                "tasks",
                f"vertices of a kind do not push {name!r}",
                "every push, of every vertex",
                "report this as a bug",
            )
    _verify_neighbours(variant, written)


def verify_segments(plan: SegmentedTask) -> None:
    """Check that what crosses from one segment to another is left where the reader finds it.

    Raises: PlanError, as `verify_tasks` does.
    """
    task, nodes = plan.task, plan.task.program.nodes
    made: dict[int, int] = {}
    done: set[int] = set()
    for number, segment in enumerate(plan.segments):
        _walk(task, segment.steps, done)
        for step in segment.steps:
            for k in step.nodes:
                for i in stored_inputs(nodes, step, k):
                    if (source := made.get(i, number)) == number or i in task.homes:
                        continue
                    splits = {segment.split, plan.segments[source].split}
                    alike = i in plan.whole or Split.SUMS not in splits
                    private = alike and not by_rows(task.stage)  # each processor has its own
                    if not (private and i in task.local):
                        got = f"%{i} of another segment has no tensor"
                        refuse(task, k, got, "a value to exchange")
        for k in segment.members:
            made.setdefault(k, number)


def _walk(task: TaskProgram, steps: Sequence[Group | Product], done: set[int]) -> None:
    """Follow steps; `done` has what earlier ones made."""
    nodes = task.program.nodes
    placed = {*task.homes, *task.local}
    for step in steps:
        own: set[int] = set()
        for k in step.nodes:
            for i in stored_inputs(nodes, step, k):
                if i in task.reads or i in own:
                    continue
                if i not in done:
                    refuse(task, k, f"reads %{i}", "an operand that an earlier step makes")
                if i not in placed:
                    refuse(task, k, f"reads %{i} of another step", "an operand kept in memory")
            own.add(k)
        done |= own


def _verify_kind(variant: Variant, path: Kind, lazy: Kind) -> WrittenElements:
    """Follow the stages of a vertex; return what it has written in the end."""
    written = WrittenElements()
    for stage in Stage:
        kind = lazy if stage in lazy.programs else path
        number = kind.programs[stage]
        task = variant.tasks[number] if number >= 0 else None
        _verify_effects(kind.stored.program, stage, task)
        if task is None:
            continue
        nodes = task.program.nodes
        for i, read in task.reads.items():
            size, edges = max(nodes[i].type.size, 1), nodes[i].type.domain == Domain.EDGE
            if not written.has(read.key, read.start, size, read.width, edges):
                reader = next(k for k in task.members if i in nodes[k].inputs)
                at = f"elements {read.start}..{read.start + size - 1} of {read.width} of {read.key}"
                refuse(task, reader, f"reads %{i} from {at}", "what an earlier stage has written")
        for k in task.members:
            node = nodes[k]
            if k in task.homes:
                written.write(task.homes[k], node.type.size, node.type.domain == Domain.EDGE)
            if node.op in TENSOR_OF_EFFECT:
                key, source = TENSOR_OF_EFFECT[node.op](node), nodes[node.inputs[0]]
                written.write(key, stored_size(node, source), per_edge(node, source))
            elif node.op in TO_CHILDREN:
                slot = -1 if node.op == TO_CHILDREN[1] else node["slot"]
                written.slots.add((node["field"], slot, node["every"]))
    return written


def _verify_effects(program: Program, stage: Stage, task: TaskProgram | None) -> None:
    """Check that a task program does all that its stage of a kind has to do."""
    effects = [n for n in program.nodes if n.stage == stage and OPS[n.op].role == "effect"]
    wanted = Counter(_effect(n) for n in effects)
    done = Counter[Key]()  # its effects, and tensors that are wanted
    if task is not None:
        for k in task.members:
            node = task.program.nodes[k]
            if OPS[node.op].role == "effect":
                done[_effect(node)] += 1
            done.update(("gradient", name) for name in gradients_of(task, k))
            if k in task.homes and task.homes[k] in wanted:
                done[task.homes[k]] += 1
    if wanted != done:
        missing, more = wanted - done, done - wanted
        text = f"left out: {list(missing)}; too much: {list(more)}"
        where, expected = f"stage {stage.word}: {text}", "every effect of the program once"
        raise PlanError.at("tasks", where, expected, "report this as a bug")


def _effect(node: Node) -> Key:
    if node.op in TENSOR_OF_EFFECT:
        return TENSOR_OF_EFFECT[node.op](node)
    if node.op == "param_grad":
        return ("gradient", node["name"])
    return (*edge_key(node["field"], node["every"]), node["slot"])


def _verify_neighbours(variant: Variant, found: Sequence[tuple[Kind, WrittenElements]]) -> None:
    """Check what a vertex reads of its children, and of the edges to its parents."""
    for task in variant.tasks:
        for k in task.members:
            node = task.program.nodes[k]
            if node.op in ("gather", "gather_all"):
                key, size = ("state", node["field"]), max(node.type.size, 1)
                # Of the kinds whose function has that field of the state.
                makers = {
                    n.function
                    for n in variant.program.nodes
                    if n.op == "scatter" and n["field"] == node["field"]
                }
                if not all(
                    written.has(key, 0, size, size, False)
                    for kind, written in found
                    if variant.atoms.function_of(kind.bits) in makers
                ):
                    refuse(task, k, f"children of a kind do not write {key}", "a state of all")
            elif node.op == "gather_parents":
                both, arity = node["slots"] and node["every"], variant.program.arity or 0
                for kind, written in found:
                    facts = variant.atoms.facts(kind.bits, variant.atoms.lazy)
                    wanted = {
                        (node["field"], slot, slot < 0 if both else node["every"])
                        for slot in slots_with_gradient(variant.program, facts.function, node)
                        if facts.slots.get(slot if slot >= 0 else arity, True)
                    }
                    if not wanted <= written.slots:
                        got = f"parents of a kind leave nothing in {sorted(wanted - written.slots)}"
                        refuse(task, k, got, "a gradient each")
