"""Put what the processors of a GPU did on a timeline, from the time stamps of a launch.

A processor stamps its clock, which is its own, and at the start and the end of the kernel also the
time in nanoseconds, which is the same for all: between the two its clock is taken to be even.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from vertexrt.engine.trace import GroupRecord, Special, Timeline
from vertexrt.ir.program import Stage
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
from vertexrt.kernels.cuda.persistent_launch import BOTH_CLOCKS, Paths, WrittenScripts
from vertexrt.script.isa import NONE, OP, PROGRAM, WAIT

if TYPE_CHECKING:
    from vertexrt.kernels.cuda.persistent import PersistentExecutable

Array = np.ndarray[Any, Any]

NANOSECONDS = 1e9  # in a second
SPECIAL = {
    FORWARD: Special("weights", waits_last=True, then=Stage.PATH.word),
    BACKWARD: Special("weights'", waits_last=True, then=Stage.PATH_BACKWARD.word),
    SQUARES: Special("norm"),
    FINISH: Special("loss"),
    CHECK: Special("check"),
    UPDATE: Special("update"),
}


def record_launch(
    timeline: Timeline,
    executable: PersistentExecutable,
    written: WrittenScripts,
    path: Paths,
    stamps: Array,
) -> None:
    """Add a run to a timeline: a record for each group, one more for processors that have none.

    Args:
        written, path: the scripts of the launch; stamps: what `PersistentLaunch.seen` returns.
    """
    timeline.begin()
    ran = int((stamps[:, 0, 0] == BOTH_CLOCKS).sum())  # the others were not launched
    groups, each, script = path.groups, executable.processors, written.script
    parts = _parts(executable, script)
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


def _parts(executable: PersistentExecutable, script: Array) -> Array:
    """Return which step of its program each instruction runs, 0 where it runs none."""
    first = executable.facts.steps_ptr[script[:, PROGRAM]]
    return np.where(script[:, OP] >= FIRST_OP, script[:, STEP] - first, 0)
