"""How the pushes of a planned run leave its arena: to the host, or to arrays of the device."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from vertexrt.engine.planned import PlanRequest
from vertexrt.engine.results import PushPlaces, PushRows
from vertexrt.kernels.cuda.device import Allocation
from vertexrt.kernels.cuda.device_results import views_of
from vertexrt.kernels.cuda.session import Session
from vertexrt.kernels.cuda.taken_rows import TakenRows

Array = np.ndarray[Any, Any]


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
        (run,) = request.runs
        wanted = [PushRows(name, request.vertices) for name in request.outputs]
        self._session, self._arena = session, arena.address
        shapes, rows, self._places = PushPlaces.of(run, wanted)
        first = int(rows[0]) if len(rows) else 0
        neighbours = bool((rows == np.arange(first, first + len(rows))).all())
        self._first = first if neighbours else -1
        self._direct = neighbours and len(rows) == run.num_rows
        self._shapes = dict(zip(request.outputs, shapes, strict=True))
        real, tensors = session.dtype.itemsize, run.variant.table.numbers
        self._bytes = [math.prod(shape) * real for shape in shapes]
        keys = [run.variant.pushes.keys[name] for name in request.outputs]
        self._words = [numbers[f"tensor_{tensors[key]}"] for key in keys]
        self._rows = self._copies = Allocation(0, 0, None)
        self._room: tuple[int, list[Result]] | None = None
        self._taken: TakenRows | None = None
        if not (self._direct if request.stays else neighbours):
            memory = session.memory
            self._rows = memory.take(rows.nbytes, "rows of results")
            memory.upload(self._rows, rows)
            self._taken = TakenRows(self._places, real, self._arena, self._rows.address)
            if not request.stays:
                self._copies = memory.take(sum(self._bytes), "results")

    def make_room(self, caller: int) -> None:
        """Allocate arrays for the next request; of use if it comes from the same stream."""
        device, dtype = self._session.device, self._session.dtype
        self._room = (
            caller,
            [Result(*device.empty(shape, dtype)) for shape in self._shapes.values()],
        )

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
            for word, result in zip(self._words, found, strict=True):
                words[word] = result.address
        return found

    def end(self, found: Sequence[Result]) -> dict[str, Any]:
        """Let the arrays get what the launch has not written; return them by name."""
        if not self._direct:
            self._take([result.address for result in found])
        return {name: each.array for name, each in zip(self._shapes, found, strict=True)}

    def pieces(self) -> list[tuple[int, int]]:
        """Return addresses and bytes that have the results of a launch, push after push."""
        if self._first >= 0:
            real = self._session.dtype.itemsize
            at = [self._arena + (p.first + self._first * p.size) * real for p in self._places]
            return list(zip(at, self._bytes, strict=True))
        at = list(accumulate(self._bytes[:-1], initial=self._copies.address))
        self._take(at)
        return [(self._copies.address, sum(self._bytes))]

    def read(self, results: Array) -> dict[str, Any]:
        """Return the pushes, given the bytes of all pieces: views of these."""
        return views_of(results, self._shapes, self._session.dtype)

    def _take(self, to: Sequence[int]) -> None:
        """Copy the rows of all pushes that are wanted; to: addresses."""
        assert self._taken is not None, "rows that are copied were uploaded"
        self._taken.launch(self._session, to, (0,) * len(to))
