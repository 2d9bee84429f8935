"""Verify a kernel: what each read was written by, and that nothing is written while it is read.

Under VERTEXRT_CHECK and in all tests. What lies in tensors is written by other launches, whose
order `engine.verify_tasks` looks at; here it is what lies in temporaries, scratch rows and
registers.
"""

from __future__ import annotations

from vertexrt.errors import PlanError
from vertexrt.lower.expressions import Expression, Number, Picked, ReadElement, expressions_in
from vertexrt.lower.kernel import (
    AddLookups,
    Choose,
    Compute,
    Fill,
    FromParents,
    KernelIR,
    MatrixProduct,
    Outer,
    Reduce,
    RowLoop,
    Statement,
    SumEdges,
    SumRows,
)
from vertexrt.lower.places import Memory, ValuePlace


def verify(kernel: KernelIR) -> KernelIR:
    """Return the kernel.

    Raises: PlanError, naming the statement, when something is read that nothing has written, when a
        fill reads other elements of what it writes, or when a place is outside of its memory.
    """
    _Verifier(kernel).run()
    return kernel


class _Verifier:
    """Walks a kernel in the order in which it runs.

    Attributes:
        written: (memory, number) of temporaries so far; of a loop, scratch rows and numbers too.
    """

    def __init__(self, kernel: KernelIR) -> None:
        self.kernel = kernel
        self.written: set[tuple[Memory, int]] = set()
        self.numbers: set[int] = set()
        self.what: object = None

    def run(self) -> None:
        """Verify all steps."""
        self._no_overlap()
        for step in self.kernel.steps:
            self.what = step
            match step:
                case RowLoop():
                    before = set(self.written)
                    self.numbers = set()
                    for statement in step.body:
                        self.what = statement
                        self._statement(statement)
                    kept = {key for key in self.written if key[0] == Memory.TEMPORARY}
                    self.written = before | kept
                case MatrixProduct():
                    self._read(step.x.place)
                    self._write(step.y.place)
                case Outer():
                    self._read(step.d.place)
                    self._read(step.x.place)
                case AddLookups():
                    self._read(step.source)

    def _no_overlap(self) -> None:
        """Check that memory that is taken piece by piece is large enough for its pieces."""
        rows, edges, once = self.kernel.needs
        for t in self.kernel.temporaries:
            if t.rows > rows or t.edges > edges or t.once > once:
                self._fail(f"a temporary begins at {t}", f"inside of {self.kernel.needs}")

    def _statement(self, s: Statement) -> None:
        match s:
            case Fill():
                self._expression(s.value)
                self._apart(s.to, s.value)
                self._write(s.to)
            case Compute():
                self._expression(s.value)
                self.numbers.add(s.number)
            case Reduce():
                self._read(s.source)
                self.numbers.add(s.number)
            case SumEdges():
                for source in s.sources:
                    if not isinstance(source, FromParents):
                        self._expression(source)
                        self._apart(s.to, source)
                self._write(s.to)
            case Choose():
                self._statement(s.several)
                self.written.add((Memory.CHOSEN, s.number))
            case SumRows():
                self._expression(s.value)

    def _expression(self, expression: Expression) -> None:
        for e in expressions_in(expression):
            if isinstance(e, (ReadElement, Picked)):
                self._read(e.place)
            elif isinstance(e, Number) and e.value not in self.numbers:
                self._fail(f"number {e.value} is read", "a statement of this loop that makes it")

    def _apart(self, to: ValuePlace, value: Expression) -> None:
        """Check that a fill reads of what it writes at most the element that it writes."""
        for e in expressions_in(value):
            if isinstance(e, ReadElement) and share_memory(to, e.place) and not _same(to, e):
                self._fail(f"it reads {e}, which it writes", "what no iteration of its loop writes")

    def _read(self, place: ValuePlace) -> None:
        if place.memory != Memory.TENSOR and (place.memory, place.number) not in self.written:
            self._fail(f"{place} is read", "a statement before that writes it")
        self._inside(place)

    def _write(self, place: ValuePlace) -> None:
        if place.memory == Memory.CHOSEN:
            self._fail(f"{place} is written", "a place that nothing else has")
        self.written.add((place.memory, place.number))
        self._inside(place)

    def _inside(self, place: ValuePlace) -> None:
        if place.stride and place.start + place.size > place.stride:
            self._fail(f"{place} is used", "elements inside of its rows")

    def _fail(self, got: str, expected: str) -> None:
        do = f"report this as a bug, with the kernel:\n{self.kernel}"
        raise PlanError.at("lower", f"{self.what}: {got}", expected, do)


def share_memory(a: ValuePlace, b: ValuePlace) -> bool:
    """Tell whether two places have elements of the same row of the same memory."""
    if (a.memory, a.number, a.rows, a.slot) != (b.memory, b.number, b.rows, b.slot):
        return False
    return a.start < b.start + b.size and b.start < a.start + a.size


def _same(to: ValuePlace, e: ReadElement) -> bool:
    """Tell whether element j of a fill reads what lies where element j is written."""
    aligned = e.place.start + e.index.shift == to.start
    return aligned and (e.index.moves or to.size == 1)
