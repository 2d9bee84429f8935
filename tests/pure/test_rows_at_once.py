"""How many rows products of the path take at a time: as many as shared memory has room for."""

from __future__ import annotations

import pytest

from tests.functions import GRU
from tests.runs import Way, use_of
from vertexrt.graph import GraphBatch, InputGraph
from vertexrt.ir.passes.segment import segment_tasks
from vertexrt.kernels.cuda.path import lower_path
from vertexrt.kernels.cuda.placed_path import phases_of, place_path, room_of, tasks_of
from vertexrt.kernels.cuda.ring_uses import LoweredTask
from vertexrt.kernels.cuda.rows_at_once import (
    CHOICES,
    MOST_OF_A_CLUSTER,
    choose_rows,
    take_rows,
    temporaries_of,
)
from vertexrt.kernels.cuda.segments import PartialSums, RowsAtATime
from vertexrt.kernels.cuda.verify_segments import verify_segments
from vertexrt.kernels.cuda.weight_layout import TILE_ROWS
from vertexrt.kernels.cuda.weights import Budget, Misfit

VECTOR, LARGE = 4, 2 * MOST_OF_A_CLUSTER


def lowered(processors: int) -> dict[int, LoweredTask]:
    """Lower the path of a GRU, which has products that are stored and products that are not."""
    model = Way().model(GRU())
    pulls = {"word": [1, 2, -1, 3, -1], "label": [0, 1, 2, 0, 1]}
    graph = InputGraph.from_children([[], [], [0, 1], [], [2, 3]], pulls)
    (run, *_) = model.prepare(use_of("training", model.function), GraphBatch.from_graphs([graph]))
    plans = segment_tasks(run.variant.tasks, alone=False)
    return dict(lower_path(plans, run.variant.binding, VECTOR, processors))


def partial(tasks: list[LoweredTask]) -> int:
    """Return the elements of partial sums that a segment has, at most."""
    return max(segment.partial for task in tasks for segment in task.segments)


@pytest.mark.parametrize("rows", CHOICES)
def test_a_task_that_takes_more_rows_is_verified(rows: int) -> None:
    stored = left = 0
    for task in lowered(LARGE).values():
        wider = verify_segments(take_rows(task, rows))
        for segment in wider.segments:
            for x in segment.products:
                if isinstance(x.to, PartialSums):
                    assert x.to.rows == rows * x.times
                    left += 1
                else:
                    assert x.rows == rows
                    assert f"{rows} rows at a time" in str(x)
                    stored += 1
            together = [step.rows for step in segment.steps if isinstance(step, RowsAtATime)]
            assert set(together) <= {rows}
        assert partial([wider]) * TILE_ROWS == partial([task]) * rows
    assert stored
    assert left


def test_as_many_rows_are_taken_as_there_is_room_for() -> None:
    path = lowered(LARGE)
    tasks = [*tasks_of(path, phases_of(path)[0]).values()]
    for rows in CHOICES:
        wider = [take_rows(task, rows) for task in tasks]
        needed = partial(wider) + temporaries_of(tasks, rows)
        assert choose_rows(tasks, needed, LARGE) == rows
        assert choose_rows(tasks, needed - 1, LARGE) < rows
    assert choose_rows(tasks, partial(tasks), LARGE) == TILE_ROWS


def test_groups_that_may_be_clusters_leave_the_room_to_their_rings() -> None:
    for processors in (1, MOST_OF_A_CLUSTER):
        assert choose_rows([*lowered(processors).values()], 1 << 20, processors) == TILE_ROWS


def test_partial_sums_take_no_more_than_weights_leave() -> None:
    tasks = lowered(LARGE)
    for shared_bytes in (32 << 10, 64 << 10, 227 << 10):
        placed = place_path(tasks, Budget(LARGE, 4, shared_bytes, 0), {})
        assert not isinstance(placed, Misfit)
        for phase, side in zip(placed.phases, placed.sides, strict=True):
            mine = [*tasks_of(placed.tasks, phase).values()]
            assert side.partial == partial(mine) <= room_of(side, placed.budget)
