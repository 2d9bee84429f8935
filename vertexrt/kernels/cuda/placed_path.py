"""The path of a persistent kernel for groups of some size, and where its weights lie on chip."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from vertexrt.ir.layers import Phase
from vertexrt.ir.passes.segment import SegmentedTask, segment_tasks
from vertexrt.kernels.cuda.cell import LEVEL_ROWS, CellSide
from vertexrt.kernels.cuda.cell_cut import NoCell, cut_side
from vertexrt.kernels.cuda.cell_text import cell_places, fixed_bytes, least_places
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
from vertexrt.kernels.layout import Binding

LoweredPath = Mapping[int, LoweredTask]  # by number of the task
CellSides = Mapping[Phase, Sequence[CellSide]]  # those for fewer rows a level come later


class PlacedPath(NamedTuple):
    """The path of a kernel.

    Attributes:
        budget: for weights, which are held as `sides` say.
        tasks: of the path, by number.
        phases: when the sides run: forward of each layer that has a path, then backward.
        cells: the sides that run cells, by number, and their places for states and for edges.
    """

    budget: Budget
    tasks: LoweredPath
    phases: tuple[Phase, ...]
    sides: tuple[SideWeights, ...]
    cells: Mapping[int, tuple[CellSide, tuple[int, int]]]


def cut_path(
    plans: Sequence[SegmentedTask], path: LoweredPath, binding: Binding, processors: int
) -> CellSides:
    """Cut the phases of the path into cells, where the machine has a form for them.

    Args:
        path: the tasks of the path, which `plans` have by number.
    """
    found: dict[Phase, Sequence[CellSide]] = {}
    if processors == 1:  # what is exchanged says what the stages are
        plans = segment_tasks([plan.task for plan in plans])
    for phase in phases_of(path):
        mine = {p: plans[p] for p in tasks_of(path, phase)}
        with suppress(NoCell):
            found[phase] = [cut_side(phase, mine, binding, processors, n) for n in LEVEL_ROWS]
    return found


def place_path(tasks: LoweredPath, budget: Budget, cells: CellSides) -> PlacedPath | Misfit:
    """Say where weights of the path lie, if there is room; products get what they leave.

    A side runs cells where all of its weights and enough places for rows fit on chip.
    """
    chosen: dict[int, tuple[CellSide, tuple[int, int]]] = {}
    sides: list[SideWeights] = []
    placed = dict(tasks)
    phases = phases_of(tasks)
    for number, phase in enumerate(phases):
        may = budget.hold and not budget.gradients
        fitting = (_place_cell(cell, budget) for cell in cells.get(phase, ()) if may)
        if found := next(filter(None, fitting), None):
            on_chip, cell, places = found
            chosen[number] = cell, places
            sides.append(on_chip)
            continue
        mine = tasks_of(tasks, phase)
        held = dict.fromkeys(h for segment in _segments(mine) for h in segment.held)
        side = place_weights(list(held), _partial(mine), budget)
        if isinstance(side, Misfit):
            return side
        rows = choose_rows([*mine.values()], room_of(side, budget), budget.processors)
        wider = {p: take_rows(task, rows) for p, task in mine.items()}
        placed |= wider
        sides.append(replace(side, partial=_partial(wider)))
    return PlacedPath(budget, placed, phases, tuple(sides), chosen)


def _place_cell(
    cell: CellSide, budget: Budget
) -> tuple[SideWeights, CellSide, tuple[int, int]] | None:
    """Place the weights of a side that runs cells, and count the places left; None for too few."""
    fixed = -(-fixed_bytes(cell, budget.itemsize) // budget.itemsize)
    on_chip = place_weights(cell.held, fixed + least_places(cell), budget)
    if isinstance(on_chip, Misfit) or on_chip.memory:
        return None
    room = budget.shared_bytes - SHARED_STATE_BYTES
    places = cell_places(cell, on_chip, room, budget.itemsize)
    return replace(on_chip, partial=0), cell, places


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
