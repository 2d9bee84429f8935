"""Verify scripts before a run: operands, coverage, waits and order; see `verifier.py`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from vertexrt.errors import PlanError
from vertexrt.ir.passes.segment import SegmentedTask, Split
from vertexrt.ir.program import Stage
from vertexrt.script.assemble import Batch, Scripts
from vertexrt.script.groups import Groups, GroupScripts, bounds_of
from vertexrt.script.isa import NONE, WAIT
from vertexrt.script.shape import Shape
from vertexrt.script.verifier import PATH, PATH_STAGES, REPORT, Followed, Verifier, ranges

Array = np.ndarray[Any, Any]

SEVERAL = 2  # members of a group that are simulated: all of them follow the same script
ROWS_OF_TASK = "rows of the task"
NO_ROWS = np.zeros(0, np.int32)


def verify_scripts(
    scripts: Scripts, shape: Shape, batch: Batch, rows: Array, programs: Sequence[str] = ()
) -> None:
    """Check the scripts of one group.

    Args:
        scripts, shape: as `assemble` returned and took them.
        batch: what they stand for.
        rows: execution rows of launches that are not contiguous.
        programs: names of the task programs, for messages.
    Raises: PlanError, which names processor and instruction.
    """
    followed = Followed(scripts.words, scripts.words[:, :, WAIT], scripts.temporary)
    _check(Verifier(followed, shape, batch, rows, list(programs)))


def _check(check: Verifier) -> None:
    check.coverage()
    check.tasks()
    check.stages()
    check.segments()
    check.children()
    check.parents()
    check.temporaries()


def verify_groups(
    scripts: GroupScripts,
    shape: Shape,
    batch: Batch,
    side_of: Array,
    groups: Groups,
    processors: int,
    programs: Sequence[str] = (),
) -> None:
    """Check the scripts of groups that share one schedule; a wait is a barrier of the group.

    Args:
        scripts: as `assemble_groups` returned them, whatever a device has put in its own columns.
        shape, batch, side_of, groups: what it took; processors: of a group.
        programs: names of the task programs, for messages.
    Raises: PlanError, which names group and instruction.
    """
    lengths, count = scripts.lengths, groups.number
    if lengths.sum() != len(scripts.script) or lengths.min(initial=0) < 0:
        got = f"scripts of {lengths.sum()} instructions"
        raise _wrong(got, f"{len(scripts.script)} instructions")
    owner = np.searchsorted(bounds_of(groups.graph_ptr, count), groups.order, "right") - 1
    of_path = np.isin(shape.stage[batch.table[:, 0]], PATH_STAGES)
    taken = batch.table[of_path & (side_of[batch.table[:, 0]] >= 0)].tolist()
    made = {stage: np.zeros(len(groups.order), np.bool_) for stage in PATH_STAGES}  # by groups
    for p, n, lo, *_ in taken:
        made[int(shape.stage[p])][lo : lo + n] = True
    starts = np.concatenate([[0], np.cumsum(lengths.reshape(-1))]).reshape(-1)
    members = SEVERAL if processors > 1 else 1
    for g in range(count):
        side = np.repeat(np.arange(len(lengths)), lengths[:, g])
        own = scripts.script[ranges(starts[g:-1:count], lengths[:, g])[0]]
        waits = _waits(own[:, WAIT], side, members)
        followed = Followed(
            np.repeat(own[None], members, 0), waits, scripts.temporary, f"group {g}, "
        )
        mine = batch._replace(table=_share(taken, owner, batch.every_ptr, g))
        check = Verifier(followed, shape, mine, NO_ROWS, list(programs))
        _sides(check, side, side_of)
        for stage in PATH_STAGES:
            _owned(check, owner, made[stage], g, stage)
        _check(check)


def _wrong(got: str, expected: str) -> PlanError:
    return PlanError.at("script", got, expected, REPORT)


def _waits(waits: Array, side: Array, members: int) -> Array:
    """Return what each instruction waits for, [members, instructions].

    A barrier is a wait for all that is before it; so is the wait of all processors between two
    sides of the path.
    """
    barrier = waits != NONE
    barrier[1:] |= side[1:] != side[:-1]
    barrier[:1] = False
    barrier &= members > 1
    before = np.where(barrier, np.arange(len(waits)) - 1, NONE)
    return np.repeat(before[None], members, 0)


def _sides(check: Verifier, side: Array, side_of: Array) -> None:
    """Check that instructions are on their side of the path."""
    for at, wanted in enumerate(side.tolist()):
        own = side_of[check.program[0, at]]
        if own != wanted:
            got = "all processors run its program" if own < 0 else f"it is of side {own}"
            check.fail(0, at, got, f"instructions of side {wanted} that are the groups'")


def _owned(check: Verifier, owner: Array, made: Array, g: int, stage: int) -> None:
    """Check that a group works on rows of its graphs, and needs none that another group makes.

    Args:
        owner: [rows] the group of each; made: [rows] whether a group makes it in this stage.
    """
    mine = check.of_stage(stage)
    for k in np.flatnonzero(owner[mine.row] != g)[:1]:
        row = mine.row[k]
        got = f"row {row} is of group {owner[row]}"
        check.fail(int(mine.part[k]), int(mine.at[k]), got, "its own rows")
    gathers = check.shape.gathers[check.program[mine.part, mine.at]]
    at = np.full(check.vertices, -1, np.int64)  # an instruction that needs what others make
    chosen = mine if stage != PATH else mine.of(gathers)
    at[chosen.row] = chosen.at
    edges = np.flatnonzero(check.batch.child_row >= 0)
    parent, child = check.edge_row[edges], check.batch.child_row[edges]
    reader, needed = (parent, child) if stage == PATH else (child, parent)
    foreign = made[needed] & (owner[needed] != g) & (at[reader] >= 0)
    for k in np.flatnonzero(foreign)[:1]:
        got = f"needs row {needed[k]}, which group {owner[needed[k]]} makes"
        check.fail(0, int(at[reader[k]]), got, "rows of its own graphs")


def _share(taken: list[list[int]], owner: Array, every_ptr: Array, g: int) -> Array:
    """Return a group's share of the launches."""
    found = []
    for p, n, lo, *_ in taken:
        mine = lo + np.flatnonzero(owner[lo : lo + n] == g)
        if not len(mine):
            continue
        first, end = int(mine[0]), int(mine[-1]) + 1
        if end - first != len(mine):
            raise _wrong(f"rows {first}..{end - 1} of a task are not all of group {g}", "a slice")
        edges = int(every_ptr[end] - every_ptr[first])
        found.append([p, end - first, first, 0, edges, int(every_ptr[first])])
    return np.array(found, np.int64).reshape(-1, 6)


