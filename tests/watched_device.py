"""A GPU, or what stands in for one, whose persistent launches are looked at, or broken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from vertexrt.api.network import Network
from vertexrt.kernels.cuda.device import Array, Device, LaunchStruct
from vertexrt.kernels.cuda.device_executor import CudaExecutor
from vertexrt.kernels.cuda.pack import ARRIVED_AT
from vertexrt.kernels.cuda.persistent import PersistentExecutable
from vertexrt.kernels.cuda.structs import ORDERS

# Words of what the kernel takes, see `PersistentLaunch.run`: where the counters of a launch lie,
# and for how many members those of a cluster wait.
COUNTERS, MEMBERS = map(ORDERS.names.index, ("counters", "members"))


class WatchedDevice:
    """Another device; `before` gets the words of each launch, and may change them."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self.before: Callable[[Array], None] = lambda words: None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def launch_all(self, function: int, blocks: int, arguments: LaunchStruct, cluster: int) -> int:
        self.before(arguments.words)
        return self._device.launch_all(function, blocks, arguments, cluster)

    def put(self, address: int, value: int) -> None:
        """Write an int32 over what was uploaded."""
        source = self._device.pinned(4)
        source.view(np.int32)[0] = value
        self._device.upload(address, source)
        self._device.wait(self._device.record())


def watch(net: Network) -> WatchedDevice:
    """Watch the launches of a network from now on."""
    assert isinstance(net.executor, CudaExecutor)
    session = net.executor.session
    session.device = watched = WatchedDevice(session.device)
    return watched


def break_counter(device: WatchedDevice) -> None:
    """Let the counter of all processors of each launch never get where it should."""
    device.before = lambda words: device.put(int(words[COUNTERS]), -1)


def leave_counts(net: Network, device: WatchedDevice) -> None:
    """Do that, and leave the counters of shared tiles as a block does that was waited for."""
    assert isinstance(net.executor, CudaExecutor)
    model, wanted = net.executor.model, set()
    for variant in model.variants.values():
        processors = variant.ready().processors
        assert isinstance(processors, PersistentExecutable)
        wanted.add(len(processors.wanted))

    def before(words: Array) -> None:
        device.put(int(words[COUNTERS]), -1)
        (count,) = wanted
        device.put(int(words[len(words) - count + ARRIVED_AT]), 1)

    device.before = before


def break_members(device: WatchedDevice) -> None:
    """Let each member of a cluster wait for one more than there are."""

    def before(words: Array) -> None:
        words[MEMBERS] += 1

    device.before = before


def mend(device: WatchedDevice) -> None:
    """Let launches be as they are."""
    device.before = lambda words: None
