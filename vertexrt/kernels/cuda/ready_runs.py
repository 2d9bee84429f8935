"""Make runs ready for a device: what they read is uploaded, and what launches them is returned."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from vertexrt.config import config
from vertexrt.engine.batched import Part, Run
from vertexrt.engine.trace import Timeline
from vertexrt.kernels.cuda.branches import Branches
from vertexrt.kernels.cuda.device_scripts import write_launch
from vertexrt.kernels.cuda.device_timeline import record_launch
from vertexrt.kernels.cuda.driver import launch
from vertexrt.kernels.cuda.finish_step import finish_step, leave_results
from vertexrt.kernels.cuda.pack import WEIGHT
from vertexrt.kernels.cuda.persistent import PersistentExecutable
from vertexrt.kernels.cuda.persistent_launch import Paths, PersistentLaunch, WrittenScripts
from vertexrt.kernels.cuda.replays import Replays
from vertexrt.kernels.cuda.session import Session
from vertexrt.kernels.cuda.step_end import NO_LIST, StepEnd
from vertexrt.kernels.cuda.upload import ReadyRun, UploadSlot
from vertexrt.kernels.cuda.verify_launch import verify_launch

Array = np.ndarray[Any, Any]
Int64 = npt.NDArray[np.int64]


def ready_table(
    session: Session,
    run: Run,
    part: Part,
    ending: StepEnd | None,
    branches: Branches | None,
    replays: Replays | None,
) -> ReadyRun:
    """Upload a minibatch of the batched engine.

    Args:
        branches: launch in place of `driver.launch`; replays: of layouts that come again.
    """
    executable: Any = run.ready.executable
    table = (executable.table_of(run) if branches is None else run.layout.table)[part.launches]
    replay = None if replays is None else replays.replay(run, part)
    lookups = session.sorted_lookups(run, table, replay is not None)
    if replay is not None and ending is not None and not ending.groups:
        ending.pad(len(lookups[2]))
    lists = lookups[2:], (NO_LIST,)
    slot, words, addresses = session.stage(executable, run, part, lists, ending, replay)

    lasting = run if run.kept is None else run.bare()
    apart = None if branches is None else branches.launcher(lasting, table, words, lookups[:2])
    leave = leave_results(session, lasting, words, addresses)
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
) -> ReadyRun:
    """Write the scripts of a minibatch, and upload both."""
    _, paths, written = _scripts(persistent, run, part, ending)
    return persistent.ready(run, part, (paths, written), ending)


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
        executable, paths, written = _scripts(persistent, run, part, ending)
        ready = persistent.ready(run, part, (paths, written), ending)
        ready.launch(part)
        persistent.session.memory.synchronize()  # for steps of groups, with their limit
        record_launch(timeline, executable, written, paths, persistent.seen())
    finally:
        persistent.watched = False
    return ready.slot


def _scripts(
    persistent: PersistentLaunch, run: Run, part: Part, ending: StepEnd | None
) -> tuple[PersistentExecutable, Paths, WrittenScripts]:
    table, updates = run.layout.table[part.launches], ending is not None and not ending.apart
    clips = ending is not None and updates and ending.clip_norm > 0.0
    found = write_launch(run, table, persistent, clips, updates)
    if config().check:
        verify_launch(run, table, *found)
    return found
