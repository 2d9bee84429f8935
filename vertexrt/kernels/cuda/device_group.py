"""The devices of a group of processes: how they are linked, and waits that have a limit."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from vertexrt.errors import DeviceError, ParallelError
from vertexrt.kernels.cuda.device import LINK, Device, Link
from vertexrt.parallel.communicator import Deadline
from vertexrt.parallel.group import ProcessGroup

Array = npt.NDArray[Any]

NAMED = 96  # characters of a device's place
LEAST_LIMIT = 60.0  # seconds to link devices: NCCL loads its kernels
OF_DEVICES = 0.7  # of a limit, to link devices
TO_ASK = 0.3  # of a limit, to find which process is lost
SPINS, PAUSE = 2000, 0.0001  # looks at an event before it is looked at every PAUSE seconds
SHARED = (
    "[parallel] gradients pass through the host's memory: {why}; expected a GPU for each process, "
    "linked by NCCL; {action}"
)


class DeviceGroup:
    """A group of processes whose devices exchange arrays by themselves.

    Attributes:
        group: on the host.
        link: to the other devices; None where there is one process.
    """

    def __init__(self, device: Device, group: ProcessGroup, link: Link | None) -> None:
        self._device, self.group, self.link = device, group, link

    def wait(self, ready: Any, event: Any, why_not: Callable[[], None]) -> None:
        """Wait for an event, before which an exchange may wait for other processes.

        Args:
            ready: event of this process's own part, which may take as long as it takes.
            why_not: called when the other does not come though all processes answer; it may raise
                what says why. No exchange is under way then.
        Raises: ParallelError, when a process is lost.
        """
        self._device.wait(ready)
        if self.link is None:
            return self._device.wait(event)
        why = self._look(self.link, event, self.group.limit)
        if why:
            self.link.abort()
            raise _lost(self.group, self.group.limit, why, why_not)
        return None

    def _look(self, link: Link, event: Any, limit: float) -> str:
        """Look at an event until it has come; return why it will not, else nothing."""
        deadline, looks = Deadline(limit), 0
        while not self._device.has_come(event):
            if deadline.left() < 0:
                return link.failure() or f"not for {limit:g} s"
            looks += 1
            if looks > SPINS:
                if link.failure():
                    break
                time.sleep(PAUSE)
        return link.failure()


class DeviceGroups:
    """The groups that a device takes part in; each is linked once."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._known: WeakKeyDictionary[ProcessGroup, tuple[bool, Link | None]]
        self._known = WeakKeyDictionary()  # whether they are linked, and by what

    def of(self, group: ProcessGroup) -> DeviceGroup | None:
        """Return the group's devices; None, where they are not linked: see `_why_not`.

        Raises: ParallelError, when a process is lost; DeviceError, when NCCL refuses.
        """
        if group not in self._known:
            self._known[group] = self._joined(group)
        linked, link = self._known[group]
        return DeviceGroup(self._device, group, link) if linked else None

    def _joined(self, group: ProcessGroup) -> tuple[bool, Link | None]:
        if group.size == 1:
            return True, None
        own = np.frombuffer(self._device.place().encode().ljust(NAMED), np.uint8)[:NAMED]
        places = [bytes(each).decode().strip() for each in group.gather(own)]
        why, action = _why_not(places)
        if why:
            if group.rank == 0:
                warnings.warn(SHARED.format(why=why, action=action), stacklevel=2)
            return False, None
        number = self._device.new_link() if group.rank == 0 else np.zeros(LINK, np.int16)
        number = group.gather(number)[0]
        return True, link_in_time(self._device, number, group)


def _why_not(places: list[str]) -> tuple[str, str]:
    """Return why devices are not linked, and what to do; all processes find the same."""
    for rank, place in enumerate(places):
        if not place:
            action = "pip install nvidia-nccl-cu13 (or -cu12), as CuPy's"
            return f"process {rank} has no NCCL", action
        if place in places[:rank]:
            action = "start as many processes as there are GPUs"
            return f"processes {places.index(place)} and {rank} have one GPU", action
    return "", ""


def link_in_time(device: Device, number: Array, group: ProcessGroup) -> Link:
    """Link devices in a thread of its own, which is left behind when a process does not come."""
    found: list[Link | DeviceError] = []

    def work() -> None:
        try:
            found.append(device.link(number, group.rank, group.size))
        except DeviceError as error:
            found.append(error)

    limit = max(group.limit, LEAST_LIMIT)
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(OF_DEVICES * limit)
    if not found:
        raise _lost(group, limit, f"not for {OF_DEVICES * limit:g} s")
    if isinstance(found[0], DeviceError):
        raise found[0]
    return found[0]


def _lost(
    group: ProcessGroup, limit: float, why: str, why_not: Callable[[], None] = lambda: None
) -> ParallelError:
    """Return the error for an exchange that does not end.

    Raises: ParallelError, when a process has ended or does not answer on the host either.
    """
    group.find_lost(TO_ASK * limit)
    why_not()
    got = f"GPUs have not exchanged arrays ({why})"
    return ParallelError.at(
        "parallel",
        f"{got}, though all processes answer",
        "an exchange takes milliseconds",
        "set NCCL_DEBUG=WARN and see what it says; NCCL_NVLS_ENABLE=0 or NCCL_P2P_DISABLE=1 helps "
        "on some machines",
    )
