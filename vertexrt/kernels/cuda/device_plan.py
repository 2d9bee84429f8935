"""A planned run on a device: its indices and scripts are there, and its arena is its own.

A request copies to the device what is new of the pulls, and launches: on the caller's stream, if
arrays of the device come or go. Large results that go to the host lie where the transfer has put
them. Two requests may be under way when `forward` returns: the third
waits for the first, once launched.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from vertexrt.engine.batched import Destination, Part, Run
from vertexrt.engine.executor import Request
from vertexrt.engine.results import PushPlaces, PushRows
from vertexrt.errors import DeviceError
from vertexrt.graph.device_rows import DeviceRows
from vertexrt.kernels.cuda.device import Allocation
from vertexrt.kernels.cuda.device_results import LeftPushes, leave_at, views_of
from vertexrt.kernels.cuda.given_results import GivenResults
from vertexrt.kernels.cuda.pack import RANDOM_SEED
from vertexrt.kernels.cuda.session import Session
from vertexrt.kernels.cuda.step_end import FOUND
from vertexrt.kernels.cuda.upload import ReadyRun, UploadBuffers, UploadSlot

Array = np.ndarray[Any, Any]
NOTHING = np.zeros(0, np.uint8)
TURNS = 2  # requests that may be under way
PIECE = 1 << 18  # bytes of a pull that are on their way while the next ones are copied


class ReadiesRuns(Protocol):
    """What makes runs ready: the executor of a GPU."""

    session: Session

    def before_launch(self, stream: int | None = None) -> None:
        """Bring parameters to the device; launch on a caller's stream, if so, from now on."""

    def ready(self, run: Run, part: Part) -> ReadyRun:
        """Upload what a part of a run reads; return what launches it."""

    failures: list[DeviceError]

    def look(self, known: int | None = None) -> None:
        """Raise DeviceError, if a processor gave up waiting: see `CudaExecutor.look`."""


