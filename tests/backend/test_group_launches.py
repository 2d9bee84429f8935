"""What a step of several GPUs launches: as little as it can, since each launch takes its time."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import vertexrt as vrt
from tests.backend.test_parallel_devices import network, stepped
from tests.backend.test_parallel_step import dataset
from tests.devices import shim
from tests.processes import ThreadCommunicator, together
from tests.shim_device import ShimDevice
from tests.shim_streams import LAUNCH
from vertexrt.parallel import ProcessGroup

pytestmark = shim


class Noting(ShimDevice):
    """A device that notes by their names the kernels of steps' ends, and copies to the host."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[str] = []
        self.names: dict[int, str] = {}
        launch = LAUNCH(self.calls.launch)

        def note(function: Any, *given: Any) -> int:
            self.noted.append(self.names.get(function, "a launch"))
            return int(launch(function, *given))

        self._note = LAUNCH(note)
        address = ctypes.cast(self._note, ctypes.c_void_p).value or 0
        self.calls = replace(self.calls, launch=address)

    def load(self, sources: Any, real: Any) -> dict[str, int]:
        """Remember the names of kernels."""
        found = super().load(sources, real)
        self.names |= {address: name for name, address in found.items()}
        return found

    def launch_all(self, function: int, *given: Any) -> int:
        """Note a persistent kernel."""
        self.noted.append("persistent")
        return super().launch_all(function, *given)

    def download(self, to: np.ndarray, source: int) -> None:
        """Note a copy."""
        self.noted.append("download")
        super().download(to, source)


ENDS = [
    (vrt.SGD(0.1), ["join_sgd", "update_sgd"]),
    (
        vrt.Adam(0.1, clip_norm=1.0),
        ["join_adam", "finish_step_kernel", "check_adam", "update_adam"],
    ),
]


@pytest.mark.parametrize(("optimizer", "end"), ENDS, ids=["plain", "clipped"])
def test_a_step_packs_joins_and_updates(optimizer: Any, end: list[str]) -> None:
    def work(communicator: ThreadCommunicator) -> list[str]:
        device, rule = Noting(), type(optimizer)(optimizer.lr, clip_norm=optimizer.clip_norm)
        net = network(device, "tree-lstm", engine="persistent", processors=2)
        group, batch = ProcessGroup(communicator), dataset("tree-lstm").splits["train"][:12]
        for _ in range(2):
            stepped(net, batch, rule, group)
        device.noted.clear()
        net.step(batch, rule, group=group)
        return list(device.noted)

    assert together(2, work) == [["persistent", "pack_kernel", *end]] * 2, (
        "the update writes what was found to the host's memory by itself"
    )


def test_a_share_without_a_graph_is_packed_as_zeros() -> None:
    def work(communicator: ThreadCommunicator) -> list[str]:
        device, rule = Noting(), vrt.SGD(0.1)
        net, group = network(device, "tree-lstm"), ProcessGroup(communicator, 4)
        pool = dataset("tree-lstm").splits["train"]
        for _ in range(2):
            stepped(net, pool[:3], rule, group)
        device.noted.clear()
        net.step(pool[:3], rule, group=group)
        return [name for name in device.noted if name.endswith("_kernel")][-3:]

    _, last = together(2, work)
    assert last[-2:] == ["pack_kernel", "add_kernel"], "of its two shares one has a graph"
