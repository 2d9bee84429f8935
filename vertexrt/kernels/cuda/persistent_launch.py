"""Launch a persistent kernel: a whole step, driven by scripts that go up with the minibatch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from vertexrt.engine.batched import Part, Run
from vertexrt.errors import DeviceError
from vertexrt.kernels.cuda.counter_ring import CounterRing
from vertexrt.kernels.cuda.cuts import launch_apart, pieces_of
from vertexrt.kernels.cuda.device import Allocation, LaunchStruct
from vertexrt.kernels.cuda.pack import ARRIVED_AT, TEMPORARY, WEIGHT
from vertexrt.kernels.cuda.persistent import ORDER_NAMES, ORDERS, PersistentExecutable
from vertexrt.kernels.cuda.session import Session
from vertexrt.kernels.cuda.step_end import (
    FINISH,
    FOUND,
    GAVE_UP,
    GAVE_UP_AT,
    GAVE_UP_INSTRUCTION,
    REACHED,
    STORE,
    StepEnd,
    end_words,
    finish_step,
    leave_results,
)
from vertexrt.kernels.cuda.upload import ReadyRun, UploadSlot

Array = np.ndarray[Any, Any]
Int64 = npt.NDArray[np.int64]

NO_ENDING = bytes(STORE.size), bytes(FINISH.size)
# Words that each launch writes: of counters and flagged words, and what is run of the script.
COUNTERS_AT, FLAGGED_AT, BEGIN_AT, END_AT = map(
    ORDER_NAMES.index, ("counters", "flagged", "begin", "end")
)
STAMP = 4  # words of one, see `Timestamps` of barrier.cuh
BOTH_CLOCKS = -1  # in place of an instruction: cycles, and nanoseconds
PATIENCE = 2_000_000_000  # nanoseconds until a processor gives up waiting


@dataclass(slots=True)
class Paths:
    """The scripts of the groups of a launch.

    Attributes:
        executable: the kernel.
        groups: how many there are.
        cells: the words of `cell_script.write_cells`; cell_sections: of it.
    """

    executable: PersistentExecutable
    groups: int
    cells: npt.NDArray[np.int32]
    cell_sections: npt.NDArray[np.int32]


def flagged_words(executable: PersistentExecutable, path: Paths) -> int:
    """Return how many words a launch has for elements that are sent with flags."""
    return 2 * path.groups * executable.writer.cell_room


@dataclass(slots=True)
class WrittenScripts:
    """The script of all processors of a launch.

    Attributes:
        script: int32 [*, COLUMNS].
        apart: int64 [*, APART_COLUMNS], instructions that the kernel does not run, see `cuts`.
        elements: of temporaries that a stage needs; counters: that a round does.
        lookup_ptr, lookup_at, lookups: of `sort_lookups`.
        clips, updates: whether the step ends with a norm, and with an update.
    """

    script: npt.NDArray[np.int32]
    apart: Int64
    elements: int
    counters: int
    lookup_ptr: Int64
    lookup_at: Int64
    lookups: tuple[Array, ...]
    clips: bool
    updates: bool


def gave_up(found: Array, patience: int) -> DeviceError:
    """Say which processor gave up waiting, given what a step found; it gave up after so many ns."""
    return DeviceError.at(
        "cuda",
        f"processor {int(found[GAVE_UP_AT])} waited at instruction "
        f"{int(found[GAVE_UP_INSTRUCTION])} for "
        f"{'its group' if found[GAVE_UP] > 1 else 'all processors'}; "
        f"{int(found[REACHED])} had come",
        f"all to come within {patience / 1e9:g} s",
        "report this as a bug; engine='batched' goes on",
    )


class PersistentLaunch:
    """Steps of a session that are one launch each, and the memory that only these need.

    Attributes:
        patience: nanoseconds until a processor gives up waiting.
        watched: kernels leave time stamps.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.patience = PATIENCE
        self.watched = False
        self._stamps = Allocation(0, 0, None)
        self._temporaries = self._counters = Allocation(0, 0, None)
        self._ring = CounterRing(session.memory)

    def _take_stamps(self, written: WrittenScripts) -> int:
        """Make room for the time stamps of a launch; return for how many rows of a processor."""
        device = self.session.device
        rows = len(written.script) + 2
        self._stamps = self.session.memory.take(device.processors * rows * STAMP * 8, "time stamps")
        device.clear(self._stamps.address, self._stamps.size)
        return rows

    def seen(self) -> Int64:
        """Return the stamps of the last launch, which was watched: [processors, rows, STAMP].

        See `Timestamps` of barrier.cuh; what no processor wrote is zero. Their memory is freed.
        """
        stamps = np.empty(self._stamps.size // 8, np.int64)
        self.session.memory.download(stamps, self._stamps.address)
        self._stamps = Allocation(0, 0, None)
        return stamps.reshape(self.session.device.processors, -1, STAMP)

    def failure(self) -> DeviceError:
        """Say which processor of a launch that is over gave up waiting."""
        found = np.empty(FOUND)
        self.session.memory.download(found, self.session.found.address)
        return gave_up(found, self.patience)

    def clear_counters(self) -> None:
        """Set the counters of shared tiles to zero, as each launch that ends leaves them."""
        self.session.memory.clear(self._counters)

    def blocks(self, executable: PersistentExecutable) -> int:
        """Return how many processors a launch has; those of whole clusters, where there are any."""
        if executable.clustered:
            return executable.groups * executable.processors
        return self.session.device.processors

    def ready(
        self,
        run: Run,
        part: Part,
        scripts: tuple[Paths, WrittenScripts],
        ending: StepEnd | None,
        slot: UploadSlot,
    ) -> ReadyRun:
        """Upload a minibatch and its scripts; return what launches the persistent kernel.

        Args:
            slot: at whose beginning the scripts of cells lie.
        """
        session, device = self.session, self.session.device
        size, (path, written) = session.dtype.itemsize, scripts
        executable = path.executable
        stamps = self._take_stamps(written) if self.watched else 0
        more = written.script.reshape(-1), path.cell_sections.reshape(-1)
        lists, before = (written.lookups, more), (slot, path.cells.nbytes)
        _, words, addresses = session.stage(executable, run, part, lists, ending, written=before)
        if ending is not None:
            ending.tell_to(slot.found, slot.found_at)
        self._temporaries = session.memory.scratch(self._temporaries, written.elements * size)
        self._counters = session.memory.grown(self._counters, 4 * written.counters, zero=True)
        words[TEMPORARY] = self._temporaries.address
        words[ARRIVED_AT] = self._counters.address
        orders = ORDERS.pack(
            int(addresses[2]),
            0,  # counters and flagged words, of each launch
            0,
            session.found.address,
            path.groups,
            self.patience,
            self._stamps.address if self.watched else 0,
            stamps,
            device.shared_bytes,
            0,  # begin and end, of each launch
            0,
            executable.processors if executable.clustered else 0,
            session.gave_up_at,
            slot.memory.address,
            int(addresses[3]),
        )
        inside, end, weight = NO_ENDING, list[bytes](), int(words[WEIGHT])
        if ending is not None and ending.apart:
            end = finish_step(session, ending, weight, addresses)
        elif ending is not None:
            rules = executable.writer.rules
            assert ending.rule in rules, f"a kernel of {rules}, not of {ending.rule}"
            inside = end_words(session, ending, weight, addresses)
        arguments = LaunchStruct(orders, *inside, words.data)
        job = arguments.words
        own = job[len(job) - len(words) :]
        leave = leave_results(session, run, own, addresses)
        held = self._temporaries, self._counters, session.zero
        kernel = self._kernel(executable, path, arguments)
        apart = self._apart(executable, run.layout.table[part.launches], written, own)
        pieces = pieces_of(len(written.script), written.apart)

        def launch(part: Part) -> None:
            for piece in pieces:
                piece.launch(kernel, apart)
            session.launch_each(end + leave(part))

        return ReadyRun(slot, own, launch, job, addresses, held)

    def _kernel(
        self, executable: PersistentExecutable, path: Paths, arguments: LaunchStruct
    ) -> Callable[[int, int], None]:
        """Return what launches the kernel for instructions `begin` to `end` of all processors."""
        blocks = self.blocks(executable)
        cluster = executable.processors if executable.clustered else 1
        groups, sides = blocks // executable.processors, executable.writer.sides
        counters = -(-(2 + groups + len(sides)) // 4) * 4
        words = flagged_words(executable, path)
        job = arguments.words

        def launch(begin: int, end: int) -> None:
            device = self.session.device
            at = self._ring.take(counters + 2 * words)
            job[COUNTERS_AT], job[BEGIN_AT], job[END_AT] = at, begin, end
            job[FLAGGED_AT] = at + 4 * counters if words else 0
            shared = device.shared_bytes
            code = device.launch_all(executable.function, blocks, shared, arguments, cluster)
            device.check(code, -1, -1)

        return launch

    def _apart(
        self, executable: PersistentExecutable, table: Int64, written: WrittenScripts, words: Int64
    ) -> Callable[[Int64], None]:
        """Return what launches steps that are apart."""
        lookups = written.lookup_ptr, written.lookup_at

        def launch(apart: Int64) -> None:
            calls = self.session.calls_of(self.session.device.calls)
            found = launch_apart(apart, table, tuple(executable.apart), words, lookups, calls)
            self.session.device.check(*found)

        return launch
