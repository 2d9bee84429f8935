"""Kernels whose rows are the work of several threads: what is decided, and which are refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

import vertexrt as vrt
from tests.runs import Way, use_of
from vertexrt.errors import PlanError
from vertexrt.graph import GraphBatch, InputGraph
from vertexrt.ir.passes.fuse import Group
from vertexrt.ir.program import Stage
from vertexrt.kernels.cuda.row_text import WARP
from vertexrt.kernels.cuda.thread_groups import GroupContext, lower_group, row_threads
from vertexrt.kernels.cuda.thread_text import ThreadText
from vertexrt.kernels.cuda.thread_widths import width_of
from vertexrt.lower.kernel import Index, Memory, Number, PlaceRows, ReadElement, ValuePlace
from vertexrt.lower.lowering import Memories, ValuePlaces
from vertexrt.lower.threads import (
    ElementLoop,
    MakeElements,
    ReduceElements,
    RowWait,
    StoreElements,
    ThreadKernel,
)
from vertexrt.lower.verify import verify_threads

WORDS, HIDDEN, VECTOR = 5, 8, 4


class Turned(vrt.VertexFunction):
    """Halves of a vector change places, and what is left is divided by its sum."""

    def __init__(self) -> None:
        super().__init__(arity=1, state={"h": HIDDEN})
        self.table = vrt.Parameter((WORDS, HIDDEN))

    def forward(self) -> None:
        x = vrt.tanh(vrt.embed(self.table, self.pull("word")) + self.gather(0).h)
        first, second = vrt.split(x, 2)
        turned = vrt.sigmoid(vrt.concat(second, first))
        h = turned / (vrt.sum(turned) + 1.0)
        self.scatter(h=h)
        self.push("h", h)


def lowered() -> ThreadKernel:
    """Lower the group of the path."""
    model = Way().model(Turned())
    graph = InputGraph.from_children([[], [0]], {"word": [1, 2]})
    use = use_of("inference", model.function)
    (run,) = model.prepare(use, GraphBatch.from_graphs([graph]))
    task = next(t for t in run.variant.tasks if t.stage == Stage.PATH and t.program.find("gather"))
    values = ValuePlaces(task.program.nodes, run.variant.binding)
    values.place |= {i: values.stored(i, read) for i, read in task.reads.items()}
    values.place |= {k: values.home(k, key) for k, key in task.homes.items()}
    (group,) = (step for step in task.steps if isinstance(step, Group))
    return lower_group(GroupContext(values, Memories(), VECTOR, 0, False), group)


def loops(kernel: ThreadKernel) -> list[ElementLoop]:
    """Return the loops over elements."""
    return [part for part in kernel.parts if isinstance(part, ElementLoop)]


def with_loop(kernel: ThreadKernel, number: int, loop: ElementLoop) -> ThreadKernel:
    """Return a kernel with another loop in a place."""
    at = kernel.parts.index(loops(kernel)[number])
    return replace(kernel, parts=(*kernel.parts[:at], loop, *kernel.parts[at + 1 :]))


def test_a_kernel_prints_what_was_decided() -> None:
    assert str(lowered()) == GOLDEN


def test_the_text_is_that_of_the_records() -> None:
    kernel = lowered()
    text = ThreadText(kernel, ()).row_kernel()
    assert text.count("row_wait<T>();") == str(kernel).count("wait for the threads")
    assert text.count("constexpr int W = ") == len(loops(kernel))
    assert f"VRT_SCRATCH(real, all_scratch, {kernel.rows * kernel.scratch});" in text


def test_loops_end_where_elements_are_read_elsewhere() -> None:
    first, *rest = loops(verify_threads(lowered()))
    stores = [x for x in first.statements if isinstance(x, StoreElements)]
    assert stores, "its halves are read by other threads"
    assert any(isinstance(x, RowWait) for loop in rest for x in loop.before)


def test_rows_are_the_work_of_a_warp_or_a_block() -> None:
    assert row_threads(8, 4, 0) == (WARP, 4)
    assert row_threads(512, 4, 0) == (128, 1)
    assert row_threads(100_000, 4, 0) == (256, 1)
    assert row_threads(8, 4, 256) == (WARP, 8)
    assert row_threads(1024, 4, 256) == (WARP, 8)
    assert row_threads(1028, 4, 256) == (256, 1)


@pytest.mark.parametrize(
    ("start", "shift", "size", "width"), [(0, 0, 8, 4), (4, 8, 8, 4), (0, 3, 8, 1), (2, 0, 8, 1)]
)
def test_loops_take_vectors_where_all_starts_on_16_bytes(
    start: int, shift: int, size: int, width: int
) -> None:
    to, of = (
        ValuePlace(Memory.TENSOR, n, size, PlaceRows.ROW, stride=2 * size, start=at)
        for n, at in enumerate((start, 0))
    )
    store = StoreElements(to, ReadElement(of, Index(True, shift)))
    assert width_of(ElementLoop(size, (), 1, (), (store,)), VECTOR) == width


def test_vectors_that_are_not_whole_are_refused() -> None:
    kernel = lowered()
    with pytest.raises(PlanError, match="whole vectors"):
        verify_threads(with_loop(kernel, 0, replace(loops(kernel)[0], width=3)))


def test_a_kernel_without_a_wait_is_refused() -> None:
    kernel = lowered()
    for number, loop in enumerate(loops(kernel)):
        waits = [x for x in loop.before if isinstance(x, RowWait)]
        if waits:
            left = tuple(x for x in loop.before if not isinstance(x, RowWait))
            with pytest.raises(PlanError, match="a wait between"):
                verify_threads(with_loop(kernel, number, replace(loop, before=left)))


def test_a_place_outside_of_scratch_is_refused() -> None:
    kernel = lowered()
    assert kernel.scratch
    with pytest.raises(PlanError, match="a place in"):
        verify_threads(replace(kernel, scratch=kernel.scratch - VECTOR))
    with pytest.raises(PlanError, match="a place in"):
        verify_threads(replace(kernel, most=0))


def test_scratch_that_nothing_stores_is_refused() -> None:
    kernel = lowered()
    first = loops(kernel)[0]
    kept = tuple(x for x in first.statements if not isinstance(x, StoreElements))
    with pytest.raises(PlanError, match="scratch that was stored before"):
        verify_threads(with_loop(kernel, 0, replace(first, statements=kept)))


def test_a_register_that_leaves_its_loop_is_refused() -> None:
    kernel = lowered()
    first, second = loops(kernel)[:2]
    store = next(x for x in first.statements if isinstance(x, StoreElements))
    moved = replace(second, statements=(store, *second.statements))
    with pytest.raises(PlanError, match="made in this loop"):
        verify_threads(with_loop(kernel, 1, moved))


def test_a_sum_that_is_read_in_its_loop_is_refused() -> None:
    kernel = lowered()
    for number, loop in enumerate(loops(kernel)):
        for x in loop.statements:
            if isinstance(x, ReduceElements):
                early = MakeElements(99, Number(x.number))
                broken = replace(loop, statements=(*loop.statements, early))
                with pytest.raises(PlanError, match="a number that all threads have"):
                    verify_threads(with_loop(kernel, number, broken))


def test_threads_that_cannot_wait_are_refused() -> None:
    with pytest.raises(PlanError, match="at most 32 threads"):
        verify_threads(replace(lowered(), rows=0, threads=64))


GOLDEN = """\
for each row, 32 threads, 16 elements of scratch:
  for elements 0:4, 4 at a time:
    s1 = (tanh((tensor 0[row][0:8](j + 4) + gather(number 1, slot 0, j + 4))))
    scratch 0[0:4 of 8] = s1
    s3 = (tanh((tensor 0[row][0:8](j) + gather(number 1, slot 0, j))))
    scratch 0[4:8 of 8] = s3
  wait for the threads of the row
  for elements 0:8, 4 at a time:
    r9 = (sigmoid(scratch 0[0:8](j)))
    scratch 8[0:8] = r9
    %10 += reduce_sum r9
  %12 = (%10 + 1.0)
  wait for the threads of the row
  for elements 0:8, 4 at a time:
    r13 = (scratch 8[0:8](j) / %12)
    tensor 1[row][0:8] = r13"""
