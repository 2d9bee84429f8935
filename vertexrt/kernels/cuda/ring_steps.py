"""The steps of a segment with a ring: what is stored is put there, too, and read from there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from vertexrt.kernels.cuda.path_task import PathTask
from vertexrt.kernels.cuda.segment_accesses import (
    exchanged_tensor,
    expressions_read,
    is_row,
    is_whole,
)
from vertexrt.kernels.cuda.segments import (
    ComputedRows,
    InRing,
    PathSegment,
    PlainStep,
    Products,
    ResidentProduct,
    RowsAtATime,
    SegmentStep,
)
from vertexrt.lower.kernel import Apply, Expression, FromParents, Leaf
from vertexrt.lower.threads import (
    NEAR,
    EdgeSum,
    ElementLoop,
    ElementStatement,
    MakeElements,
    MakeNumber,
    PublishElements,
    PublishNumber,
    PutInRing,
    ReduceElements,
    StoreElements,
    ThreadKernel,
    ThreadPart,
)

IsNear = Callable[[Leaf], bool]


class RingSteps:
    """Adds the ring to the steps of a segment.

    Args:
        rows: what its task has in rows of the ring, by tensor.
        together: of what is sent, how many threads send their elements as one vector; 0: later.
    """

    def __init__(
        self,
        task: PathTask,
        segment: PathSegment,
        rows: Mapping[int, InRing],
        together: Mapping[int, int],
    ) -> None:
        self.segment, self.rows = segment, rows
        self.together = together
        self.near = {t for t, kind in task.states.items() if t in rows and kind.shape != ()}

    def steps(self) -> tuple[SegmentStep, ...]:
        """Return the steps."""
        return tuple(map(self._step, self.segment.steps))

    def _step(self, step: SegmentStep) -> SegmentStep:
        if isinstance(step, RowsAtATime):
            return replace(step, steps=tuple(map(self._plain, step.steps)))
        return self._plain(step)

    def _plain(self, step: PlainStep) -> PlainStep:
        match step:
            case Products():
                return Products(tuple(map(self._product, step.products)))
            case ThreadKernel():
                return self._kernel(step)
        return step

    def _product(self, x: ResidentProduct) -> ResidentProduct:
        operand = x.operand
        if isinstance(operand, ComputedRows):
            made = tuple(replace(s, value=_map(s.value, self._in_ring)) for s in operand.made)
            operand = ComputedRows(
                operand.width, made, tuple(_near(e, self._in_ring) for e in operand.values)
            )
        elif operand.place in self.segment.in_parts:
            operand = replace(operand, near=self.rows.get(exchanged_tensor(x, operand)))
        put = self.rows.get(x.to.number) if is_row(x.to) else None
        return replace(x, operand=operand, put=put)

    def _in_ring(self, e: Leaf) -> bool:
        return e.number in self.near

    def _kernel(self, kernel: ThreadKernel) -> ThreadKernel:
        """Return a kernel that puts what it stores, too, and reads states of children there.

        The pointer to the state in a slot is found once a row, for all loops.
        """
        full = {e for e in expressions_read(kernel, whole=True) if isinstance(e, Leaf)}
        read = {(e.number, e.slot) for e in full if self._in_ring(e)}

        def is_near(part: ThreadPart) -> IsNear:
            whole = is_whole(part)
            return lambda e: (e.number, e.slot) in read and (whole or e.slot >= 0 or kernel.edges)

        parts = (self._part(part, is_near(part)) for part in kernel.parts)
        return replace(kernel, parts=tuple(parts))

    def _part(self, part: ThreadPart, is_near: IsNear) -> ThreadPart:
        match part:
            case ElementLoop():
                read = (_read_near(x, is_near) for x in part.statements)
                return replace(part, statements=tuple(y for x in read for y in self._put(x)))
            case MakeNumber():
                return replace(part, value=_map(part.value, is_near))
            case PublishNumber():
                return replace(part, value=_near(part.value, is_near))
        return part

    def _put(self, x: ElementStatement) -> tuple[ElementStatement, ...]:
        """Return a statement, and what puts its elements in the tile's row of the ring, too."""
        if not isinstance(x, StoreElements | PublishElements) or not is_row(x.to):
            return (x,)
        tensor, start = x.to.number, x.to.start
        if tensor not in self.rows:
            return (x,)
        register = x.register if isinstance(x, PublishElements) else x.value.place.number
        put = PutInRing(tensor, start, register, self.together.get(tensor, 0))
        return (put, x) if isinstance(x, StoreElements) and x.own else (x, put)


def _read_near(x: ElementStatement, is_near: IsNear) -> ElementStatement:
    match x:
        case MakeElements():
            return replace(x, value=_map(x.value, is_near))
        case PublishElements() | ReduceElements():
            return replace(x, value=_near(x.value, is_near))
    return x


def _map(value: Expression | EdgeSum, is_near: IsNear) -> Expression | EdgeSum:
    if not isinstance(value, EdgeSum):
        return _near(value, is_near)
    sources = (x if isinstance(x, FromParents) else _near(x, is_near) for x in value.sources)
    return replace(value, sources=tuple(sources))


def _near(e: Expression, is_near: IsNear) -> Expression:
    """Return an expression that reads states of children in the ring where it can."""
    match e:
        case Apply():
            return replace(e, operands=tuple(_near(x, is_near) for x in e.operands))
        case Leaf(op="gather") if is_near(e):
            return replace(e, op=NEAR)
    return e
