"""Packed gradients of a step of several processes, in the memory of a device.

Everything is in the order of the main stream, so that a buffer is used again as soon as what reads
it was asked for. The host waits once, with a limit, before the update: see `DeviceGroup.wait`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from struct import Struct
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from vertexrt.engine.model import CompiledModel
from vertexrt.engine.packed_gradients import packed_size, sample_stride
from vertexrt.engine.update import Outcome, Touched, Update
from vertexrt.kernels.cuda.device import Allocation, Span
from vertexrt.kernels.cuda.device_group import DeviceGroup
from vertexrt.kernels.cuda.session import Session
from vertexrt.kernels.cuda.step_end import PIECE, PIECES_A_BLOCK, THREADS
from vertexrt.kernels.cuda.update_apart import rows_of_tables

Array = npt.NDArray[Any]

PACKING, STRIDED = Struct("8q"), Struct("4q")  # structs of update.cu
NOTHING = Allocation(0, 0, None)


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
    """Memory that packed gradients of all steps use again."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._free: list[Allocation] = []
        self._lent: list[Allocation] = []
        self._ranges, self._pinned = NOTHING, np.zeros(0, np.uint8)

    def begin(self) -> None:
        """Take back what the last step had; it is over."""
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

    def upload(self, arrays: Sequence[Array]) -> list[int]:
        """Copy int64 and then int32 arrays to the device; return their addresses there."""
        session, need = self.session, sum(array.nbytes for array in arrays)
        if self._ranges.size < need:
            self._ranges = session.memory.grown(self._ranges, max(need, 16))
            self._pinned = session.device.pinned(self._ranges.size)
        at, addresses = 0, []
        for array in arrays:
            addresses.append(self._ranges.address + at)
            self._pinned[at : at + array.nbytes] = array.view(np.uint8)
            at += array.nbytes
        if need:
            session.device.upload(self._ranges.address, self._pinned[:need])
        return addresses


class UpdatesHere(Protocol):
    """What has the gradients on a device, and updates by them: its executor."""

    model: CompiledModel

    def update_here(self, update: Update, gradients: Array | None) -> Outcome:
        """Update by the gradients of the device, or by those of the host."""


class DeviceGradients:
    """Gradients of a step; see `PackedGradients`.

    Args:
        rows: the rows of sparse parameters that the batch looks up.
    """

    kept = False

    def __init__(
        self, executor: UpdatesHere, room: PackingRoom, devices: DeviceGroup, rows: Touched
    ) -> None:
        self._executor, self._room, self._devices = executor, room, devices
        self._session, self._store, self._rows = room.session, executor.model.store, rows
        self._size = packed_size(self._store, rows)
        room.begin()
        starts, widths = rows_of_tables(self._store, rows)
        packed_at = np.cumsum(widths, dtype=np.int64) - widths + self._store.dense_size
        self._count = len(starts)
        self._start, self._at, self._width = room.upload([starts, packed_at, widths])

    def sample(self) -> Array:
        """Copy every so many-th parameter to the host."""
        stride, values = sample_stride(self._store), self._store.values
        found = np.empty(-(-values.size // stride), values.dtype)
        flat = self._room.take(found.size)
        self._strided("sample_kernel", flat, self._session.values.address, stride)
        self._session.memory.download(found, flat.address)
        self._room.give_back(flat)
        return found

    def pack(self, touched: Sequence[Touched]) -> DeviceFlat:
        """Copy the dense part, and rows of tables."""
        flat = self._room.take(self._size)
        self._copy_rows((self._session.gradients.address, self._start), (flat.address, self._at))
        return flat

    def zeros(self) -> DeviceFlat:
        """Clear as many elements."""
        flat = self._room.take(self._size)
        self._session.device.clear(*flat.span)
        return flat

    def unpack(self, total: DeviceFlat) -> None:
        """Put the sum where updates read gradients, and wait."""
        self._copy_rows((total.address, self._at), (self._session.gradients.address, self._start))
        self._store.touched.clear()
        self._store.touched.update(self._rows)
        self._devices.wait(self._devices.group.limit)

    def update(self, update: Update) -> Outcome:
        """Update by the sum."""
        return self._executor.update_here(update, None)

    # Of `FlatArrays`.

    def new(self, like: DeviceFlat) -> DeviceFlat:
        """Take room."""
        return self._room.take(like.size)

    def add(self, left: DeviceFlat, right: DeviceFlat) -> DeviceFlat:
        """Add on the device; the room of the right is free then."""
        self._strided("add_kernel", left, right.address, 1)
        self._room.give_back(right)
        return left

    def copy(self, to: DeviceFlat, source: DeviceFlat) -> None:
        """Copy on the device."""
        self._packing((source.address, 0), (to.address, 0), source.size, 0)

    def exchange(
        self, send: Sequence[DeviceFlat], receive: Sequence[DeviceFlat], limit: float
    ) -> None:
        """Ask for it; it is waited for with the whole sum."""
        assert self._devices.link is not None, "a sum of one process sends nothing"
        own = self._devices.group.rank
        to, come = (
            {peer: each.span for peer, each in enumerate(flats) if peer != own and each.size}
            for flats in (send, receive)
        )
        self._devices.link.exchange(to, come)

    # Launches.

    def _copy_rows(self, source: tuple[int, int], to: tuple[int, int]) -> None:
        """Copy from the store's layout to the packed one, or back.

        Args:
            source, to: address of the elements, and of where rows begin.
        """
        self._packing(source, to, self._store.dense_size, self._count)

    def _packing(self, source: tuple[int, int], to: tuple[int, int], dense: int, rows: int) -> None:
        dense_pieces = -(-dense // PIECE)
        pieces = dense_pieces + rows
        places = source[0], to[0], source[1], to[1], self._width
        arguments = PACKING.pack(*places, dense, dense_pieces, pieces)
        self._launch("copy_rows_kernel", -(-pieces // PIECES_A_BLOCK), arguments)

    def _strided(self, name: str, to: DeviceFlat, source: int, stride: int) -> None:
        arguments = STRIDED.pack(to.address, source, to.size, stride)
        self._launch(name, -(-to.size // THREADS), arguments)

    def _launch(self, name: str, blocks: int, arguments: bytes) -> None:
        if blocks:
            self._session.launch_one(name, blocks, THREADS, arguments)
