"""Memory of a device that grows as it is needed, and copies between it and the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from vertexrt.errors import DeviceError, message
from vertexrt.kernels.cuda.device import Allocation, Device

Array = np.ndarray[Any, Any]

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
        self.before_waiting: Callable[[], None] = _wait_for_nothing
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


def _wait_for_nothing() -> None:
    """Stand for `before_waiting`, where all that is asked for comes."""
