"""The kernel IR: what it says of a function, and mistakes in it that its verifier finds."""

from collections.abc import Callable
from dataclasses import replace

import pytest

import vertexrt as vrt
from tests.declared import Declared
from tests.runs import Way, use_of
from vertexrt.errors import PlanError
from vertexrt.ir.program import Stage
from vertexrt.lower.kernel import (
    Constant,
    Fill,
    J,
    KernelIR,
    MatrixProduct,
    Memory,
    PlaceRows,
    ReadElement,
    Reduce,
    RowLoop,
    ValuePlace,
)
from vertexrt.lower.lowering import lower
from vertexrt.lower.verify import verify


class Small(Declared, arity=1, state={"h": 8}, w=(8, 8)):
    """A product, a sum along a row, and an elementwise op after it."""

    def forward(self) -> None:
        x = vrt.tanh(self.w @ self.gather(0).h)
        self.scatter(h=x / (1.0 + vrt.sum(x * x)))
        self.push("out", x)


@pytest.fixture(scope="module")
def kernel() -> KernelIR:
    """The kernel of the path of a vertex with a child."""
    model = Way().model(Small())
    chain = vrt.GraphBatch.from_graphs([vrt.InputGraph.from_children([[], [0]])])
    (run,) = model.prepare(use_of("inference", model.function), chain)
    found = [
        lower(task, run.variant.binding) for task in run.variant.tasks if task.stage == Stage.PATH
    ]
    return next(k for k in found if any(isinstance(s, MatrixProduct) for s in k.steps))


def test_a_kernel_says_what_it_does(kernel: KernelIR) -> None:
    text = str(verify(kernel))
    assert "param 0 [8, 8]^T, rows" in text
    assert "tanh(" in text
    assert "reduce_sum" in text
    assert text.count("for each row:") == 2  # what the product reads, and what reads its result


def edited(kernel: KernelIR, change: Callable[[RowLoop], RowLoop]) -> KernelIR:
    """Change the last loop."""
    (steps,) = kernel.segments
    *before, last = steps
    assert isinstance(last, RowLoop)
    return replace(kernel, segments=((*before, change(last)),))


def without(kind: type) -> Callable[[RowLoop], RowLoop]:
    """Leave out the first statement of a kind."""

    def change(loop: RowLoop) -> RowLoop:
        at = next(k for k, s in enumerate(loop.body) if isinstance(s, kind))
        return replace(loop, body=loop.body[:at] + loop.body[at + 1 :])

    return change


def shifted(loop: RowLoop) -> RowLoop:
    """Let a fill read the element after the one that it writes."""
    place = ValuePlace(Memory.TENSOR, 0, 8, PlaceRows.ROW)
    fill = Fill(place, ReadElement(place.part(1, 7), J), ((0, 7),))
    return replace(loop, body=(*loop.body, fill))


def beyond(loop: RowLoop) -> RowLoop:
    """Let a fill write outside of its rows."""
    place = ValuePlace(Memory.TENSOR, 0, 8, PlaceRows.ROW, start=4, stride=8)
    return replace(loop, body=(*loop.body, Fill(place, Constant(0.0), ((0, 8),))))


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (without(Reduce), "is read; a statement of this loop that makes it"),
        (shifted, "which it writes; what no iteration of its loop writes"),
        (beyond, "is used; elements inside of its rows"),
    ],
)
def test_mistakes_are_found(
    kernel: KernelIR, change: Callable[[RowLoop], RowLoop], found: str
) -> None:
    with pytest.raises(PlanError, match=found):
        verify(edited(kernel, change))


def test_a_product_that_nothing_wrote_the_operand_of_is_found(kernel: KernelIR) -> None:
    (steps,) = kernel.segments
    later = tuple(s for s in steps if not isinstance(s, MatrixProduct))
    with pytest.raises(PlanError, match="is read; a statement before that writes it"):
        verify(replace(kernel, segments=(later,)))
