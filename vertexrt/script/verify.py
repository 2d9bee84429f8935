"""Verify scripts before a run: operands, coverage, waits and order; see `verifier.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from vertexrt.errors import PlanError, message
from vertexrt.ir.passes.fuse import Group
from vertexrt.ir.passes.segment import SegmentedTask, Split
from vertexrt.ir.program import Stage
from vertexrt.script.assemble import Scripts, Shape, bounds_of
from vertexrt.script.isa import NONE, PROGRAM, SIGNAL, THRESHOLD, WAIT
from vertexrt.script.verifier import PATH, PATH_BACKWARD, PATH_STAGES, REPORT, Verifier

Array = np.ndarray[Any, Any]

SEVERAL = 2  # members of a group that are simulated: all of them follow the same script
NO_ROWS = np.zeros(0, np.int32)


def verify_scripts(
    scripts: Scripts,
    shape: Shape,
    table: Array,
    edge_ptr: Array,
    child_row: Array,
    rows: Array,
    names: list[str] | None = None,
) -> None:
    """Check the scripts of one group.

    Args:
        scripts, shape: as `assemble` returned and took them.
        table: the launches that the scripts stand for.
        edge_ptr, child_row: of the schedule.
        rows: execution rows of launches that are not contiguous.
        names: of the task programs, for messages.
    Raises: PlanError, which names processor and instruction.
    """
    check = Verifier(scripts, shape, edge_ptr, child_row, rows, names)
    check.operands()
    check.coverage(table)
    check.tasks(table)
    check.signals()
    check.simulate()
    check.stages()
    check.segments()
    check.children()
    check.parents()
    check.temporaries()


def verify_groups(
    words: Array,
    lengths: Array,
    temporary: int,
    shape: Shape,
    table: Array,
    beside: Array,
    order: Array,
    edge_ptr: Array,
    child_row: Array,
    graph_ptr: Array,
    processors: int,
    names: list[str] | None = None,
) -> None:
    """Check the scripts of groups that share one schedule; a wait is a meeting of the group.

    Args:
        words, lengths, temporary: as `assemble_groups` returns them.
        shape, table, beside, order, edge_ptr, child_row, graph_ptr, processors: what it took.
        names: of the task programs, for messages.
    Raises: PlanError, which names group and instruction.
    """
    groups = lengths.shape[1]
    if lengths.sum() != len(words) or lengths.min(initial=0) < 0:
        raise _wrong(f"scripts of {lengths.sum()} instructions", f"{len(words)} instructions")
    owner = np.searchsorted(bounds_of(graph_ptr, groups), order, "right") - 1
    taken = [
        row for row in table.tolist() if shape.stage[row[0]] in PATH_STAGES and not beside[row[0]]
    ]
    made = {stage: np.zeros(len(order), np.bool_) for stage in PATH_STAGES}  # by groups
    for p, n, lo, *_ in taken:
        made[int(shape.stage[p])][lo : lo + n] = True
    starts = np.concatenate([[0], np.cumsum(lengths.reshape(-1))]).reshape(-1)
    for g in range(groups):
        sides = [words[starts[k] : starts[k + 1]] for k in (g, groups + g)]
        members = SEVERAL if processors > 1 else 1
        scripts = Scripts(_as_waits(sides, members), sum(map(len, sides)), temporary)
        who = f"group {g}, "
        check = Verifier(scripts, shape, edge_ptr, child_row, NO_ROWS, names, who)
        check.operands()
        _sides(check, sides, beside)
        _owned(check, owner, made, g)
        mine = _share(taken, owner, edge_ptr, g)
        check.coverage(mine)
        check.tasks(mine)
        check.signals()
        check.simulate()
        check.stages()
        check.segments()
        check.children()
        check.parents()
        check.temporaries()


def _wrong(got: str, expected: str) -> PlanError:
    return PlanError(message("script", got, expected, REPORT))


def _as_waits(sides: Sequence[Array], members: int) -> Array:
    """Return the scripts of some members of a group with a counter for each instruction.

    A meeting is a wait for all that is before it; so is the wait of all processors between the
    sides.
    """
    mine = np.concatenate(sides)
    count = np.arange(len(mine))
    meets = mine[:, WAIT] >= 0
    meets[len(sides[0]) : len(sides[0]) + 1] = True
    meets[:1] = False
    meets &= members > 1
    mine[:, WAIT] = np.where(meets, count - 1, NONE)
    mine[:, THRESHOLD] = np.where(meets, members, 0)
    mine[:, SIGNAL] = count
    return np.repeat(mine[None], members, 0)


def _sides(check: Verifier, sides: Sequence[Array], beside: Array) -> None:
    """Check that instructions are on their side of the path."""
    wanted = [PATH] * len(sides[0]) + [PATH_BACKWARD] * len(sides[1])
    for at, stage in enumerate(wanted):
        p = int(check.words[0, at, PROGRAM])
        if check.stage[0, at] != stage or beside[p]:
            got = "all processors run its program" if beside[p] else "it is of another stage"
            check.fail(0, at, got, f"instructions of {Stage(stage).name} that are the groups'")


def _owned(check: Verifier, owner: Array, made: dict[int, Array], g: int) -> None:
    """Check that a group works on rows of its graphs, and needs none that another group makes."""
    edge_row = np.repeat(np.arange(check.vertices), np.diff(check.edge_ptr))
    for at in range(check.length):
        rows = check.tile(0, at)
        others = rows[owner[rows] != g]
        if len(others):
            check.fail(0, at, f"row {others[0]} is of group {owner[others[0]]}", "its own rows")
        stage = int(check.stage[0, at])
        has = np.isin(edge_row if stage == PATH else check.child_row, rows)
        needed = (check.child_row if stage == PATH else edge_row)[has]
        needed = needed[needed >= 0]
        others = needed[made[stage][needed] & (owner[needed] != g)]
        gathers = stage == PATH_BACKWARD or check.shape.gathers[check.words[0, at, PROGRAM]]
        if len(others) and gathers:
            got = f"needs row {others[0]}, which group {owner[others[0]]} makes"
            check.fail(0, at, got, "rows of its own graphs")


def _share(taken: list[list[int]], owner: Array, edge_ptr: Array, g: int) -> Array:
    """Return a group's share of the launches."""
    found = []
    for p, n, lo, *_ in taken:
        mine = lo + np.flatnonzero(owner[lo : lo + n] == g)
        if not len(mine):
            continue
        first, end = int(mine[0]), int(mine[-1]) + 1
        if end - first != len(mine):
            raise _wrong(f"rows {first}..{end - 1} of a task are not all of group {g}", "a slice")
        edges = int(edge_ptr[end] - edge_ptr[first])
        found.append([p, end - first, first, 0, edges, int(edge_ptr[first])])
    return np.array(found, np.int64).reshape(-1, 6)


