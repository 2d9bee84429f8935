"""The path of a persistent kernel for groups of some size, and where its weights lie on chip."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from vertexrt.ir.layers import Phase
from vertexrt.kernels.cuda.ring_uses import LoweredTask
from vertexrt.kernels.cuda.rows_at_once import choose_rows, take_rows
from vertexrt.kernels.cuda.segments import PathSegment
from vertexrt.kernels.cuda.weight_layout import THREADS
from vertexrt.kernels.cuda.weights import (
    SHARED_STATE_BYTES,
    Budget,
    Misfit,
    SideWeights,
    place_weights,
)

LoweredPath = Mapping[int, LoweredTask]  # by number of the task


class PlacedPath(NamedTuple):
    """The path of a kernel.

    Attributes:
        budget: for weights, which are held as `sides` say.
        tasks: of the path, by number.
        phases: when the sides run: forward of each layer that has a path, then backward.
    """

    budget: Budget
    tasks: LoweredPath
    phases: tuple[Phase, ...]
    sides: tuple[SideWeights, ...]


def place_path(tasks: LoweredPath, budget: Budget) -> PlacedPath | Misfit:
    """Say where weights of the path lie, if there is room; products get what they leave."""
    sides: list[SideWeights] = []
    placed = dict(tasks)
    phases = phases_of(tasks)
    for phase in phases:
        mine = tasks_of(tasks, phase)
        held = dict.fromkeys(h for segment in _segments(mine) for h in segment.held)
        side = place_weights(list(held), _partial(mine), budget)
        if isinstance(side, Misfit):
            return side
        rows = choose_rows([*mine.values()], room_of(side, budget), budget.processors)
        wider = {p: take_rows(task, rows) for p, task in mine.items()}
        placed |= wider
        sides.append(replace(side, partial=_partial(wider)))
    return PlacedPath(budget, placed, phases, tuple(sides))


def room_of(side: SideWeights, budget: Budget) -> int:
    """Return the elements of shared memory that the weights of a side leave."""
    return (budget.shared_bytes - SHARED_STATE_BYTES - side.shared) // budget.itemsize


def needs_registers(side: SideWeights, budget: Budget) -> bool:
    """Tell whether shared memory has no room for the weights that registers hold."""
    held = budget.registers_of(side) * THREADS * 4 // budget.itemsize
    return room_of(side, budget) - side.partial < held


def phases_of(tasks: LoweredPath) -> tuple[Phase, ...]:
    """Return when the sides of the path run, in order."""
    return tuple(sorted({task.task.plan.task.phase for task in tasks.values()}))


def tasks_of(tasks: LoweredPath, phase: Phase) -> dict[int, LoweredTask]:
    """Return the tasks of a side, by number."""
    return {p: task for p, task in tasks.items() if task.task.plan.task.phase == phase}


def _segments(tasks: LoweredPath) -> list[PathSegment]:
    return [segment for task in tasks.values() for segment in task.segments]


def _partial(tasks: LoweredPath) -> int:
    """Count the elements of partial sums that the segments of a side need."""
    return max((segment.partial for segment in _segments(tasks)), default=0)
