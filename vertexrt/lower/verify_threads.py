"""Verify a kernel of threads: no register leaves its loop, and no thread reads too early.

Under VERTEXRT_CHECK and in all tests. What a thread stores, another one of its row may read after a
wait only. What other kernels store is there before.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NoReturn

from vertexrt.errors import PlanError
from vertexrt.lower.expressions import Expression, J, Number, Picked, ReadElement
from vertexrt.lower.places import Memory, ValuePlace
from vertexrt.lower.threads import (
    EdgeSum,
    ElementLoop,
    ElementStatement,
    MakeElements,
    MakeNumber,
    PublishElements,
    PublishNumber,
    PutInRing,
    ReduceElements,
    RowWait,
    StoreElements,
    ThreadKernel,
    ThreadPart,
    expressions_of,
)
from vertexrt.lower.verify import share_memory

WARP = 32  # threads that can wait for each other without the rest of their block


def verify_threads(kernel: ThreadKernel) -> ThreadKernel:
    """Return the kernel.

    Raises: PlanError, naming the statement, when a register or a number is read where it is not
        known, when memory is read that other threads of the row may still write, or when scratch
        does not fit.
    """
    verifier = _RaceVerifier(kernel)
    for part in kernel.parts:
        verifier.part(part)
    return kernel


@dataclass(slots=True)
class _RaceVerifier:
    """Walks a kernel in the order in which it runs.

    Attributes:
        numbers: that all threads have; registers: that are made in the open loop.
        unread: what was stored since the last wait; here: in the open loop.
        scratch: what was stored in rows of scratch so far.
    """

    kernel: ThreadKernel
    numbers: set[int] = field(default_factory=set)
    registers: set[int] = field(default_factory=set)
    unread: list[ValuePlace] = field(default_factory=list)
    here: list[ValuePlace] = field(default_factory=list)
    scratch: list[ValuePlace] = field(default_factory=list)
    what: object = None

    def part(self, part: ThreadPart) -> None:
        """Verify a part, after those before it."""
        self.what = part
        match part:
            case RowWait():
                self._wait()
            case ElementLoop():
                self._loop(part)
            case MakeNumber():
                self._reads(part.value)
                self.numbers.add(part.number)
                self._stores(*part.to)
            case PublishNumber():
                self._reads(part.value)
                self._stores(part.to)
        self.unread += self.here
        self.here = []

    def _wait(self) -> None:
        on_path = self.kernel.rows == 0
        if on_path and self.kernel.threads > WARP:
            self._fail(f"{self.kernel.threads} threads of a row wait", f"at most {WARP} threads")
        self.unread = []

    def _loop(self, loop: ElementLoop) -> None:
        if loop.size % loop.width:
            self._fail(f"{loop.size} elements in vectors of {loop.width}", "whole vectors")
        self.registers = set()
        for x in loop.before:
            if isinstance(x, RowWait):
                self._wait()
        for statement in loop.statements:
            self.what = statement
            self._statement(statement)
        self.numbers |= self._reduced(loop)
        self.registers = set()

    def _reduced(self, loop: ElementLoop) -> set[int]:
        """Return the numbers that a loop makes; their partial results begin before it."""
        reduced = {x.number for x in loop.statements if isinstance(x, ReduceElements)}
        if reduced != {x for x in loop.before if not isinstance(x, RowWait)}:
            self._fail(f"{sorted(reduced)} are reduced", f"what begins before: {loop.before}")
        return reduced

    def _statement(self, x: ElementStatement) -> None:
        if isinstance(x, PutInRing):
            if x.register not in self.registers:
                self._fail(f"register {x.register} is read", "one that this loop has made")
            return
        self._reads(x.value)
        match x:
            case MakeElements(register=register):
                self.registers.add(register)
            case PublishElements(to=to, register=register):
                self.registers.add(register)
                self._stores(to)
            case StoreElements(to=to):
                self._stores(to)
            case ReduceElements(to=to):
                self._stores(*to)

    def _stores(self, *places: ValuePlace) -> None:
        for place in places:
            self.here.append(place)
            if place.memory == Memory.SCRATCH:
                self.scratch.append(place)
                end, room = place.number + place.start + place.size, self.kernel.scratch
                if not end <= room <= self.kernel.most:
                    self._fail(f"{place} is stored", f"a place in {room} of {self.kernel.most}")

    def _reads(self, value: Expression | EdgeSum) -> None:
        for e in expressions_of(value):
            match e:
                case Number(value=number) if number not in self.numbers:
                    self._fail(f"{e} is read", "a number that all threads have")
                case ReadElement(place=ValuePlace(memory=Memory.REGISTER, number=k), index=index):
                    if k not in self.registers or index != J:
                        self._fail(f"{e} is read", "what this thread has made in this loop")
                case ReadElement(place=place) | Picked(place=place):
                    self._reads_memory(place)

    def _reads_memory(self, place: ValuePlace) -> None:
        if any(share_memory(place, other) for other in (*self.unread, *self.here)):
            self._fail(f"{place} is read", "a wait between, since other threads store it")
        written = any(share_memory(place, other) for other in self.scratch)
        if place.memory == Memory.SCRATCH and not written:
            self._fail(f"{place} is read", "scratch that was stored before")

    def _fail(self, got: str, expected: str) -> NoReturn:
        do = f"report this as a bug, with the kernel:\n{self.kernel}"
        raise PlanError.at("lower", f"{self.what}: {got}", expected, do)
