"""Verify the scripts of a launch as they go up: what they run, and in which rounds.

A round is what lies between two meetings of all processors, or two joins of streams; within it,
steps run at once. What they need of each other is found from the rows and elements that they touch,
whatever the scheduler knows. Four rules: a step comes after those of its launch that it needs; what
adds to the same gradient, what has the same temporaries, and launches of which one writes what the
other touches come in the order of the table.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np

from vertexrt.engine.batched import Run
from vertexrt.errors import PlanError
from vertexrt.ir.passes.fuse import TaskProgram
from vertexrt.ir.passes.store import Key
from vertexrt.ir.program import Stage
from vertexrt.kernels.cuda.driver import FUNCTION, Grid
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
    LAUNCH,
    OPS,
    SQUARES,
    START,
    STEP,
    UPDATE,
)
from vertexrt.kernels.cuda.rounds import Facts, Rounds, counters_of, launched_steps
from vertexrt.kernels.layout import PAD
from vertexrt.kernels.task_tensors import CHILDREN, PARENTS, rows_read, tensor_uses
from vertexrt.script.isa import (
    FIRST,
    NONE,
    OP,
    PROGRAM,
    ROWS,
    TEMPORARY,
    WAIT,
)
from vertexrt.script.verify import REPORT

Array = np.ndarray[Any, Any]

OPERANDS = [*range(OP, WAIT), START, ACROSS, DOWN]
OP_WORD = {op: name.lower() for op, name in enumerate(OPS[:FIRST_OP])}
ONCE = "each step of each launch once"
AFTER = "does not wait for"


def verify_rounds(
    run: Run, table: Array, tasks: Sequence[TaskProgram], facts: Facts, written: Rounds
) -> None:
    """Check the script of all processors, or of several streams.

    Each step of each launch outside the path is there once; stages follow each other, with the
    groups' work and the end of the step in their places; what a step needs was made in an earlier
    round, and no two add to the same gradient, or write what the other reads, in one round.

    Args:
        table: of launches; tasks: what they are launches of.
    Raises: PlanError, which names the instruction.
    """
    check = _Verifier(run, table, tasks, facts, written)
    check.operands()
    check.coverage()
    check.apart()
    check.special()
    check.order()
    check.temporaries()
    check.dependences()
    check.shares()


class _Use(NamedTuple):
    """What a launch has of a buffer: rows of a tensor, and elements of the arena."""

    launch: int
    key: Key
    written: bool
    rows: Array
    first: int
    end: int


class _Verifier:
    """The script, and the round of each instruction.

    Attributes:
        at: the instructions that are steps, in the order of the table; launch, step: of each.
    """

    def __init__(
        self,
        run: Run,
        table: Array,
        tasks: Sequence[TaskProgram],
        facts: Facts,
        written: Rounds,
    ) -> None:
        self.run, self.table, self.tasks = run, table, tasks
        self.facts, self.written, self.script = facts, written, written.script
        self.round = np.cumsum(self.script[:, WAIT] != NONE)
        steps = np.flatnonzero(~np.isin(self.script[:, OP], [*OP_WORD]))
        self.at = steps[np.lexsort((self.script[steps, STEP], self.script[steps, LAUNCH]))]
        self.launch, self.step = self.script[self.at][:, [LAUNCH, STEP]].T

    def fail(self, at: int, got: str, expected: str) -> NoReturn:
        """Raise PlanError about an instruction."""
        row = self.script[at]
        op = OP_WORD.get(int(row[OP]), f"op {row[OP]}")
        where = f"instruction {at} ({op}, {row[ROWS]} rows from {row[FIRST]})"
        raise PlanError.at("script", f"{where}: {got}", expected, REPORT)

    def operands(self) -> None:
        """Check rows and edges of launches against the schedule."""
        s, listed_rows = self.run.layout.schedule, len(self.run.layout.rows)
        vertices = len(s.order)
        for at in self.at.tolist():
            n, lo, listed, m, elo = self.script[at, ROWS:WAIT].tolist()
            if lo < 0:
                if not 0 <= listed <= listed_rows - n:
                    got = f"entries {listed}..{listed + n - 1}"
                    self.fail(at, got, f"{listed_rows} listed rows")
            elif not 0 <= n <= vertices - lo:
                self.fail(at, f"rows up to {lo + n - 1}", f"{vertices} rows")
            elif (elo, elo + m) != (s.every_ptr[lo], s.every_ptr[lo + n]):
                self.fail(at, f"{m} edges from {elo}", "those of its rows")

    def coverage(self) -> None:
        """Check that all that is launched is there once, and nothing else."""
        facts, wanted = self.facts, dict[tuple[int, int], list[int]]()
        lookups = self.written.lookup_ptr, self.written.lookup_at
        for t, s, grid in launched_steps(self.table, (facts.steps_ptr, facts.steps), lookups):
            if facts.sides[self.table[t, 0]] < 0:
                given = facts.steps[s, FUNCTION], *self.table[t], grid.first, *grid[:2]
                wanted[t, s] = [int(x) for x in given]
        for at, t, s in zip(
            self.at.tolist(), self.launch.tolist(), self.step.tolist(), strict=True
        ):
            if wanted.pop((t, s), []) != self.script[at, OPERANDS].tolist():
                self.fail(at, "no launch asks for it (again)", ONCE)
        for t, s in wanted:
            self.fail(len(self.script) - 1, f"launch {t} lacks step {s}", ONCE)

    def apart(self) -> None:
        """Check what the kernel does not run: steps that stand alone, after the rest of a round."""
        apart = self.written.apart.tolist()
        if apart != sorted({*apart}):
            self.fail(max(apart), "out of order, or twice", "steps that are apart in order")
        for at in apart:
            if at not in self.at or not self.facts.alone[self.script[at, STEP]]:
                self.fail(at, "it is apart", "a step that may be")
            after = self.script[at + 1]
            if at + 1 not in apart and after[OP] != END and after[WAIT] == NONE:
                self.fail(at, "the kernel goes on with the same round", "a wait after it")

    def special(self) -> None:
        """Check that the path and the end of the step are there once, where they are wanted."""
        facts, updates, last = self.facts, self.written.updates, len(self.script) - 1
        sides = np.unique(facts.sides[self.table[:, 0]])
        sides = sides[sides >= 0]
        there = self.script[self._places(FORWARD, BACKWARD), PROGRAM]
        if not np.array_equal(np.sort(there), sides):
            got = f"sides {there.tolist()} of the path"
            self.fail(last, got, f"sides {sides.tolist()}, once each")
        for op, wanted in (
            (FORWARD, int((sides < facts.forward).sum())),
            (BACKWARD, int((sides >= facts.forward).sum())),
            (SQUARES, updates and self.written.clips),
            (FINISH, updates),
            (CHECK, updates),
            (UPDATE, updates),
            (END, True),
        ):
            found = self._places(op)
            if len(found) != wanted:
                self.fail([last, *found][-1], f"{len(found)} of {OP_WORD[op]}", f"{int(wanted)}")
        if self.script[last, OP] != END:
            self.fail(last, "the script goes on for ever", "end, at its end")

    def _places(self, *ops: int) -> list[int]:
        return np.flatnonzero(np.isin(self.script[:, OP], ops)).tolist()

    def order(self) -> None:
        """Check the order of stages, of the groups' work and of the end of the step."""
        facts, of_phase, loss = self.facts, defaultdict[int, list[int]](list), list[int]()
        for at, p in zip(self.at.tolist(), self.table[self.launch, 0].tolist(), strict=True):
            of_phase[2 * int(facts.phases[p])].append(at)
            loss += [at] if facts.stages[p] <= Stage.LAZY else []
        for at in self._places(FORWARD, BACKWARD):
            back = self.script[at, OP] == BACKWARD
            mine = facts.phases[facts.sides == self.script[at, PROGRAM]]
            # What of the phase is outside the path comes before, or on the way back after it.
            of_phase[2 * int(mine.max()) + (-1 if back else 1)].append(at)
            loss += [] if back else [at]
        done = list[int]()
        squares, finish, check, update = map(self._places, (SQUARES, FINISH, CHECK, UPDATE))
        for later, earlier, what in (
            *((of_phase[phase], done, "the stage before") for phase in sorted(of_phase)),
            (squares, done, "all gradients"),
            (finish, loss + squares, "the loss, and the norm"),
            (check, done, "the whole step"),
            (update, check, "the check"),
        ):
            before = max(earlier, key=lambda at: int(self.round[at]), default=-1)
            for at in later:
                if before >= 0 and self.round[at] <= self.round[before]:
                    self.fail(at, f"no wait after instruction {before}", f"a wait for {what}")
            done += later

    def temporaries(self) -> None:
        """Check that launches have temporaries within the room."""
        for at, start, end in zip(self.at.tolist(), *self._temporaries(), strict=True):
            if not 0 <= start <= end <= self.written.elements:
                got = f"temporaries {start}..{end - 1}"
                self.fail(at, got, f"{self.written.elements} elements")

    def _temporaries(self) -> tuple[Array, Array]:
        """Return the first element and the end of the temporaries of each step."""
        launches = self.table[self.launch]
        scratch = self.facts.scratch[launches[:, 0]]
        n, m = (-(-launches[:, k] // PAD) * PAD for k in (1, 4))
        first = self.script[self.at, TEMPORARY].astype(np.int64)
        return first, first + scratch[:, 0] * n + scratch[:, 1] * m + scratch[:, 2]

    def dependences(self) -> None:
        """Check that a step runs in a later round than what it needs."""
        for verb, expected, wrong in self._wrong():
            for k, other in np.argwhere(np.tril(wrong, -1)).tolist():
                got = f"step {self.step[k]} {verb} step {self.step[other]}"
                self.fail(int(self.at[k]), f"{got} of launch {self.launch[other]}", expected)

    def _wrong(self) -> Iterator[tuple[str, str, Array]]:
        """Mark steps that break each rule: [step, earlier step], with the words of an error."""
        launch, effects, turn = self.launch, self.facts.effects, self.round[self.at]
        late, of_launch = turn[:, None] <= turn, launch[:, None] == launch
        only = effects.only[self.step]  # of the earlier one
        yield AFTER, "the steps of its launch before it", of_launch & ~only & late
        to = np.zeros((len(launch), int(effects.gradients.max(initial=0)) + 1))
        for k, s in enumerate(self.step.tolist()):
            to[k, effects.gradients[effects.ptr[s] : effects.ptr[s + 1]]] = 1
        yield AFTER, "a wait for what adds to its gradients before it", (to @ to.T > 0) & late
        first, end = self._temporaries()
        both, same = (end > first)[:, None] & (end > first), first[:, None] == first
        one = "one place for those of a launch"
        yield "has other temporaries than", one, of_launch & both & ~same
        meet = (first[:, None] < end) & (first < end[:, None]) & both & ~of_launch
        yield AFTER, "a wait for the launch that has its temporaries", meet & late
        makes, all_of = (found[launch][:, launch] for found in self._meetings())
        needed = "a wait for the launch, which touches what it writes, or writes it"
        yield AFTER, needed, np.where(only, all_of, makes) & late

    def _meetings(self) -> Array:
        """Find which launches have to run in the order of the table: [later, earlier].

        Returns: after what the earlier one makes, and after all of it. A step that only adds to
            gradients writes no tensor. It may read what its launch wrote; but what two launches
            write of one tensor are other slots of the same edges.
        """
        makes, all_of = np.zeros((2, len(self.table), len(self.table)), np.bool_)
        for uses in self._uses().values():
            for earlier, later in itertools.combinations(uses, 2):
                same, at = earlier.key == later.key, (later.launch, earlier.launch)
                if same:
                    meet = bool(np.any(earlier.rows & later.rows))
                else:
                    meet = earlier.first < later.end and later.first < earlier.end
                if meet and (earlier.written or later.written) and later.launch != earlier.launch:
                    makes[at] = True
                    all_of[at] |= later.written and not (earlier.written and same)
        return np.stack([makes, all_of])

    def _uses(self) -> dict[int, list[_Use]]:
        """List what launches have of each buffer."""
        tensors, buffer = self.run.variant.table, self.run.ready.programs.buffer
        found: dict[int, list[_Use]] = defaultdict(list)
        for t in np.unique(self.launch).tolist():
            task = self.tasks[int(self.table[t, 0])]
            ops = {task.program.nodes[k].op for k in task.members}
            # Its own state is read by later stages too, which need not know the children's.
            gathers = PARENTS if ops.isdisjoint(("gather", "gather_all")) else CHILDREN | PARENTS
            for key, _, edges, written in tensor_uses(task):
                number = tensors.numbers[key]
                rows = self._touched(t, edges, 0 if written else rows_read(key) & gathers)
                at = np.flatnonzero(rows)
                size, base = tensors.specs[number].size, self.run.layout.plan.base[number]
                if len(at):
                    first, end = (int(base + r * size) for r in (at[0], at[-1] + 1))
                    found[int(buffer[number])].append(_Use(t, key, written, rows, first, end))
        return found

    def _touched(self, t: int, edges: bool, others: int) -> Array:
        """Mark the rows (or edges) of a tensor that a launch reads or writes: bool [V], or [E].

        Args:
            edges: the tensor has a row for each edge.
            others: CHILDREN, PARENTS, both or none: whose rows besides its own.
        """
        s, (n, lo, at) = self.run.layout.schedule, self.table[t, 1:4].tolist()
        rows = np.arange(lo, lo + n) if lo >= 0 else self.run.layout.rows[at : at + n]
        of_rows, of_children = np.isin(s.edge_row, rows), np.isin(s.child_row, rows)
        if edges:
            return of_rows | of_children if others & PARENTS else of_rows
        mask = np.zeros(len(s.order), np.bool_)
        mask[rows] = True
        if others & CHILDREN:
            children = s.child_row[of_rows]
            mask[children[children >= 0]] = True
        if others & PARENTS:
            mask[s.edge_row[of_children]] = True
        return mask

    def shares(self) -> None:
        """Check how many blocks and counters of its round are in front of each step."""
        blocks = counters = 0
        for at, row in enumerate(self.script):
            if row[WAIT] != NONE or row[OP] < FIRST_OP:
                blocks = counters = 0
            if row[OP] < FIRST_OP:
                continue
            if (row[BEFORE], row[COUNTER]) != (blocks, counters):
                got = f"{row[BEFORE]} blocks and {row[COUNTER]} counters before it"
                self.fail(at, got, f"{blocks} and {counters} of its round")
            blocks += int(row[ACROSS] * row[DOWN])
            grid = Grid(int(row[ACROSS]), int(row[DOWN]), 0)
            counters += int(counters_of(self.facts.effects.counters[row[STEP]], grid))
            if counters > self.written.counters:
                self.fail(at, f"counters up to {counters - 1}", f"{self.written.counters}")
