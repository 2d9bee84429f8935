"""The devices of a group of processes: how they are linked, waits that have a limit, and the packed
gradients that they exchange.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from vertexrt.engine.batched import ShareGradients
from vertexrt.engine.parameters import ParameterStore
from vertexrt.engine.shared_step import COMPARED, SharedWork, sample_stride
from vertexrt.errors import DeviceError, ParallelError
from vertexrt.kernels.cuda.device import LINK, Allocation, Device, Link, Span
from vertexrt.kernels.cuda.device_memory import UploadBuffers, UploadSlot
from vertexrt.kernels.cuda.finish_step import Joined
from vertexrt.kernels.cuda.pack import ALIGN
from vertexrt.kernels.cuda.session import Session
from vertexrt.kernels.cuda.step_end import GAVE_UP, PIECE, PIECES_A_BLOCK, THREADS
from vertexrt.kernels.cuda.structs import PACKING, SUM, TELLING
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
        limit, looks, why = self.group.limit, 0, ""
        deadline = Deadline(limit)
        while not why and not self._device.has_come(event):
            looks += 1
            if deadline.left() < 0:
                why = self.link.failure() or f"not for {limit:g} s"
            elif looks > SPINS:
                why = self.link.failure()
                time.sleep(PAUSE)
        why = why or self.link.failure()
        if why:
            self.link.abort()
            raise _lost(self.group, limit, why, why_not)
        return None


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


# Packed gradients in the memory of a device. All is in the order of the main stream, so that a
# buffer is used again as soon as what reads it was asked for, and nothing is waited for.
NUMBERS = 2 + len(COMPARED)  # that a process tells the others before its losses


@dataclass(frozen=True, slots=True)
class DeviceFlat:
    """Elements of a device's memory.

    Attributes:
        owner: the buffer that they fill; None for a part of one.
    """

    address: int
    size: int
    itemsize: int
    owner: Allocation | None = None

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, part: slice) -> DeviceFlat:
        start, stop, _ = part.indices(self.size)
        at = self.address + start * self.itemsize
        return replace(self, address=at, size=max(0, stop - start), owner=None)

    @property
    def span(self) -> Span:
        """Its address and bytes."""
        return self.address, self.size * self.itemsize


class PackingRoom:
    """Memory that steps of groups use again."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.buffers = UploadBuffers(session.memory)
        self._free: list[Allocation] = []
        self._lent: list[Allocation] = []
        self._told = Allocation()

    def begin(self) -> None:
        """Take back what the last step had: what comes is asked for after it."""
        self._free += self._lent
        self._lent.clear()

    def take(self, size: int) -> DeviceFlat:
        """Return room for so many elements."""
        need = size * self.session.dtype.itemsize
        memory = self._free.pop() if self._free else Allocation()
        memory = self.session.memory.scratch(memory, max(need, 16))
        self._lent.append(memory)
        return DeviceFlat(memory.address, size, self.session.dtype.itemsize, memory)

    def give_back(self, flat: DeviceFlat) -> None:
        """Take back what nothing that will be asked for reads; a part of a buffer stays lent."""
        if flat.owner is not None:
            self._lent = [memory for memory in self._lent if memory is not flat.owner]
            self._free.append(flat.owner)

    def told(self, numbers: int) -> int:
        """Return the address of so many numbers, float64."""
        self._told = self.session.memory.grown(self._told, 8 * numbers)
        return self._told.address

    def upload(self, arrays: Sequence[Array], back: int) -> tuple[UploadSlot, list[int]]:
        """Copy arrays to the device; return what from, and their addresses there.

        Args:
            back: bytes that are to come back into the slot.
        """
        slot = self.buffers.next()
        starts = [0, *accumulate([-(-array.nbytes // ALIGN) * ALIGN for array in arrays])]
        self.buffers.room(slot, starts[-1])
        if len(slot.results) < back:
            slot.results = self.session.device.pinned(back)
        for at, array in zip(starts, arrays, strict=False):
            slot.pinned[at : at + array.nbytes] = array.view(np.uint8)
        slot.open = True
        if starts[-1]:
            self.session.device.upload(slot.memory.address, slot.pinned[: starts[-1]])
        return slot, [slot.memory.address + at for at in starts[:-1]]


class Packed(NamedTuple):
    """Where rows of tables are: addresses of their first elements, also when packed, and widths.

    Attributes:
        rows: how many; size: elements of a packed array.
    """

    start: int
    at: int
    width: int
    rows: int
    size: int


def told_bytes(group: ProcessGroup, work: SharedWork) -> int:
    """Return the bytes of what all processes tell each other."""
    return 8 * (NUMBERS + work.room) * group.size


class DeviceGradients:
    """Gradients of a step: packed, exchanged with what processes tell each other, joined.

    Args:
        work: of the step.
        rows: of tables that the batch looks up.
        signal: that this process tells.
    """

    def __init__(
        self,
        room: PackingRoom,
        store: ParameterStore,
        devices: DeviceGroup,
        work: SharedWork,
        rows: Packed,
        signal: int,
    ) -> None:
        self._room, self._session = room, room.session
        self._devices, self._rows, self._dense = devices, rows, store.dense_size
        group = devices.group
        self._numbers = NUMBERS + work.room
        self._told = room.told(self._numbers * group.size)
        self._own = self._told + 8 * self._numbers * group.rank
        self._others = [peer for peer in range(group.size) if peer != group.rank]
        self._is_told = False
        stride = sample_stride(store.values.size)
        self._telling = TELLING.pack(
            self._own,
            self._session.found.address + 8 * GAVE_UP,
            self._session.values.address,
            -(-store.values.size // stride),
            stride,
            signal,
            *work.same,
        )
        room.begin()

    def share(self, number: int, graphs: bool) -> tuple[DeviceFlat, ShareGradients]:
        """Return room for the gradients of a share of this process, and what packs them there.

        Args:
            number: of the share, whose loss is told; graphs: it has any.
        """
        rows, flat = self._rows, self._room.take(self._rows.size)
        dense_pieces = -(-self._dense // PIECE)
        pieces = dense_pieces + rows.rows
        words = PACKING.pack(
            self._session.gradients.address if graphs else 0,
            flat.address,
            rows.start,
            rows.width,
            rows.at,
            self._dense,
            dense_pieces,
            pieces,
            self._own + 8 * (NUMBERS + number),
            self._telling,
            b"",  # no losses
        )
        return flat, ShareGradients(words, 2 + -(-pieces // PIECES_A_BLOCK))

    def nothing(self, number: int) -> DeviceFlat:
        """Return the gradients of a share without a graph."""
        flat, packed = self.share(number, False)
        session = self._session
        session.launch_each([session.kernel("pack_kernel", packed.blocks, THREADS, packed.words)])
        return flat

    def joined(self, parts: Sequence[DeviceFlat], told_to: int) -> Joined:
        """Return what joins the sum of one array or two, where updates read gradients.

        Args:
            told_to: address of the host, that gets what processes told each other.
        """
        link, rows = self._devices.link, self._rows
        left, right = parts[0].address, parts[1].address if len(parts) > 1 else 0
        stopped, size = 0 if link is None else link.stopped, self._devices.group.size
        told = self._told, told_to, stopped, size, self._numbers
        addresses = np.array((rows.start, rows.width), np.int64)
        return Joined((left, right, rows.at), told, addresses, rows.rows)

    # What `HostArrays` has.

    def new(self, like: DeviceFlat) -> DeviceFlat:
        """Take room."""
        return self._room.take(like.size)

    def add(self, left: DeviceFlat, right: DeviceFlat) -> DeviceFlat:
        """Add on the device; the room of the right is free then."""
        self._add(left, left, right.address)
        self._room.give_back(right)
        return left

    def copy(self, to: DeviceFlat, source: DeviceFlat) -> None:
        """Copy on the device."""
        self._add(to, source, 0)

    def exchange(
        self, send: Sequence[DeviceFlat], receive: Sequence[DeviceFlat], limit: float
    ) -> None:
        """Ask for it, and the first time for what processes tell each other."""
        link, others = self._devices.link, self._others
        assert link is not None, "a sum of one process sends nothing"
        to, come = (
            [(k, flats[k].span) for k in others if len(flats[k])] for flats in (send, receive)
        )
        if not self._is_told:
            self._is_told, size = True, 8 * self._numbers
            to += [(k, (self._own, size)) for k in others]
            come += [(k, (self._told + size * k, size)) for k in others]
        link.exchange(to, come)

    def _add(self, to: DeviceFlat, left: DeviceFlat, right: int) -> None:
        """Add arrays; right: its address, or 0."""
        words, session = SUM.pack(to.address, left.address, right, to.size), self._session
        blocks = -(-to.size // THREADS)
        session.launch_each([session.kernel("add_kernel", blocks, THREADS, words)])
