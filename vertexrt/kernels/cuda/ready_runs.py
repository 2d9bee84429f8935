"""Make runs ready for a device: what they read is uploaded, and what launches them is returned.

A run that is kept (`CompiledModel.kept`, or by a plan) has its uploads: indices and scripts stay on
the device, and a launch only writes addresses: of the arena, of gradients, of what is pulled and
given. What a plan is given in place of its pulls goes up to where theirs are.

A layout that comes again (`engine/layouts.py`) has its replays: a launch takes the host 2 to 6 us,
so that steps of wide levels wait for the host. Batches of one layout are uploaded to the same
memory. Where the words of a run are those of the run before, its launches differ in nothing, so
they are captured once as a CUDA graph and replayed, and with them the end of a step, as long as
that is the same each time (a rate may fall). How many rows of a table a batch looks up differs from
batch to batch, so its lists are filled up to the most there may be.

Both are let go with the run or the layout, as soon as launches that read them are over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from vertexrt.config import config
from vertexrt.engine.batched import Part, Run
from vertexrt.engine.trace import Timeline
from vertexrt.graph.device_rows import DeviceRows
from vertexrt.kernels.cuda.device_memory import ReadyRun, UploadRoom, UploadSlot
from vertexrt.kernels.cuda.driver import launch
from vertexrt.kernels.cuda.executable import CudaExecutable, Uploads
from vertexrt.kernels.cuda.finish_step import finish_step, leave_results
from vertexrt.kernels.cuda.pack import FIXED, SCALE, TEMPORARY, WEIGHT
from vertexrt.kernels.cuda.persistent_launch import (
    PersistentLaunch,
    WrittenScripts,
    record_launch,
    write_launch,
)
from vertexrt.kernels.cuda.session import Session
from vertexrt.kernels.cuda.step_end import NO_LIST, StepEnd
from vertexrt.kernels.cuda.streams import Streams
from vertexrt.kernels.cuda.verify_cells import verify_launch

Array = np.ndarray[Any, Any]
Int64 = npt.NDArray[np.int64]

MOST_BYTES = 128 << 20  # of a device, that all which is kept may have
LEAST_KEPT = 8  # replays that there is room for
LEAST_STEPS, MOST_STEPS = 8, 1 << 12  # launches that are worth a graph, and that one may have
PIECE = 1 << 18  # bytes that are on their way while the next ones are copied
UPLOAD = "upload"  # under which name, and the first launch, a kept run has its uploads,
PLANNED = "planned"  # and says that it is a plan's
SCALARS = np.dtype([("scale", np.float64), ("seed", np.int64)])  # as `pack` writes them


@dataclass(slots=True)
class Replay(UploadRoom):
    """Launches of a layout.

    Attributes:
        fits: its launches may be a graph.
        words, end: of the run that was last.
        graph: of the launches, once words have come twice.
        holds_end: the graph has the end of a step; steady: until now that was always the same.
    """

    fits: bool
    words: Int64 | None = None
    end: Sequence[bytes] = ()
    graph: Callable[[], None] | None = None
    holds_end: bool = False
    steady: bool = True

    def launch(
        self,
        session: Session,
        words: Int64,
        launch_rows: Callable[[], None],
        end: Sequence[bytes],
    ) -> None:
        """Launch a run and the end of a step, by a graph where there is one.

        Args:
            words: of the run; launch_rows: launches it; end: of `Session.launch_each`.
        """
        known = self.words is not None and np.array_equal(words, self.words)
        self.steady &= not known or end == self.end
        if not known or (self.holds_end and not self.steady):
            if self.graph is not None:  # which is rare: something has moved
                session.memory.synchronize()
            self.words, self.graph, self.holds_end = words.copy(), None, False
        elif self.graph is None and self.fits:
            with_end = end if self.steady else ()

            def ask() -> None:
                launch_rows()
                session.launch_each(with_end)

            self.graph, self.holds_end = session.device.capture(ask), self.steady
        self.end = end
        (self.graph or launch_rows)()
        if self.graph is None or not self.holds_end:
            session.launch_each(end)


def replay_of(session: Session, run: Run, part: Part) -> Replay | None:
    """Return where a run goes up to, and what launches it; None, if its layout is new or large."""
    layout, memory, launches = run.layout, session.memory, part.launches
    if not layout.came_again:
        return None
    # An upload comes while the run before is under way, so each buffer has a place of its own.
    key = session.buffers.turn, launches.start, launches.stop
    found: Replay | None = layout.replays.get(key)
    if found is None or found.era != memory.era:
        layout.replays.pop(key, None)  # its memory is free for others soon
        own = [layout.indices, run.inputs.index, layout.weight, *run.inputs.floats]
        size = sum([0 if isinstance(each, DeviceRows) else each.nbytes for each in own])
        if size > min(MOST_BYTES // LEAST_KEPT, MOST_BYTES - memory.kept):
            return None
        executable = cast("CudaExecutable", run.ready.executable)
        programs = executable.table_of(run)[launches, 0]
        fits = LEAST_STEPS <= np.diff(executable.program[0])[programs].sum() <= MOST_STEPS
        found = layout.replays[key] = Replay(memory, bool(fits))
    return found


@dataclass(slots=True)
class KeptUpload(UploadRoom):
    """Launches of a kept run that are ready in memory of their own.

    Attributes:
        rows: of `Destination`, which went up as well; seed_rows: of `Part`.
        reals: of its real pulls and gradients of pushes those that kernels read: which, the word of
            each, and address and bytes of what went up; 0, where it is an array of the device.
        given: of these, arrays of the host that went up and are the same each time.
        arena, gradients: addresses that the words were written for; scalars: loss scale and seed.
        changed: rows of `Inputs.index` that are others than what went up.
    """

    ready: ReadyRun
    rows: Array
    seed_rows: tuple[int, ...]
    reals: list[tuple[int, int, int, int]]
    given: dict[int, Array]
    arena: int
    gradients: int
    scalars: tuple[float, int]
    changed: set[int] = field(default_factory=set)


def ready_again(session: Session, run: Run, part: Part) -> ReadyRun | None:
    """Return launches of a kept run that are on the device, given new addresses."""
    assert run.kept is not None, run
    kept: KeptUpload | None = run.kept.get((UPLOAD, part.launches.start or 0))
    if kept is None or kept.era != session.memory.era:
        return None
    if kept.rows is not part.to.rows or kept.seed_rows != part.seed_rows:
        return None
    reals, words, new = run.reals(part), kept.ready.words, []
    for k, word, place, size in kept.reals:
        rows = reals[k]
        if type(rows) is DeviceRows:
            words[word] = rows.address
            continue
        if rows.nbytes > size:
            return None
        words[word] = place
        if rows is not kept.given.get(k):
            new.append((place, rows))
        if part.reals is not None:
            kept.given[k] = rows
    numbers = _uploads_of(run).numbers
    new += [(int(words[numbers[f"int_{k}"]]), run.inputs.index[k]) for k in kept.changed]
    scalars = part.loss_scale, part.random_seed
    if scalars != kept.scalars:
        new.append((int(words[SCALE]), np.array([scalars], SCALARS)))
    first, count = FIXED + len(run.layout.plan.base), len(session.param_at)
    arena = session.arena.address
    if arena != kept.arena:
        words[FIXED:first] += arena - kept.arena
        if run.ready.executable is not None:  # those of a persistent kernel lie elsewhere
            words[TEMPORARY] += arena - kept.arena
        kept.arena = arena
    gradients = part.to.gradients or session.gradients.address
    if gradients != kept.gradients:
        words[first + count : first + 2 * count] += gradients - kept.gradients
        kept.gradients = gradients
    kept.ready.slot = _upload(session, new) if new else None
    kept.scalars = scalars
    kept.changed.clear()
    return kept.ready


def _upload(session: Session, new: Sequence[tuple[int, Array]]) -> UploadSlot:
    """Copy arrays to addresses of the device; return what from."""
    slot, at, need = session.buffers.next(), 0, sum([array.nbytes for _, array in new])
    slot.open = True
    session.buffers.room(slot, need)
    for to, array in new:
        given = array.reshape(-1).view(np.uint8)
        for first in range(0, len(given), PIECE):  # which goes up while the next is copied
            part = given[first : first + PIECE]
            piece = slot.pinned[at : at + len(part)]
            piece[:] = part
            session.device.upload(to + first, piece)
            at += len(part)
    return slot


def keep_upload(session: Session, run: Run, part: Part, ready: ReadyRun) -> None:
    """Give what was just uploaded of a kept run memory of its own, where there is some."""
    slot = ready.slot
    assert slot is not None, "it was just uploaded"
    assert run.kept is not None, run
    key = UPLOAD, part.launches.start or 0
    run.kept.pop(key, None)  # what could not be used again: its memory is free for others soon
    of, size, reals = _uploads_of(run), slot.used, run.reals(part)
    if part.launches.stop == run.layout.forward_launches:  # which reads none
        reals = run.reals(part._replace(d_pushes=()))
    read = [(k, w) for k, w in enumerate(of.real_words[: len(reals)]) if of.wanted[w]]
    lent = {k for k, _ in read if isinstance(reals[k], DeviceRows)}
    # Those that are given with a part are the same arrays each time, and small; others come once,
    # but for those of a plan.
    once = part.reals is None and PLANNED not in run.kept
    if size > MOST_BYTES - session.memory.kept or (once and len(lent) < len(read)):
        return
    session.device.follow_caller()  # its work may still read the memory that is taken now
    try:
        memory = session.device.allocate(size)
    except MemoryError:
        return
    session.device.upload(memory.address, slot.pinned[:size])
    start = slot.memory.address
    for addresses in (ready.job, ready.addresses):
        inside = (addresses >= start) & (addresses < start + size)
        addresses[inside] += memory.address - start
    places = session.arena.address, part.to.gradients or session.gradients.address
    scalars = part.loss_scale, part.random_seed
    kept = [
        (k, word, *((0, -1) if k in lent else (int(ready.words[word]), reals[k].nbytes)))
        for k, word in read
    ]
    given = {} if part.reals is None else {k: reals[k] for k, _ in read if k not in lent}
    found = kept, given, *places, scalars
    made = KeptUpload(session.memory, ready, part.to.rows, part.seed_rows, *found)
    made.memory = memory
    session.memory.sizes[id(made)] = size
    run.kept[key] = made


def change(run: Run, rows: Sequence[int]) -> None:
    """Note rows of `Inputs.index` of a plan's run that are others than what went up."""
    found: Any = (run.kept or {}).get((UPLOAD, 0))
    if found is not None:
        of, integers = _uploads_of(run), len(run.inputs.ints)
        numbers = [k for k in rows if k < integers]
        found.changed.update(k for k in numbers if of.wanted[of.numbers[f"int_{k}"]])


