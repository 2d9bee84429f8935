"""Memory of a device that grows as it is needed, copies between it and the host, and the pinned
buffers from which a minibatch goes up, in turn.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vertexrt.engine.batched import Part
from vertexrt.errors import DeviceError, message
from vertexrt.kernels.cuda.device import Allocation, Array, Device, address_of
from vertexrt.kernels.cuda.pack import ALIGN
from vertexrt.kernels.cuda.step_end import FOUND

SMALLER_BATCHES = "take smaller batches, or device='cpu'"
SMALLER_MODEL = "take a smaller model, or device='cpu'"


def amount(size: int) -> str:
    """Write a number of bytes for people."""
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20)):
        if size >= scale:
            return f"{size / scale:,.1f} {unit}"
    return f"{size / 2**10:,.1f} KiB"


class DeviceMemory:
    """Takes memory of a device, and copies to it and from it.

    Args:
        poisons: memory of a run is filled with what is no number before it.
    Attributes:
        before_waiting: called before everything asked for is waited for without a limit: what may
            never come is to be waited for with one.
        sizes: bytes of each `UploadRoom` of a run or layout, by its identity, until it is free.
        gone: rooms of runs and layouts that were let go, which launches under way may read.
        era: what was kept in an earlier one is of no use.
    """

    def __init__(self, device: Device, poisons: bool) -> None:
        self.device, self.poisons = device, poisons
        self.before_waiting: Callable[[], None] = lambda: None
        self.era = 0
        self.sizes: dict[int, int] = {}
        self.gone: list[Any] = []
        self._copied: list[Array] = []  # pinned memory that may be copied from or to at this time

    @property
    def kept(self) -> int:
        """How many bytes runs and layouts have that are kept, or were let go just now."""
        return sum(self.sizes.values())

    def take(self, size: int, what: str, action: str = SMALLER_BATCHES) -> Allocation:
        """Return new memory.

        Raises: DeviceError, when there is not as much; it says what for.
        """
        try:
            return self.device.allocate(size)
        except MemoryError:
            free = amount(self.device.free_bytes())
            text = message("cuda", f"{what} take {amount(size)}", f"{free} are free", action)
        raise DeviceError(text)

    def cleared(self, size: int, what: str) -> Allocation:
        """Return new memory that is zero, for what lives as long as the model."""
        memory = self.take(size, what, SMALLER_MODEL)
        self.clear(memory)
        return memory

    def grown(self, memory: Allocation, size: int, zero: bool = False) -> Allocation:
        """Return memory of at least a size: this one, or a new one that may be cleared."""
        if memory.size >= size:
            return memory
        self.synchronize()
        memory = self.take(size * 5 // 4, "rows in addition to the batch")
        if zero:
            self.clear(memory)
        return memory

    def scratch(self, memory: Allocation, size: int) -> Allocation:
        """Return memory of at least a size for what a run writes before it reads it."""
        memory = self.grown(memory, size)
        if self.poisons:
            self.poison(memory)
        return memory

    def clear(self, memory: Allocation) -> None:
        """Set memory to zero."""
        self.device.clear(memory.address, memory.size)

    def poison(self, memory: Allocation, start: int = 0) -> None:
        """Fill memory from a byte on with what is no number, so that what is not written shows."""
        self.device.clear(memory.address + start, memory.size - start, 0xFF)

    def synchronize(self) -> None:
        """Wait for everything asked for."""
        self.before_waiting()
        self.device.wait(self.device.record())
        self._copied.clear()

    def pinned(self, size: int) -> Array:
        """Return pinned memory that stays until everything is waited for, whatever comes before.

        A signal may end a call whose copy is under way; its memory is not to be used again before.
        """
        self._copied.append(self.device.pinned(size))
        return self._copied[-1]

    def upload(self, memory: Allocation, array: Array) -> None:
        """Copy a host array to the device, waiting for it."""
        pinned = self.pinned(array.nbytes)
        pinned[:] = array.reshape(-1).view(np.uint8)
        self.device.upload(memory.address, pinned)
        self.synchronize()

    def download(self, array: Array, address: int) -> None:
        """Copy from the device into a contiguous host array, waiting for it."""
        if not array.nbytes:
            return
        pinned = self.pinned(array.nbytes)
        self.device.download(pinned, address)
        self.synchronize()
        array.reshape(-1).view(np.uint8)[:] = pinned


SLOTS = 2


@dataclass(slots=True)
class UploadSlot:
    """A pinned buffer with its twin on the device, and where what a step found comes back."""

    pinned: Array
    memory: Allocation
    found: Array  # float64 [FOUND], pinned
    found_at: int  # its address
    results: Array  # bytes, pinned: what a run was asked to bring back
    used: int = 0  # bytes of the last upload
    event: Any = None  # of the last run that used the buffer,
    open: bool = False  # unless an upload left it for a run that did not get as far as its event
    reader: Callable[[], object] | None = None  # copies results before the slot is used again
    there: int = 0  # as of `UploadRoom`: nothing
    gone: list[UploadRoom] = field(default_factory=list)  # what that run is the last to read


@dataclass(slots=True)
class UploadRoom:
    """Memory of a device for uploads of a run or a layout that is kept, with which it goes.

    Attributes:
        there: bytes at its beginning that are the same in all uploads, once one has gone up.
        era: of `DeviceMemory`, when it was made.
    """

    of: DeviceMemory
    memory: Allocation = field(default_factory=lambda: Allocation(), init=False)
    there: int = field(default=0, init=False)
    era: int = field(init=False)

    def __post_init__(self) -> None:
        self.era = self.of.era

    def __del__(self) -> None:
        self.of.gone.append(self)  # launches that read it may be under way: until they are over

    def grow(self, size: int) -> None:
        """Take memory of at least a size, when nothing reads the one until now."""
        self.of.device.follow_caller()  # its work may still read the memory that is taken now
        self.there = 0
        self.memory = self.of.grown(self.memory, size)
        self.of.sizes[id(self)] = self.memory.size


@dataclass(slots=True)
class ReadyRun:
    """A run whose arrays are on the device, ready to be launched, once or again and again.

    Attributes:
        slot: what they were uploaded from just now; None, where they have been there.
        words: in the order of `Uploads.numbers`; what is written to them counts at the next launch.
        launch: launches it, and what leaves results after it; raises DeviceError.
        job: what a persistent kernel takes, of which the words are a part; else the words.
        addresses: of `Session.stage`.
        held: memory that it uses and others may exchange for more.
    """

    slot: UploadSlot | None
    words: Array
    launch: Callable[[Part], None]
    job: Array
    addresses: Array
    held: tuple[Allocation, ...] = ()


class UploadBuffers:
    """Pinned buffers that are used in turn, so that one is filled while the other is copied."""

    def __init__(self, memory: DeviceMemory) -> None:
        self.memory, self.device = memory, memory.device
        self._slots: list[UploadSlot] = []
        self._next = 0

    @property
    def turn(self) -> int:
        """The number of the next buffer: launches that had it are over when it is returned."""
        return self._next

    def next(self) -> UploadSlot:
        """Return the buffer whose turn it is, when the device has read it."""
        if not self._slots:
            for _ in range(SLOTS):
                found = self.device.pinned(8 * FOUND).view(np.float64)
                nothing, given = np.zeros(0, np.uint8), (found, address_of(found))
                self._slots.append(UploadSlot(nothing, Allocation(), *given, nothing))
        slot = self._slots[self._next]
        self._next = (self._next + 1) % SLOTS
        if slot.reader is not None:
            slot.reader()
            slot.reader = None  # only now: a signal may end it, and it is called again
        if slot.open:  # a launch failed after the upload
            self.memory.synchronize()
            slot.open = False
        elif slot.event is not None:
            self.device.wait(slot.event)
        for room in slot.gone:
            self.memory.sizes.pop(id(room), None)  # a signal may end this, and it is done again
        slot.gone.clear()
        return slot

    def room(self, slot: UploadSlot, size: int) -> Array:
        """Return the buffer of a slot, of at least a size; what was written to it stays."""
        if size > len(slot.pinned):
            self.memory.synchronize()
            slot.memory = self.memory.take(size * 3 // 2, "the indices of a batch")
            pinned = self.device.pinned(size * 3 // 2)
            pinned[: len(slot.pinned)] = slot.pinned
            slot.pinned = pinned
        return slot.pinned


ZEROED = 64  # launches whose counters are set to zero at once


class CounterRing:
    """Memory of which each launch takes the next part; all is cleared when none is left.

    Attributes:
        held: the memory, which another may take the place of.
    """

    def __init__(self, memory: DeviceMemory) -> None:
        self._memory, self.held = memory, Allocation()
        self._next = 0  # bytes that are taken

    def take(self, counters: int) -> int:
        """Return the address of counters for a launch, int32, which are zero."""
        size = -(-4 * counters // ALIGN) * ALIGN
        if self.held.size < size * ZEROED:
            self._next = 0  # before it has other memory, which is not zero: a signal may come
            self.held = self._memory.grown(self.held, size * ZEROED)
        if self._next + size > self.held.size:
            self._next = 0
        if self._next == 0:
            self._memory.clear(self.held)
        self._next += size
        return self.held.address + self._next - size