def verify_sums(tasks: Sequence[SegmentedTask]) -> None:
    """Check that one of several processors adds to each element of a gradient in a stage.

    A processor owns rows of a parameter, or of the stack of which it is a part, or else columns.
    Within a stage nobody waits between two sums, so all that add to a parameter must agree.

    Raises: PlanError, which names the parameter.
    """
    found: dict[tuple[Stage, str], tuple[str, str]] = {}
    for plan in tasks:
        nodes = plan.task.program.nodes
        for segment in plan.segments:
            members = {
                k for s in segment.steps for k in (s.nodes if isinstance(s, Group) else (s.node,))
            }
            for node in nodes:
                if node.op != "param_grad" or node.inputs[0] not in members:
                    continue
                op, name = nodes[node.inputs[0]].op, node["name"]
                by_columns = op == "embed_grad" and name in plan.by_columns
                owned = "columns" if by_columns else "rows"
                if segment.split != Split.SUMS:
                    owned = "rows of the task"
                first = found.setdefault((plan.task.stage, name), (op, owned))
                if first[1] != owned or segment.split != Split.SUMS:
                    raise PlanError(
                        message(
                            "script",
                            f"stage {plan.task.stage.name} adds to the gradient of {name!r} by "
                            f"{first[0]} (processors own {first[1]}) and by {op} ({owned})",
                            "one owner for each element",
                            REPORT,
                        )
                    )
