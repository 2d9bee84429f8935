"""Run steps on a device: parameters, arena and indices live there, one upload a minibatch.

A step is asked for and not waited for: uploads leave from two pinned buffers in turn, and what a
step found (its loss, the norm of its gradients) comes back behind it. So the host prepares the
next minibatch while the device works on this one (VPPS, section III-D).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from vertexrt.errors import DeviceError, message
from vertexrt.kernels.cuda.calls import addresses_of, launch_one
from vertexrt.kernels.cuda.compile import FOLDER
from vertexrt.kernels.cuda.device import Calls, Device, Memory
from vertexrt.kernels.cuda.driver import launch
from vertexrt.kernels.cuda.ending import (
    FOUND,
    NO_SCALARS,
    NO_STARTS,
    NO_WIDTHS,
    PIECE,
    PIECES_A_BLOCK,
    SUMMERS,
    THREADS,
    Ending,
    pack_finish,
    pack_store,
)
from vertexrt.kernels.cuda.executable import CudaExecutable, Uploads
from vertexrt.kernels.cuda.lookups import sort_lookups
from vertexrt.kernels.cuda.pack import ADDRESSES, ALIGN, ORDER, WEIGHT, pack
from vertexrt.kernels.cuda.products import ARRIVED
from vertexrt.kernels.cuda.rules import kernels, structs

Array = np.ndarray[Any, Any]
Int64 = npt.NDArray[np.int64]

SLOTS = 2
COUNTERS = 4 * ARRIVED  # bytes of those of a stream
TEMPORARY, ZERO, ARRIVED_AT = range(len(ADDRESSES))

SMALLER_BATCHES = "take smaller batches, or device='cpu'"
SMALLER_MODEL = "take a smaller model, or device='cpu'"


def amount(size: int) -> str:
    """Write a number of bytes for people."""
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20)):
        if size >= scale:
            return f"{size / scale:,.1f} {unit}"
    return f"{size / 2**10:,.1f} KiB"


@cache
def source_of(file: str) -> str:
    """Return kernels that are the same for all functions."""
    return (FOLDER / file).read_text()


def update_source() -> str:
    """Return the kernels at the end of a step; each rule has those that check and that update."""
    return source_of("update.cu") + structs() + kernels()


# Launches rows of a table, given words and lookups; returns what `driver.launch` does.
Launcher = Callable[[Int64, Int64, tuple[Array, ...]], tuple[int, int, int]]


@dataclass(slots=True)
class Slot:
    """A pinned buffer with its twin on the device, and where what a step found comes back."""

    pinned: Array
    memory: Memory
    found: Array  # float64 [FOUND], pinned
    found_bytes: Array  # the same memory
    results: Array  # bytes, pinned: what a run was asked to bring back
    event: Any = None  # of who used the buffer last,
    open: bool = False  # unless an upload left it for a run that did not get as far as its event
    reader: Callable[[], object] | None = None  # copies results before the slot is used again


@dataclass(slots=True)
class Inputs:
    """The arrays of a minibatch on the host; see `layout.Buffers`."""

    base: Int64
    temporary: int
    indices: Array  # int32, the arrays of the schedule one after the other
    extents: Int64  # [PARTS, 2] where each of them begins and ends; see `pack`
    weight: Array
    rows: Array
    user_edge: Array
    pulls: Array  # int32 [integer pulls + real pulls, V]
    largest: int  # an integer that is looked up is less
    floats: Sequence[Array]
    seeds: Sequence[Array]
    loss_scale: float
    random_seed: int


class Session:
    """The memory of a network on a device, and the launches of its steps.

    Args:
        dtype: of parameters and arena.
        total, dense: elements of the parameter store, and of its dense part.
        param_at: [names] first element of each parameter and stack.
        poisons: memory of a run is filled with what is no number before it.
    """

    def __init__(
        self,
        device: Device,
        dtype: npt.DTypeLike,
        total: int,
        dense: int,
        param_at: Int64,
        poisons: bool = False,
    ) -> None:
        self.device = device
        self.poisons = poisons
        self.dtype = np.dtype(dtype)
        self.total, self.dense, self.param_at = total, dense, param_at
        size = self.dtype.itemsize
        self.values = self.take(total * size, "parameters", SMALLER_MODEL)
        self.gradients = self.take(total * size, "gradients", SMALLER_MODEL)
        self.moments: Memory | None = None
        self.arena = Memory(0, 0, None)
        self._zero = Memory(0, 0, None)
        self._squares = Memory(0, 0, None)
        self.found = self.take(FOUND * 8, "results", SMALLER_MODEL)
        self._arrived = self.take(COUNTERS, "counters", SMALLER_MODEL)
        self._slots: list[Slot] = []
        self._next = 0
        self._seen = np.zeros(0, np.int32)
        self._scalars = np.array([0.0, 1.0], self.dtype)
        self._calls: dict[Calls, Int64] = {}
        self._functions = device.load([update_source()], self.dtype)
        self.device.clear(self.gradients.address, self.gradients.size)
        self.device.clear(self.found.address, self.found.size)
        self.device.clear(self._arrived.address, self._arrived.size)

    # Memory.

    def take(self, size: int, what: str, action: str = SMALLER_BATCHES) -> Memory:
        """Return new memory.

        Raises: DeviceError, when there is not as much; it says what for.
        """
        try:
            return self.device.allocate(size)
        except MemoryError:
            free = amount(self.device.free_bytes())
            text = message("cuda", f"{what} take {amount(size)}", f"{free} are free", action)
        raise DeviceError(text)

    def take_arena(self, elements: int, graphs: int) -> None:
        """Make room for a minibatch; what was in the arena is lost where it grows.

        Raises: DeviceError, when it does not fit: it says how many graphs would.
        """
        need = elements * self.dtype.itemsize
        if self.arena.size >= need:
            return
        self.synchronize()
        self.arena = Memory(0, 0, None)
        for size in (need + need // 4, need):
            try:
                self.arena = self.device.allocate(size)
            except MemoryError:
                continue
            return
        free = self.device.free_bytes()
        fits = min(graphs - 1, graphs * free // need)
        raise DeviceError(
            message(
                "cuda",
                f"a batch of {graphs} graph{'s' if graphs > 1 else ''} needs {amount(need)}",
                f"{amount(free)} are free",
                f"take batches of about {fits} graphs" if fits > 0 else "take device='cpu'",
            )
        )

    def grown(self, memory: Memory, size: int, zero: bool = False) -> Memory:
        """Return memory of at least a size: this one, or a new one that may be cleared."""
        if memory.size >= size:
            return memory
        self.synchronize()
        memory = self.take(size * 5 // 4, "rows beside the batch")
        if zero:
            self.device.clear(memory.address, memory.size)
        return memory

    def poison(self, memory: Memory, start: int = 0) -> None:
        """Fill memory from a byte on with what is no number, so that what nobody writes shows."""
        self.device.clear(memory.address + start, memory.size - start, 0xFF)

    def _slot(self) -> Slot:
        """Return the pinned buffer whose turn it is, when the device has read it."""
        if not self._slots:
            for _ in range(SLOTS):
                found = self.device.pinned(8 * FOUND)
                nothing = np.zeros(0, np.uint8)
                self._slots.append(
                    Slot(nothing, Memory(0, 0, None), found.view(np.float64), found, nothing)
                )
        slot = self._slots[self._next]
        self._next = (self._next + 1) % SLOTS
        if slot.reader is not None:
            slot.reader()
            slot.reader = None
        if slot.open:  # a launch failed behind the upload
            self.synchronize()
            slot.open = False
        elif slot.event is not None:
            self.device.wait(slot.event)
        return slot

    def _grow(self, slot: Slot, size: int) -> None:
        """Give a slot buffers of at least a size."""
        self.synchronize()
        slot.memory = self.take(size * 3 // 2, "the indices of a batch")
        slot.pinned = self.device.pinned(size * 3 // 2)

    def synchronize(self) -> None:
        """Wait for everything asked for."""
        self.device.wait(self.device.record())

    # Copies of parameters.

    def upload(self, memory: Memory, array: Array) -> None:
        """Copy a host array to the device, waiting for it."""
        pinned = self.device.pinned(array.nbytes)
        pinned[:] = array.reshape(-1).view(np.uint8)
        self.device.upload(memory.address, pinned)
        self.synchronize()

    def download(self, array: Array, address: int) -> None:
        """Copy from the device into a contiguous host array, waiting for it."""
        if not array.nbytes:
            return
        pinned = self.device.pinned(array.nbytes)
        self.device.download(pinned, address)
        self.synchronize()
        array.reshape(-1).view(np.uint8)[:] = pinned

    def take_moments(self, moments: Array) -> None:
        """Copy an optimizer's moments to the device."""
        if self.moments is None or self.moments.size != moments.nbytes:
            self.moments = self.take(moments.nbytes, "moments", "take SGD, or a smaller model")
        self.upload(self.moments, moments)

    def clear_gradients(self) -> None:
        """Set all gradients to zero."""
        self.device.clear(self.gradients.address, self.gradients.size)

    def forgive(self) -> None:
        """Let updates go on after a step that was refused."""
        self.device.clear(self.found.address, self.found.size)

    # Steps.

    def run(
        self,
        executable: CudaExecutable,
        table: Int64,
        inputs: Inputs,
        ending: Ending | None = None,
        fetch: Sequence[slice] = (),
        by: Launcher | None = None,
    ) -> Slot:
        """Upload a minibatch and launch rows of its table.

        Args:
            fetch: elements of the arena that are wanted on the host.
            by: launches instead of `driver.launch`.
        Returns: the slot, whose event comes when the device is done; `results`, and with an ending
            `found`, are valid then.
        """
        lookups = self.sorted_lookups(executable, table, inputs)
        slot, words, addresses = self.stage(executable, inputs, lookups[2:], ending)
        if by is None:
            calls = self.calls_of(self.device.calls)
            found = launch(table, executable.program, words, lookups[:2], calls)
        else:
            found = by(table, words, lookups[:2])
        self.device.check(*found)
        if ending is not None:
            self._finish(int(words[WEIGHT]), addresses, inputs, ending)
        return self.launched(slot, ending is not None, fetch)

    def calls_of(self, calls: Calls) -> Int64:
        """Return what `driver.launch` calls on a stream."""
        found = self._calls.get(calls)
        if found is None:
            found = self._calls[calls] = addresses_of(calls, self._scalars)
        return found

    def launched(self, slot: Slot, found: bool, fetch: Sequence[slice]) -> Slot:
        """Ask for what is wanted of a run that was launched; see `run`."""
        if found:
            self.device.download(slot.found_bytes, self.found.address)
        size, at = self.dtype.itemsize, 0
        need = sum([piece.stop - piece.start for piece in fetch]) * size
        if len(slot.results) < need:
            slot.results = self.device.pinned(-(-need * 3 // 32) * 16)
        for piece in fetch:
            end = at + (piece.stop - piece.start) * size
            self.device.download(slot.results[at:end], self.arena.address + piece.start * size)
            at = end
        slot.event = self.device.record(slot.event)
        slot.open = False
        return slot

    def marks(self, largest: int) -> Array:
        """Return what `sort_lookups` marks integers in that are less than a bound."""
        if len(self._seen) < largest:
            self._seen = np.full(largest, -1, np.int32)
        return self._seen

    def sorted_lookups(
        self, executable: Uploads, table: Int64, inputs: Inputs
    ) -> tuple[Array, ...]:
        """Return what `sort_lookups` does."""
        found: tuple[Array, ...] = sort_lookups(
            table,
            executable.lookups_ptr,
            executable.lookups,
            inputs.pulls,
            inputs.indices[inputs.extents[ORDER, 0] : inputs.extents[ORDER, 1]],
            inputs.rows,
            self.marks(inputs.largest),
        )
        return found

    def stage(
        self,
        executable: Uploads,
        inputs: Inputs,
        segments: tuple[Array, ...],
        ending: Ending | None,
        more: tuple[Array, ...] = (NO_WIDTHS,),
    ) -> tuple[Slot, Int64, Int64]:
        """Copy arrays into a pinned buffer and from there to the device.

        Args:
            segments: of `sort_lookups`.
            more: what else is uploaded, int32 [*] each.
        Returns: the slot; the words in the order of `executable.word_names`; addresses of starts
            and widths of an ending, and of what is `more`.
        """
        starts, widths = (
            (NO_STARTS, NO_WIDTHS) if ending is None else (ending.starts, ending.widths)
        )
        reals = (*inputs.floats, *inputs.seeds)
        room = sum([array.nbytes + ALIGN for array in reals]) if reals else 0
        slot = self._slot()
        zero = executable.zero_elements * self.dtype.itemsize
        if self._zero.size < zero:
            self._zero = self.grown(self._zero, zero, zero=True)
        words = np.zeros(len(executable.wanted), np.int64)
        words[TEMPORARY] = self.arena.address + inputs.temporary * self.dtype.itemsize
        words[ZERO] = self._zero.address
        words[ARRIVED_AT] = self._arrived.address
        given = (
            executable.wanted,
            words,
            inputs.rows,
            inputs.indices,
            inputs.extents,
            segments,
            inputs.user_edge,
            inputs.weight,
            starts,
            widths,
            inputs.pulls,
            executable.num_ints,
            more,
            inputs.base,
            self.param_at,
            self.arena.address,
            self.values.address,
            self.gradients.address,
            inputs.loss_scale,
            inputs.random_seed,
            room,
        )
        end, addresses = pack(slot.pinned, slot.memory.address, *given)
        if end < 0:
            self._grow(slot, -end)
            end, addresses = pack(slot.pinned, slot.memory.address, *given)
        for word, array in zip(executable.real_words, reals, strict=True):
            if executable.wanted[word]:
                words[word] = slot.memory.address + end
                slot.pinned[end : end + array.nbytes] = array.view(np.uint8)
                end += -(-array.nbytes // ALIGN) * ALIGN
        slot.open = True
        self.device.upload(slot.memory.address, slot.pinned[:end])
        return slot, words, addresses

    def _finish(self, weight: int, addresses: Int64, inputs: Inputs, e: Ending) -> None:
        """Launch the loss, the norm and the update."""
        store, finish, pieces = self.ending_words(weight, addresses, inputs, e)
        blocks = -(-pieces // PIECES_A_BLOCK)
        if e.clip_norm:
            self._launch("sum_squares_kernel", blocks, THREADS, store)
        self._launch("finish_step_kernel", 1, SUMMERS, finish)
        if blocks:
            self._launch(f"check_{e.rule.name}", blocks, THREADS, store)
            self._launch(f"update_{e.rule.name}", blocks, THREADS, store)

    def ending_words(
        self, weight: int, addresses: Int64, inputs: Inputs, e: Ending
    ) -> tuple[bytes, bytes, int]:
        """Return `Store` and `Finish` of update.cuh, and how many pieces are updated."""
        dense_pieces = -(-self.dense // PIECE)
        pieces = dense_pieces + len(e.starts)
        self._squares = self.grown(self._squares, 8 * pieces)
        if self.poisons:
            self.poison(self._squares)
        size = self.dtype.itemsize
        scalars = (*e.scalars, *NO_SCALARS[len(e.scalars) :])
        store = pack_store(
            self.values.address,
            self.gradients.address,
            self.moments.address if self.moments else 0,
            int(addresses[0]),
            int(addresses[1]),
            self._squares.address,
            self.found.address,
            self.total,
            self.dense,
            dense_pieces,
            pieces,
            *scalars,
        )
        finish = pack_finish(
            self.arena.address + e.loss_at * size,
            weight if len(inputs.weight) else 0,
            self._squares.address,
            self.found.address,
            e.rows,
            pieces if e.clip_norm else 0,
            inputs.loss_scale,
            e.clip_norm,
        )
        return store, finish, pieces

    def _launch(self, name: str, blocks: int, threads: int, arguments: bytes) -> None:
        calls = self.device.calls
        code = launch_one(
            calls.launch,
            self._functions[name],
            blocks,
            threads,
            calls.stream,
            np.frombuffer(arguments, np.int64),
        )
        self.device.check(code, -1, -1)


class DeviceArena:
    """The arena after a run, read as if it were an array: a slice or elements are copied."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.dtype = session.dtype

    def __getitem__(self, key: slice | Array) -> Array:
        if isinstance(key, slice):
            assert key.step is None
            return self._copy(key.start or 0, key.stop)
        if key.size == 0:
            return np.zeros(key.shape, self.dtype)
        first = int(key.min())
        return np.asarray(self._copy(first, int(key.max()) + 1)[key - first])

    def _copy(self, start: int, stop: int) -> Array:
        array = np.empty(max(0, stop - start), self.dtype)
        self._session.download(array, self._session.arena.address + start * self.dtype.itemsize)
        return array
