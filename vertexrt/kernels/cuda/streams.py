"""Several streams share the launches of a step, which otherwise run one after the other.

It is an ablation. Launches are put in rounds, as those of a persistent kernel are (`rounds.py`).
Streams take turns at the steps of a round. Those that have some begin after what the main one has,
and it waits for them at the end of the round. Batches whose layout comes again are captured as a
CUDA graph: streams become its branches, waits its edges.

Source: Cavs section 3.4 (streaming), where eager, path and lazy operators run on several streams.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any, cast

import numpy as np

from vertexrt.config import config
from vertexrt.engine.batched import Run
from vertexrt.kernels.cuda.cuts import launch_rounds
from vertexrt.kernels.cuda.device import Allocation
from vertexrt.kernels.cuda.driver import FUNCTION
from vertexrt.kernels.cuda.executable import CudaExecutable
from vertexrt.kernels.cuda.instruction import FIRST_OP
from vertexrt.kernels.cuda.pack import ARRIVED_AT, TEMPORARY
from vertexrt.kernels.cuda.rounds import ALL_APART, Facts, Launched, Rounds, facts_of, write_rounds
from vertexrt.kernels.cuda.session import Session
from vertexrt.kernels.cuda.verify_rounds import verify_rounds
from vertexrt.script.isa import NONE, WAIT

Array = np.ndarray[Any, Any]


class Streams:
    """The streams of a session, and the memory of rounds.

    Args:
        count: of streams, with the main one.
    """

    def __init__(self, session: Session, count: int) -> None:
        self.session, self.count = session, len(session.device.lanes(count))
        self._temporaries = self._counters = Allocation()
        self._events = session.device.events(self.count)

    def rounds(self, run: Run, table: Array, lookups: tuple[Array, ...]) -> Rounds:
        """Put launches of a minibatch in rounds.

        Args:
            table: of launches; lookups: of `driver.launch`.
        Raises: PlanError under VERTEXRT_CHECK=1, when steps that need each other overlap.
        """
        facts = facts_of_run(run)
        found = rounds_of(run, table, lookups, facts)
        if config().check:
            verify_rounds(run, table, run.variant.tasks, facts, found)
        return found

    def counts(self, run: Run) -> dict[str, float]:
        """Count streams, steps on others than the main one, and waits for another."""
        table = run.layout.table
        lookups = self.session.sorted_lookups(run, table)[:2]
        script = self.rounds(run, table, lookups).script[:-1]
        steps = np.bincount(np.cumsum(script[:, WAIT] != NONE), minlength=1)
        used = np.minimum(steps, self.count)
        return {
            "streams": int(used.max()),
            "on_other_streams": int((steps - -(-steps // self.count)).sum()),
            "waits": 2 * int((used[used > 0] - 1).sum()),
        }

    def launcher(
        self, run: Run, table: Array, words: Array, lookups: tuple[Array, ...]
    ) -> Callable[[], tuple[int, int, int]]:
        """Return what launches rows of a minibatch's table as `driver.launch` does.

        Rounds are found when it is first launched, which a captured graph never asks for.
        """
        session, find = self.session, cache(partial(self.rounds, run, table, lookups))
        _, *program = cast("CudaExecutable", run.ready.executable).program

        def launch() -> tuple[int, int, int]:
            found, before = find(), (self._temporaries, self._counters)
            size = found.elements * session.dtype.itemsize
            self._temporaries = session.memory.scratch(self._temporaries, size)
            self._counters = session.memory.grown(self._counters, 4 * found.counters, zero=True)
            if before != (self._temporaries, self._counters):  # which captured graphs use
                session.memory.era += 1
            own = words.copy()
            own[TEMPORARY], own[ARRIVED_AT] = self._temporaries.address, self._counters.address
            calls = np.stack([session.calls_of(lane) for lane in session.device.lanes(self.count)])
            rows, steps = found.script[found.apart], tuple(program)
            failed: tuple[int, int, int] = launch_rounds(
                rows, table, steps, own, lookups, calls, self._events
            )
            return failed

        return launch


def facts_of_run(run: Run) -> Facts:
    """Return what rounds of the batched engine are written from."""
    executable, tasks = cast("CudaExecutable", run.ready.executable), run.variant.tasks
    steps_ptr, steps, _ = executable.program
    numbered, alone = steps.copy(), np.ones(len(steps), np.bool_)
    numbered[:, FUNCTION] = FIRST_OP + np.arange(len(steps))
    sides = np.full(len(tasks), -1, np.int64)
    return facts_of(tasks, (steps_ptr, numbered, steps), alone, executable, sides)


def rounds_of(run: Run, table: Array, lookups: tuple[Array, ...], facts: Facts) -> Rounds:
    """Put launches of a minibatch in rounds, given what `facts_of_run` returns."""
    s, (lookup_ptr, lookup_at) = run.layout.schedule, lookups
    of_schedule = run.layout.rows, s.edge_ptr, s.every_ptr, s.child_row
    gradients = len(run.variant.binding.params)
    asked = table, lookup_ptr, lookup_at, *of_schedule, gradients, False, False, ALL_APART
    made = write_rounds(Launched(*asked), facts)
    return Rounds(*made, lookup_ptr, lookup_at, (), False, False)
