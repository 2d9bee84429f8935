"""Packed gradients of a step of several processes, in the memory of a device.

Everything is in the order of the main stream, so that a buffer is used again as soon as what reads
it was asked for, and nothing is waited for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from struct import Struct
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from vertexrt.engine.batched import ShareGradients
from vertexrt.engine.parameters import ParameterStore
from vertexrt.engine.shared_step import COMPARED, SharedWork, sample_stride
from vertexrt.kernels.cuda.device import Allocation, Span
from vertexrt.kernels.cuda.device_group import DeviceGroup
from vertexrt.kernels.cuda.pack import ALIGN
from vertexrt.kernels.cuda.session import Session
from vertexrt.kernels.cuda.step_end import (
    GAVE_UP,
    NO_LOSSES,
    PIECE,
    PIECES_A_BLOCK,
    THREADS,
    Joined,
)
from vertexrt.kernels.cuda.upload import UploadBuffers, UploadSlot
from vertexrt.parallel.group import ProcessGroup

Array = npt.NDArray[Any]

# Structs of update.cu.
PACKING, TELLING, SUM = Struct("9q"), Struct("5q4d"), Struct("4q")
SOURCES, TOLD = Struct("3q"), Struct("5q")
NOTHING = Allocation(0, 0, None)
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
        self._told = NOTHING

    def begin(self) -> None:
        """Take back what the last step had: what comes is asked for after it."""
        self._free += self._lent
        self._lent.clear()

    def take(self, size: int) -> DeviceFlat:
        """Return room for so many elements."""
        need = size * self.session.dtype.itemsize
        memory = self._free.pop() if self._free else NOTHING
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
        )
        return flat, ShareGradients(words + self._telling, 2 + -(-pieces // PIECES_A_BLOCK))

    def nothing(self, number: int) -> DeviceFlat:
        """Return the gradients of a share without a graph."""
        flat, packed = self.share(number, False)
        words = packed.words + NO_LOSSES
        session = self._session
        session.launch_each([session.kernel("pack_kernel", packed.blocks, THREADS, words)])
        return flat

    def joined(self, parts: Sequence[DeviceFlat], told_to: int) -> Joined:
        """Return what joins the sum of one array or two, where updates read gradients.

        Args:
            told_to: address of the host, that gets what processes told each other.
        """
        link, rows = self._devices.link, self._rows
        left, right = parts[0].address, parts[1].address if len(parts) > 1 else 0
        stopped, size = 0 if link is None else link.stopped, self._devices.group.size
        told = TOLD.pack(self._told, told_to, stopped, size, self._numbers)
        addresses = np.array((rows.start, rows.width), np.int64)
        return Joined(SOURCES.pack(left, right, rows.at), told, addresses, rows.rows)

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
