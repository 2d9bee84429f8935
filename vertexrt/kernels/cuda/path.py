"""Lower the tasks of the path to segments for the processors of a persistent kernel.

A segment is a function of one tile of rows. Its groups are loops of a processor's threads over the
rows and, of each, over the elements that the processor owns; its products multiply by weights that
the processor holds (`resident_weights.cuh`). Temporaries of a tile are in shared memory.

Source: VPPS (MICRO 2018), section III; a segment as one function is ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from vertexrt.config import config
from vertexrt.ir.layers import is_within_layer
from vertexrt.ir.passes.fuse import Group
from vertexrt.ir.passes.segment import SegmentedTask, Split
from vertexrt.ir.passes.store import is_free
from vertexrt.ir.program import Stage
from vertexrt.kernels.cuda.path_groups import lower_path_group
from vertexrt.kernels.cuda.path_products import lower_products
from vertexrt.kernels.cuda.path_steps import Step, groups_after, products_in
from vertexrt.kernels.cuda.path_task import PathTask, SegmentContext, plan_task
from vertexrt.kernels.cuda.prefetch import copies_ahead
from vertexrt.kernels.cuda.ring import made_before
from vertexrt.kernels.cuda.ring_uses import LoweredTask, hand_on_rows
from vertexrt.kernels.cuda.segments import (
    CopyAhead,
    PathSegment,
    PlainStep,
    RowsAtATime,
    Together,
)
from vertexrt.kernels.cuda.verify_segments import verify_segments
from vertexrt.kernels.cuda.weight_layout import TILE_ROWS
from vertexrt.kernels.layout import Binding
from vertexrt.lower.kernel import ValuePlace
from vertexrt.lower.threads import ThreadKernel


def lower_path(
    tasks: Sequence[SegmentedTask], binding: Binding, vector: int, processors: int
) -> dict[int, LoweredTask]:
    """Lower all tasks of the path, by number of the task."""
    found = {
        p: lower_task(plan_task(plan, binding, vector, processors))
        for p, plan in enumerate(tasks)
        if not is_outside_path(plan)
    }
    found = hand_on_rows(found)
    if config().check:
        for lowered in found.values():
            verify_segments(lowered)
    return found


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


def lower_task(task: PathTask) -> LoweredTask:
    """Lower all segments of a task, still without a ring."""
    plan = task.plan
    copied: frozenset[int] = frozenset()
    found = []
    for segment, steps, made in zip(plan.segments, task.steps, made_before(task), strict=True):
        in_parts = frozenset(task.place[k] for k in made & task.place.keys())
        context = SegmentContext(task, segment.split == Split.UNITS, task.place)
        lowering = _SegmentLowering(context, steps, copied)
        found.append(PathSegment(tuple(lowering.copies), tuple(lowering.steps()), in_parts))
        copied = lowering.copied
    scratch = task.temporaries.elements  # what crosses from one segment to the next keeps its place
    return LoweredTask(task, tuple(replace(segment, scratch=scratch) for segment in found))


class _SegmentLowering:
    """Lowers the steps of a segment, one after the other.

    Attributes:
        copied: leaves that an earlier group has put where they are read.
        copies: operands that are copied ahead; ahead: where they lie then, of the groups of a step.
    """

    def __init__(
        self, context: SegmentContext, steps: Sequence[Step], copied: frozenset[int]
    ) -> None:
        self.context, self.nodes, self.given = context, context.task.nodes, steps
        self.copied = copied
        self.copies: list[CopyAhead] = []
        self.ahead: dict[int, dict[int, ValuePlace]] = {}
        if context.by_units or context.task.processors == 1:
            for number, k, copy in copies_ahead(context.task, steps, context.shares_of):
                self.copies.append(copy)
                self.ahead.setdefault(number, {})[k] = copy.to

    def steps(self) -> list[PlainStep | RowsAtATime]:
        """Return the steps, with the barriers between them."""
        found: list[PlainStep | RowsAtATime] = []
        number = 0
        while number < len(self.given):
            first, products = number == 0, products_in(self.given[number])
            if not first:
                found += [Together.WAIT_FOR_COPIES] if number in self.ahead else []
                found.append(Together.BARRIER)
            made = lower_products(self.context, products) if products else None
            if made and made.sums:
                groups = groups_after(self.given, number)
                steps = (made, *self._adding_up(groups, number + 1))
                found.append(RowsAtATime(TILE_ROWS, (Together.BARRIER,), steps))
                number += len(groups)
            else:
                found += [Together.LOAD_NEXT] if first else []
                found.append(made or self._group(number))
            number += 1
        return found

    def _adding_up(self, groups: Sequence[Group], number: int) -> list[PlainStep]:
        """Return the steps of groups that add up partial sums.

        Args:
            number: of the first one's step.
        """
        ahead = any(number + n in self.ahead for n in range(len(groups)))
        found: list[PlainStep] = [Together.WAIT_FOR_COPIES] if ahead else []
        made: set[int] = set()
        for n, group in enumerate(groups):
            if n == 0 or made & self._read_by(group):
                found.append(Together.BARRIER)
                made.clear()
            if number == 1 and n == 0:
                found.append(Together.LOAD_NEXT)
            made |= {*group.nodes}
            found.append(self._group(number + n))
        return found

    def _read_by(self, group: Group) -> set[int]:
        return {i for k in group.nodes for i in self.nodes[k].inputs}

    def _group(self, number: int) -> ThreadKernel:
        """Lower what of a group is not copied ahead, and not copied by another group."""
        (group,) = self.given[number]
        assert isinstance(group, Group)
        ahead: Mapping[int, ValuePlace] = self.ahead.get(number, {})
        nodes = tuple(k for k in group.nodes if k not in self.copied and k not in ahead)
        place = self.context.place
        self.copied |= {k for k in nodes if is_free(self.nodes[k]) and k in place}
        here = replace(self.context, place={**place, **ahead})
        return lower_path_group(here, Group(group.domain, nodes))
