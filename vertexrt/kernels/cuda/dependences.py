"""What steps of launches need of each other, found from the rows and elements that they touch.

Steps that run at once, on several streams or in one round of a persistent kernel, are verified
against it. Four rules: a step comes after those of its launch that it needs; what adds to the same
gradient, what has the same temporaries, and launches of which one writes what the other touches
come in the order of the table.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from vertexrt.engine.batched import Run
from vertexrt.ir.passes.fuse import TaskProgram
from vertexrt.ir.passes.store import Key
from vertexrt.kernels.cuda.driver import Grid, extent
from vertexrt.kernels.cuda.launch_text import StepEffects
from vertexrt.kernels.task_tensors import CHILDREN, PARENTS, rows_read, tensor_uses

Array = np.ndarray[Any, Any]


class LaunchedSteps(NamedTuple):
    """The steps that are launched, in the order of the table: [steps] each.

    Attributes:
        launch, number: of the table, and of the step among all of its executable.
        first, end: of the temporaries of its launch, in any unit; equal, where it has none.
        after: bool [steps, steps] it begins when another one is done.
    """

    launch: Array
    number: Array
    first: Array
    end: Array
    after: Array


class Conflict(NamedTuple):
    """Two steps that may run at once, or in the wrong order.

    Attributes:
        step, other: of `LaunchedSteps`, the later and the earlier one.
        got, expected: of an error.
    """

    step: int
    other: int
    got: str
    expected: str


class _Use(NamedTuple):
    """What a launch has of a buffer: elements of the arena, or rows of a tensor."""

    launch: int
    key: Any
    written: bool
    rows: Array
    first: int
    end: int

    def meets(self, other: _Use) -> bool:
        """Tell whether both touch some element, and one writes it."""
        if not (self.written or other.written):
            return False
        if self.key == other.key:
            return bool(np.any(self.rows & other.rows))
        return self.first < other.end and other.first < self.end


def launched_steps(
    table: Array, program: tuple[Array, ...], lookups: tuple[Array, ...]
) -> Iterator[tuple[int, int, Grid]]:
    """List what launches of a table launch: number of the launch, of the step, and how much of it.

    Args:
        program: steps_ptr and steps; lookups: lookup_ptr and lookup_at, of `driver.launch`.
    """
    steps_ptr, steps = program[:2]
    for t, row in enumerate(table):
        for s in range(steps_ptr[row[0]], steps_ptr[row[0] + 1]):
            grid = extent(steps[s], row, lookups[1], int(lookups[0][t]))
            if grid.across:
                yield t, s, grid


def first_conflict(
    run: Run, table: Array, tasks: Sequence[TaskProgram], steps: LaunchedSteps, effects: StepEffects
) -> Conflict | None:
    """Find a step that does not come after another one that it needs.

    Args:
        table: of launches; tasks: what they are launches of; steps: of some of the launches.
    """
    for verb, expected, wrong in _wrong(run, table, tasks, steps, effects):
        found = np.argwhere(np.tril(wrong, -1))
        if len(found):
            k, other = found[0].tolist()
            at = f"step {steps.number[other]} of launch {steps.launch[other]}"
            return Conflict(k, other, f"step {steps.number[k]} {verb} {at}", expected)
    return None


def _wrong(
    run: Run, table: Array, tasks: Sequence[TaskProgram], steps: LaunchedSteps, effects: StepEffects
) -> Iterator[tuple[str, str, Array]]:
    """Mark steps that break each rule: [step, earlier step], with the words of an error."""
    launch, number, late, verb = steps.launch, steps.number, ~steps.after, "does not wait for"
    of_launch, only = launch[:, None] == launch, effects.only[number]
    yield verb, "the steps of its launch before it", of_launch & ~only & late
    to = np.zeros((len(launch), len(effects.gradients) and int(effects.gradients.max()) + 1))
    for k, s in enumerate(number.tolist()):
        to[k, effects.gradients[effects.ptr[s] : effects.ptr[s + 1]]] = 1
    yield verb, "a wait for what adds to its gradients before it", (to @ to.T > 0) & late
    has = steps.end > steps.first
    both, same = has[:, None] & has, steps.first[:, None] == steps.first
    yield "has other temporaries than", "one place for those of a launch", of_launch & both & ~same
    meet = (steps.first[:, None] < steps.end) & (steps.first < steps.end[:, None])
    yield verb, "a wait for the launch that has its temporaries", both & meet & ~of_launch & late
    makes, all_of = _meetings(run, table, tasks, set(launch.tolist()))
    needed = np.where(only, all_of[launch][:, launch], makes[launch][:, launch])
    yield verb, "a wait for the launch, which touches what it writes, or writes it", needed & late


def _meetings(
    run: Run, table: Array, tasks: Sequence[TaskProgram], launches: set[int]
) -> tuple[Array, Array]:
    """Find which launches have to run in the order of the table: [later launch, earlier launch].

    Returns: after what the earlier one makes, and after all of it. A step that only adds to
        gradients writes no tensor. It may read what its launch wrote; but what two launches write
        of one tensor are other slots of the same edges.
    """
    makes, all_of = np.zeros((2, len(table), len(table)), np.bool_)
    for uses in _uses(run, table, tasks, launches).values():
        for earlier, later in itertools.combinations(uses, 2):
            at = later.launch, earlier.launch
            if later.launch != earlier.launch and later.meets(earlier):
                makes[at] = True
                all_of[at] |= later.written and not (earlier.written and earlier.key == later.key)
    return makes, all_of


def _uses(
    run: Run, table: Array, tasks: Sequence[TaskProgram], launches: set[int]
) -> dict[int, list[_Use]]:
    """List what launches have of each buffer."""
    tensors, buffer = run.variant.table, run.ready.programs.buffer
    found: dict[int, list[_Use]] = defaultdict(list)
    for t in sorted(launches):
        task = tasks[int(table[t, 0])]
        for key, _, edges, written in tensor_uses(task):
            number, others = tensors.numbers[key], _others_read(task, key, written)
            rows = touched_rows(run, table[t], edges, others)
            at, size, base = (
                np.flatnonzero(rows),
                tensors.specs[number].size,
                run.layout.plan.base[number],
            )
            if len(at):
                first, end = (int(base + r * size) for r in (at[0], at[-1] + 1))
                found[int(buffer[number])].append(_Use(t, key, written, rows, first, end))
    return found


def _others_read(task: TaskProgram, key: Key, written: bool) -> int:
    """Return whose rows of a tensor a program touches besides its own: CHILDREN, PARENTS or none.

    Its own state is read by later stages too, which need not know the children's.
    """
    return 0 if written else rows_read(key) & (gathered_by(task) | PARENTS)


def gathered_by(task: TaskProgram) -> int:
    """Return whose rows a program gathers: CHILDREN, PARENTS, both or none."""
    ops = {task.program.nodes[k].op for k in task.members}
    children = 0 if ops.isdisjoint(("gather", "gather_all")) else CHILDREN
    return children | (PARENTS if "gather_parents" in ops else 0)


def touched_rows(run: Run, launch: Array, edges: bool, others: int) -> Array:
    """Mark the rows (or edges) of a tensor that a launch reads or writes.

    Args:
        launch: a row of the table.
        edges: the tensor has a row for each edge.
        others: of `_others_read`.
    Returns: bool [V], or [E].
    """
    s, rows = run.layout.schedule, rows_of(run, launch)
    if edges:
        mask = np.isin(s.edge_row, rows)
        if others & PARENTS:
            mask |= np.isin(s.child_row, rows)
        return mask
    mask = np.zeros(len(s.order), np.bool_)
    mask[rows] = True
    if others & CHILDREN:
        children = s.child_row[np.isin(s.edge_row, rows)]
        mask[children[children >= 0]] = True
    if others & PARENTS:
        mask[s.edge_row[np.isin(s.child_row, rows)]] = True
    return mask


def rows_of(run: Run, launch: Array) -> Array:
    """Return the rows of a launch, of which there may be a list."""
    _, n, lo, at, _, _ = launch.tolist()
    return np.arange(lo, lo + n) if lo >= 0 else run.layout.rows[at : at + n]