class Contribution(NamedTuple):
    """What adds to a gradient, and what of it a processor owns then."""

    op: str
    owned: str


def verify_sums(tasks: Sequence[SegmentedTask]) -> None:
    """Check that one of several processors adds to each element of a gradient in a stage.

    A processor owns rows of a parameter, or of the stack of which it is a part, or else columns.
    Within a stage no processor waits between two sums, so all that add to a parameter must agree.

    Raises: PlanError, which names the parameter.
    """
    found: dict[tuple[Stage, str], Contribution] = {}
    for plan in tasks:
        for name, contribution in _contributions(plan):
            first = found.setdefault((plan.task.stage, name), contribution)
            if first.owned != contribution.owned or contribution.owned == ROWS_OF_TASK:
                raise PlanError.at(
                    "script",
                    f"stage {plan.task.stage.name} adds to the gradient of {name!r} by "
                    f"{first.op} (processors own {first.owned}) and by {contribution.op} "
                    f"({contribution.owned})",
                    "one owner for each element",
                    REPORT,
                )


def _contributions(plan: SegmentedTask) -> Iterator[tuple[str, Contribution]]:
    """Yield what a task program adds to gradients: parameter by parameter."""
    nodes = plan.task.program.nodes
    made_in = {k: segment.split for segment in plan.segments for k in segment.members}
    for node in nodes:
        if node.op == "param_grad" and node.inputs[0] in made_in:
            op, name = nodes[node.inputs[0]].op, node["name"]
            owned = "columns" if op == "embed_grad" and name in plan.by_columns else "rows"
            in_sums = made_in[node.inputs[0]] == Split.SUMS
            yield name, Contribution(op, owned if in_sums else ROWS_OF_TASK)
