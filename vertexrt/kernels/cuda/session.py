"""Run steps on a device: parameters, arena and indices live there, one upload a minibatch.

A step is asked for and not waited for: uploads leave from two pinned buffers in turn, and what a
step found (its loss, the norm of its gradients) comes back after it. So the host prepares the
next minibatch while the device works on this one (VPPS, section III-C1).
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Any

import numpy as np
import numpy.typing as npt

from vertexrt.engine.batched import Part, Run
from vertexrt.engine.parameters import ParameterStore
from vertexrt.engine.update import NO_RANGES
from vertexrt.errors import DeviceError, number_of
from vertexrt.graph.device_rows import DeviceRows
from vertexrt.kernels.cuda.device import Allocation, Array, Calls, Device
from vertexrt.kernels.cuda.device_memory import (
    SMALLER_MODEL,
    DeviceMemory,
    UploadBuffers,
    UploadRoom,
    UploadSlot,
    amount,
)
from vertexrt.kernels.cuda.driver import (
    LEAST_SPLIT,
    addresses_of,
    launch_each,
    load_wide,
    split_bytes,
)
from vertexrt.kernels.cuda.executable import Uploads
from vertexrt.kernels.cuda.launch_limits import LIMITS
from vertexrt.kernels.cuda.pack import PackedUpload, aligned, pack, sort_lookups
from vertexrt.kernels.cuda.step_end import FOUND, StepEnd, update_source

Int64 = npt.NDArray[np.int64]

LAUNCH = Struct("4q")  # as `driver.launch_each` reads it
COUNTERS = 4 * LIMITS.counters  # bytes of those of a stream


class Session:
    """The memory of a network on a device, and the launches of its steps.

    Args:
        store: of the parameters, whose layout the device has.
        param_at: [names] first element of each parameter and stack.
        poisons: memory of a run is filled with what is no number before it.
    Attributes:
        host_newer, device_newer: which copy of the parameters may have been written to since both
            were the same.
        shared: others write to parameters on the device, in the order of the caller's stream, and
            read them there: what the host writes goes there at once.
        gave_up: int64 [1] of the host: not 0 once a processor gave up waiting, until `forgive`;
            gave_up_at: its address.
    """

    def __init__(
        self,
        device: Device,
        store: ParameterStore,
        param_at: Int64,
        poisons: bool = False,
    ) -> None:
        self.device, self.store = device, store
        self.memory = DeviceMemory(device, poisons)
        self.buffers = UploadBuffers(self.memory)
        self.dtype, self.param_at = store.dtype, param_at
        self.trained, self.dense = store.trained_size, store.dense_size
        size = self.dtype.itemsize
        self.values = self.memory.take(store.values.nbytes, "parameters", SMALLER_MODEL)
        self.gradients = self.memory.cleared(self.trained * size, "gradients")
        self.moments: Allocation | None = None
        self.host_newer, self.device_newer, self.shared = True, False, False
        self._moments: Array | None = None  # of the host
        self._moments_newer = False  # there
        self.arena = Allocation()
        self._lent: tuple[tuple[int, int], Any] = (0, 0), None  # the arena as an array, and where
        self.zero = Allocation()  # the row that an absent child or pull reads
        self.squares = Allocation()
        self.taken = Allocation()  # rows on their way to the host
        self.found = self.memory.cleared(FOUND * 8, "results")
        self.gave_up = device.pinned(8).view(np.int64)
        self.gave_up[0] = 0
        self.gave_up_at = int(self.gave_up.ctypes.data)
        self._arrived = self.memory.cleared(COUNTERS, "counters")
        self._seen = np.zeros(0, np.int32)
        self._scalars = np.array([0.0, 1.0], self.dtype)
        self._calls: dict[Calls, Int64] = {}
        self._split: dict[int, Allocation] = {}  # of a handle of cuBLAS
        self._functions = device.load([update_source()], self.dtype)

    # Memory.

    def take_arena(self, run: Run) -> None:
        """Make room for a minibatch; what was in the arena is lost where it grows.

        Raises: DeviceError, when it does not fit: it says how many graphs would.
        """
        need = run.layout.plan.total * self.dtype.itemsize
        if self.arena.size >= need:
            return
        graphs = run.share.batch.num_graphs
        self.memory.synchronize()
        self.arena = Allocation()
        for size in (need + need // 4, need):
            try:
                self.arena = self.device.allocate(size)
            except MemoryError:
                continue
            return
        free = self.device.free_bytes()
        fits = min(graphs - 1, graphs * free // need)
        raise DeviceError.at(
            "cuda",
            f"a batch of {number_of(graphs, 'graph')} needs {amount(need)}",
            f"{amount(free)} are free",
            f"take batches of about {fits} graphs" if fits > 0 else "take device='cpu'",
        )

    def arena_here(self) -> Any:
        """Return the arena as an array of the device; it does not keep its memory alive."""
        at = self.arena.address, self.arena.size
        if self._lent[0] != at:
            self._lent = at, self.device.array(Allocation(*at, None), self.dtype)
        return self._lent[1]

    # Gradients, and what steps found.

    def clear_gradients(self) -> None:
        """Set all gradients to zero."""
        self.memory.clear(self.gradients)

    def clear_found(self) -> None:
        """Let updates go on after one that was refused."""
        self.device.clear(self.found.address, self.found.size)

    def forgive(self) -> None:
        """Let updates go on after a step that was refused, or gave up."""
        self.clear_found()
        self.gave_up[0] = 0

    # Parameters and moments, which are on the device and, as a copy, on the host.

    def to_host(self) -> None:
        """Bring parameters and moments to the host, where they may be changed."""
        if self.shared:
            self.device.follow_caller()
        if self.shared and self.host_newer:
            self.memory.upload(self.values, self.store.values)  # and waits
        elif self.device_newer or self.shared:
            self.memory.download(self.store.values, self.values.address)
        if self.device_newer and self._moments is not None and self.moments is not None:
            self.memory.download(self._moments, self.moments.address)
        self.host_newer, self._moments_newer = not self.shared, True
        self.device_newer = False  # last: a signal may come before it, and all is done again

    def written(self) -> None:
        """Note that parameters on the host are being set."""
        self.host_newer = True

    def to_device(self, moments: Array | None = None) -> None:
        """Bring to the device what is newer on the host, and moments that a step needs."""
        other = moments is not None and moments is not self._moments
        if other and self._moments is not None:
            self.to_host()  # what another optimizer has on the device would be lost
        if self.host_newer:
            self.memory.upload(self.values, self.store.values)
        if moments is not None and (other or self._moments_newer):
            self._moments = None  # until all of these are there
            if self.moments is None or self.moments.size != moments.nbytes:
                action = "take SGD, or a smaller model"
                self.moments = self.memory.take(moments.nbytes, "moments", action)
            self.memory.upload(self.moments, moments)
            self._moments, self._moments_newer = moments, False
        self.host_newer = False

    # Steps.

    def calls_of(self, calls: Calls) -> Int64:
        """Return what `driver.launch` calls on a stream."""
        found = self._calls.get(calls)
        if found is None:
            wide, split = load_wide(self.device, self.dtype), 0
            # Splits leave sums, where a weight is large enough; streams that have the same handle
            # come one after the other.
            if any(wide) and self.values.size >= LEAST_SPLIT * self.dtype.itemsize:
                if calls.handle not in self._split:
                    size = split_bytes(self.device.processors)
                    self._split[calls.handle] = self.memory.cleared(size, "sums of products")
                split = self._split[calls.handle].address
            found = addresses_of(calls, self._scalars, self.device.processors, (split, *wide))
            self._calls[calls] = found
        return found

    def uploaded(self, slot: UploadSlot) -> UploadSlot:
        """Note that all was asked for which reads or fills a slot; return it."""
        gone = self.memory.gone[:]  # whatever reads these was asked for before the event
        slot.event = self.device.record(slot.event)
        slot.gone += gone
        slot.open = False
        del self.memory.gone[: len(gone)]  # last: a signal before it leaves them in both
        return slot

    def bring(self, slot: UploadSlot, found: bool, size: int = 0) -> UploadSlot:
        """Ask for what is wanted of a run that was launched.

        Args:
            slot: which it was uploaded from.
            found: what it found is wanted; size: bytes of `taken` that are.
        Returns: the slot, whose event comes when the device is done; `found` and `results` are
            valid then.
        """
        if found:
            self.device.download(slot.found.view(np.uint8), self.found.address)
        if len(slot.results) < size:
            slot.results = self.device.pinned(-(-size * 3 // 32) * 16)
        if size:
            self.device.download(slot.results[:size], self.taken.address)
        return self.uploaded(slot)

    def marks(self, largest: int) -> Array:
        """Return what `sort_lookups` marks integers in that are less than a bound."""
        if len(self._seen) < largest:
            self._seen = np.full(largest, -1, np.int32)
        return self._seen

    def sorted_lookups(self, run: Run, table: Int64, padded: bool = False) -> tuple[Array, ...]:
        """Return what `sort_lookups` does for launches of the batched engine."""
        executable: Any = run.ready.executable
        return sort_lookups(
            table,
            (executable.lookups_ptr, executable.lookups),
            run.inputs.index,
            (run.layout.indices, run.layout.extents),
            run.layout.rows,
            self.marks(run.variant.reader.largest),
            padded,
        )

    def stage(
        self,
        executable: Uploads,
        run: Run,
        part: Part,
        lists: tuple[tuple[Array, ...], tuple[Array, ...]],
        ending: StepEnd | None,
        room: UploadRoom | None = None,
        written: tuple[UploadSlot, int] | None = None,
    ) -> tuple[UploadSlot, Int64, Int64]:
        """Copy the arrays of a minibatch into a pinned buffer and from there to the device.

        Args:
            lists: the segments of `sort_lookups`; and `more` that is uploaded, int32 [*] each.
            room: on the device, where it is to lie; by default where the slot says.
            written: the slot, and how many bytes of it are written; by default the next, and none.
        Returns: the slot; the words in the order of `executable.word_names`; addresses of starts
            and widths of an ending, of what is `more`, and of the rows of `Part.to`.
        """
        (slot, first), reals, for_reals = written or (self.buffers.next(), 0), [], 0
        if executable.real_words:  # those that are read
            given = zip(executable.real_words, run.reals(part), strict=False)
            reals = [(word, array) for word, array in given if executable.wanted[word]]
            on_host = [array.nbytes for _, array in reals if type(array) is not DeviceRows]
            for_reals = sum(map(aligned, on_host))
        need = executable.zero_elements * self.dtype.itemsize
        self.zero = self.memory.grown(self.zero, need, zero=True)
        (segments, more), into = lists, slot if room is None else room
        ranges = NO_RANGES if ending is None else ending.ranges
        facts = executable.wanted, self.param_at, executable.num_ints, executable.last_words
        layout = run.layout
        arrays = (  # the fields of `Arrays`
            layout.rows,
            layout.indices,
            layout.extents,
            *run.user_numbers,
            layout.weight,
            run.inputs.index,
            layout.plan.base,
        )
        places = (  # the first fields of `Places`
            self.arena.address,
            layout.plan.temporary,
            self.zero.address,
            self._arrived.address,
            self.values.address,
            part.to.gradients or self.gradients.address,
            part.loss_scale,
            part.random_seed,
            for_reals,
        )
        more_lists = segments, ranges, (*more, part.to.rows)

        def packed(there: int) -> PackedUpload:
            pinned, address = slot.pinned[first:], into.memory.address + first
            return pack(pinned, address, facts, arrays, (*places, there), more_lists)

        end, common, at, words, addresses = packed(into.there)
        if end < 0 or first + end > into.memory.size:
            self.buffers.room(slot, first + abs(end))
            if room is not None:
                room.grow(abs(end))
            end, common, at, words, addresses = packed(0)
        address, at, end = into.memory.address, first + at, first + end
        for word, array in reals:
            if type(array) is DeviceRows:
                words[word] = array.address
                continue
            words[word] = address + at
            slot.pinned[at : at + array.nbytes] = array.view(np.uint8)
            at += aligned(array.nbytes)
        if executable.seed_rows:  # which row of a seed each row has
            starts, rows = part.seed_rows or (-1,) * len(executable.seed_rows), int(addresses[-1])
            for word, start in zip(executable.seed_rows, starts, strict=True):
                own = rows + 4 * start
                words[word] = words[executable.numbers["order"]] if start < 0 else own
        slot.open, slot.used, there = True, end, into.there
        self.device.upload_ahead(address + there, slot.pinned[there:end])
        if room is not None:
            room.there = common
        return slot, words, addresses

    def kernel(self, name: str, blocks: int, threads: int, struct: bytes) -> bytes:
        """Return a launch of a kernel that takes one struct, for `launch_each`."""
        return LAUNCH.pack(self._functions[name], blocks, threads, len(struct) // 8) + struct

    def launch_each(self, launches: Sequence[bytes]) -> None:
        """Launch kernels of the end of a step, all of them at once: no signal comes between."""
        if launches:
            packed, calls = np.frombuffer(b"".join(launches), np.int64), self.device.calls
            self.device.check(launch_each(calls.launch, calls.stream, packed))


class DeviceArena:
    """The arena of a device after a run, read as if it were an array of the host: what is read is
    copied, a slice or elements.
    """

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
        self._session.memory.download(
            array, self._session.arena.address + start * self.dtype.itemsize
        )
        return array