def _uploads_of(run: Run) -> Uploads:
    executable: Any = run.ready.executable or run.ready.processors
    found: Uploads = executable
    return found


def ready_table(
    session: Session,
    run: Run,
    part: Part,
    ending: StepEnd | None,
    streams: Streams | None,
    replays: bool,
) -> ReadyRun:
    """Upload a minibatch of the batched engine.

    Args:
        streams: launch in place of `driver.launch`; replays: it may be replayed.
    """
    executable: Any = run.ready.executable
    table = (executable.table_of(run) if streams is None else run.layout.table)[part.launches]
    replay = replay_of(session, run, part) if replays else None
    lookups = session.sorted_lookups(run, table, replay is not None)
    if replay is not None and ending is not None and not ending.groups:
        ending.pad(len(lookups[2]))
    lists = lookups[2:], (NO_LIST,)
    slot, words, addresses = session.stage(executable, run, part, lists, ending, replay)

    apart = None
    if streams is not None:  # what launches is kept with a run, so it does not hold that
        lasting = run if run.kept is None else replace(run.bare(), kept=None)
        apart = streams.launcher(lasting, table, words, lookups[:2])
    leave = leave_results(session, run, words, addresses)
    end: list[bytes] = []
    if ending is not None:
        ending.tell_to(slot.found, slot.found_at)
        end = finish_step(session, ending, int(words[WEIGHT]), addresses)

    def launch_rows() -> None:
        if apart is not None:
            found = apart()
        else:
            calls = session.calls_of(session.device.calls)
            found = launch(table, executable.program, words, lookups[:2], calls)
        session.device.check(*found)

    def launch_all(part: Part) -> None:
        after = leave(part)
        if replay is not None:
            replay.launch(session, words, launch_rows, end)
        else:
            launch_rows()
            after = end + after
        session.launch_each(after)

    return ReadyRun(slot, words, launch_all, words, addresses, (session.zero,))


def ready_scripts(
    persistent: PersistentLaunch, run: Run, part: Part, ending: StepEnd | None
) -> tuple[ReadyRun, WrittenScripts]:
    """Write the scripts of a minibatch, and upload both."""
    table, updates = run.layout.table[part.launches], ending is not None and not ending.apart
    clips = ending is not None and updates and ending.clip_norm > 0.0
    buffers = persistent.session.buffers
    slot = buffers.next()
    found = write_launch(run, table, persistent, clips, updates, partial(buffers.room, slot))
    if config().check:
        verify_launch(run, table, found)
    return persistent.ready(run, part, found, ending, slot), found


def launch_watched(
    persistent: PersistentLaunch,
    timeline: Timeline,
    run: Run,
    part: Part,
    ending: StepEnd | None,
) -> UploadSlot | None:
    """Launch a persistent kernel, which leaves time stamps, and wait for it."""
    persistent.watched = True
    try:
        ready, written = ready_scripts(persistent, run, part, ending)
        ready.launch(part)
        persistent.session.memory.synchronize()  # for steps of groups, with their limit
        record_launch(timeline, written, persistent.seen())
    finally:
        persistent.watched = False
    return ready.slot
