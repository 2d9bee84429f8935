"""Counters of persistent launches: each launch gets its own from a ring, and they are zero."""

from __future__ import annotations

import ctypes

import numpy as np

from tests.devices import shim
from tests.shim_device import ShimDevice
from vertexrt.kernels.cuda.device_memory import CounterRing, DeviceMemory

pytestmark = shim


def test_launches_of_any_sizes_get_counters_that_are_zero() -> None:
    """Groups of 2, 4 and 8 of 132 processors have 68, 35 and 18 of them."""
    ring = CounterRing(DeviceMemory(ShimDevice(), False))
    rng = np.random.default_rng(0)
    for count in rng.choice([68, 35, 18, 10], 2000):
        address = ring.take(int(count))
        assert ring.held.address <= address
        assert address + 4 * count <= ring.held.address + ring.held.size
        counters = np.frombuffer((ctypes.c_char * (4 * int(count))).from_address(address), np.int32)
        assert not counters.any()
        counters[:] = 1
