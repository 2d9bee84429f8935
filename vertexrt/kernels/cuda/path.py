"""The path of a persistent kernel for groups of some size: what runs as cells, and with which
weights on chip.

A phase of the path that is no cell runs in turn: all processors run the launches of its levels,
with a meeting of all between two of them, as they run what is outside the path
(`rounds.py`).
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from vertexrt.ir.layers import Phase, is_within_layer
from vertexrt.ir.passes.fuse import Group, TaskProgram
from vertexrt.ir.passes.segment import SegmentedTask, segment_tasks
from vertexrt.ir.program import Stage
from vertexrt.kernels.cuda.cell import LEVEL_ROWS, CellSide
from vertexrt.kernels.cuda.cell_cut import NoCell, SideCut, sums_of
from vertexrt.kernels.cuda.cell_text import cell_places, fixed_bytes, least_places
from vertexrt.kernels.cuda.weights import (
    SHARED_STATE_BYTES,
    Budget,
    Misfit,
    SideWeights,
    place_weights,
)
from vertexrt.kernels.layout import Binding
from vertexrt.kernels.task_tensors import gradients_of

NO_ROOM = "its weights do not fit on chip beside a level"
NOT_HELD = "weights are not held"


@dataclass(frozen=True, slots=True)
class CutPath:
    """The phases of a path that may run as cells.

    Attributes:
        cells: of each phase, those for fewer rows a level come later.
        in_turn: why each of the others runs in turn.
    """

    cells: dict[Phase, Sequence[CellSide]] = field(default_factory=dict)
    in_turn: dict[Phase, str] = field(default_factory=dict)


class Placed(NamedTuple):
    """A side that runs cells.

    Attributes:
        places: how many there are for states and for edges.
        needs_registers: shared memory has no room for the weights that registers hold.
    """

    cells: CellSide
    weights: SideWeights
    places: tuple[int, int]
    needs_registers: bool


class PlacedPath(NamedTuple):
    """The path of a kernel.

    Attributes:
        budget: for weights.
        sides: the phases that run as cells, in order.
        in_turn: why each of the other phases runs in turn.
    """

    budget: Budget
    sides: Mapping[Phase, Placed]
    in_turn: Mapping[Phase, str]


def is_outside_path(plan: SegmentedTask) -> bool:
    """Tell whether a task of the path can run outside it: it waits for no other, and none for it.

    Vertices without children run before the path; if their gradients reach no child, after it. All
    processors share their rows, whichever group has the vertices.
    """
    if plan.task.stage == Stage.PATH:
        return not plan.gathers
    if plan.task.stage == Stage.PATH_BACKWARD:
        program = plan.task.program
        nodes = (program.nodes[k] for k in plan.task.members)
        left = (n for n in nodes if n.op in ("scatter_child", "scatter_children"))
        return not any(is_within_layer(program, n) for n in left)
    return True


def _find_sums(tasks: Sequence[TaskProgram], inside: Sequence[TaskProgram]) -> list[str]:
    """Name the parameters of whose gradients cells can make all products of a layer."""
    able: list[tuple[object, ...]] = [x[:2] for task in inside for x in sums_of(task)]
    wanted: list[tuple[object, ...]] = []  # of each task that stores an operand
    for task in tasks:
        if task.stage == Stage.PATH_BACKWARD:
            nodes = [x for x in task.program.nodes if x.op == "param_grad"]
            names = {x["name"] for x in nodes if task.program.nodes[x.inputs[0]].op == "outer"}
            wanted += itertools.product(names, {*task.homes.values()})
    left: set[str] = set()
    for task in tasks:
        for k in task.members:
            node = task.program.nodes[k]
            if node.op == "outer":
                added, d = gradients_of(task, k), node.inputs[0]
                one = (*added, task.reads[d].key if d in task.reads else ())
                if not 0 < able.count(one) == wanted.count(one):
                    left.update(added)
    return sorted({str(name) for name, *_ in able} - left)


def without_sums(task: TaskProgram, summed: Collection[str]) -> TaskProgram:
    """Leave out of a task after the path what cells have summed up, and copies made for it."""
    if not summed:
        return task
    nodes = task.program.nodes
    outers = {k: {*gradients_of(task, k)} for k in task.members if nodes[k].op == "outer"}
    done = {k for k, names in outers.items() if names.issubset(summed)}
    left = [x for x in task.steps if done.isdisjoint(x.nodes)]
    read = {i for x in left for k in x.nodes for i in nodes[k].inputs}
    read |= {k for k, key in task.homes.items() if key[0] != "exchange"}
    copies = {i for k in done for i in nodes[k].inputs} - read
    for n, step in enumerate(left):
        if isinstance(step, Group):
            left[n] = Group(step.domain, tuple(k for k in step.nodes if k not in copies))
    return replace(task, local=task.local - copies, steps=tuple(x for x in left if x.nodes))


def cut_path(
    plans: Sequence[SegmentedTask], binding: Binding, processors: int, gradients: bool = False
) -> CutPath:
    """Cut the phases of the path into cells, where the machine has a form for them.

    With `gradients` they sum up those of weights: all that they can, or fewer.
    """
    inside = [p for p, plan in enumerate(plans) if not is_outside_path(plan)]
    if processors == 1:  # what is exchanged says what the stages are
        plans = segment_tasks([plan.task for plan in plans])
    found = CutPath()
    for phase in sorted({plans[p].task.phase for p in inside}):
        mine = {p: plans[p] for p in inside if plans[p].task.phase == phase}
        layer = [x.task for x in plans if x.task.phase.layer == phase.layer]
        sums = _find_sums(layer, [x.task for x in mine.values()]) if gradients else []
        most = max(LEVEL_ROWS)
        choices = (sums[:n] for n in range(len(sums), -1, -1))
        try:
            cut = [SideCut(phase, mine, binding, processors, x).cut(most) for x in choices]
            found.cells[phase] = [replace(x, rows=rows) for rows in LEVEL_ROWS for x in cut]
        except NoCell as why:
            found.in_turn[phase] = str(why)
    return found


def place_path(path: CutPath, budget: Budget) -> PlacedPath | Misfit:
    """Say where weights of the path lie; Misfit, where a side has no room, and none is in turn."""
    sides: dict[Phase, Placed] = {}
    in_turn = dict(path.in_turn)
    for phase, cells in path.cells.items():
        if not budget.hold:
            in_turn[phase] = NOT_HELD
            continue
        tried = [_place(each, budget) for each in cells]
        fitting = [each for each in tried if isinstance(each, Placed)]
        if fitting:
            sides[phase] = fitting[0]
        elif budget.streams:
            in_turn[phase] = NO_ROOM
        else:
            return next(each for each in reversed(tried) if isinstance(each, Misfit))
    return PlacedPath(budget, sides, in_turn)


def _place(side: CellSide, budget: Budget) -> Placed | Misfit:
    """Place the weights of a side that runs cells, and count the places left."""
    fixed = fixed_bytes(side, budget.itemsize)
    others = -(-fixed // budget.itemsize) + least_places(side)
    on_chip = place_weights(side.held, others, budget)
    if isinstance(on_chip, Misfit):
        return on_chip
    left = budget.shared_bytes - SHARED_STATE_BYTES - fixed - on_chip.shared
    places = cell_places(side, left // budget.itemsize)
    without = place_weights(side.held, others, replace(budget, registers=0, divides=False))
    return Placed(side, on_chip, places, isinstance(without, Misfit))
