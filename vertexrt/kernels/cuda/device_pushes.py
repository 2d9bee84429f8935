"""How the pushes of a planned run leave its arena: to the host, or to arrays of the device."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from vertexrt.engine.batched import RowPlace, Run, chosen_rows, start_of
from vertexrt.engine.planned import PlanRequest
from vertexrt.kernels.cuda.device import Allocation
from vertexrt.kernels.cuda.session import Session
from vertexrt.kernels.cuda.taken_rows import TakenRows

Array = np.ndarray[Any, Any]


class _Push(NamedTuple):
    """A push that is wanted.

    Attributes:
        word: of its tensor; first: element of the arena where that starts; size: elements of a row.
        shape: of the result; bytes: of the result.
    """

    name: str
    word: int
    first: int
    size: int
    shape: tuple[int, ...]
    bytes: int


class Result(NamedTuple):
    """An array of the device that gets a push."""

    array: Any
    address: int


class DevicePushes:
    """The rows of pushes that are wanted of a run.

    Results that stay on the device are written by the launch itself, where they are all rows in
    order, or else by one kernel for each push. To the host goes what is wanted and no more: a slice
    of the tensor, or where rows are scattered, a copy of them.

    Args:
        arena: of the run; numbers: of the words of its launch, by name.
    """

    def __init__(
        self, session: Session, request: PlanRequest, arena: Allocation, numbers: Mapping[str, int]
    ) -> None:
        (run,), (part,) = request.runs, chosen_rows(request.runs, request.vertices).parts
        self._session, rows = session, part.rows
        self._count, first = len(rows), int(rows[0]) if len(rows) else 0
        neighbours = bool((rows == np.arange(first, first + len(rows))).all())
        self._first = first if neighbours else -1
        self._direct = neighbours and len(rows) == run.num_rows
        self._arena = arena.address
        self._pushes = [self._found(run, name, numbers) for name in request.outputs]
        self._rows = self._copies = Allocation(0, 0, None)
        self._room: tuple[int, list[Result]] | None = None
        self._taken: TakenRows | None = None
        if not (self._direct if request.stays else neighbours):
            self._upload_rows(rows, request.stays)

    def _upload_rows(self, rows: Array, stays: bool) -> None:
        """Bring the numbers of the rows to the device, and take memory for copies that go on."""
        memory = self._session.memory
        self._rows = memory.take(rows.size * 4, "rows of results")
        memory.upload(self._rows, rows.astype(np.int32))
        places = tuple([RowPlace(p.first, p.size, 0, self._count) for p in self._pushes])
        real = self._session.dtype.itemsize
        self._taken = TakenRows(places, real, self._arena, self._rows.address)
        if not stays:
            self._copies = memory.take(sum(push.bytes for push in self._pushes), "results")

    def _found(self, run: Run, name: str, numbers: Mapping[str, int]) -> _Push:
        """Find a push of a run."""
        key, size = run.variant.pushes.keys[name], self._session.dtype.itemsize
        number = run.variant.table.numbers[key]
        shape = self._count, *run.variant.pushes.shapes[name]
        start = start_of(run, key)
        width = run.variant.table.specs[number].size
        word = numbers[f"tensor_{number}"]
        return _Push(name, word, start, width, shape, math.prod(shape) * size)

    def make_room(self, caller: int) -> None:
        """Allocate arrays for the next request; of use if it comes from the same stream."""
        device, dtype = self._session.device, self._session.dtype
        self._room = caller, [Result(*device.empty(p.shape, dtype)) for p in self._pushes]

    def begin(self, words: Array, caller: int) -> list[Result]:
        """Return new arrays for the pushes; a launch with these words may write to them.

        Args:
            caller: the current stream, for which they are allocated.
        """
        if self._room is None or self._room[0] != caller:
            self.make_room(caller)
        assert self._room is not None
        (_, found), self._room = self._room, None
        if self._direct:
            for push, result in zip(self._pushes, found, strict=True):
                words[push.word] = result.address
        return found

    def end(self, found: Sequence[Result]) -> dict[str, Any]:
        """Let the arrays get what the launch has not written; return them by name."""
        if not self._direct:
            self._take([result.address for result in found])
        return {push.name: r.array for push, r in zip(self._pushes, found, strict=True)}

    def pieces(self) -> list[tuple[int, int]]:
        """Return addresses and bytes that have the results of a launch, push after push."""
        if self._first >= 0:
            row = self._session.dtype.itemsize
            first = self._first
            at = [self._arena + (p.first + first * p.size) * row for p in self._pushes]
            return [(start, p.bytes) for start, p in zip(at, self._pushes, strict=True)]
        found, to = [], self._copies.address
        for push in self._pushes:
            found.append((to, push.bytes))
            to += push.bytes
        self._take([address for address, _ in found])
        return found

    def read(self, results: Array) -> dict[str, Any]:
        """Return the pushes, given the bytes of all pieces: views of these."""
        found, at = {}, 0
        for push in self._pushes:
            values = results[at : at + push.bytes].view(self._session.dtype)
            found[push.name] = values.reshape(push.shape)
            at += push.bytes
        return found

    def _take(self, to: Sequence[int]) -> None:
        """Copy the rows of all pushes that are wanted; to: addresses."""
        assert self._taken is not None, "rows that are copied were uploaded"
        self._taken.launch(self._session, to)
