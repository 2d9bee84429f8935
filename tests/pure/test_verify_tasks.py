"""The verifiers of task programs: what nobody has written is never read, sums have one owner."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import vertexrt as vrt
from tests.declared import Declared
from tests.functions import FUNCTIONS, E, Looked, StackedAndAlone
from tests.paper_device import on_paper
from tests.pure.test_store import NestedParts, batch
from tests.runs import Way, use_of
from tests.strategies import pulls_for
from vertexrt.engine.kinds import add_lazy_kind, add_path_kind
from vertexrt.engine.variant import Passes, Use, Variant, make_variant
from vertexrt.engine.verify_tasks import verify_segments, verify_tasks
from vertexrt.errors import PlanError
from vertexrt.ir.passes.fuse import Group, TaskProgram
from vertexrt.ir.passes.place import place
from vertexrt.ir.passes.segment import Segment, SegmentedTask, Split, rows_in_storage, segment_tasks
from vertexrt.ir.passes.stack import stack_parameters
from vertexrt.ir.program import Stage
from vertexrt.kernels.reference.backend import ReferenceBackend, ReferenceExecutable
from vertexrt.lower.lowering import lower
from vertexrt.script.verify import verify_sums

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


class ReadsTheStateBefore(Declared, arity=1, state={"h": 4, "m": 4}, w=(4, 4)):
    """The loss reads a field of the state before, which no other gradient goes through."""

    def forward(self) -> None:
        before = self.gather(0)
        h = vrt.tanh(self.w @ before.h + self.pull("x", (4,)))
        self.scatter(h=h, m=h * self.pull("x", (4,)))
        self.push("loss", vrt.sum((before.m - h) * (before.m - h)))


def test_first_vertices_of_chains_leave_no_gradient() -> None:
    """They are of the path kind of the others, whose children get one."""
    chains = [vrt.InputGraph.chain(n, {"x": np.ones((n, 4))}) for n in (3, 1)]
    model = on_paper(ReadsTheStateBefore(), 2).executor.model
    use = use_of("training", model.function)
    (run,) = model.prepare(use, vrt.GraphBatch.from_graphs(chains))
    verify_tasks(run.variant)


def refused(variant: Variant, text: str) -> None:
    with pytest.raises(PlanError, match=text):
        verify_tasks(variant)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_the_compiler_makes_is_accepted(name: str) -> None:
    variant = compiled(name)
    verify_tasks(variant)
    for alone in (True, False):
        for whole in (True, False):
            for plan in segment_tasks(variant.tasks, alone, whole):
                verify_segments(plan)


def homes(task: TaskProgram, left_out: str) -> dict[int, Any]:
    """Return what is kept, without one kind of tensor."""
    return {i: key for i, key in task.homes.items() if key[0] != left_out}


def kept(task: TaskProgram, dropped: str) -> tuple[Any, ...]:
    """Return steps whose groups leave out one op."""
    nodes = task.program.nodes
    return tuple(
        replace(s, nodes=tuple(k for k in s.nodes if nodes[k].op != dropped))
        if isinstance(s, Group)
        else s
        for s in task.steps
    )


def left_out(task: TaskProgram) -> Iterator[dict[str, Any]]:
    """Yield a task program's fields without one entry, or with a read of wider rows."""
    for field in ("reads", "homes"):
        entries = getattr(task, field)
        for key, entry in entries.items():
            others = {k: each for k, each in entries.items() if k != key}
            yield {field: others}
            if field == "reads":
                yield {field: {**others, key: replace(entry, width=entry.width + 1)}}
    for k in range(len(task.steps)):
        yield {"steps": task.steps[:k] + task.steps[k + 1 :]}
    for k in task.local:
        yield {"local": task.local - {k}}


SAID = [
    r"reads %\d+ from elements \d+..\d+ of \d+ of .*what an earlier stage has written",
    r"reads %\d+ of another step; an operand kept in memory",
    r"reads %\d+; an operand that an earlier step makes",
    *(rf"left out: .*\('{kind}', .*every effect of" for kind in ("value", "state", "gradient")),
]


@pytest.mark.parametrize("make", [nested, lambda: compiled("gru")])
def test_each_entry_of_a_task_program_is_verified(make: Callable[[], Variant]) -> None:
    variant, said = make(), []
    for number, task in enumerate(list(variant.tasks)):
        for fields in left_out(task):
            variant.tasks[number] = replace(task, **fields)
            with pytest.raises(PlanError) as caught:
                verify_tasks(variant)
            said.append(str(caught.value))
        variant.tasks[number] = task
    verify_tasks(variant)
    for text in SAID:
        assert any(re.search(text, each) for each in said), text


# What becomes of the steps of the path.
OTHER_ORDERS: list[Callable[[Any], Any]] = [
    lambda steps: steps[::-1],
    lambda steps: tuple(
        replace(s, nodes=s.nodes[::-1]) if isinstance(s, Group) else s for s in steps
    ),
]


