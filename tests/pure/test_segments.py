"""Segments of the path: what is decided of them, and which are refused."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest

import vertexrt as vrt
from tests.functions import GRU, Attention
from tests.runs import Way, use_of
from tests.strategies import CLASSES, WORDS
from vertexrt.errors import PlanError
from vertexrt.graph import GraphBatch, InputGraph
from vertexrt.ir.passes.segment import segment_tasks
from vertexrt.kernels.cuda.path import lower_path
from vertexrt.kernels.cuda.ring_uses import LoweredTask
from vertexrt.kernels.cuda.segment_text import SegmentText
from vertexrt.kernels.cuda.segments import (
    PartialSums,
    PathSegment,
    Products,
    RowsAtATime,
    SegmentStep,
    Together,
)
from vertexrt.kernels.cuda.verify_segments import verify_segments
from vertexrt.lower.kernel import J, Memory, ReadElement
from vertexrt.lower.threads import ElementLoop, PutInRing, ThreadKernel
from vertexrt.models import TreeLSTM

VECTOR = 4
HIDDEN = 8
PULLS = {"word": [1, 2, -1, 3, -1], "label": [0, 1, 2, 0, 1]}
TREE = InputGraph.from_children([[], [], [0, 1], [], [2, 3]], PULLS)
CASES: dict[str, tuple[Callable[[], vrt.VertexFunction], int]] = {
    "tree-lstm, whole vectors, alone": (lambda: TreeLSTM(WORDS, 8, 8, CLASSES), 1),
    "tree-lstm, whole vectors": (lambda: TreeLSTM(WORDS, 8, 8, CLASSES), 2),
    "tree-lstm": (lambda: TreeLSTM(WORDS, 6, 6, CLASSES), 2),
    "tree-lstm, uneven": (lambda: TreeLSTM(WORDS, 6, 6, CLASSES), 4),
    "gru, alone": (GRU, 1),
    "gru, uneven": (GRU, 2),
}
each_case = pytest.mark.parametrize("case", CASES)
NEAR = "tree-lstm, whole vectors, alone"  # all that is read besides is children's and parameters


class TwoStates(vrt.VertexFunction):
    """A state that is made before the path, and one that depends on children; both are read."""

    def __init__(self) -> None:
        super().__init__(arity=2, state={"h": HIDDEN, "x": HIDDEN})
        self.table = vrt.Parameter((WORDS, HIDDEN))
        self.u, self.w = vrt.Parameter((HIDDEN, HIDDEN)), vrt.Parameter((HIDDEN, HIDDEN))

    def forward(self) -> None:
        x = vrt.tanh(vrt.embed(self.table, self.pull("word")))
        h = vrt.tanh(self.u @ self.gather(0).x + self.w @ self.gather(1).h + x)
        self.scatter(h=h, x=x)
        self.push("loss", vrt.losses.cross_entropy(h, self.pull("label")))


def lowered(make: Callable[[], vrt.VertexFunction], processors: int) -> list[LoweredTask]:
    """Lower the path of a function that is trained; all of it is verified."""
    model = Way().model(make())
    runs = model.prepare(use_of("training", model.function), GraphBatch.from_graphs([TREE]))
    variant = runs[0].variant
    plans = segment_tasks(variant.tasks, alone=processors == 1)
    found = list(lower_path(plans, variant.binding, VECTOR, processors).values())
    return [verify_segments(task) for task in found]


Broken = Iterator[tuple[LoweredTask, Any]]  # a task in which something is changed, and what


def each_segment(tasks: Iterable[LoweredTask]) -> Iterator[tuple[LoweredTask, int, PathSegment]]:
    """Yield all segments, with their tasks and numbers."""
    for task in tasks:
        for number, segment in enumerate(task.segments):
            yield task, number, segment


def with_segment(task: LoweredTask, number: int, segment: PathSegment) -> LoweredTask:
    """Return a task with another segment in a place."""
    before, after = task.segments[:number], task.segments[number + 1 :]
    return replace(task, segments=(*before, segment, *after))


def edited(
    steps: tuple[SegmentStep, ...], edit: Callable[[Any], Iterable[Any] | None]
) -> Iterator[tuple[tuple[SegmentStep, ...], Any]]:
    """Yield steps in which one is replaced by others, wherever `edit` returns some."""
    for k, step in enumerate(steps):
        before, after = steps[:k], steps[k + 1 :]
        new = edit(step)
        if new is not None:
            yield (*before, *new, *after), step
        if isinstance(step, RowsAtATime):
            for inside, what in edited(step.steps, edit):
                yield (*before, replace(step, steps=inside), *after), what
            for between, what in edited(step.between, edit):
                yield (*before, replace(step, between=between), *after), what


def each_edit(tasks: Iterable[LoweredTask], edit: Callable[[Any], Iterable[Any] | None]) -> Broken:
    """Yield tasks in which one step is replaced by others, wherever `edit` returns some."""
    for task, number, segment in each_segment(tasks):
        for steps, what in edited(segment.steps, edit):
            yield with_segment(task, number, replace(segment, steps=steps)), what


def each_put(tasks: Iterable[LoweredTask], edit: Callable[[PutInRing], tuple[Any, ...]]) -> Broken:
    """Yield tasks in which one statement that puts elements into the ring is replaced."""

    def of_kernel(kernel: ThreadKernel, only: PutInRing) -> ThreadKernel:
        parts = tuple(
            replace(
                part,
                statements=tuple(
                    y for x in part.statements for y in (edit(only) if x is only else (x,))
                ),
            )
            if isinstance(part, ElementLoop)
            else part
            for part in kernel.parts
        )
        return replace(kernel, parts=parts)

    for put in puts(tasks):
        yield from (
            (task, put)
            for task, kernel in each_edit(
                tasks, lambda x, put=put: [of_kernel(x, put)] if has_put(x, put) else None
            )
        )


def has_put(step: object, put: PutInRing) -> bool:
    """Tell whether a step is a kernel that has this very statement."""
    return isinstance(step, ThreadKernel) and any(x is put for x in statements(step))


def statements(kernel: ThreadKernel) -> Iterator[object]:
    """Yield the statements of the loops of a kernel."""
    for part in kernel.parts:
        yield from part.statements if isinstance(part, ElementLoop) else ()


def puts(tasks: Iterable[LoweredTask]) -> list[PutInRing]:
    """List the statements that put elements into the ring."""
    kernels = (x for _, _, s in each_segment(tasks) for x in s.flat if isinstance(x, ThreadKernel))
    return [x for kernel in kernels for x in statements(kernel) if isinstance(x, PutInRing)]


def refusal_of(task: LoweredTask) -> str:
    """Return why a task is refused, nothing where it is accepted."""
    try:
        verify_segments(task)
    except PlanError as error:
        return str(error)
    return ""


def require_refused(broken: Broken, match: str) -> int:
    """Require that each is refused; return how many there are."""
    count = 0
    for task, what in broken:
        assert re.search(match, refusal_of(task)), f"accepted with another {what}"
        count += 1
    return count


@each_case
def test_every_barrier_is_needed(case: str) -> None:
    tasks = lowered(*CASES[case])
    match = "a barrier|wait for copies"
    broken = each_edit(tasks, lambda x: () if x == Together.BARRIER else None)
    shown = sum(str(segment).count("barrier") for _, _, segment in each_segment(tasks))
    assert require_refused(broken, match) == shown > 0


def test_a_barrier_between_groups_that_share_nothing_is_not_asked_for() -> None:
    tasks = lowered(Attention, 1)
    broken = each_edit(tasks, lambda x: () if x == Together.BARRIER else None)
    assert [refusal_of(task) for task, _ in broken].count("") == 1


@each_case
def test_a_wait_for_copies_is_needed(case: str) -> None:
    tasks = lowered(*CASES[case])
    broken = each_edit(tasks, lambda x: () if x == Together.WAIT_FOR_COPIES else None)
    copies = sum(bool(segment.copies) for _, _, segment in each_segment(tasks))
    assert require_refused(broken, "a wait for copies") == copies
    assert (copies > 0) == (case != NEAR), "of pieces that processors share unevenly, too"


@each_case
def test_the_next_instruction_is_loaded_once(case: str) -> None:
    tasks = lowered(*CASES[case])
    for times in (0, 2):
        broken = each_edit(
            tasks, lambda x, times=times: [x] * times if x == Together.LOAD_NEXT else None
        )
        count = len([*each_segment(tasks)])
        assert require_refused(broken, f"loaded {times} times") == count


@each_case
def test_sums_that_are_not_left_are_refused(case: str) -> None:
    tasks = lowered(*CASES[case])
    broken = each_edit(tasks, lambda x: () if has_sums(x) else None)
    require_refused(broken, "sums that are left")


def test_steps_in_another_order_are_refused() -> None:
    tasks = lowered(*CASES["gru, uneven"])
    (task, number, segment) = next(each_segment(tasks))
    load, group, barrier, products, *rest = segment.steps
    assert isinstance(group, ThreadKernel)
    assert isinstance(products, Products)
    for steps in ((load, products, barrier, group, *rest), (load, barrier, products, *rest)):
        with pytest.raises(PlanError, match="is read; what was stored before"):
            verify_segments(with_segment(task, number, replace(segment, steps=steps)))


def has_sums(step: object) -> bool:
    """Tell whether a step leaves partial sums."""
    return isinstance(step, Products) and bool(step.sums)


def test_partial_sums_that_overlap_are_refused() -> None:
    def earlier(x: object) -> list[Products] | None:
        if not isinstance(x, Products) or len(x.sums) < 2:
            return None
        first, second = x.products
        assert isinstance(second.to, PartialSums)
        moved = replace(second, to=replace(second.to, start=second.to.start - VECTOR))
        return [Products((first, moved))]

    tasks = lowered(*CASES["tree-lstm, whole vectors"])
    assert require_refused(each_edit(tasks, earlier), "partial sums overlap") == 2


def test_temporaries_that_do_not_fit_are_refused() -> None:
    tasks = lowered(*CASES["tree-lstm"])
    broken = [
        (with_segment(task, number, replace(segment, scratch=(segment.scratch[0] - 1, 0, 0))), None)
        for task, number, segment in each_segment(tasks)
        if uses_last_temporary(task, segment)
    ]
    assert require_refused(iter(broken), "a place in") == len(broken) > 0


def uses_last_temporary(task: LoweredTask, segment: PathSegment) -> bool:
    """Tell whether a segment has the temporary at the end of a row."""
    last = len(task.task.temporaries.taken) - 1
    return f"temporary {last}[" in str(segment)


def test_a_copy_of_what_the_segment_stores_is_refused() -> None:
    tasks = lowered(*CASES["tree-lstm, whole vectors"])
    (task, number, segment) = next(x for x in each_segment(tasks) if x[2].copies)
    (put, *_) = puts(tasks)
    home = replace(task.task.place[put.register])
    assert home.memory == Memory.TENSOR
    copy = replace(segment.copies[0], source=ReadElement(home, J))
    broken = with_segment(task, number, replace(segment, copies=(copy,)))
    with pytest.raises(PlanError, match="what this segment does not store"):
        verify_segments(broken)


# The ring.


@each_case
def test_what_is_put_in_the_ring_is_put_once(case: str) -> None:
    tasks = lowered(*CASES[case])
    number = len(puts(tasks))
    assert number > 0
    gone = require_refused(each_put(tasks, lambda x: ()), "put|it puts")
    twice = require_refused(each_put(tasks, lambda x: (x, x)), "all of it, once")
    assert gone == twice == number


@each_case
def test_every_send_is_needed_once(case: str) -> None:
    tasks = lowered(*CASES[case])
    many = CASES[case][1] > 1
    other = require_refused(
        each_put(tasks, lambda x: (replace(x, together=int(not x.sent)),)), "sent"
    )
    assert other == len(puts(tasks))
    for times in (0, 2):
        broken = [
            (with_segment(task, n, replace(s, ring=replace(s.ring, sends=s.ring.sends * times))), s)
            for task, n, s in each_segment(tasks)
            if s.ring.sends
        ]
        at_once = any(x.sent for x in puts(tasks))
        assert require_refused(iter(broken), "sent once") == len(broken)
        assert many == bool(broken or at_once)


def test_nothing_is_sent_before_the_ring_is_read() -> None:
    tasks = lowered(*CASES["tree-lstm, whole vectors"])
    (task, number, segment) = next(x for x in each_segment(tasks) if x[2].ring.gathers)
    assert any(x.sent for x in puts([task]))
    (rows,) = (x for x in segment.steps if isinstance(x, RowsAtATime))
    steps = tuple(x for x in rows.steps if has_sums(x))
    again = (*segment.steps, Together.BARRIER, replace(rows, steps=steps))
    with pytest.raises(PlanError, match=r"before tensor \d is read"):
        verify_segments(with_segment(task, number, replace(segment, steps=again)))


@each_case
def test_scripts_know_what_segments_do(case: str) -> None:
    for task, number, segment in each_segment(lowered(*CASES[case])):
        ring = segment.ring
        others = [replace(ring, puts=()), replace(ring, gathers=()), replace(ring, operand=False)]
        others.append(replace(ring, needs_all=False))
        for other in (x for x in others if x != ring):
            with pytest.raises(PlanError, match="scripts know"):
                verify_segments(with_segment(task, number, replace(segment, ring=other)))


@pytest.mark.parametrize("processors", [1, 2])
def test_a_state_that_no_segment_makes_is_read_from_memory(processors: int) -> None:
    tasks = lowered(TwoStates, processors)
    task = next(task for task in tasks if any(s.ring.gathers for s in task.segments))
    (segment,) = task.segments
    tensors = task.task.binding.tensors
    h, x = tensors["state", "h"], tensors["state", "x"]
    assert [x.tensor for x in segment.ring.gathers] == [h] == [*segment.rows]
    assert f"near(number {h}, slot 1, j)" in str(segment)
    assert f"gather(number {x}, slot 0, j)" in str(segment)
    assert segment.ring.needs_all == (processors > 1), "then all wait for it"


# What is printed.


@each_case
def test_the_text_is_that_of_the_records(case: str) -> None:
    for task, _, segment in each_segment(lowered(*CASES[case])):
        text = SegmentText(segment, task.task)
        lines = "\n".join(text.lines)
        assert lines.count("__syncthreads();") == str(segment).count("barrier")
        assert lines.count("wait_for_operands();") == str(segment).count("wait for copies")
        assert "\n".join(text.prefetch).count("copy_ahead<") == len(segment.copies)
        for x in segment.held:
            assert f"held.{x.name}" in lines
        assert bool(text.sends(task.task.processors)) == bool(segment.ring.sends)


@pytest.mark.parametrize("processors", [1, 2])
def test_an_operand_of_two_products_is_read_once(processors: int) -> None:
    """On the way back, both weights of a vertex with two children multiply one gradient."""
    count = 0
    for task, _, segment in each_segment(lowered(TwoStates, processors)):
        steps = [x for x in segment.flat if isinstance(x, Products) and not x.sums]
        both = [x for x in steps if x.one_operand]
        for x in both:
            first, second = x.products
            assert first.operand == second.operand
            apart = replace(second, operand=replace(second.operand, width=1))
            assert not Products((first, apart)).one_operand
        assert str(segment).count("both times one operand:") == len(both)
        assert "\n".join(SegmentText(segment, task.task).lines).count("multiply<true>(") == len(
            both
        )
        count += len(both)
    assert count
