"""The pinned buffers from which a minibatch goes up to a device, in turn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vertexrt.engine.batched import Part
from vertexrt.kernels.cuda.device import Allocation, address_of
from vertexrt.kernels.cuda.device_memory import DeviceMemory
from vertexrt.kernels.cuda.step_end import FOUND

Array = np.ndarray[Any, Any]

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
    memory: Allocation = field(default_factory=lambda: Allocation(0, 0, None), init=False)
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
                self._slots.append(UploadSlot(nothing, Allocation(0, 0, None), *given, nothing))
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
