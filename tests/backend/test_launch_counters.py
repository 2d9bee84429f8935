"""Counters of persistent launches: each launch gets its own from a ring, and they are zero."""

from __future__ import annotations

import ctypes
from typing import Any, cast

import numpy as np

from tests.devices import shim
from tests.shim_device import ShimDevice
from vertexrt.kernels.cuda.device_memory import DeviceMemory
from vertexrt.kernels.cuda.persistent_launch import PersistentLaunch

pytestmark = shim


class SessionOfMemory:
    """What a ring asks of a session."""

    def __init__(self) -> None:
        self.device = ShimDevice()
        self.memory = DeviceMemory(self.device, False)


def test_launches_of_any_sizes_get_counters_that_are_zero() -> None:
    """Groups of 2, 4 and 8 of 132 processors have 68, 35 and 18 of them."""
    launches = PersistentLaunch(cast("Any", SessionOfMemory()))
    rng = np.random.default_rng(0)
    for count in rng.choice([68, 35, 18, 10], 2000):
        address, ring = launches._zeroed(int(count)), launches._zeros
        assert ring.address <= address
        assert address + 4 * count <= ring.address + ring.size
        counters = np.frombuffer((ctypes.c_char * (4 * int(count))).from_address(address), np.int32)
        assert not counters.any()
        counters[:] = 1
