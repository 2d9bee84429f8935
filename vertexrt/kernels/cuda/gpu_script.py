"""Write what the processors of a persistent kernel are to do: array code, for every minibatch.

All processors follow one script, of rows of `instruction.py`; on the path each group follows its
own, which `cell_script` writes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from vertexrt.ir.program import Stage
from vertexrt.kernels.cuda.cuts import APART_COLUMNS
from vertexrt.kernels.cuda.instruction import (
    BACKWARD,
    CHECK,
    COLUMNS,
    END,
    FINISH,
    FOR_ALL,
    FORWARD,
    SQUARES,
    UPDATE,
)
from vertexrt.kernels.cuda.script_rounds import Drafts, Facts, Launched, add_rounds, draft_stage
from vertexrt.script.isa import NONE, OP, PROGRAM, WAIT

Array = np.ndarray[Any, Any]

PATH, LAZY, PATH_BACKWARD = (int(s) for s in (Stage.PATH, Stage.LAZY, Stage.PATH_BACKWARD))


def write_common(launched: Launched, facts: Facts) -> tuple[Array, Array, int, int]:
    """Write the script that all processors follow, in rounds (see `script_rounds`).

    Returns: int32 [*, COLUMNS]; int64 [*, APART_COLUMNS] what of it the kernel does not run, see
        `cuts`; the elements of temporaries that a stage needs, and the counters that a round does.
    """
    table, launches = launched.table, len(launched.table)
    most = 10 + 2 * launches
    for t in range(launches):
        most += facts.steps_ptr[table[t, 0] + 1] - facts.steps_ptr[table[t, 0]]
    script, apart = np.zeros((most, COLUMNS), np.int32), np.empty((most, APART_COLUMNS), np.int64)
    drafts = Drafts(
        np.zeros((most, COLUMNS), np.int32),
        np.empty(most, np.int64),
        np.empty((most, APART_COLUMNS), np.int64),
        np.empty(launched.gradients + 1, np.int64),
        np.full(len(launched.edge_ptr), NONE, np.int64),
    )
    count, cut, temporary, counters, begin, early = 0, 0, 0, 0, 0, False
    while begin < launches:
        now, end, side = facts.stages[table[begin, 0]], begin, -1
        phase = facts.phases[table[begin, 0]]
        while end < launches and facts.phases[table[end, 0]] == phase:
            side = max(side, facts.sides[table[end, 0]])  # some launch is the groups'
            end += 1
        if side >= 0 and now == PATH_BACKWARD:
            count = _add(script, count, BACKWARD, count > 0, side)
        if now > LAZY and launched.updates and not launched.clips and not early:  # loss is known
            count = _add(script, count, FINISH, True)
            early = True
        drafts.last[:] = -1
        found, used = draft_stage(launched, facts, begin, end, drafts)
        temporary = max(temporary, used)
        count, cut, most = add_rounds(script, apart, (count, cut), drafts, found)
        counters = max(counters, most)
        if side >= 0 and now == PATH:
            count = _add(script, count, FORWARD, count > 0, side)
        begin = end
    if launched.updates:
        for op in (SQUARES, FINISH, CHECK, UPDATE):
            if not ((op == SQUARES and not launched.clips) or (op == FINISH and early)):
                count = _add(script, count, op, True)
    count = _add(script, count, END, False)
    return script[:count], apart[:cut], temporary, counters


def _add(script: Array, count: int, op: int, waits: bool, side: int = 0) -> int:
    """Write an instruction that is no step of the function; return how many there are then."""
    script[count, OP], script[count, PROGRAM] = op, side
    script[count, WAIT] = FOR_ALL if waits else NONE
    return count + 1
