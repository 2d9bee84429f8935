"""Write the segments of the path for the processors of a persistent kernel.

A segment is a function of one tile of rows. Its groups are loops of a processor's threads over the
rows and, of each, over the elements that the processor owns; its products multiply by weights that
the processor holds (`resident_weights.cuh`). Temporaries of a tile are in shared memory.

Source: VPPS (MICRO 2018), section III; a segment as one function is ours.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from vertexrt.ir.passes.fuse import Group
from vertexrt.ir.passes.segment import SegmentedTask, Split
from vertexrt.ir.passes.store import is_free
from vertexrt.ir.program import Stage
from vertexrt.kernels.cuda.path_groups import tile_text, write_path_group
from vertexrt.kernels.cuda.path_products import (
    PendingGroup,
    ProductText,
    ProductWriter,
    write_with_groups,
)
from vertexrt.kernels.cuda.path_segment import PathSegment, RingUses, SegmentContext
from vertexrt.kernels.cuda.path_steps import (
    Step,
    groups_after,
    nodes_in,
    products_in,
    unsupported,
)
from vertexrt.kernels.cuda.path_task import PathTask, own_pieces, plan_task
from vertexrt.kernels.cuda.prefetch import (
    OperandCopy,
    PrefetchedOperand,
    operands_ahead,
    write_copy,
)
from vertexrt.kernels.cuda.ring import InRing, made_before, made_in_ring, place_rings
from vertexrt.kernels.cuda.row_text import WARP
from vertexrt.kernels.cuda.weights import THREADS
from vertexrt.kernels.layout import Binding
from vertexrt.lower.places import Memory, ValuePlace

Prefetched = dict[int, dict[int, ValuePlace]]  # number of a step -> where operands of its group lie


def write_task(
    task: PathTask, rows: Mapping[str, InRing], deferred: Collection[str]
) -> list[PathSegment]:
    """Write all segments of a task; what crosses from one to the next keeps its place.

    Args:
        rows: what the task has in rows of the ring, by tensor.
        deferred: of that, what may not be sent before a segment is over.
    """
    plan = task.plan
    if task.processors > 1 and any(x.split == Split.SUMS for x in plan.segments):
        raise unsupported(plan)
    alone = [set[int]() for _ in plan.segments]
    before = made_before(plan) if task.processors > 1 else alone
    copied: frozenset[int] = frozenset()
    found = []
    for segment, steps, made in zip(plan.segments, task.steps, before, strict=True):
        ring = RingUses(task, rows, made, deferred)
        context = SegmentContext(task, ring, segment.split == Split.UNITS, task.place)
        writer = SegmentWriter(context, steps, copied)
        found.append(writer.write())
        copied = writer.copied
    for text in found:
        text.scratch = task.temporaries.elements
    return found


class SegmentWriter:
    """One segment of a task of the path.

    Attributes:
        copied: leaves that an earlier group has put where they are read.
    """

    def __init__(
        self, context: SegmentContext, steps: Sequence[Step], copied: frozenset[int]
    ) -> None:
        self.context, self.task, self.nodes = context, context.task, context.task.nodes
        self.steps, self.copied = steps, copied
        self.text = PathSegment(context.ring)
        self.prefetched: Prefetched = {}

    def write(self) -> PathSegment:
        """Return the text."""
        if self.context.by_units or self.task.processors == 1:
            self._prefetch()
        number = 0
        while number < len(self.steps):
            number += self._step(number)
        return self.text

    def _step(self, number: int) -> int:
        """Write a step, and the groups that add up its partial sums; return how many these are."""
        step, text, context = self.steps[number], self.text, self.context
        context.ring.new_step()
        products = products_in(step)
        if number:
            text.lines += ["wait_for_all_copies();"] if number in self.prefetched else []
            text.lines.append("__syncthreads();")
        if products and all(self.task.place[k].memory == Memory.SUMS for k in products):
            groups = groups_after(self.steps, number)
            groups_left = [self._pending(group, number + 1 + n) for n, group in enumerate(groups)]
            self._add(write_with_groups(context, products, groups_left, number == 0))
            return 1 + len(groups)
        if number == 0:
            text.lines.append("prefetch_next();")
        if products:
            self._add(ProductWriter(context, products).stored())
            return 1
        self._group(number)
        return 1

    def _group(self, number: int) -> None:
        (group,) = self.steps[number]
        assert isinstance(group, Group)
        pending = self._pending(group, number)
        place = {**self.context.place, **pending.prefetched}
        text = write_path_group(replace(self.context, place=place), pending.rest)
        self.text.words.update(text.t.words)
        self.text.kernels.append(text.kernel)
        self.text.lines += text.loop_over_rows()

    def _pending(self, group: Group, number: int) -> PendingGroup:
        """Say what of a group is left to write: not prefetched, and not copied by another group."""
        prefetched = self.prefetched.get(number, {})
        nodes = tuple(k for k in group.nodes if k not in self.copied and k not in prefetched)
        place = self.context.place
        self.copied |= {k for k in nodes if is_free(self.nodes[k]) and k in place}
        return PendingGroup(group, Group(group.domain, nodes), prefetched)

    def _add(self, products: ProductText) -> None:
        text = self.text
        text.lines += products.lines
        text.words.update(products.words)
        text.kernels += products.kernels
        text.held = list(dict.fromkeys([*text.held, *products.held]))
        text.partial = max(text.partial, products.partial)

    # Operands that are copied to shared memory while products run.

    def _prefetch(self) -> None:
        """Prefetch operands of the groups after products, before the segment's first barrier."""
        operands = self._operands_to_prefetch()
        if not operands:
            return
        turns = 1
        while turns < min(len(operands), THREADS // WARP):
            turns *= 2
        self.text.prefetch = ["{", "  const int thread = this_thread();"]
        for turn, (number, operand) in enumerate(operands):
            to = self._write_copy(operand, turn % turns, turns)
            self.prefetched.setdefault(number, {})[operand.node] = to
        self.text.prefetch.append("}")

    def _operands_to_prefetch(self) -> list[tuple[int, PrefetchedOperand]]:
        """List operands that may be prefetched, with the numbers of the steps that read them."""
        made = nodes_in(part for step in self.steps for part in step)
        made_in_segment = {k for k in made if self.nodes[k].op != "gather"}
        return [
            (number, operand)
            for number, (group, *_) in enumerate(self.steps)
            if number and isinstance(group, Group)
            for operand in operands_ahead(
                self.nodes,
                group,
                self.task.place,
                made_in_segment,
                self.context.shares_of,
                self.task.processors,
            )
        ]

    def _write_copy(self, operand: PrefetchedOperand, turn: int, turns: int) -> ValuePlace:
        """Write the statements that prefetch an operand; return where it lies then.

        Args:
            turn, turns: of `OperandCopy`.
        """
        task, text = self.task, self.text
        own = own_pieces(operand.piece, task.processors) if task.processors > 1 else None
        size = self.nodes[operand.node].type.size // (task.processors if own else 1)
        to = task.temporaries.temporary(size, False, own=own)
        t = tile_text(task)
        source = task.place.get(operand.node)
        how = OperandCopy(source, to, t.origin(to), task.vector, task.processors, turn, turns)
        copy, words = write_copy(self.nodes[operand.node], operand, how, task.binding)
        text.prefetch += ["  {", *(f"    {line}" for line in (*t.head, *copy)), "  }"]
        text.words |= t.words | words
        return to


def is_outside_path(plan: SegmentedTask) -> bool:
    """Tell whether a task of the path can run outside it: it waits for no other, and none for it.

    Vertices without children run before the path; if their gradients reach no child, after it. All
    processors share their rows, whichever group has the vertices.
    """
    if plan.task.stage == Stage.PATH:
        return not plan.gathers
    if plan.task.stage == Stage.PATH_BACKWARD:
        nodes = plan.task.program.nodes
        ops = {nodes[k].op for k in plan.task.members}
        return not ops & {"scatter_child", "scatter_children"}
    return True


def write_path(
    tasks: Sequence[SegmentedTask], binding: Binding, vector: int, processors: int
) -> dict[int, list[PathSegment]]:
    """Write the segments of all tasks of the path: number of the task -> its segments.

    Which states are gathered in full, which tensors reach the ring, and which may be sent at once
    is known when segments are written. They are written again until that is what was assumed.
    """
    plans = {p: plan for p, plan in enumerate(tasks) if not is_outside_path(plan)}

    def write(p: int, rows: Mapping[str, InRing], deferred: Collection[str]) -> list[PathSegment]:
        return write_task(plan_task(plans[p], binding, vector, processors), rows, deferred)

    fields: set[str] = set()
    for p, plan in plans.items():
        if plan.task.stage == Stage.PATH:
            fields.update(*(x.ring.fields for x in write(p, {}, ())))
    without: set[str] = set()
    deferred: dict[int, set[str]] = {p: set() for p in plans}
    while True:
        rings = place_rings(plans, binding, fields, processors, without)
        found = {p: write(p, rings[p], deferred[p]) for p in plans}
        missing: set[str] = set()
        for p, plan in plans.items():
            missing |= _missing(plan, binding, rings[p], found[p])
        late = {p: _late(deferred[p], found[p]) for p in plans}
        if not missing and late == deferred:
            return found
        without |= missing  # not written to the ring by those that make it: read from memory
        deferred = late


def _late(deferred: Collection[str], segments: Sequence[PathSegment]) -> set[str]:
    """Add to what may not be sent before a segment is over what some segment sends then."""
    return {*deferred}.union(*(x.ring.late for x in segments))


def _missing(
    plan: SegmentedTask,
    binding: Binding,
    rows: Mapping[str, InRing],
    segments: Sequence[PathSegment],
) -> set[str]:
    """List what a task makes for rows of the ring that none of its segments puts there."""
    return made_in_ring(plan, binding, rows) - {word for x in segments for word in x.ring.puts}