class DevicePlan:
    """A run that was uploaded once; see the module.

    Args:
        executor: of the device.
        run: of the plan; call: what it evaluates.
    """

    def __init__(self, executor: ReadiesRuns, run: Run, call: Request) -> None:
        session = executor.session
        session.device.follow_caller()  # its work may still read the memory that is taken now
        self._executor, self._run, self._session, self._stays = executor, run, session, call.stays
        self._lent: dict[int, DeviceRows] = {
            k: table for k, table in enumerate(run.inputs.floats) if isinstance(table, DeviceRows)
        }
        self._outputs = call.outputs
        wanted = [PushRows(name, call.vertices) for name in call.outputs]
        self._places = PushPlaces.of(run, wanted)
        self._buffers = UploadBuffers(session.memory)
        with session.apart(Allocation(0, 0, None), self._buffers):
            session.take_arena(run)
            self._make_ready()
            self._arena = session.arena
        session.memory.synchronize()
        slot = self.ready.slot
        assert slot is not None, "a plan's run is not kept"
        slot.open = False
        self._turns = [slot, *(self._turn(slot) for _ in range(TURNS - 1))]
        self._requests = 0
        self._unseen: set[int] = set()  # turns whose request was not waited for
        self._known = len(executor.failures)  # failures that requests have nothing to do with
        self._given = GivenResults(session.device)

    def _make_ready(self) -> None:
        """Upload the run; what it was lent gets room, too, for arrays of the host to come."""
        run, given = self._run, self._run.inputs.floats
        dtype = self._session.dtype
        rooms = [
            np.zeros(math.prod(t.shape), dtype) if isinstance(t, DeviceRows) else t for t in given
        ]
        run.inputs.floats = tuple(rooms)
        part = run.forward()._replace(to=Destination(rows=self._places.rows))
        self.ready = self._executor.ready(run, part)
        run.inputs.floats = given
        executable: Any = run.ready.executable or run.ready.processors
        self._numbers: dict[str, int] = executable.numbers
        self._wanted = executable.wanted
        self._float_words = [self._numbers[f"float_{k}"] for k in range(len(given))]
        self._at = [int(self.ready.words[word]) for word in self._float_words]
        for k, table in self._lent.items():
            self.ready.words[self._float_words[k]] = table.address

    def _turn(self, slot: UploadSlot) -> UploadSlot:
        """Return a buffer with all that was uploaded, of which requests change a part."""
        device = self._session.device
        pinned, found = device.pinned(len(slot.pinned)), device.pinned(8 * FOUND)
        pinned[:] = slot.pinned
        return UploadSlot(pinned, slot.memory, found.view(np.float64), found, NOTHING)

    def __call__(self, new: Sequence[int], seed: int) -> dict[str, Any]:
        """Copy what is new, launch, and bring the results; see `Executor.plan`.

        The look at the request before the last comes after the launch, while the device computes.
        """
        device, turn = self._session.device, self._next_turn()
        with_caller = self._stays or bool(self._lent) or self._run.inputs.lent
        caller = device.caller() if with_caller else 0
        self._executor.before_launch(caller if with_caller else None)
        left = leave_at(self._session, self._outputs, self._places, self._stays)
        self._upload(turn, new, seed)
        self._poison()
        with self._session.apart(self._arena, self._buffers):
            self.ready.launch(Part(to=left.to))
        slot = self._free(turn)
        if not self._stays:
            return self._bring(slot, left)
        self._session.bring(slot, False, ())
        self._unseen.add(turn)
        return dict(left.arrays)

    def _next_turn(self) -> int:
        """Return the number of the buffer that a request has."""
        turn = self._requests % TURNS
        self._requests += 1
        if not self._unseen:
            self._known = len(self._executor.failures)
        slot = self._turns[turn]
        if slot.open:  # the request before ended half-way
            self._session.memory.synchronize()
        slot.open = True
        return turn

    def _free(self, turn: int) -> UploadSlot:
        """Return a buffer, when the request that had it before is done."""
        slot = self._turns[turn]
        if turn in self._unseen:
            self._unseen.discard(turn)
            self._look(slot)
        return slot

    def _upload(self, turn: int, new: Sequence[int], seed: int) -> None:
        """Copy whole numbers and real ones that are new to where the kernels read them."""
        words, inputs = self.ready.words, self._run.inputs
        integers = len(inputs.ints)
        for k in new:
            if k < integers:
                word = self._numbers[f"int_{k}"]
                if self._wanted[word]:
                    self._copy(turn, int(words[word]), inputs.index[k])
                continue
            number = k - integers
            word, table = self._float_words[number], inputs.floats[number]
            if isinstance(table, DeviceRows):
                self._lent[number] = table  # it lives until another takes its place
                words[word] = table.address
                continue
            self._lent.pop(number, None)
            if self._wanted[word]:
                words[word] = self._at[number]
                self._copy(turn, self._at[number], table.reshape(-1))
        if self._run.variant.draws:
            self._copy(turn, int(words[RANDOM_SEED]), np.array([seed], np.int64))

    def _copy(self, turn: int, to: int, array: Array) -> None:
        """Copy numbers to the device, from a buffer that stays as it is meanwhile."""
        slot = self._free(turn)
        dtype = self._session.dtype if array.dtype.kind == "f" else array.dtype
        at, size = to - slot.memory.address, array.size * dtype.itemsize
        whole, each = slot.pinned[at : at + size].view(dtype), PIECE // dtype.itemsize
        for first in range(0, array.size, each):
            piece = whole[first : first + each]
            np.copyto(piece, array[first : first + each], casting="same_kind")
            self._session.device.upload(to + first * dtype.itemsize, piece.view(np.uint8))

    def _poison(self) -> None:
        """Let what a launch does not write show."""
        if self._session.memory.poisons:
            self._session.memory.poison(self._arena)

    def _bring(self, slot: UploadSlot, left: LeftPushes) -> dict[str, Any]:
        """Return the results as arrays of the host, waiting for them."""
        given = self._given.take(sum([size for _, size in left.pieces]))
        if given is not None:
            slot.results = given
            # What had this memory before may be on its way to the device by a caller's copy.
            self._session.device.follow_caller()
        self._session.bring(slot, False, left.pieces)
        self._look(slot)
        if given is None:
            return left.read(slot.results, self._session.dtype)
        slot.results = NOTHING  # they are the caller's
        return views_of(given, left.shapes, self._session.dtype)

    def _look(self, slot: UploadSlot) -> None:
        """Wait for a request. Raises: DeviceError, if a persistent launch has given up."""
        self._session.device.wait(slot.event)
        failures, counters = self._executor.failures, self.ready.tile_counters
        if counters is None:
            return
        if self._session.gave_up[0] or len(failures) > self._known:
            known, self._known = self._known, len(failures) + bool(self._session.gave_up[0])
            self._unseen.clear()  # it is said once
            self._session.memory.clear(counters)
            self._executor.look(known)
