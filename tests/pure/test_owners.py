"""Each element of a gradient has one owner among processors, whichever ops add to it."""

from collections.abc import Callable
from dataclasses import replace

import pytest

import vertexrt as vrt
from tests.functions import E, Looked, StackedAndAlone
from vertexrt.engine.kinds import add_lazy_kind, add_path_kind
from vertexrt.engine.variant import Passes, Use, make_variant
from vertexrt.errors import PlanError
from vertexrt.ir.passes.fuse import Group
from vertexrt.ir.passes.place import place
from vertexrt.ir.passes.segment import Segment, SegmentedTask, Split, rows_in_storage, segment_tasks
from vertexrt.ir.passes.stack import stack_parameters
from vertexrt.kernels.reference.backend import ReferenceBackend
from vertexrt.script.verify import verify_sums


def tasks_of(make: Callable[[], vrt.VertexFunction]) -> list[SegmentedTask]:
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


def test_a_table_that_is_only_looked_up_in_is_shared_out_by_columns() -> None:
    tasks = tasks_of(lambda: Looked(False))
    verify_sums(tasks)
    assert {name for task in tasks for name in task.by_columns} == {"embedding"}


def test_a_table_that_is_also_multiplied_is_shared_out_by_rows() -> None:
    tasks = tasks_of(lambda: Looked(True))
    verify_sums(tasks)
    assert not any(task.by_columns for task in tasks)


def test_two_owners_of_a_gradient_are_found() -> None:
    tasks = [
        replace(t, by_columns=frozenset({"embedding"})) for t in tasks_of(lambda: Looked(True))
    ]
    with pytest.raises(PlanError, match=r"(?s)FINAL adds to the gradient of 'embedding'.*columns"):
        verify_sums(tasks)


def test_a_sum_split_by_the_rows_of_a_task_is_found() -> None:
    broken = [
        replace(task, segments=tuple(Segment(Split.ROWS, s.steps) for s in task.segments))
        for task in tasks_of(lambda: Looked(False))
    ]
    with pytest.raises(PlanError, match="rows of the task"):
        verify_sums(broken)


def test_rows_of_a_stack_belong_to_who_owns_them_in_the_stack() -> None:
    tasks = tasks_of(StackedAndAlone)
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
