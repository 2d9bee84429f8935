"""Launch a persistent kernel: a whole step, driven by scripts that go up with the minibatch.

All processors follow one script, of rows of `instruction.py`; on the path each group follows its
own, which `cell_script` writes. They are array code, for every minibatch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from vertexrt.engine.batched import Part, Run
from vertexrt.engine.trace import GroupRecord, Special, Timeline
from vertexrt.errors import DeviceError
from vertexrt.ir.program import Stage
from vertexrt.kernels.cuda.cell_script import WORD, CellBatch, CellFacts, write_cells
from vertexrt.kernels.cuda.cuts import launch_rounds, pieces_of
from vertexrt.kernels.cuda.device import Allocation, Array, LaunchStruct
from vertexrt.kernels.cuda.device_memory import CounterRing, ReadyRun, UploadSlot
from vertexrt.kernels.cuda.finish_step import end_words, finish_step, leave_results
from vertexrt.kernels.cuda.instruction import (
    BACKWARD,
    CHECK,
    FINISH,
    FIRST_OP,
    FORWARD,
    SQUARES,
    STEP,
    UPDATE,
)
from vertexrt.kernels.cuda.pack import ARRIVED_AT, TEMPORARY, WEIGHT, sort_lookups
from vertexrt.kernels.cuda.persistent import PersistentExecutable
from vertexrt.kernels.cuda.rounds import Facts, Launched, Rounds, write_rounds
from vertexrt.kernels.cuda.session import Session
from vertexrt.kernels.cuda.step_end import (
    FOUND,
    GAVE_UP,
    GAVE_UP_AT,
    GAVE_UP_INSTRUCTION,
    REACHED,
    StepEnd,
)
from vertexrt.kernels.cuda.structs import ORDERS
from vertexrt.native.compiled import compiled
from vertexrt.scheduler.rows import (
    ABOVE_EDGE,
    CHILD_ROW,
    EDGE_PTR,
    EDGE_ROW,
    EVERY_PTR,
    ORDER,
    PARENT_EDGE,
    PARENT_PTR,
    part_of,
)
from vertexrt.script.groups import Groups
from vertexrt.script.isa import NONE, OP, PROGRAM, WAIT

Int64 = npt.NDArray[np.int64]

# Words that each launch writes: of counters and flagged words, and what is run of the script.
COUNTERS_AT, FLAGGED_AT, BEGIN_AT, END_AT = map(
    ORDERS.names.index, ("counters", "flagged", "begin", "end")
)
STAMP = 4  # words of one, see `Timestamps` of barrier.cuh
ONE_STREAM = np.zeros(1, np.int64)  # the events of `launch_rounds`, where there are none
BOTH_CLOCKS = -1  # in place of an instruction: cycles, and nanoseconds
PATIENCE = 2_000_000_000  # nanoseconds until a processor gives up waiting
NANOSECONDS = 1e9  # in a second

new_room = partial(np.empty, dtype=np.uint8)


@compiled
def write_all(
    table: Array,
    pulls: Array,
    rows: Array,
    indices: Array,
    extents: Array,
    graph_ptr: Array,
    seen: Array,
    facts: Facts,
    cells: CellFacts,
    lookups: tuple[Array, Array],
    gradients: int,
    groups: int,
    clips: bool,
    updates: bool,
    wide: int,
    has_cells: bool,
    room: Array,
) -> tuple[Any, ...]:
    """Write all scripts of a launch in one call: objects of Python between them would cost more.

    Args:
        table: launches; pulls: int32 [pulls, V]; rows: of launches that take a list.
        indices, extents: of `number_rows`; graph_ptr: of the batch.
        seen: of `sort_lookups`.
        facts, cells, gradients: of `PersistentExecutable`; lookups: its `lookups_ptr` and those.
        groups: that the graphs are shared out among.
        clips, updates, wide: of `Launched`.
        has_cells: what `write_cells` writes is known; room: of it.
    Returns: what `write_cells` does; the fields of `Rounds`.
    """
    found = 0, np.zeros((0, 0, 2), np.int32), True
    batch = CellBatch(
        table,
        part_of(indices, extents, EDGE_PTR),
        part_of(indices, extents, CHILD_ROW),
        part_of(indices, extents, PARENT_PTR),
        part_of(indices, extents, EDGE_ROW),
        part_of(indices, extents, PARENT_EDGE),
        part_of(indices, extents, ABOVE_EDGE),
    )
    if not has_cells:
        shared_out = Groups(part_of(indices, extents, ORDER), graph_ptr, groups)
        found = write_cells(cells, batch, shared_out, room)
    lookup_ptr, lookup_at, word, ptr, row = sort_lookups(
        table, lookups, pulls, (indices, extents), rows, seen, False
    )
    launched = Launched(
        table, lookup_ptr, lookup_at, rows, batch.edge_ptr, part_of(indices, extents, EVERY_PTR),
        batch.child_row, gradients, clips, updates, wide,
    )  # fmt: skip
    sorted_by = lookup_ptr, lookup_at, (word, ptr, row), clips, updates
    return found, write_rounds(launched, facts) + sorted_by


@dataclass(slots=True)
class WrittenScripts(Rounds):
    """The scripts of a launch: of all processors, and of its groups.

    Attributes:
        executable: the kernel.
        groups: how many there are.
        cells: int32, the words of `cell_script.write_cells`; cell_sections: of it.
    """

    executable: PersistentExecutable
    groups: int
    cells: Array
    cell_sections: Array

    @property
    def flagged_words(self) -> int:
        """How many words the launch has for elements that are sent with flags."""
        return 2 * self.groups * self.executable.writer.cell_room


def write_launch(
    run: Run,
    table: Array,
    persistent_launch: PersistentLaunch,
    clips: bool,
    updates: bool,
    take_room: Callable[[int], Array] = new_room,
) -> WrittenScripts:
    """Write the scripts of the one launch that stands for launches of a minibatch's table.

    Groups of processors share the graphs of a batch. Where the batch does not fit the cells of the
    kernel, the one without cells runs it.

    Args:
        table: the launches.
        clips, updates: whether they end with a norm, and with an update.
        take_room: given a number of bytes, returns at least so many, where scripts of cells lie; by
            default anew, where they do not go up.
    """
    executable = cast("PersistentExecutable", run.ready.processors)
    graphs, layout, count, fits = run.share.batch.num_graphs, run.layout, 0, False
    seen = persistent_launch.session.marks(run.variant.reader.largest)
    while not fits or count < 0:
        room, groups = take_room(WORD * -count), min(executable.groups, graphs)
        key = executable, len(table), *table[:1, 0].tolist(), groups
        kept = layout.scripts.get(key)
        wide = 0 if persistent_launch.watched else executable.wide
        (count, sections, fits), written = write_all(
            table, run.inputs.index, layout.rows, layout.indices, layout.extents, layout.graph_ptr,
            seen, executable.facts, executable.cells,
            (executable.lookups_ptr, executable.lookups), executable.gradients, groups, clips,
            updates, wide, kept is not None, room,
        )  # fmt: skip
        if not fits:
            executable = executable.without_cells
    cells = room[: WORD * count].view(np.int32)
    if kept is not None:
        known, sections = kept
        cells = take_room(known.nbytes)[: known.nbytes].view(np.int32)
        cells[:] = known
    elif layout.came_again:
        layout.scripts[key] = cells.copy(), sections
    made: tuple[Any, ...] = *written, executable, groups, cells, sections
    return WrittenScripts(*made)


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
        self._stamps = Allocation()
        self._temporaries = self._counters = Allocation()
        self._ring = CounterRing(session.memory)

    def seen(self) -> Int64:
        """Return the stamps of the last launch, which was watched: [processors, rows, STAMP].

        See `Timestamps` of barrier.cuh; what no processor wrote is zero. Their memory is freed.
        """
        stamps = np.empty(self._stamps.size // 8, np.int64)
        self.session.memory.download(stamps, self._stamps.address)
        self._stamps = Allocation()
        return stamps.reshape(self.session.device.processors, -1, STAMP)

    def failure(self) -> DeviceError:
        """Say which processor of a launch that is over gave up waiting.

        Counters of shared tiles are zero again then, as each launch that ends leaves them.
        """
        found = np.empty(FOUND)
        self.session.memory.download(found, self.session.found.address)
        self.session.memory.clear(self._counters)
        return DeviceError.at(
            "cuda",
            f"processor {int(found[GAVE_UP_AT])} waited at instruction "
            f"{int(found[GAVE_UP_INSTRUCTION])} for "
            f"{'its group' if found[GAVE_UP] > 1 else 'all processors'}; "
            f"{int(found[REACHED])} had come",
            f"all to come within {self.patience / 1e9:g} s",
            "report this as a bug; engine='batched' goes on",
        )

    def ready(
        self,
        run: Run,
        part: Part,
        written: WrittenScripts,
        ending: StepEnd | None,
        slot: UploadSlot,
    ) -> ReadyRun:
        """Upload a minibatch and its scripts; return what launches the persistent kernel.

        Args:
            slot: at whose beginning the scripts of cells lie.
        """
        session, device = self.session, self.session.device
        size, executable = session.dtype.itemsize, written.executable
        stamps = 0  # for how many rows of a processor there is room
        if self.watched:
            stamps = len(written.script) + 2
            room = device.processors * stamps * STAMP * 8
            self._stamps = session.memory.take(room, "time stamps")
            session.memory.clear(self._stamps)
        more = written.script.reshape(-1), written.cell_sections.reshape(-1)
        lists, before = (written.lookups, more), (slot, written.cells.nbytes)
        _, words, addresses = session.stage(executable, run, part, lists, ending, written=before)
        if ending is not None:
            ending.tell_to(slot.found, slot.found_at)
        self._temporaries = session.memory.scratch(self._temporaries, written.elements * size)
        self._counters = session.memory.grown(self._counters, 4 * written.counters, zero=True)
        words[TEMPORARY] = self._temporaries.address
        words[ARRIVED_AT] = self._counters.address
        inside, end, weight = (b"", b""), list[bytes](), int(words[WEIGHT])
        if ending is not None and ending.apart:
            end = finish_step(session, ending, weight, addresses)
        elif ending is not None:
            rules = executable.writer.rules
            assert ending.rule in rules, f"a kernel of {rules}, not of {ending.rule}"
            inside = end_words(session, ending, weight, addresses)
        orders = ORDERS.pack(
            int(addresses[2]),
            0,  # counters and flagged words, of each launch
            0,
            session.found.address,
            written.groups,
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
            *inside,
        )
        arguments = LaunchStruct(orders, words.data)
        job = arguments.words
        own = job[len(job) - len(words) :]
        leave = leave_results(session, run, own, addresses)
        held = self._temporaries, self._counters, session.zero
        blocks = executable.blocks
        cluster = executable.processors if executable.clustered else 1
        groups, sides = blocks // executable.processors, executable.writer.sides
        counters = -(-(2 + groups + len(sides)) // 4) * 4
        flagged = written.flagged_words
        table, sorted_by = run.layout.table[part.launches], (written.lookup_ptr, written.lookup_at)
        pieces = pieces_of(len(written.script), written.apart)

        def kernel(begin: int, end: int) -> None:
            at = self._ring.take(counters + 2 * flagged)
            job[COUNTERS_AT], job[BEGIN_AT], job[END_AT] = at, begin, end
            job[FLAGGED_AT] = at + 4 * counters if flagged else 0
            code = session.device.launch_all(executable.function, blocks, arguments, cluster)
            session.device.check(code)

        def steps(apart: Int64) -> None:
            calls, rows = session.calls_of(session.device.calls)[None], written.script[apart]
            program = tuple(executable.apart)
            found = launch_rounds(rows, table, program, own, sorted_by, calls, ONE_STREAM)
            session.device.check(*found)

        def launch(part: Part) -> None:
            for piece in pieces:
                piece.launch(kernel, steps)
            session.launch_each(end + leave(part))

        return ReadyRun(slot, own, launch, job, addresses, held)


# A processor stamps its clock, which is its own, and at the start and the end of the kernel also
# the time in nanoseconds, which is the same for all: between the two its clock is taken to be even.
SPECIAL = {
    FORWARD: Special("weights", waits_last=True, then=Stage.PATH.word),
    BACKWARD: Special("weights'", waits_last=True, then=Stage.PATH_BACKWARD.word),
    SQUARES: Special("norm"),
    FINISH: Special("loss"),
    CHECK: Special("check"),
    UPDATE: Special("update"),
}


def record_launch(timeline: Timeline, written: WrittenScripts, stamps: Array) -> None:
    """Add a run to a timeline: a record for each group, one more for processors that have none.

    Args:
        written: the scripts of the launch; stamps: what `PersistentLaunch.seen` returns.
    """
    timeline.begin()
    ran = int((stamps[:, 0, 0] == BOTH_CLOCKS).sum())  # the others were not launched
    executable, script = written.executable, written.script
    groups, each = written.groups, executable.processors
    step = script[:, STEP] - executable.facts.steps_ptr[script[:, PROGRAM]]
    parts = np.where(script[:, OP] >= FIRST_OP, step, 0)  # of its program, that it runs
    waits_for = np.where(script[:, WAIT] != NONE, ran, 0)
    special = [SPECIAL.get(op) for op in script[:, OP].tolist()]
    bounds = [*range(0, groups * each + 1, each), ran]
    for group, first in enumerate(bounds[:-1]):
        mine = [_times(own) for own in stamps[first : bounds[group + 1]]]
        done = [times for times in mine if len(times)]
        if not done or len(done) < len(mine):
            continue  # there is no such processor, or one gave up
        numbers = stamps[first, 1 : 1 + len(done[0]), 0]
        timeline.records.append(
            GroupRecord(
                run=timeline.runs - 1,
                group=group,
                first=first,
                stages=executable.facts.stages,
                script=np.repeat(script[numbers][None], len(done), 0),
                parts=parts[numbers],
                waits_for=waits_for[numbers],
                times=np.stack(done),
                cycles_per_second=NANOSECONDS,
                numbers=numbers,
                special=tuple(special[k] for k in numbers.tolist()),
            )
        )


def _times(own: Array) -> Array:
    """Return the nanoseconds of a processor's instructions, [instructions, 3].

    There are none where it did not get to the end of its script.
    """
    ends = np.flatnonzero(own[:, 0] == BOTH_CLOCKS)
    if len(ends) < 2:
        return own[:0, 1:]
    last = int(ends[1])
    (clock, time), (clock_end, time_end) = own[0, 1:3], own[last, 1:3]
    rate = (time_end - time) / max(1, clock_end - clock)
    since = np.round((own[1:last, 1:] - clock) * rate)
    return np.asarray(time + since.astype(np.int64))
