"""The verifier of task programs finds each way of reading what nobody has written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import vertexrt as vrt
from tests.functions import FUNCTIONS
from tests.paper_device import on_paper
from tests.pure.test_store import NestedParts, batch
from tests.runs import Way, use_of
from tests.strategies import pulls_for
from vertexrt.engine.variant import Variant
from vertexrt.engine.verify_tasks import verify_segments, verify_tasks
from vertexrt.errors import PlanError
from vertexrt.ir.passes.fuse import Group, TaskProgram
from vertexrt.ir.passes.segment import segment_tasks
from vertexrt.ir.passes.store import Read
from vertexrt.ir.program import Stage
from vertexrt.kernels.reference.backend import ReferenceExecutable
from vertexrt.lower.lowering import lower

GRAPH = [[], [], [0, 1], [2, 0], [-1, 3], [4, -1]]


def variant_of(function: vrt.VertexFunction, use: str, graphs: vrt.GraphBatch) -> Variant:
    model = Way().model(function)
    (run,) = model.prepare(use_of(use, model.function), graphs)
    return run.variant


def compiled(name: str = "tree-lstm") -> Variant:
    """Return what is compiled to train."""
    make, arity = FUNCTIONS[name]
    graph = vrt.InputGraph.from_children([c[:arity] for c in GRAPH], pulls_for(len(GRAPH), 4))
    return variant_of(make(), "training", vrt.GraphBatch.from_graphs([graph]))


def nested() -> Variant:
    return variant_of(NestedParts(), "training", batch([[], [0], [1]], ("x",)))


class ReadsTheStateBefore(vrt.VertexFunction):
    """The loss reads a field of the state before, which no other gradient goes through."""

    def __init__(self) -> None:
        super().__init__(arity=1, state={"h": 4, "m": 4})
        self.w = vrt.Parameter((4, 4))

    def forward(self) -> None:
        before = self.gather(0)
        h = vrt.tanh(self.w @ before.h + self.pull("x", (4,)))
        self.scatter(h=h, m=h * self.pull("x", (4,)))
        self.push("loss", vrt.sum((before.m - h) * (before.m - h)))


@pytest.mark.parametrize("processors", [1, 2])
def test_first_vertices_of_chains_leave_no_gradient(processors: int) -> None:
    """They are of the path kind of the others, whose children get one."""
    rng = np.random.default_rng(0)
    chains = [vrt.InputGraph.chain(n, {"x": rng.standard_normal((n, 4))}) for n in (3, 1)]
    net = on_paper(ReadsTheStateBefore(), processors)
    model = net.executor.model
    graphs = vrt.GraphBatch.from_graphs(chains)
    (run,) = model.prepare(use_of("training", model.function), graphs)
    verify_tasks(run.variant)


def change(variant: Variant, number: int, **fields: Any) -> None:
    variant.tasks[number] = replace(variant.tasks[number], **fields)


def refused(variant: Variant, text: str) -> None:
    with pytest.raises(PlanError, match=text):
        verify_tasks(variant)


def where(variant: Variant, wanted: Callable[[TaskProgram], object]) -> int:
    """Return the first task program with which something can be done."""
    return next(k for k, task in enumerate(variant.tasks) if wanted(task))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_the_compiler_makes_is_accepted(name: str) -> None:
    variant = compiled(name)
    verify_tasks(variant)
    for alone in (True, False):
        for whole in (True, False):
            for plan in segment_tasks(variant.tasks, alone, whole):
                verify_segments(plan)


def test_a_part_read_from_the_own_tensor_of_a_concat_that_lies_in_another() -> None:
    """The table as it was before it followed concats into concats."""
    variant = nested()
    verify_tasks(variant)
    for number, task in enumerate(variant.tasks):
        nodes, reads = task.program.nodes, dict(task.reads)
        for i, read in task.reads.items():
            for whole in (n for n in nodes if n.op == "concat" and i in n.inputs):
                if read.key not in (("value", whole.origin), ("value", nodes[i].origin)):
                    before = whole.inputs[: whole.inputs.index(i)]
                    start = sum(nodes[j].type.size for j in before)
                    reads[i] = Read(("value", whole.origin), start, whole.type.size)
        if reads != task.reads:
            change(variant, number, reads=reads)
            refused(variant, r"reads %\d+ from elements 0..3 of 8 of \('value', \d+\)")
            return
    pytest.fail("no part of a part is read")


def test_an_offset_outside_of_what_was_written() -> None:
    variant = compiled("gru")
    number = where(variant, lambda t: any(r.start for r in t.reads.values()))
    reads = {
        i: replace(r, start=r.start + r.width) if r.start else r
        for i, r in variant.tasks[number].reads.items()
    }
    change(variant, number, reads=reads)
    refused(variant, r"reads %\d+ from elements \d+..\d+ of")


def test_rows_of_another_width() -> None:
    variant = compiled()
    number = where(variant, lambda t: t.reads)
    reads = {i: replace(r, width=r.width + 1) for i, r in variant.tasks[number].reads.items()}
    change(variant, number, reads=reads)
    refused(variant, "what an earlier stage has written")


@pytest.mark.parametrize("tensor", ["value", "state"])
def test_a_value_that_is_not_kept(tensor: str) -> None:
    variant = compiled()
    number = where(variant, lambda t: any(key[0] == tensor for key in t.homes.values()))
    homes = {i: key for i, key in variant.tasks[number].homes.items() if key[0] != tensor}
    change(variant, number, homes=homes)
    refused(variant, r"left out: \[\('" + tensor)


def test_a_stage_that_is_left_out() -> None:
    variant = compiled()
    for kind in variant.path_kinds.values():
        kind.programs[Stage.PATH_BACKWARD] = -1
    refused(variant, r"stage path': left out: .*every effect of the program once")


def test_steps_in_another_order() -> None:
    variant = compiled()
    number = where(variant, lambda t: t.stage == Stage.PATH and len(t.steps) > 2)
    change(variant, number, steps=variant.tasks[number].steps[::-1])
    refused(variant, r"reads %\d+; an operand that an earlier step makes")


def test_nodes_of_a_group_in_another_order() -> None:
    variant = compiled()
    number = where(variant, lambda t: t.stage == Stage.PATH and t.reads)
    steps = [
        replace(s, nodes=s.nodes[::-1]) if isinstance(s, Group) else s
        for s in variant.tasks[number].steps
    ]
    change(variant, number, steps=tuple(steps))
    refused(variant, r"reads %\d+; an operand that an earlier step makes")


def test_an_operand_that_is_nowhere_in_memory() -> None:
    variant = compiled()
    number = where(variant, lambda t: t.stage == Stage.PATH and t.local)
    change(variant, number, local=frozenset())
    refused(variant, r"reads %\d+ of another step; an operand kept in memory")


def test_a_gradient_that_no_step_makes() -> None:
    variant = compiled()

    def sums(task: TaskProgram) -> bool:
        return any(not isinstance(s, Group) and is_sum(task, s.node) for s in task.steps)

    def is_sum(task: TaskProgram, k: int) -> bool:
        return task.program.nodes[k].op == "outer"

    number = where(variant, sums)
    task = variant.tasks[number]
    kept = [s for s in task.steps if isinstance(s, Group) or not is_sum(task, s.node)]
    change(variant, number, steps=tuple(kept))
    refused(variant, r"left out: \[\('gradient', ")


def test_children_of_a_kind_without_a_state() -> None:
    variant = variant_of(NestedParts(), "inference", batch([[], [0], [1]], ("x",)))
    kind = next(iter(variant.path_kinds.values()))
    program = kind.stored.program
    fewer = [n for n in program.nodes if n.op != "scatter"]
    kind.stored = replace(kind.stored, program=program.with_nodes(fewer))
    for stage, number in kind.programs.items():
        if number >= 0 and "state" in {key[0] for key in variant.tasks[number].homes.values()}:
            kind.programs[stage] = -1
    refused(variant, r"children of a kind do not write \('state', 'h'\)")


def test_parents_that_leave_no_gradient() -> None:
    variant = compiled()
    kind = next(k for k in variant.path_kinds.values() if k.bits & 1)
    program = kind.stored.program
    fewer = [n for n in program.nodes if n.op != "scatter_child"]
    kind.stored = replace(kind.stored, program=program.with_nodes(fewer))
    number = kind.programs[Stage.PATH_BACKWARD]
    task = variant.tasks[number]
    steps = []
    for s in task.steps:
        if isinstance(s, Group):
            s = replace(
                s, nodes=tuple(k for k in s.nodes if task.program.nodes[k].op != "scatter_child")
            )
        steps.append(s)
    variant.tasks.append(replace(task, steps=tuple(steps)))
    kind.programs[Stage.PATH_BACKWARD] = len(variant.tasks) - 1
    refused(variant, r"parents of a kind leave nothing in \[\('")


def test_a_value_between_segments_that_is_not_exchanged() -> None:
    plans = segment_tasks(compiled("gru").tasks)
    plan = next(p for p in plans if any(key[0] == "exchange" for key in p.task.homes.values()))
    homes = {i: key for i, key in plan.task.homes.items() if key[0] != "exchange"}
    broken = replace(plan, task=replace(plan.task, homes=homes))
    with pytest.raises(PlanError, match=r"an operand kept in memory|a value to exchange"):
        verify_segments(broken)


class PulledOperand(vrt.VertexFunction):
    """A product of what is pulled."""

    def __init__(self) -> None:
        super().__init__(arity=1, state={})
        self.w = vrt.Parameter((8, 4))

    def forward(self) -> None:
        self.push("loss", vrt.sum(self.w @ self.pull("x", (4,))))


def test_rows_that_are_pulled_for_a_product_of_another_segment_are_exchanged() -> None:
    """Processors may own other rows in the next segment: they share out what each costs."""
    net = Way().compile(PulledOperand())
    net(batch([[], []], ("x",)))
    (variant,) = net.executor.model.variants.values()
    (plan,) = segment_tasks(variant.tasks, whole=False)
    verify_segments(plan)
    pulled = next(k for k, n in enumerate(plan.task.program.nodes) if n.op == "pull")
    assert plan.task.homes[pulled][0] == "exchange"
    homes = {i: key for i, key in plan.task.homes.items() if i != pulled}
    broken = replace(plan, task=replace(plan.task, homes=homes, local=frozenset({pulled})))
    with pytest.raises(PlanError, match="a value to exchange"):
        verify_segments(broken)


def test_what_nobody_writes_is_not_a_number_and_not_what_was_there_before() -> None:
    net = Way().compile(NestedParts())
    graphs = batch([[], [0], [1]], ("x",))
    assert np.isfinite(net(graphs)["loss"]).all()
    (variant,) = net.executor.model.variants.values()
    executable = variant.ready().executable
    assert isinstance(executable, ReferenceExecutable)
    executable.kernels = [lower(_without_states(t), variant.binding) for t in variant.tasks]
    found = net(graphs)["loss"]
    assert np.isfinite(found[0])  # it has no child
    assert np.isnan(found[1:]).all()


def _without_states(task: TaskProgram) -> TaskProgram:
    """Let a task program leave no state behind."""
    return replace(task, homes={i: key for i, key in task.homes.items() if key[0] != "state"})
