"""The path of a persistent kernel for groups of some size, and where its weights lie on chip."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from vertexrt.ir.program import Stage
from vertexrt.kernels.cuda.ring_uses import LoweredTask
from vertexrt.kernels.cuda.segments import PathSegment
from vertexrt.kernels.cuda.weights import Budget, Misfit, SideWeights, place_weights

SIDES = (Stage.PATH, Stage.PATH_BACKWARD)
LoweredPath = Mapping[int, LoweredTask]  # by number of the task


class PlacedPath(NamedTuple):
    """The path of a kernel.

    Attributes:
        budget: for weights, which are held as `sides` say, forward and backward.
        tasks: of the path, by number.
    """

    budget: Budget
    tasks: LoweredPath
    sides: tuple[SideWeights, ...]


def place_path(tasks: LoweredPath, budget: Budget) -> PlacedPath | Misfit:
    """Say where the weights of the path lie, if there is room."""
    sides: list[SideWeights] = []
    for stage in SIDES:
        segments = _segments(tasks, stage)
        held = dict.fromkeys(h for segment in segments for h in segment.held)
        partial = max((segment.partial for segment in segments), default=0)
        side = place_weights(list(held), partial, budget)
        if isinstance(side, Misfit):
            return side
        sides.append(side)
    return PlacedPath(budget, tasks, tuple(sides))


def _segments(tasks: LoweredPath, stage: Stage) -> list[PathSegment]:
    mine = (task for task in tasks.values() if task.task.plan.task.stage == stage)
    return [segment for task in mine for segment in task.segments]
