"""The pass `fuse`: groups are convex, and every value is made before it is read."""

from __future__ import annotations

from collections import Counter

import pytest

import vertexrt as vrt
from tests.functions import FUNCTIONS
from tests.runs import OFF, Way, use_of
from tests.strategies import pulls_for
from vertexrt.engine.variant import Passes
from vertexrt.ir.ops import OPS
from vertexrt.ir.passes.fuse import Group, TaskProgram
from vertexrt.ir.passes.store import is_free
from vertexrt.ir.program import Domain, Stage

# Fuse.


def tasks_of(name: str, passes: Passes = Passes()) -> list[TaskProgram]:  # noqa: B008
    """Compile every kind that a batch with many of them has, for both ways of training."""
    make, arity = FUNCTIONS[name]
    lists = [[], [], [0, 1][:arity], [2], [3, -1][:arity], [-1, 4][-arity:], [5]]
    graph = vrt.InputGraph.from_children(lists, pulls_for(len(lists), 4))
    model = Way(passes=passes).model(make())
    found = []
    for use in ("gradients", "training"):
        batch = vrt.GraphBatch.from_graphs([graph])
        (run,) = model.prepare(use_of(use, model.function), batch)
        found += run.variant.tasks
    return found


def check_steps(task: TaskProgram) -> None:
    """Check that steps can run one after another and together do the stage's work once."""
    nodes = task.program.nodes
    done: set[int] = set(task.reads)
    seen: Counter[int] = Counter()
    for step in task.steps:
        members = step.nodes if isinstance(step, Group) else (step.node,)
        for k in members:
            leaf = is_free(nodes[k])
            for i in nodes[k].inputs:
                assert i in done or is_free(nodes[i]), f"%{k} reads %{i} before it is made"
            if not leaf:
                seen[k] += 1
                assert nodes[k].stage == task.stage
                done.add(k)
            if isinstance(step, Group) and not leaf:
                summed = OPS[nodes[k].op].role == "segment" or nodes[k].op in ("sum_rows",)
                inside = nodes[k].type.domain in (step.domain, Domain.PARAM)
                assert inside or summed or OPS[nodes[k].op].role == "effect"
    assert set(seen.values()) <= {1}
    silent = {"scatter", "push", "keep", "pull_grad", "param_grad"}
    for k, node in enumerate(nodes):
        if node.stage == task.stage and OPS[node.op].role == "effect" and node.op not in silent:
            assert seen[k] == 1, f"effect %{k} is left out"


@pytest.mark.parametrize("name", FUNCTIONS)
def test_groups_are_convex(name: str) -> None:
    for task in tasks_of(name):
        check_steps(task)


def test_without_fusion_a_group_does_one_thing() -> None:
    for task in tasks_of("tree-lstm", OFF):
        check_steps(task)
        for step in task.steps:
            if isinstance(step, Group):
                work = [k for k in step.nodes if OPS[task.program.nodes[k].op].role != "effect"]
                assert sum(not is_free(task.program.nodes[k]) for k in work) <= 1


class Around(vrt.VertexFunction):
    """y = x * (W x), x elementwise: fusing x with y would put the product inside its own group."""

    def __init__(self) -> None:
        super().__init__(arity=1, state={"h": 3})
        self.w = vrt.Parameter((3, 3))

    def forward(self) -> None:
        x = vrt.tanh(self.gather(0).h + 1.0)
        h = vrt.sigmoid(x * (self.w @ x))
        self.scatter(h=h)
        self.push("h", h)


def test_a_product_between_elementwise_ops_splits_their_group() -> None:
    model = Way().model(Around())
    chain = vrt.GraphBatch.from_graphs([vrt.InputGraph.chain(3)])
    (run,) = model.prepare(use_of("inference", model.function), chain)
    (task,) = [t for t in run.variant.tasks if t.stage == Stage.PATH and t.program.find("gather")]
    check_steps(task)
    nodes = task.program.nodes
    before, product, after = task.steps
    assert isinstance(before, Group)
    assert isinstance(after, Group)
    assert not isinstance(product, Group)
    assert "tanh" in {nodes[k].op for k in before.nodes}
    assert {"mul", "sigmoid"} <= {nodes[k].op for k in after.nodes}
    assert nodes[product.node].inputs[1] in task.local


def test_a_leaf_stands_in_every_group_that_reads_it() -> None:
    """The bias of `max-mean` is read per child and per vertex: no group may be without it."""
    for task in tasks_of("max-mean"):
        for step in task.steps:
            for k in step.nodes if isinstance(step, Group) else ():
                for i in task.program.nodes[k].inputs:
                    if is_free(task.program.nodes[i]) and i not in task.local:
                        assert i in step.nodes
