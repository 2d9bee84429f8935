"""What is decided of a task of the path before its kernel is written: steps and places."""

from __future__ import annotations

import pytest

from tests.runs import Way, use_of
from tests.strategies import CLASSES, WORDS
from vertexrt.graph import GraphBatch, InputGraph
from vertexrt.ir.passes.segment import segment_tasks
from vertexrt.ir.program import Node, Stage
from vertexrt.kernels.cuda.path import lower_task
from vertexrt.kernels.cuda.path_products import read_width
from vertexrt.kernels.cuda.path_steps import products_in, readers_of
from vertexrt.kernels.cuda.path_task import PathTask, plan_task
from vertexrt.kernels.cuda.thread_groups import RowScratch, place_members
from vertexrt.lower.kernel import Memory, PlaceRows
from vertexrt.lower.lowering import Memories, ValuePlaces
from vertexrt.lower.thread_loops import DraftKernel
from vertexrt.models import TreeLSTM

VECTOR = 4
TREE = [[], [], [0, 1]]
PULLS = {"word": [1, 2, -1], "label": [0, 1, 2]}


def planned(hidden: int, processors: int) -> PathTask:
    """Return the plan of the forward path of a Tree-LSTM's inner vertices."""
    model = Way().model(TreeLSTM(WORDS, hidden, hidden, CLASSES))
    batch = GraphBatch.from_graphs([InputGraph.from_children(TREE, PULLS)])
    (run,) = model.prepare(use_of("training", model.function), batch)
    plans = segment_tasks(run.variant.tasks, alone=processors == 1)
    (plan,) = (x for x in plans if x.task.stage == Stage.PATH and x.gathers)
    return plan_task(plan, run.variant.binding, VECTOR, processors)


def products(task: PathTask) -> list[Node]:
    """Return the products in the order of the steps."""
    return [task.nodes[k] for each in task.steps for step in each for k in products_in(step)]


def test_products_read_sums_of_states_themselves() -> None:
    task = planned(8, 2)
    found = products(task)
    assert len(found) == 2
    assert task.inlined == {node.inputs[1] for node in found}
    assert {task.nodes[k].op for k in task.inlined} == {"add", "concat"}
    assert task.inlined.isdisjoint(task.whole)
    assert len(products_in(task.steps[0][0])) == 2, "nothing is made before them"


@pytest.mark.parametrize(("hidden", "width"), [(8, 4), (6, 2), (7, 1)])
def test_products_read_the_widest_pieces_that_divide_a_row(hidden: int, width: int) -> None:
    task = planned(hidden, 2)
    assert task.inlined, "rows of any length are read where children left them"
    (segment, *_) = lower_task(task).segments
    assert segment.products
    assert {x.operand.width for x in segment.products} == {width}


def test_rows_in_memory_are_read_as_wide_as_they_begin() -> None:
    assert read_width(12, VECTOR, 16, 8) == 4
    assert read_width(12, VECTOR, 16, 6) == 2
    assert read_width(10, VECTOR, 16, 8) == 2, "a row ends where a read does"
    assert read_width(12, VECTOR, 16, 5) == 1
    assert read_width(12, 2, 6, 2) == 4, "float64: two loads of 16 bytes"


@pytest.mark.parametrize("processors", [1, 2, 3])
def test_groups_add_up_partial_sums(processors: int) -> None:
    """Of 8 elements, of which three processors own two or three each, too."""
    task = planned(8, processors)
    made = [k for each in task.steps for step in each for k in products_in(step)]
    assert made
    for k in made:
        assert task.place[k].memory == Memory.SUMS
        assert readers_of(task.plan, k), "something reads it"
    assert task.temporaries.elements == (0, 0, 0)


def test_temporaries_lie_one_after_another() -> None:
    temporaries = Memories()
    first, second, edge = (
        temporaries.temporary(5, False),
        temporaries.temporary(3, False, stride=8),
        temporaries.temporary(0, True),
    )
    places = [temporaries.taken[x.number] for x in (first, second, edge)]
    assert [(x.rows, x.edges) for x in places] == [(0, 0), (5, 0), (13, 0)]
    assert (first.step, second.step, edge.size, edge.rows) == (5, 8, 1, PlaceRows.LOCAL_EDGE)
    assert temporaries.elements == (13, 1, 0)


def test_a_value_that_needs_memory_gets_a_temporary_where_scratch_is_full() -> None:
    task = planned(8, 1)
    values = ValuePlaces(task.nodes, task.binding)
    value = next(k for k, node in enumerate(task.nodes) if node.type.size == 8)
    draft = DraftKernel(in_memory=[value])
    for taken, memory in ((0, Memory.SCRATCH), (4089, Memory.TEMPORARY)):
        memories, scratch = Memories(), RowScratch(4096, taken)
        place = place_members(draft, values, memories, scratch)
        assert place[value].memory == memory
        assert memories.rows == (8 if memory == Memory.TEMPORARY else 0)