@pytest.mark.parametrize("change", OTHER_ORDERS)
def test_an_order_in_which_operands_come_late_is_caught(change: Callable[[Any], Any]) -> None:
    variant = compiled()
    number = next(k for k, t in enumerate(variant.tasks) if t.stage == Stage.PATH and t.steps[1:])
    task = variant.tasks[number]
    variant.tasks[number] = replace(task, steps=change(task.steps))
    refused(variant, r"reads %\d+; an operand that an earlier step makes")


def test_a_stage_that_is_left_out() -> None:
    variant = compiled()
    for kind in variant.path_kinds.values():
        kind.programs[Stage.PATH_BACKWARD] = -1
    refused(variant, r"stage path': left out: .*every effect of the program once")


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
    task = variant.tasks[kind.programs[Stage.PATH_BACKWARD]]
    variant.tasks.append(replace(task, steps=kept(task, "scatter_child")))
    kind.programs[Stage.PATH_BACKWARD] = len(variant.tasks) - 1
    refused(variant, r"parents of a kind leave nothing in \[\('")


def test_a_value_between_segments_that_is_not_exchanged() -> None:
    plans = segment_tasks(compiled("gru").tasks)
    plan = next(p for p in plans if any(key[0] == "exchange" for key in p.task.homes.values()))
    broken = replace(plan, task=replace(plan.task, homes=homes(plan.task, "exchange")))
    with pytest.raises(PlanError, match=r"an operand kept in memory|a value to exchange"):
        verify_segments(broken)


class PulledOperand(Declared, arity=1, state={}, w=(8, 4)):
    """A product of what is pulled."""

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
    others = {i: key for i, key in plan.task.homes.items() if i != pulled}
    broken = replace(plan, task=replace(plan.task, homes=others, local=frozenset({pulled})))
    with pytest.raises(PlanError, match="a value to exchange"):
        verify_segments(broken)


def test_what_nobody_writes_is_not_a_number_and_not_what_was_there_before() -> None:
    net = Way().compile(NestedParts())
    graphs = batch([[], [0], [1]], ("x",))
    assert np.isfinite(net(graphs)["loss"]).all()
    (variant,) = net.executor.model.variants.values()
    executable = variant.ready().executable
    assert isinstance(executable, ReferenceExecutable)
    lost = [replace(task, homes=homes(task, "state")) for task in variant.tasks]
    executable.kernels = [lower(task, variant.binding) for task in lost]
    found = net(graphs)["loss"]
    assert np.isfinite(found[0])  # it has no child
    assert np.isnan(found[1:]).all()


# Each element of a gradient has one owner among processors, whichever ops add to it.


def segmented(make: Callable[[], vrt.VertexFunction]) -> list[SegmentedTask]:
    """Segment training of a function, for a vertex with everything."""
    function = stack_parameters(place(make().trace()))
    params = [*function.params, *("+".join(names) for names in function.stacks)]
    backend = ReferenceBackend()
    variant = make_variant(
        function, Use(frozenset({"loss"}), loss=True), backend, params, Passes(), 2
    )
    add_path_kind(variant, 7)
    add_lazy_kind(variant, 7)
    return segment_tasks(variant.tasks)


@pytest.mark.parametrize(("multiplied", "by_columns"), [(False, {"embedding"}), (True, set())])
def test_a_table_is_shared_out_by_columns_unless_it_is_multiplied(
    multiplied: bool, by_columns: set[str]
) -> None:
    tasks = segmented(lambda: Looked(multiplied))
    verify_sums(tasks)
    assert {name for task in tasks for name in task.by_columns} == by_columns


def test_two_owners_of_a_gradient_are_found() -> None:
    tasks = [
        replace(t, by_columns=frozenset({"embedding"})) for t in segmented(lambda: Looked(True))
    ]
    with pytest.raises(PlanError, match=r"(?s)FINAL adds to the gradient of 'embedding'.*columns"):
        verify_sums(tasks)


def test_a_sum_split_by_the_rows_of_a_task_is_found() -> None:
    broken = [
        replace(task, segments=tuple(Segment(Split.ROWS, s.steps) for s in task.segments))
        for task in segmented(lambda: Looked(False))
    ]
    with pytest.raises(PlanError, match="rows of the task"):
        verify_sums(broken)


def test_rows_of_a_stack_belong_to_who_owns_them_in_the_stack() -> None:
    tasks = segmented(StackedAndAlone)
    verify_sums(tasks)
    sums = [
        (node["name"], task.task.program)
        for task in tasks
        for segment in task.segments
        if segment.split == Split.SUMS
        for step in segment.steps
        if not isinstance(step, Group)
        for node in task.task.program.nodes
        if node.op == "param_grad" and node.inputs[0] == step.node
    ]
    assert {name: rows_in_storage(program, name) for name, program in sums} == {
        "w+u": (0, 3 * E),
        "u": (2 * E, 3 * E),
    }
