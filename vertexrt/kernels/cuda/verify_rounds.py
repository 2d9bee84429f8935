"""Verify the script that all processors of a GPU follow: what it runs, and in which rounds.

A round is what lies between two meetings of all processors; within it, instructions run at once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from vertexrt.errors import PlanError, message
from vertexrt.ir.program import Stage
from vertexrt.kernels.cuda.driver import WHEN, extent
from vertexrt.kernels.cuda.instruction import (
    ACROSS,
    BACKWARD,
    BEFORE,
    CHECK,
    CHUNKS,
    COLLECT,
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
from vertexrt.kernels.cuda.steps import CHUNKED
from vertexrt.kernels.cuda.touched_rows import Minibatch, touched_rows
from vertexrt.kernels.layout import PAD, tensor_uses
from vertexrt.script.isa import EDGES, FIRST, FIRST_EDGE, LISTED, NONE, OP, ROWS, TEMPORARY, WAIT
from vertexrt.script.verifier import REPORT

if TYPE_CHECKING:
    from vertexrt.kernels.cuda.persistent import PersistentExecutable

Array = np.ndarray[Any, Any]

OPERANDS = [ROWS, FIRST, LISTED, EDGES, FIRST_EDGE, START, CHUNKS, ACROSS, DOWN]
OP_WORD = {
    END: "end",
    FORWARD: "forward",
    BACKWARD: "backward",
    COLLECT: "collect",
    SQUARES: "squares",
    FINISH: "finish",
    CHECK: "check",
    UPDATE: "update",
}
LAZY, PATH, PATH_BACKWARD = int(Stage.LAZY), int(Stage.PATH), int(Stage.PATH_BACKWARD)
FINAL = int(Stage.FINAL)


def refuse(row: Array | None, at: int, got: str, expected: str) -> NoReturn:
    """Raise PlanError about an instruction."""
    line = ""
    if row is not None:
        op = OP_WORD.get(int(row[OP]), f"op {row[OP]}")
        line = f" ({op}, {row[ROWS]} rows from {row[FIRST]})"
    raise PlanError(message("script", f"instruction {at}{line}: {got}", expected, REPORT))


@dataclass(slots=True)
class Step:
    """A step of a launch that the script has to run.

    Attributes:
        launch, number: of the table, and of the step among all of its executable.
        stage: of its program; adds, chunked: see `steps.Kernel`.
        key: op and operands.
        at: the instruction that runs it, -1 until it is found.
    """

    launch: int
    number: int
    stage: int
    adds: bool
    chunked: bool
    key: tuple[int, ...]
    at: int = -1


def verify_rounds(
    minibatch: Minibatch, executable: PersistentExecutable, written: WrittenScripts
) -> None:
    """Check what all processors do.

    Each step of each launch outside the path is there once; stages follow each other, with the
    groups' work and the end of the step in their places; what a step needs was made in an earlier
    round, and no two add to the same gradient, or write what the other reads, in one round.

    Raises: PlanError, which names the instruction.
    """
    check = _Rounds(minibatch, executable, written)
    check.operands()
    check.coverage()
    check.special()
    check.order()
    check.launches()
    check.gradients()
    check.tensors()
    check.temporaries()
    check.turns()


class _Rounds:
    """The script, the steps that it stands for, and the round of each instruction."""

    def __init__(
        self, minibatch: Minibatch, executable: PersistentExecutable, written: WrittenScripts
    ) -> None:
        self.minibatch, self.table = minibatch, minibatch.table
        self.executable, self.written = executable, written
        self.script = written.script[: written.common]
        self.round = np.cumsum(self.script[:, WAIT] != NONE)
        self.stages = executable.facts.stages
        self.steps = list(self._steps())

    def fail(self, at: int, got: str, expected: str) -> NoReturn:
        """Raise PlanError about an instruction."""
        refuse(self.script[at] if at < len(self.script) else None, at, got, expected)

    def _steps(self) -> Iterator[Step]:
        """List what has to run, in the order of the table."""
        facts = self.executable.facts
        stages, outside_path, adds = facts.stages, facts.outside_path, facts.adds
        steps_ptr, steps = facts.steps_ptr, facts.steps
        lookup_at = self.written.lookup_at
        for t, (p, n, lo, at, m, elo) in enumerate(self.table.tolist()):
            if not outside_path[p]:
                continue
            for s in range(steps_ptr[p], steps_ptr[p + 1]):
                step = steps[s]
                lookup = int(self.written.lookup_ptr[t])
                across, down, first, chunks = extent(step, self.table[t], lookup_at, lookup)
                if across:
                    function = self.executable.writer.op(self.executable.writer.all_steps[s])
                    operands = (n, lo, at, m, elo, first, chunks, across, down)
                    key = (function, *(int(x) for x in operands))
                    chunked = bool(step[WHEN] == CHUNKED)
                    yield Step(t, s, int(stages[p]), bool(adds[s]), chunked, key)

    def operands(self) -> None:
        """Check rows and edges of launches against the schedule."""
        s, rows = self.minibatch.schedule, self.minibatch.rows
        vertices = len(s.order)
        for at in np.flatnonzero(self.script[:, OP] >= FIRST_OP).tolist():
            n, lo, listed, m, elo = (int(self.script[at, k]) for k in OPERANDS[:5])
            if lo >= 0 and not 0 <= n <= vertices - lo:
                self.fail(at, f"rows up to {lo + n - 1}", f"{vertices} rows")
            if lo >= 0 and (elo, m) != (s.edge_ptr[lo], s.edge_ptr[lo + n] - s.edge_ptr[lo]):
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

    def special(self) -> None:
        """Check that the path and the end of the step are there once, where they are wanted."""
        groups = self.stages[self.table[:, 0]][~self.executable.outside_path[self.table[:, 0]]]
        updates = self.written.updates
        for op, wanted in (
            (FORWARD, PATH in groups),
            (BACKWARD, PATH_BACKWARD in groups),
            (COLLECT, PATH_BACKWARD in groups and self.executable.gradients.any()),
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
        of_stage: dict[int, list[int]] = defaultdict(list)
        for step in self.steps:
            of_stage[2 * step.stage].append(step.at)
        of_stage[2 * PATH + 1] += self._places(FORWARD)  # what is outside the path comes before
        of_stage[2 * PATH_BACKWARD - 1] += self._places(BACKWARD)  # or after it
        of_stage[2 * FINAL] += self._places(COLLECT)
        done: list[int] = []
        loss: list[int] = []
        for stage in sorted(of_stage):
            self._after(of_stage[stage], done, "the stage before")
            done += of_stage[stage]
            loss += of_stage[stage] if stage <= 2 * LAZY else []
        squares, finish = self._places(SQUARES), self._places(FINISH)
        self._after(squares, done, "all gradients")
        self._after(finish, loss + squares, "the loss, and the norm")
        check = self._places(CHECK)
        self._after(check, done + squares + finish, "the whole step")
        self._after(self._places(UPDATE), check, "the check")

    def launches(self) -> None:
        """Check that a step of a launch runs after those of it that it needs."""
        of_launch: dict[int, list[Step]] = defaultdict(list)
        for step in self.steps:
            earlier = of_launch[step.launch]
            needed = [x.at for x in earlier if not x.adds]
            if step.chunked and earlier:
                needed.append(earlier[-1].at)
            self._after([step.at], needed, "the steps of its launch before it")
            earlier.append(step)

    def gradients(self) -> None:
        """Check that those that add to the same gradient take turns."""
        facts = self.executable.facts
        adds_ptr, added = facts.adds_ptr, facts.added
        last: dict[tuple[int, int], int] = {
            (g, int(self.round[at])): at
            for at in self._places(COLLECT)
            for g in np.flatnonzero(self.executable.gradients).tolist()
        }
        for step in sorted(self.steps, key=lambda x: x.at):
            for g in added[adds_ptr[step.number] : adds_ptr[step.number + 1]].tolist():
                turn = (g, int(self.round[step.at]))
                if turn in last:
                    got = f"adds to a gradient in one round with instruction {last[turn]}"
                    self.fail(step.at, got, "a wait between them")
                last[turn] = step.at

    def tensors(self) -> None:
        """Check that no launch of a stage needs, or writes, what another one of it writes."""
        of_launch: dict[int, list[int]] = defaultdict(list)
        for step in self.steps:
            of_launch[step.launch].append(step.at)
        touched: dict[tuple[int, Any], list[tuple[int, bool, Array]]] = defaultdict(list)
        for t, instructions in of_launch.items():
            p = int(self.table[t, 0])
            for key, _, edges, written in tensor_uses(self.executable.writer.tasks[p].task):
                here = touched[int(self.stages[p]), key]
                mask = touched_rows(self.minibatch, self.table[t], key, edges, written)
                for other, wrote, others in here:
                    if other != t and (wrote or written) and np.any(mask & others):
                        self._after(instructions, of_launch[other], f"{key} of launch {other}")
                here.append((t, written, mask))

    def temporaries(self) -> None:
        """Check that launches of a stage have temporaries of their own, within the room."""
        scratch = self.executable.facts.scratch
        taken: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
        for step in self.steps:
            p, n, _, _, m, _ = self.table[step.launch].tolist()
            by_row, by_edge, once = scratch[p].tolist()
            need = by_row * (-(-n // PAD) * PAD) + by_edge * (-(-m // PAD) * PAD) + once
            start = int(self.script[step.at, TEMPORARY])
            if not 0 <= start <= start + need <= self.written.elements:
                got = f"temporaries {start}..{start + need - 1}"
                self.fail(step.at, got, f"{self.written.elements} elements")
            for launch, first, end in taken[step.stage]:
                apart = end <= start or start + need <= first
                if need and (launch != step.launch and not apart):
                    self.fail(step.at, f"temporaries of launch {launch}", "its own")
                if launch == step.launch and first != start:
                    self.fail(step.at, f"temporaries at {start}", f"{first}, those of its launch")
            taken[step.stage].append((step.launch, start, start + need))

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
