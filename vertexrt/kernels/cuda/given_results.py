"""Page-locked memory that is given away with the results which a device has written there."""

from __future__ import annotations

import weakref

from vertexrt.kernels.cuda.device import Array, Device

LEAST = 1 << 17  # bytes: a copy of less takes no longer than memory of its own
MOST = 1 << 26  # bytes that results hold at a time; more are copied


class GivenResults:
    """Room for the results of one request after another, each the caller's from then on.

    A copy out of a buffer would take as long as the transfer, and memory that is new to a process
    longer still. Memory that nobody holds any more is the device's again, for later results.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._held = 0

    def take(self, size: int) -> Array | None:
        """Return memory of the caller's own: uint8 [size]. None: results are to be copied."""
        if size < LEAST or self._held + size > MOST:
            return None
        room = self._device.pinned(size)
        self._held += size
        weakref.finalize(room, self._let_go, size).atexit = False
        return room

    def _let_go(self, size: int) -> None:
        self._held -= size
