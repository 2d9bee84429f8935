"""Verify scripts before a run: operands, coverage, waits and order.

The processors are simulated with vector clocks: before each instruction it is known how many
instructions of every other processor are certainly done. Every order that a value needs is checked
against these clocks, so a missing wait is found however the processors happen to run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from vertexrt.errors import PlanError
from vertexrt.ir.passes.segment import SegmentedTask, Split
from vertexrt.ir.program import Stage
from vertexrt.kernels.layout import temporaries
from vertexrt.script import isa
from vertexrt.script.assemble import Batch, Scripts
from vertexrt.script.shape import Shape

Array = np.ndarray[Any, Any]
Int64 = npt.NDArray[np.int64]

PATH, PATH_BACKWARD = int(Stage.PATH), int(Stage.PATH_BACKWARD)
PATH_STAGES = (PATH, PATH_BACKWARD)
BY_ROWS = int(Split.ROWS)
ROWS_OF_TASK = "rows of the task"
REPORT = "report this as a bug; engine='batched' goes on"


class Entries(NamedTuple):
    """The rows of all instructions one after the other: [entries] each.

    Attributes:
        part, at: processor and instruction; op: its segment.
        row: of the schedule.
    """

    part: Array
    at: Array
    op: Array
    row: Array

    def of(self, chosen: Array) -> Entries:
        """Return some of them."""
        return Entries(*(column[chosen] for column in self))


def ranges(first: Array, count: Array) -> tuple[Int64, Int64]:
    """Return the numbers of some ranges one after the other, and of which range each is."""
    owner = np.repeat(np.arange(len(count)), count)
    starts = np.cumsum(count) - count
    return np.arange(len(owner)) + (first - starts)[owner], owner


class Verifier:
    """The scripts of a group, and what was found out about them so far.

    Args:
        script: int32 [processors, instructions, columns], as they are.
        waits: [processors, instructions] the instruction that all have to have done, or NONE.
        temporary: elements of temporaries that each processor has.
        shape, batch: what the scripts stand for.
        rows: execution rows of launches that are not contiguous.
        programs: names of the task programs, for messages.
    """

    def __init__(
        self,
        script: Array,
        waits: Array,
        temporary: int,
        shape: Shape,
        batch: Batch,
        rows: Array,
        programs: Sequence[str],
    ) -> None:
        self.script, self.waits, self.temporary = script, waits, temporary
        self.shape, self.batch, self.rows = shape, batch, rows
        self.parts, self.length = script.shape[:2]
        self.vertices = len(batch.edge_ptr) - 1
        self.edge_row = np.empty(len(batch.child_row), np.int64)  # of the parent of each edge
        for ptr in (batch.edge_ptr, batch.every_ptr):
            edge, owner = ranges(ptr[:-1], np.diff(ptr))
            self.edge_row[edge] = owner
        self.names = isa.segment_names(programs, shape.segment_ptr.tolist()) if programs else []
        self.op, self.program = script[:, :, isa.OP], script[:, :, isa.PROGRAM]
        self._operands()
        self.stage = shape.stage[self.program]
        self.entries = self._entries()
        self.clock = self._simulate()

    def run(self) -> None:
        """Check all that does not depend on the group."""
        self._coverage()
        self._tasks()
        self._stages()
        self._segments()
        self._children()
        self._parents()
        self._temporaries()

    def fail(self, part: int, at: int, got: str, expected: str) -> NoReturn:
        """Raise PlanError about one instruction."""
        line = isa.describe(isa.decode(self.script[part, at : at + 1])[0], self.names)
        where = f"processor {part}, instruction {at} ({line})"
        raise PlanError.at("script", f"{where}: {got}", expected, REPORT)

    def _wrong(self, wrong: Array) -> tuple[int, int] | None:
        """Return the first instruction for which something is wrong: [processors, instructions]."""
        found = np.argwhere(wrong)
        return (int(found[0, 0]), int(found[0, 1])) if len(found) else None

    def _operands(self) -> None:
        """Check every operand against its bounds."""
        columns = self.script.astype(np.int64)
        n, first, listed = (columns[:, :, k] for k in (isa.ROWS, isa.FIRST, isa.LISTED))
        ptr, last = self.shape.segment_ptr, int(self.shape.segment_ptr[-1])
        if at := self._wrong((self.op < 0) | (self.op >= last)):
            self.fail(*at, f"op {self.op[at]}", f"segments 0..{last - 1}")
        p = np.searchsorted(ptr, self.op, "right") - 1
        if at := self._wrong(self.program != p):
            got = f"a segment of task program {p[at]}"
            self.fail(*at, got, f"one of task program {self.program[at]}")
        if at := self._wrong(n < 0):
            self.fail(*at, f"{n[at]} rows", "0 or more")
        if at := self._wrong((first >= 0) & (first + n > self.vertices)):
            self.fail(*at, f"rows up to {(first + n)[at] - 1}", f"{self.vertices} rows")
        in_list = (first == isa.NONE) & (listed >= 0) & (listed <= len(self.rows) - n)
        if at := self._wrong((first < 0) & ~in_list):
            got = f"first row {first[at]}, entries {listed[at]}..{(listed + n)[at] - 1} of the list"
            self.fail(*at, got, f"{len(self.rows)} entries")
        lo = np.maximum(first, 0)
        first_edge = np.where(first < 0, columns[:, :, isa.FIRST_EDGE], self.batch.every_ptr[lo])
        edges = self.batch.every_ptr[np.where(first < 0, lo, lo + n)] - self.batch.every_ptr[lo]
        wrong = (columns[:, :, isa.EDGES] != edges) | (columns[:, :, isa.FIRST_EDGE] != first_edge)
        if at := self._wrong(wrong):
            got = f"{columns[:, :, isa.EDGES][at]} edges from {columns[:, :, isa.FIRST_EDGE][at]}"
            self.fail(*at, got, f"{edges[at]} from {first_edge[at]}, those of its rows")
        if at := self._wrong((self.waits < isa.NONE) | (self.waits >= self.length)):
            self.fail(*at, f"wait for instruction {self.waits[at]}", f"{self.length} instructions")

    def _entries(self) -> Entries:
        """List the rows of all instructions."""
        words = self.parts * self.length, self.script.shape[-1]
        flat = self.script.reshape(words).astype(np.int64)
        listed = flat[:, isa.FIRST] < 0
        begin = np.where(listed, flat[:, isa.LISTED], flat[:, isa.FIRST])
        row, owner = ranges(begin, flat[:, isa.ROWS])
        from_list = listed[owner]
        row[from_list] = self.rows[row[from_list]]
        part, at = owner // max(self.length, 1), owner % max(self.length, 1)
        outside = np.flatnonzero((row < 0) | (row >= self.vertices))
        if len(outside):
            k = outside[0]
            got = "a listed row out of bounds"
            self.fail(int(part[k]), int(at[k]), got, f"{self.vertices} rows")
        return Entries(part, at, flat[owner, isa.OP], row)

    def last(self, entries: Entries) -> Array:
        """Return the last instruction on each row: [processors, rows], -1 for none."""
        done = np.full((self.parts, self.vertices), -1, np.int64)
        np.maximum.at(done, (entries.part, entries.row), entries.at)
        return done

    def of_stage(self, stage: int) -> Entries:
        """Return the entries of a stage."""
        return self.entries.of(self.stage[self.entries.part, self.entries.at] == stage)

    def _coverage(self) -> None:
        """Check that tiles are what the launches ask for: each row once, or once a processor."""
        ptr = self.shape.segment_ptr
        wanted = np.zeros((int(ptr[-1]), self.vertices), np.int64)
        for p, n, lo, listed, _, _ in self.batch.table.tolist():
            rows = np.arange(lo, lo + n) if lo >= 0 else self.rows[listed : listed + n]
            for s in range(ptr[p], ptr[p + 1]):
                np.add.at(wanted[s], rows, 1)
        got = np.zeros((self.parts, *wanted.shape), np.int64)
        e = self.entries
        np.add.at(got, (e.part, e.op, e.row), 1)
        shared = np.asarray(self.shape.split) == BY_ROWS
        got[:, shared] = got[:, shared].sum(axis=0)
        wrong = np.argwhere(got != wanted)
        if len(wrong):
            part, s, row = (int(x) for x in wrong[0])
            count = int(got[part, s, row])
            part, at = self._nearest(s, row, None if shared[s] else part, last=count > 0)
            expected = f"{wanted[s, row]} of this segment"
            self.fail(part, at, f"row {row} is in {count} tiles", expected)
        for stage in PATH_STAGES:
            rows_of = wanted[ptr[:-1][self.shape.stage == stage]].sum(axis=0)
            if np.any(rows_of > 1):
                row = int(np.argmax(rows_of > 1))
                mine = self.of_stage(stage)
                k = int(np.flatnonzero(mine.row == row)[-1])
                got_text = f"row {row} is in {rows_of[row]} tiles of its stage"
                self.fail(int(mine.part[k]), int(mine.at[k]), got_text, "one")

    def _nearest(self, s: int, row: int, part: int | None, last: bool) -> tuple[int, int]:
        """Find the instruction of a segment that has a row, or comes next to it."""
        chosen = self.entries.op == s
        if part is not None:
            chosen &= self.entries.part == part
        mine = self.entries.of(chosen)
        if not len(mine.row):
            return part or 0, 0
        away = np.abs(mine.row - row)
        near = np.flatnonzero(away == away.min())
        k = near[-1 if last else 0]
        return int(mine.part[k]), int(mine.at[k])

    def _tasks(self) -> None:
        """Check that a tile of the path lies in one task of its program."""
        table = self.batch.table
        for part, at in np.argwhere(np.isin(self.stage, PATH_STAGES)).tolist():
            row = self.script[part, at]
            n, lo = int(row[isa.ROWS]), int(row[isa.FIRST])
            inside = (table[:, 2] <= lo) & (lo + n <= table[:, 2] + table[:, 1])
            if not np.any(inside & (table[:, 0] == row[isa.PROGRAM])):
                self.fail(part, at, f"rows {lo}..{lo + n - 1}", "rows of one task of its program")

    def _simulate(self) -> Array:
        """Run all scripts to their ends.

        Returns: [processors, instructions, processors] how many instructions of each are known to
            be done when one starts.
        """
        clock = np.zeros((self.parts, self.length, self.parts), np.int64)
        at = [0] * self.parts
        known = np.zeros((self.parts, self.parts), np.int64)
        waits = self.waits.tolist()
        moved = True
        while moved:
            moved = False
            for part in range(self.parts):
                while at[part] < self.length:
                    wait = waits[part][at[part]]
                    if wait != isa.NONE:
                        if min(at) <= wait:
                            break
                        # What each knew when it began that instruction, and that it is done.
                        np.maximum(known[part], clock[:, wait].max(axis=0), out=known[part])
                        np.maximum(known[part], wait + 1, out=known[part])
                    clock[part, at[part]] = known[part]
                    at[part] += 1
                    known[part, part] = at[part]
                    moved = True
        for part in range(self.parts):
            if at[part] < self.length:
                slowest = int(np.argmin(at))
                got = f"waits for ever: processor {slowest} stops at instruction {at[slowest]}"
                wait = waits[part][at[part]]
                self.fail(part, at[part], got, f"all processors to do instruction {wait}")
        return clock

    def _known(self, part: Array, at: Array, needed: Array, what: str) -> None:
        """Check that instructions are done when others start.

        Args:
            part, at: [n] those that start.
            needed: [processors, n] the last instruction of each processor, -1 for none.
        """
        late = np.argwhere(self.clock[part, at] <= needed.T)
        if len(late):
            k, other = (int(x) for x in late[0])
            got = f"runs before instruction {needed[other, k]} of processor {other} is done"
            self.fail(int(part[k]), int(at[k]), got, f"a wait for {what}")

    def _stages(self) -> None:
        """Check that a stage of a layer starts when all that come before it are done."""
        phase = self.shape.phase[self.program].reshape(-1) + 1
        last = np.full((self.parts, int(phase.max(initial=0)) + 1), -1, np.int64)
        part, at = (x.reshape(-1) for x in np.indices(self.stage.shape))
        np.maximum.at(last, (part, phase), at)
        before = np.maximum.accumulate(last, axis=1)
        self._known(part, at, before[:, phase - 1], "the stage before")

    def _segments(self) -> None:
        """Check that a segment starts when all parts of the segment before it are done."""
        for s in np.setdiff1d(self.entries.op, self.shape.segment_ptr).tolist():
            done = self.last(self.entries.of(self.entries.op == s - 1))
            mine = self.entries.of(self.entries.op == s)
            what = "the segment before, which it reads"
            self._known(mine.part, mine.at, done[:, mine.row], what)

    def _children(self) -> None:
        """Check that a tile that gathers starts when the states of all children are there."""
        mine = self.of_stage(PATH)
        done = self.last(mine)
        mine = mine.of(self.shape.gathers[self.program[mine.part, mine.at]])
        for ptr in (self.batch.edge_ptr, self.batch.every_ptr):
            first, end = ptr[mine.row], ptr[mine.row + 1]
            edge, owner = ranges(first, end - first)
            child = self.batch.child_row[edge]
            owner, child = owner[child >= 0], child[child >= 0]
            part, at = mine.part[owner], mine.at[owner]
            self._known(part, at, done[:, child], "the tiles of its children")

    def _parents(self) -> None:
        """Check that a processor has done the parents of a tile when it goes back through it.

        No processor waits for parents: each processor reads the units that it wrote.
        """
        mine = self.of_stage(PATH_BACKWARD)
        done, begun = self.last(mine), np.full((self.parts, self.vertices), self.length, np.int64)
        np.minimum.at(begun, (mine.part, mine.row), mine.at)
        child = self.batch.child_row
        parent, child = self.edge_row[child >= 0], child[child >= 0]
        late = np.argwhere(done[:, parent] >= begun[:, child])
        if len(late):
            part, k = (int(x) for x in late[0])
            got = f"runs before instruction {done[part, parent[k]]} of its processor"
            at = int(begun[part, child[k]])
            self.fail(part, at, got, "the tiles of its parents before it")

    def _temporaries(self) -> None:
        """Check that what a tile leaves for its next segment is still there when that runs."""
        for part in range(self.parts):
            # What tiles that are under way have left, by task program and first row: the first
            # element, and the one after the last.
            left: dict[tuple[int, int], tuple[int, int]] = {}
            for at, row in enumerate(self.script[part].tolist()):
                p, start = row[isa.PROGRAM], row[isa.TEMPORARY]
                end = start + int(temporaries(self.shape.scratch[p], row[isa.ROWS], row[isa.EDGES]))
                if not 0 <= start <= end <= self.temporary:
                    got = f"temporaries {start}..{end - 1}"
                    self.fail(part, at, got, f"{self.temporary} elements")
                if self.stage[part, at] not in PATH_STAGES:
                    continue
                tile, op, own = (p, row[isa.FIRST]), row[isa.OP], (start, end)
                before = left.pop(tile, own)
                if op > self.shape.segment_ptr[p] and before != own:
                    expected = f"{before[0]}, where the segment before left them"
                    self.fail(part, at, f"its temporaries start at {start}", expected)
                for other, (first, last) in left.items():
                    if start < last and first < end:
                        got = f"writes over temporaries of the tile at row {other[1]}"
                        self.fail(part, at, got, "tiles under way at once lie apart")
                if op < self.shape.segment_ptr[p + 1] - 1:
                    left[tile] = own


def verify_scripts(
    scripts: Scripts, shape: Shape, batch: Batch, rows: Array, programs: Sequence[str] = ()
) -> None:
    """Check the scripts of one group.

    Args:
        scripts, shape: as `assemble` returned and took them.
        batch: what they stand for.
        rows: execution rows of launches that are not contiguous.
        programs: names of the task programs, for messages.
    Raises: PlanError, which names processor and instruction.
    """
    waits = scripts.words[:, :, isa.WAIT]
    Verifier(scripts.words, waits, scripts.temporary, shape, batch, rows, programs).run()


def _wrong(got: str, expected: str) -> PlanError:
    return PlanError.at("script", got, expected, REPORT)


def verify_sums(tasks: Sequence[SegmentedTask]) -> None:
    """Check that one of several processors adds to each element of a gradient in a stage.

    A processor owns rows of a parameter, or of the stack of which it is a part, or else columns.
    Within a stage no processor waits between two sums, so all that add to a parameter must agree.

    Raises: PlanError, which names the parameter.
    """
    found: dict[tuple[Stage, str], tuple[str, str]] = {}  # the op, and what a processor owns
    for plan in tasks:
        nodes, stage = plan.task.program.nodes, plan.task.stage
        made_in = {k: segment.split for segment in plan.segments for k in segment.members}
        for node in nodes:
            if node.op != "param_grad" or node.inputs[0] not in made_in:
                continue
            op, name = nodes[node.inputs[0]].op, node["name"]
            owned = "columns" if op == "embed_grad" and name in plan.by_columns else "rows"
            if made_in[node.inputs[0]] != Split.SUMS:
                owned = ROWS_OF_TASK
            first_op, first = found.setdefault((stage, name), (op, owned))
            if first != owned or owned == ROWS_OF_TASK:
                raise _wrong(
                    f"stage {stage.name} adds to the gradient of {name!r} by {first_op} "
                    f"(processors own {first}) and by {op} ({owned})",
                    "one owner for each element",
                )
