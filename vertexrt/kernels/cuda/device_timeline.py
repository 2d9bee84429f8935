"""Put what the processors of a GPU did on a timeline, from the time stamps of a launch.

A processor stamps its clock, which is its own, and at the start and the end of the kernel also the
time in nanoseconds, which is the same for all: between the two its clock is taken to be even.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from vertexrt.engine.trace import Record, Special, Timeline
from vertexrt.kernels.cuda.instruction import (
    AT,
    BACKWARD,
    CHECK,
    COLLECT,
    ELO,
    FINISH,
    FIRST_OP,
    FORWARD,
    LO,
    OP,
    PROGRAM,
    SQUARES,
    UPDATE,
    WAIT,
    M,
    N,
)
from vertexrt.kernels.cuda.one_launch import BOTH_CLOCKS, Paths, Written
from vertexrt.script import isa

if TYPE_CHECKING:
    from vertexrt.kernels.cuda.persistent import PersistentExecutable

Array = np.ndarray[Any, Any]

NANOSECONDS = 1e9  # in a second
SPECIAL = {
    FORWARD: Special("weights", waits_last=True),
    BACKWARD: Special("weights'", waits_last=True),
    COLLECT: Special("sums"),
    SQUARES: Special("norm"),
    FINISH: Special("loss"),
    CHECK: Special("check"),
    UPDATE: Special("update"),
}


def record_launch(
    timeline: Timeline,
    executable: PersistentExecutable,
    written: Written,
    path: Paths,
    stamps: Array,
) -> None:
    """Add a run to a timeline: a record for each group, one more for processors that have none.

    Args:
        written, path: the scripts of the launch; stamps: what `OneLaunch.seen` returns.
    """
    timeline.begin()
    ran = int((stamps[:, 0, 0] == BOTH_CLOCKS).sum())  # the others were not launched
    groups, each = path.lengths.shape[1], executable.processors
    words = _as_words(executable, written, ran)
    bounds = [*range(0, groups * each + 1, each), ran]
    for group, first in enumerate(bounds[:-1]):
        mine = [_times(own) for own in stamps[first : bounds[group + 1]]]
        done = [times for times in mine if len(times)]
        if not done or len(done) < len(mine):
            continue  # there is no such processor, or one gave up
        numbers = stamps[first, 1 : 1 + len(done[0]), 0]
        timeline.records.append(
            Record(
                timeline.runs - 1,
                group,
                first,
                executable.facts.stages,
                np.repeat(words[numbers][None], len(done), 0),
                np.stack(done),
                NANOSECONDS,
                numbers,
                tuple(SPECIAL.values()),
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


def _as_words(executable: PersistentExecutable, written: Written, processors: int) -> Array:
    """Return all instructions in words of `script.isa`.

    Beside the path the segment is the step of its program. Programs behind those that there are
    stand for what runs none.
    """
    script, common = written.script, written.common
    facts = executable.facts
    stages, steps_ptr, segment_ptr = facts.stages, facts.steps_ptr, facts.segment_ptr
    words = np.zeros((len(script), isa.WORDS), np.int64)
    words[:, isa.PROGRAM] = script[:, PROGRAM]
    words[:, isa.SEGMENT] = script[:, OP] - segment_ptr[script[:, PROGRAM]]
    words[:, isa.ROWS], words[:, isa.FIRST] = script[:, N], script[:, LO]
    words[:, isa.LISTED] = script[:, AT]
    words[:, isa.EDGES], words[:, isa.FIRST_EDGE] = script[:, M], script[:, ELO]
    words[:, isa.WAIT] = np.where(script[:, WAIT] != 0, np.arange(len(script)), isa.NONE)
    words[:, isa.THRESHOLD] = np.where(np.arange(len(script)) < common, processors, 0)
    words[common:, isa.THRESHOLD] = executable.processors
    words[:, isa.SIGNAL] = isa.NONE
    writer = executable.writer
    for at, (op, program) in enumerate(script[:common, [OP, PROGRAM]].tolist()):
        if op in SPECIAL:
            words[at, isa.PROGRAM] = len(stages) + list(SPECIAL).index(op)
        elif op >= FIRST_OP:
            steps = writer.all_steps[steps_ptr[program] : steps_ptr[program + 1]]
            words[at, isa.SEGMENT] = [writer.op(step) for step in steps].index(op)
    return words
