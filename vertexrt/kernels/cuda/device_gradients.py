"""Packed gradients of a step of several processes, in the memory of a device.

Everything is in the order of the main stream, so that a buffer is used again as soon as what reads
it was asked for, and nothing is waited for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from struct import Struct
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from vertexrt.engine.packed_gradients import packed_size, sample_stride
from vertexrt.engine.parameters import ParameterStore
from vertexrt.engine.shared_step import COMPARED, SharedWork
from vertexrt.kernels.cuda.device import Allocation, Link, Span
from vertexrt.kernels.cuda.device_group import DeviceGroup
from vertexrt.kernels.cuda.pack import ALIGN
from vertexrt.kernels.cuda.session import Session
from vertexrt.kernels.cuda.step_end import GAVE_UP, PIECE, PIECES_A_BLOCK, SUMMERS, THREADS
from vertexrt.kernels.cuda.upload import UploadBuffers, UploadSlot
from vertexrt.parallel.group import ProcessGroup

Array = npt.NDArray[Any]

# Structs of update.cu.
PACKING, SUM, TELLING, AGREEING = Struct("8q"), Struct("3q"), Struct("5q4d"), Struct("5q")
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
        starts = np.cumsum([0, *(-(-array.nbytes // ALIGN) * ALIGN for array in arrays)]).tolist()
        if len(slot.pinned) < starts[-1]:
            self.buffers.grow(slot, starts[-1])
        if len(slot.results) < back:
            slot.results = self.session.device.pinned(back)
        for at, array in zip(starts, arrays, strict=False):
            slot.pinned[at : at + array.nbytes] = array.view(np.uint8)
        slot.open = True
        if starts[-1]:
            self.session.device.upload(slot.memory.address, slot.pinned[: starts[-1]])
        return slot, [slot.memory.address + at for at in starts[:-1]]


class Packed(NamedTuple):
    """Where rows of tables are: addresses of their first elements, also when packed, and widths."""

    start: int
    at: int
    width: int
    rows: int


def told_bytes(group: ProcessGroup, work: SharedWork) -> int:
    """Return the bytes of what all processes tell each other."""
    return 8 * (NUMBERS + work.room) * group.size


class DeviceGradients:
    """Gradients of a step: packed, exchanged with what processes tell each other, unpacked.

    Args:
        work: of the step.
        rows: of tables that the batch looks up.
    """

    def __init__(
        self,
        room: PackingRoom,
        store: ParameterStore,
        devices: DeviceGroup,
        work: SharedWork,
        rows: Packed,
    ) -> None:
        self._room, self._session, self._store = room, room.session, store
        self._devices, self._rows = devices, rows
        self._size = packed_size(store, work.rows)
        group = devices.group
        self._numbers = NUMBERS + work.room
        self._told = room.told(self._numbers * group.size)
        self._own = self._told + 8 * self._numbers * group.rank
        self._is_told = False
        room.begin()

    # What processes tell each other.

    def loss_at(self, share: int) -> int:
        """Return where a launch leaves the loss of a share of this process: float64 [1]."""
        return self._own + 8 * (NUMBERS + share)

    def tell(self, signal: int, same: Sequence[float], graphless: int) -> None:
        """Note what the others are told by the first exchange of this process.

        Args:
            same: numbers that all must have alike, without that of the parameters.
            graphless: how many of the shares have no graph; they come last.
        """
        session, store = self._session, self._store
        if graphless:
            last = self._numbers - graphless
            session.device.clear(self._own + 8 * last, 8 * graphless)
        stride = sample_stride(store.values.size)
        words = TELLING.pack(
            self._own,
            session.found.address + 8 * GAVE_UP,
            session.values.address,
            -(-store.values.size // stride),
            stride,
            signal,
            *same,
        )
        self._session.launch_one("tell_kernel", 1, SUMMERS, words)

    def agree(self) -> Span:
        """Refuse the step where processes do not agree; return what they told, [size, numbers]."""
        link, size = self._devices.link, self._devices.group.size
        stopped = 0 if link is None else link.stopped
        found = self._session.found.address
        words = AGREEING.pack(found, self._told, stopped, size, self._numbers)
        self._session.launch_one("agree_kernel", 1, THREADS, words)
        return self._told, 8 * self._numbers * size

    # Gradients.

    def pack(self) -> DeviceFlat:
        """Copy the dense part, and rows of tables."""
        flat, rows = self._room.take(self._size), self._rows
        self._copy_rows((self._session.gradients.address, rows.start), (flat.address, rows.at))
        return flat

    def zeros(self) -> DeviceFlat:
        """Clear as many elements."""
        flat = self._room.take(self._size)
        self._session.device.clear(*flat.span)
        return flat

    def unpack(self, total: DeviceFlat) -> None:
        """Put the sum where updates read gradients."""
        rows = self._rows
        self._copy_rows((total.address, rows.at), (self._session.gradients.address, rows.start))

    # Of `FlatArrays`.

    def new(self, like: DeviceFlat) -> DeviceFlat:
        """Take room."""
        return self._room.take(like.size)

    def add(self, left: DeviceFlat, right: DeviceFlat) -> DeviceFlat:
        """Add on the device; the room of the right is free then."""
        words = SUM.pack(left.address, right.address, left.size)
        self._launch("add_kernel", -(-left.size // THREADS), words)
        self._room.give_back(right)
        return left

    def copy(self, to: DeviceFlat, source: DeviceFlat) -> None:
        """Copy on the device."""
        self._packing((source.address, 0), (to.address, 0), source.size, 0)

    def exchange(
        self, send: Sequence[DeviceFlat], receive: Sequence[DeviceFlat], limit: float
    ) -> None:
        """Ask for it, and the first time for what processes tell each other."""
        group = self._devices.group
        others = [peer for peer in range(group.size) if peer != group.rank]
        to, come = (
            [(k, flats[k].span) for k in others if len(flats[k])] for flats in (send, receive)
        )
        if not self._is_told:
            self._is_told, size = True, 8 * self._numbers
            to += [(k, (self._own, size)) for k in others]
            come += [(k, (self._told + size * k, size)) for k in others]
        self._link.exchange(to, come)

    @property
    def _link(self) -> Link:
        assert self._devices.link is not None, "a sum of one process sends nothing"
        return self._devices.link

    # Launches.

    def _copy_rows(self, source: tuple[int, int], to: tuple[int, int]) -> None:
        """Copy from the store's layout to the packed one, or back.

        Args:
            source, to: address of the elements, and of where rows begin.
        """
        self._packing(source, to, self._store.dense_size, self._rows.rows)

    def _packing(self, source: tuple[int, int], to: tuple[int, int], dense: int, rows: int) -> None:
        dense_pieces = -(-dense // PIECE)
        pieces = dense_pieces + rows
        places = source[0], to[0], source[1], to[1], self._rows.width
        arguments = PACKING.pack(*places, dense, dense_pieces, pieces)
        self._launch("copy_rows_kernel", -(-pieces // PIECES_A_BLOCK), arguments)

    def _launch(self, name: str, blocks: int, arguments: bytes) -> None:
        if blocks:
            self._session.launch_one(name, blocks, THREADS, arguments)
