"""Kernels whose rows are the work of several threads: what is decided, and which are refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

import vertexrt as vrt
from tests.runs import Way, use_of
from vertexrt.errors import PlanError
from vertexrt.graph import GraphBatch, InputGraph
from vertexrt.ir.passes.fuse import Group
from vertexrt.ir.program import Stage
from vertexrt.kernels.cuda.thread_groups import GroupContext, lower_group
from vertexrt.kernels.cuda.thread_places import width_of
from vertexrt.lower import kernel as kernel_ir
from vertexrt.lower import threads
from vertexrt.lower.kernel import Index, Memory, PlaceRows, ReadElement, ValuePlace
from vertexrt.lower.lowering import Memories, ValuePlaces
from vertexrt.lower.threads import (
    ElementLoop,
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


def test_a_kernel_prints_what_was_decided() -> None:
    assert str(lowered()) == GOLDEN


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
    assert width_of(ElementLoop(size, 1, (), (store,)), VECTOR) == width


def without(parts: Sequence[object], kind: type[object]) -> tuple[object, ...]:
    return tuple(part for part in parts if not isinstance(part, kind))


# What is done to a kernel with three loops -> what is said of it.
BROKEN = {
    "loop(0, width=3)": "whole vectors",
    "loop(1, before=without(second.before, RowWait))": "a wait between",
    "loop(2, before=without(third.before, RowWait))": "a wait between",
    "replace(kernel, scratch=kernel.scratch - VECTOR)": "a place in",
    "replace(kernel, most=0)": "a place in",
    "loop(0, statements=without(first.statements, StoreElements))": "scratch that was stored",
    "loop(1, statements=(first.statements[1], *second.statements))": "made in this loop",
    "loop(1, statements=(*second.statements, MakeElements(99, Number(10))))": (
        "a number that all threads have"
    ),
}


@pytest.mark.parametrize("code", BROKEN)
def test_a_broken_kernel_is_refused(code: str) -> None:
    kernel = verify_threads(lowered())
    first, second, third = loops(kernel)

    def loop(number: int, **changes: Any) -> ThreadKernel:
        parts = list(kernel.parts)
        at = parts.index(loops(kernel)[number])
        parts[at] = replace(loops(kernel)[number], **changes)
        return replace(kernel, parts=tuple(parts))

    names = {**vars(kernel_ir), **vars(threads), **globals(), **locals()}
    with pytest.raises(PlanError, match=BROKEN[code]):
        verify_threads(eval(code, names))


GOLDEN = """\
for each row, 32 threads, 16 elements of scratch:
  for elements 0:4, 4 at a time:
    s1 = (tanh((tensor 0[row][0:8](j + 4) + gather(number 1, slot 0, j + 4))))
    scratch 0[0:4 of 8] = s1
    s2 = (tanh((tensor 0[row][0:8](j) + gather(number 1, slot 0, j))))
    scratch 0[4:8 of 8] = s2
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
