"""Verify the script that all processors of a GPU follow: what it runs, and in which rounds.

A round is what lies between two meetings of all processors; within it, instructions run at once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from vertexrt.engine.batched import Run
from vertexrt.errors import PlanError
from vertexrt.ir.program import Stage
from vertexrt.kernels.cuda.cuts import APART_AT
from vertexrt.kernels.cuda.dependences import LaunchedSteps, first_conflict, launched_steps
from vertexrt.kernels.cuda.driver import Grid
from vertexrt.kernels.cuda.instruction import (
    ACROSS,
    BACKWARD,
    BEFORE,
    CHECK,
    COUNTER,
    DOWN,
    END,
    FINISH,
    FIRST_OP,
    FORWARD,
    SQUARES,
    START,
    UPDATE,
)
from vertexrt.kernels.cuda.persistent_launch import WrittenScripts
from vertexrt.kernels.cuda.script_rounds import counters_of
from vertexrt.kernels.layout import PAD
from vertexrt.script.isa import (
    EDGES,
    FIRST,
    FIRST_EDGE,
    LISTED,
    NONE,
    OP,
    PROGRAM,
    ROWS,
    TEMPORARY,
    WAIT,
)
from vertexrt.script.verify import REPORT

if TYPE_CHECKING:
    from vertexrt.kernels.cuda.persistent import PersistentExecutable

Array = np.ndarray[Any, Any]

OPERANDS = [ROWS, FIRST, LISTED, EDGES, FIRST_EDGE, START, ACROSS, DOWN]
OP_WORD = {
    END: "end",
    FORWARD: "forward",
    BACKWARD: "backward",
    SQUARES: "squares",
    FINISH: "finish",
    CHECK: "check",
    UPDATE: "update",
}
LAZY = int(Stage.LAZY)


def refuse(row: Array | None, at: int, got: str, expected: str) -> NoReturn:
    """Raise PlanError about an instruction."""
    line = ""
    if row is not None:
        op = OP_WORD.get(int(row[OP]), f"op {row[OP]}")
        line = f" ({op}, {row[ROWS]} rows from {row[FIRST]})"
    raise PlanError.at("script", f"instruction {at}{line}: {got}", expected, REPORT)


@dataclass(slots=True)
class Step:
    """A step of a launch that the script has to run.

    Attributes:
        launch, number: of the table, and of the step among all of its executable.
        key: op and operands.
        at: the instruction that runs it, -1 until it is found.
    """

    launch: int
    number: int
    key: tuple[int, ...]
    at: int = -1


def verify_rounds(
    run: Run, table: Array, executable: PersistentExecutable, written: WrittenScripts
) -> None:
    """Check what all processors do.

    Each step of each launch outside the path is there once; stages follow each other, with the
    groups' work and the end of the step in their places; what a step needs was made in an earlier
    round, and no two add to the same gradient, or write what the other reads, in one round.

    Args:
        table: the launches that the scripts stand for.
    Raises: PlanError, which names the instruction.
    """
    check = _Rounds(run, table, executable, written)
    check.operands()
    check.coverage()
    check.apart()
    check.special()
    check.order()
    check.temporaries()
    check.dependences()
    check.turns()
    check.counters()


class _Rounds:
    """The script, the steps that it stands for, and the round of each instruction."""

    def __init__(
        self, run: Run, table: Array, executable: PersistentExecutable, written: WrittenScripts
    ) -> None:
        self.run, self.table = run, table
        self.executable, self.written = executable, written
        self.script = written.script
        self.round = np.cumsum(self.script[:, WAIT] != NONE)
        self.stages = executable.facts.stages
        self.steps = list(self._steps())

    def fail(self, at: int, got: str, expected: str) -> NoReturn:
        """Raise PlanError about an instruction."""
        refuse(self.script[at] if at < len(self.script) else None, at, got, expected)

    def _steps(self) -> Iterator[Step]:
        """List what has to run, in the order of the table."""
        facts, writer = self.executable.facts, self.executable.writer
        lookups = self.written.lookup_ptr, self.written.lookup_at
        for t, s, grid in launched_steps(self.table, (facts.steps_ptr, facts.steps), lookups):
            p, *operands = self.table[t].tolist()
            if facts.sides[p] < 0:
                of_grid = grid.first, grid.across, grid.down
                key = writer.op(writer.all_steps[s]), *operands, *(int(x) for x in of_grid)
                yield Step(t, s, key)

    def operands(self) -> None:
        """Check rows and edges of launches against the schedule."""
        s, rows = self.run.layout.schedule, self.run.layout.rows
        vertices = len(s.order)
        for at in np.flatnonzero(self.script[:, OP] >= FIRST_OP).tolist():
            n, lo, listed, m, elo = (int(self.script[at, k]) for k in OPERANDS[:5])
            if lo >= 0 and not 0 <= n <= vertices - lo:
                self.fail(at, f"rows up to {lo + n - 1}", f"{vertices} rows")
            if lo >= 0 and (elo, m) != (
                s.every_ptr[lo],
                s.every_ptr[lo + n] - s.every_ptr[lo],
            ):
                self.fail(at, f"{m} edges from {elo}", "those of its rows")
            if lo < 0 and not 0 <= listed <= len(rows) - n:
                self.fail(at, f"entries {listed}..{listed + n - 1}", f"{len(rows)} listed rows")

    def coverage(self) -> None:
        """Find the instruction of each step; nothing else may be there."""
        wanted: dict[tuple[int, ...], list[Step]] = defaultdict(list)
        for step in self.steps:
            wanted[step.key].append(step)
        for at, row in enumerate(self.script):
            op = int(row[OP])
            if op in OP_WORD:
                continue
            key = (op, *row[OPERANDS].tolist())
            if not wanted[key]:
                self.fail(at, "no launch asks for it (again)", "each step of each launch once")
            wanted[key].pop(0).at = at
        for step in self.steps:
            if step.at < 0:
                got = f"launch {step.launch} lacks step {step.number}, op {step.key[0]}"
                self.fail(len(self.script) - 1, got, "each step of each launch once")

    def apart(self) -> None:
        """Check what the kernel does not run: steps that stand alone, after the rest of a round."""
        number = {step.at: step for step in self.steps}
        apart = {row[APART_AT]: row for row in self.written.apart.tolist()}
        if list(apart) != sorted(self.written.apart[:, APART_AT].tolist()):
            self.fail(max(apart), "out of order, or twice", "steps that are apart in order")
        for at, (_, t, s, temporary) in apart.items():
            self._alone(at, number.get(at), (t, s))
            if self.script[at, TEMPORARY] != temporary:
                got = f"temporaries from {temporary} apart"
                self.fail(at, got, f"{self.script[at, TEMPORARY]}, as in the script")
            goes_on = at + 1 not in apart and self.script[at + 1, OP] != END
            if goes_on and self.round[at + 1] == self.round[at]:
                self.fail(at, "the kernel goes on with the same round", "a wait after it")

    def _alone(self, at: int, step: Step | None, apart: tuple[int, int]) -> None:
        """Check that an instruction is the step of a launch that is apart, and stands alone."""
        t, s = apart
        there = step is not None and (step.launch, step.number) == apart
        if not there or not self.executable.facts.alone[s]:
            self.fail(at, f"step {s} of launch {t} is apart", "a step that may be, where it is")

    def special(self) -> None:
        """Check that the path and the end of the step are there once, where they are wanted."""
        facts, updates = self.executable.facts, self.written.updates
        of_launches = facts.sides[self.table[:, 0]]
        sides = np.unique(of_launches[of_launches >= 0])
        there = self.script[self._places(FORWARD, BACKWARD), PROGRAM]
        if not np.array_equal(np.sort(there), sides):
            got = f"sides {there.tolist()} of the path"
            self.fail(len(self.script) - 1, got, f"sides {sides.tolist()}, once each")
        for op, wanted in (
            (FORWARD, int((sides < facts.forward).sum())),
            (BACKWARD, int((sides >= facts.forward).sum())),
            (SQUARES, updates and self.written.clips),
            (FINISH, updates),
            (CHECK, updates),
            (UPDATE, updates),
            (END, True),
        ):
            found = np.flatnonzero(self.script[:, OP] == op)
            if len(found) != wanted:
                at = int(found[-1]) if len(found) else len(self.script) - 1
                self.fail(at, f"{len(found)} of {OP_WORD[op]}", f"{int(wanted)}")
        if self.script[-1, OP] != END:
            self.fail(len(self.script) - 1, "the script goes on for ever", "end, at its end")

    def _places(self, *ops: int) -> list[int]:
        return np.flatnonzero(np.isin(self.script[:, OP], ops)).tolist()

    def _after(self, later: Iterable[int], earlier: Iterable[int], what: str) -> None:
        """Check that instructions run in later rounds than others."""
        before = max(earlier, key=lambda at: int(self.round[at]), default=None)
        for at in later:
            if before is not None and self.round[at] <= self.round[before]:
                self.fail(at, f"no wait after instruction {before}", f"a wait for {what}")

    def order(self) -> None:
        """Check the order of stages, of the groups' work and of the end of the step."""
        facts = self.executable.facts
        of_phase: dict[int, list[int]] = defaultdict(list)
        loss: list[int] = []
        for step in self.steps:
            p = self.table[step.launch, 0]
            of_phase[2 * int(facts.phases[p])].append(step.at)
            loss += [step.at] if self.stages[p] <= LAZY else []
        for at in self._places(FORWARD, BACKWARD):
            back = self.script[at, OP] == BACKWARD
            mine = facts.phases[facts.sides == self.script[at, PROGRAM]]
            # What of the phase is outside the path comes before, or on the way back after it.
            of_phase[2 * int(mine.max()) + (-1 if back else 1)].append(at)
            loss += [] if back else [at]
        done = list[int]()
        for phase in sorted(of_phase):
            self._after(of_phase[phase], done, "the stage before")
            done += of_phase[phase]
        squares, finish = self._places(SQUARES), self._places(FINISH)
        self._after(squares, done, "all gradients")
        self._after(finish, loss + squares, "the loss, and the norm")
        check = self._places(CHECK)
        self._after(check, done + squares + finish, "the whole step")
        self._after(self._places(UPDATE), check, "the check")

    def _temporaries(self) -> tuple[Array, Array]:
        """Return the first element and the end of the temporaries of each step."""
        launches = self.table[[step.launch for step in self.steps]]
        scratch = self.executable.facts.scratch[launches[:, 0]]
        n, m = (-(-launches[:, k] // PAD) * PAD for k in (1, 4))
        first = self.script[[step.at for step in self.steps], TEMPORARY].astype(np.int64)
        return first, first + scratch[:, 0] * n + scratch[:, 1] * m + scratch[:, 2]

    def temporaries(self) -> None:
        """Check that launches have temporaries within the room."""
        for step, start, end in zip(self.steps, *self._temporaries(), strict=True):
            if not 0 <= start <= end <= self.written.elements:
                got = f"temporaries {start}..{end - 1}"
                self.fail(step.at, got, f"{self.written.elements} elements")

    def dependences(self) -> None:
        """Check that a step runs in a later round than what it needs."""
        turn = self.round[[step.at for step in self.steps]]
        steps = LaunchedSteps(
            np.array([step.launch for step in self.steps], np.int64),
            np.array([step.number for step in self.steps], np.int64),
            *self._temporaries(),
            turn[:, None] > turn,
        )
        tasks = [each.task for each in self.executable.writer.tasks]
        found = first_conflict(self.run, self.table, tasks, steps, self.executable.effects)
        if found is not None:
            self.fail(self.steps[found.step].at, found.got, found.expected)

    def turns(self) -> None:
        """Check the count of blocks in front of each launch of a round."""
        blocks, last = 0, -1
        for at, row in enumerate(self.script):
            if row[OP] in OP_WORD or self.round[at] != last:
                blocks = 0
            last = self.round[at]
            if row[OP] in OP_WORD:
                continue
            if row[BEFORE] != blocks:
                self.fail(at, f"{row[BEFORE]} blocks before it", f"{blocks} in its round")
            blocks += row[ACROSS] * row[DOWN]

    def counters(self) -> None:
        """Check that no two steps of a round have the same counters, and all have room."""
        taken: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for step in self.steps:
            first = int(self.script[step.at, COUNTER])
            blocks = Grid(*(int(self.script[step.at, k]) for k in (ACROSS, DOWN, START)))
            end = first + int(counters_of(self.executable.effects.counters[step.number], blocks))
            others = taken[int(self.round[step.at])]
            if first < end and any(first < other[1] and other[0] < end for other in others):
                self.fail(step.at, f"counters {first}..{end - 1}", "none that its round has twice")
            if not 0 <= first <= end <= self.written.counters:
                self.fail(step.at, f"counters {first}..{end - 1}", f"{self.written.counters}")
            others.append((first, end))
