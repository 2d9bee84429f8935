"""Counters by which the processors of a persistent launch meet, which are zero when it begins."""

from __future__ import annotations

from vertexrt.kernels.cuda.device import Allocation
from vertexrt.kernels.cuda.device_memory import DeviceMemory
from vertexrt.kernels.cuda.pack import ALIGN

ZEROED = 64  # launches whose counters are set to zero at once


class CounterRing:
    """Memory of which each launch takes the next part; all is cleared when none is left.

    Attributes:
        held: the memory, which another may take the place of.
    """

    def __init__(self, memory: DeviceMemory) -> None:
        self._memory, self.held = memory, Allocation(0, 0, None)
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
