"""What the steps of a segment read and store, for the passes that walk over them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple, TypeGuard

from vertexrt.ir.program import Type
from vertexrt.kernels.cuda.path_task import PathTask
from vertexrt.kernels.cuda.segments import (
    ComputedRows,
    PartialSums,
    PathSegment,
    PlainStep,
    Products,
    ResidentProduct,
    RowsInMemory,
    Together,
)
from vertexrt.lower.kernel import (
    Expression,
    FromParents,
    Leaf,
    Memory,
    Picked,
    PlaceRows,
    ReadElement,
    ValuePlace,
)
from vertexrt.lower.threads import (
    ElementLoop,
    MakeNumber,
    PublishElements,
    PublishNumber,
    ReduceElements,
    StoreElements,
    ThreadKernel,
    ThreadPart,
    read_by,
)


def numbered(segment: PathSegment) -> Iterator[tuple[int, PlainStep]]:
    """Yield the steps, those for some rows at a time once; barriers begin the next number."""
    number = 0
    for step in segment.flat:
        number += step == Together.BARRIER
        yield number, step


def products_of(step: PlainStep) -> tuple[ResidentProduct, ...]:
    """Return the products of a step."""
    return step.products if isinstance(step, Products) else ()


def parts_of(step: PlainStep) -> tuple[ThreadPart, ...]:
    """Return the parts of a kernel."""
    return step.parts if isinstance(step, ThreadKernel) else ()


def loops_of(step: PlainStep) -> list[ElementLoop]:
    """Return the loops over elements of a kernel."""
    return [part for part in parts_of(step) if isinstance(part, ElementLoop)]


def is_whole(part: ThreadPart) -> bool:
    """Tell whether a part of a kernel reads and makes all elements, not a processor's own ones."""
    return not isinstance(part, ElementLoop) or not part.cuts


def is_row(place: ValuePlace | PartialSums) -> TypeGuard[ValuePlace]:
    """Tell whether a place is in a tensor by rows: the ring may have it, too."""
    in_tensor = isinstance(place, ValuePlace) and place.memory == Memory.TENSOR
    return in_tensor and place.rows == PlaceRows.ROW


def expressions_read(step: PlainStep, whole: bool = False) -> Iterator[Expression | FromParents]:
    """Yield what a step reads, but for operands of products that lie in memory.

    Args:
        whole: only where it reads all elements.
    """
    for x in products_of(step):
        if isinstance(x.operand, ComputedRows):
            yield from x.operand.expressions
    for part in parts_of(step):
        if is_whole(part) or not whole:
            yield from read_by(part)


def stores_of(step: PlainStep) -> Iterator[ValuePlace]:
    """Yield the places that a step stores."""
    for x in products_of(step):
        if isinstance(x.to, ValuePlace):
            yield x.to
    for part in parts_of(step):
        yield from _stored_by(part)


def _stored_by(part: ThreadPart) -> Iterator[ValuePlace]:
    match part:
        case ElementLoop():
            for x in part.statements:
                if isinstance(x, StoreElements | PublishElements):
                    yield x.to
                elif isinstance(x, ReduceElements):
                    yield from x.to
        case MakeNumber():
            yield from part.to
        case PublishNumber():
            yield part.to


class FullRead(NamedTuple):
    """What a step reads in memory, in full, of what processors make in parts.

    Attributes:
        step: its number.
        tensor: whose rows the ring may have; -1 for none.
        child: it is the state of a child.
    """

    step: int
    tensor: int
    child: bool


def full_reads(task: PathTask, segment: PathSegment) -> Iterator[FullRead]:
    """Yield what a segment reads in full, but for what it reads in the ring."""
    states = task.states
    for number, step in numbered(segment):
        for e in expressions_read(step, whole=True):
            tensor = _exchanged(e, states, segment.in_parts)
            if tensor is not None:
                yield FullRead(number, tensor, tensor >= 0)
        for x in products_of(step):
            operand = x.operand
            if isinstance(operand, RowsInMemory) and _is_exchanged(operand, segment.in_parts):
                yield FullRead(number, exchanged_tensor(x, operand), False)


def exchanged_tensor(x: ResidentProduct, operand: RowsInMemory) -> int:
    """Return the tensor of an operand whose rows the ring may have, -1 for none."""
    return operand.place.number if is_row(operand.place) and not x.edges else -1


def _is_exchanged(operand: RowsInMemory, in_parts: Collection[ValuePlace]) -> bool:
    return operand.near is None and operand.place in in_parts


def _exchanged(
    e: Expression | FromParents, states: Mapping[int, Type], in_parts: Collection[ValuePlace]
) -> int | None:
    """Return the tensor of what is made in parts, if the ring may have it, else -1.

    Returns: None for what every processor has.
    """
    match e:
        case FromParents():
            return -1
        case Leaf(op="gather", number=tensor) if tensor in states:
            return tensor if states[tensor].shape != () else -1
        case ReadElement(place=place) | Picked(place=place) if place in in_parts:
            return -1
    return None
