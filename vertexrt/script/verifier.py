"""What is found out about the scripts of a group, check by check.

The processors are simulated with vector clocks: before each instruction it is known how many
instructions of every other processor are certainly done. Every order that a value needs is checked
against these clocks, so a missing wait is found however the processors happen to run.
"""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

from vertexrt.errors import PlanError, message
from vertexrt.ir.passes.segment import Split
from vertexrt.ir.program import Stage
from vertexrt.script.assemble import PAD, Scripts, Shape
from vertexrt.script.isa import (
    EDGES,
    FIRST,
    FIRST_EDGE,
    LISTED,
    NONE,
    PROGRAM,
    ROWS,
    SEGMENT,
    SIGNAL,
    TEMPORARY,
    THRESHOLD,
    WAIT,
    decode,
    describe,
)

Array = np.ndarray[Any, Any]

PATH, PATH_BACKWARD = int(Stage.PATH), int(Stage.PATH_BACKWARD)
PATH_STAGES = (PATH, PATH_BACKWARD)
BY_ROWS = int(Split.ROWS)
REPORT = "report this as a bug; engine='batched' goes on"


class Verifier:
    """The scripts of a group, and what was found out about them so far.

    Args:
        rows: execution rows of launches that are not contiguous.
        names: of the task programs, for messages.
        who: in front of messages.
    """

    def __init__(
        self,
        scripts: Scripts,
        shape: Shape,
        edge_ptr: Array,
        child_row: Array,
        rows: Array,
        names: list[str] | None,
        who: str = "",
    ) -> None:
        self.who = who
        self.scripts, self.words, self.counters = scripts, scripts.words, scripts.counters
        self.shape, self.edge_ptr, self.child_row = shape, edge_ptr, child_row
        self.rows, self.names = rows, names
        self.parts, self.length = self.words.shape[:2]
        self.vertices = len(edge_ptr) - 1
        self.stage = np.zeros((self.parts, self.length), np.int64)
        self.clock = np.zeros((self.parts, self.length, self.parts), np.int64)

    def fail(self, part: int, at: int, got: str, expected: str) -> NoReturn:
        """Raise PlanError about one instruction."""
        line = describe(decode(self.words[part, at : at + 1])[0], self.names)
        raise PlanError(
            message(
                "script",
                f"{self.who}processor {part}, instruction {at} ({line}): {got}",
                expected,
                REPORT,
            )
        )

    def tile(self, part: int, at: int) -> Array:
        """Return the rows of an instruction."""
        w = self.words[part, at]
        if w[FIRST] >= 0:
            return np.arange(w[FIRST], w[FIRST] + w[ROWS])
        return np.asarray(self.rows[w[LISTED] : w[LISTED] + w[ROWS]])

    def operands(self) -> None:
        """Check every operand against its bounds."""
        programs = len(self.shape.stage)
        for part in range(self.parts):
            for at in range(self.length):
                w = self.words[part, at]
                p, n, lo = int(w[PROGRAM]), int(w[ROWS]), int(w[FIRST])
                if not 0 <= p < programs:
                    self.fail(part, at, f"task program {p}", f"0..{programs - 1}")
                segments = int(self.shape.segment_ptr[p + 1] - self.shape.segment_ptr[p])
                if not 0 <= w[SEGMENT] < segments:
                    self.fail(part, at, f"segment {w[SEGMENT]}", f"0..{segments - 1}")
                if n < 0:
                    self.fail(part, at, f"{n} rows", "0 or more")
                edges, first_edge = 0, int(w[FIRST_EDGE])
                if lo >= 0:
                    if lo + n > self.vertices:
                        self.fail(part, at, f"rows up to {lo + n - 1}", f"{self.vertices} rows")
                    first_edge = int(self.edge_ptr[lo])
                    edges = int(self.edge_ptr[lo + n]) - first_edge
                elif lo != NONE or not 0 <= w[LISTED] <= len(self.rows) - n:
                    got = f"first row {lo}, entries {w[LISTED]}..{w[LISTED] + n - 1} of the list"
                    self.fail(part, at, got, f"{len(self.rows)} entries")
                elif n and not 0 <= self.tile(part, at).min() <= self.tile(part, at).max() < (
                    self.vertices
                ):
                    self.fail(part, at, "a listed row out of bounds", f"{self.vertices} rows")
                if w[EDGES] != edges or w[FIRST_EDGE] != first_edge:
                    got = f"{w[EDGES]} edges from {w[FIRST_EDGE]}"
                    self.fail(part, at, got, f"{edges} from {first_edge}, those of its rows")
                for name, c in (("wait for", w[WAIT]), ("signal of", w[SIGNAL])):
                    if c != NONE and not 0 <= c < self.counters:
                        self.fail(part, at, f"{name} counter {c}", f"{self.counters} counters")
                self.stage[part, at] = self.shape.stage[p]

    def coverage(self, table: Array) -> None:
        """Check that tiles are what the launches ask for: each row once, or once a processor."""
        total = int(self.shape.segment_ptr[-1])
        wanted = np.zeros((total, self.vertices), np.int64)
        for p, n, lo, listed, _, _ in table.tolist():
            rows = np.arange(lo, lo + n) if lo >= 0 else self.rows[listed : listed + n]
            for s in range(self.shape.segment_ptr[p], self.shape.segment_ptr[p + 1]):
                np.add.at(wanted[s], rows, 1)
        got = np.zeros((self.parts, total, self.vertices), np.int64)
        for part in range(self.parts):
            for at in range(self.length):
                np.add.at(got[part, self._segment(part, at)], self.tile(part, at), 1)
        shared = np.asarray(self.shape.split) == BY_ROWS
        got[:, shared] = got[:, shared].sum(axis=0)
        wrong = np.argwhere(got != wanted)
        if len(wrong):
            part, s, row = (int(x) for x in wrong[0])
            count = int(got[part, s, row])
            part, at = self._nearest(s, row, None if shared[s] else part, last=count > 0)
            self.fail(
                part, at, f"row {row} is in {count} tiles", f"{wanted[s, row]} of this segment"
            )
        first = self.shape.segment_ptr[:-1]
        for stage in PATH_STAGES:
            rows_of = wanted[first[self.shape.stage == stage]].sum(axis=0)
            if np.any(rows_of > 1):
                row = int(np.argmax(rows_of > 1))
                for part, at in np.argwhere(self.stage == stage).tolist()[::-1]:
                    if row in self.tile(part, at):
                        got_text = f"row {row} is in {rows_of[row]} tiles of its stage"
                        self.fail(part, at, got_text, "one")

    def tasks(self, table: Array) -> None:
        """Check that a tile of the path lies in one task of its program."""
        for part, at in np.argwhere(np.isin(self.stage, PATH_STAGES)).tolist():
            p, n, lo = (int(self.words[part, at, k]) for k in (PROGRAM, ROWS, FIRST))
            inside = (table[:, 2] <= lo) & (lo + n <= table[:, 2] + table[:, 1])
            if not np.any(inside & (table[:, 0] == p)):
                self.fail(part, at, f"rows {lo}..{lo + n - 1}", "rows of one task of its program")

    def _segment(self, part: int, at: int) -> int:
        w = self.words[part, at]
        return int(self.shape.segment_ptr[w[PROGRAM]] + w[SEGMENT])

    def _nearest(self, s: int, row: int, part: int | None, last: bool) -> tuple[int, int]:
        """Find the instruction of a segment that has a row, or comes next to it."""
        best, where = 2 * self.vertices, (part or 0, 0)
        for r in range(self.parts) if part is None else [part]:
            for at in range(self.length):
                rows = self.tile(r, at)
                if self._segment(r, at) == s and len(rows):
                    away = int(np.abs(rows - row).min())
                    if away < best or (last and away == best):
                        best, where = away, (r, at)
        return where

    def signals(self) -> None:
        """Check counters: one signal of every processor, and thresholds that count them all."""
        count = np.zeros((self.parts, self.counters), np.int64)
        for part in range(self.parts):
            for at in range(self.length):
                c = self.words[part, at, SIGNAL]
                if c == NONE:
                    continue
                count[part, c] += 1
                if count[part, c] > 1:
                    self.fail(part, at, f"signals counter {c} again", "one signal a processor")
        for part in range(self.parts):
            for at in range(self.length):
                c, threshold = self.words[part, at, WAIT], self.words[part, at, THRESHOLD]
                if c == NONE:
                    continue
                silent = np.flatnonzero(count[:, c] == 0)
                if len(silent):
                    got = f"processor {silent[0]} never signals counter {c}"
                    self.fail(part, at, got, "one signal of each processor")
                if threshold != self.parts:
                    got = f"threshold {threshold}"
                    self.fail(part, at, got, f"the {self.parts} producers of counter {c}")

    def simulate(self) -> None:
        """Run waits and signals until all scripts are done, and note what each wait tells."""
        at = [0] * self.parts
        known = np.zeros((self.parts, self.parts), np.int64)
        reached = np.zeros(self.counters, np.int64)
        told = np.zeros((self.counters, self.parts), np.int64)
        moved = True
        while moved:
            moved = False
            for part in range(self.parts):
                while at[part] < self.length:
                    w = self.words[part, at[part]]
                    if w[WAIT] != NONE:
                        if reached[w[WAIT]] < w[THRESHOLD]:
                            break
                        np.maximum(known[part], told[w[WAIT]], out=known[part])
                    self.clock[part, at[part]] = known[part]
                    at[part] += 1
                    known[part, part] = at[part]
                    if w[SIGNAL] != NONE:
                        reached[w[SIGNAL]] += 1
                        np.maximum(told[w[SIGNAL]], known[part], out=told[w[SIGNAL]])
                    moved = True
        for part in range(self.parts):
            if at[part] < self.length:
                w = self.words[part, at[part]]
                got = f"waits for ever: counter {w[WAIT]} stops at {reached[w[WAIT]]}"
                self.fail(part, at[part], got, f"{w[THRESHOLD]}, signalled by who does not wait")

    def _known(self, part: int, at: int, needed: Array, what: str) -> None:
        """Check that instructions are done when another starts.

        Args:
            needed: [processors] the last instruction of each, -1 for none.
        """
        late = np.flatnonzero(needed >= self.clock[part, at])
        if len(late):
            other = int(late[0])
            got = f"runs before instruction {needed[other]} of processor {other} is done"
            self.fail(part, at, got, f"a wait for {what}")

    def stages(self) -> None:
        """Check that a stage starts when all earlier stages are done."""
        last = np.full((self.parts, int(max(Stage)) + 1), -1, np.int64)
        for part in range(self.parts):
            for at in range(self.length):
                last[part, self.stage[part, at]] = at
        before = np.maximum.accumulate(last, axis=1)
        for part in range(self.parts):
            for at in range(self.length):
                self._known(part, at, before[:, self.stage[part, at] - 1], "the stage before")

    def segments(self) -> None:
        """Check that a segment starts when all parts of the segment before it are done."""
        for s in np.flatnonzero(np.bincount(self._later_segments())):
            done = np.full((self.parts, self.vertices), -1, np.int64)
            for part in range(self.parts):
                for at in range(self.length):
                    if self._segment(part, at) == s - 1:
                        done[part, self.tile(part, at)] = at
            for part in range(self.parts):
                for at in range(self.length):
                    rows = self.tile(part, at)
                    if self._segment(part, at) == s and len(rows):
                        needed = done[:, rows].max(axis=1)
                        self._known(part, at, needed, "the segment before, which it reads")

    def _later_segments(self) -> Array:
        """List the numbers of all segments that another of the same tile precedes."""
        later = self.words[:, :, SEGMENT] > 0
        numbers = self.shape.segment_ptr[self.words[:, :, PROGRAM]] + self.words[:, :, SEGMENT]
        return np.asarray(numbers[later])

    def children(self) -> None:
        """Check that a tile that gathers starts when the states of all children are there."""
        done = np.full((self.parts, self.vertices), -1, np.int64)
        path = self.stage == int(Stage.PATH)
        for part, at in np.argwhere(path).tolist():
            done[part, self.tile(part, at)] = at
        for part, at in np.argwhere(path).tolist():
            w = self.words[part, at]
            if not self.shape.gathers[w[PROGRAM]]:
                continue
            children = self.child_row[w[FIRST_EDGE] : w[FIRST_EDGE] + w[EDGES]]
            children = children[children >= 0]
            if len(children):
                self._known(part, at, done[:, children].max(axis=1), "the tiles of its children")

    def parents(self) -> None:
        """Check that a processor has done the parents of a tile when it goes back through it.

        Nobody waits for parents: each processor reads the units that it wrote.
        """
        back = self.stage == PATH_BACKWARD
        edge_row = np.repeat(np.arange(self.vertices), np.diff(self.edge_ptr))
        done = np.full((self.parts, self.vertices), -1, np.int64)
        for part, at in np.argwhere(back).tolist():
            done[part, self.tile(part, at)] = at
        for part, at in np.argwhere(back).tolist():
            parents = edge_row[np.isin(self.child_row, self.tile(part, at))]
            late = done[part, parents].max(initial=-1)
            if late >= at:
                got = f"runs before instruction {late} of its processor"
                self.fail(part, at, got, "the tiles of its parents before it")

    def temporaries(self) -> None:
        """Check that what a tile leaves for its next segment is still there when that runs."""
        for part in range(self.parts):
            open_tiles: dict[tuple[int, int], tuple[int, int]] = {}  # program, first row: extent
            for at in range(self.length):
                w = self.words[part, at]
                p, start = int(w[PROGRAM]), int(w[TEMPORARY])
                by_row, by_edge, once = self.shape.scratch[p]
                end = start + once
                end += by_row * (-(-w[ROWS] // PAD) * PAD) + by_edge * (-(-w[EDGES] // PAD) * PAD)
                if not 0 <= start <= end <= self.scripts.temporary:
                    got = f"temporaries {start}..{end - 1}"
                    self.fail(part, at, got, f"{self.scripts.temporary} elements")
                if self.stage[part, at] not in PATH_STAGES:
                    continue
                tile = (p, int(w[FIRST]))
                left = open_tiles.pop(tile, (start, end))
                if w[SEGMENT] and left != (start, end):
                    got = f"its temporaries start at {start}"
                    self.fail(part, at, got, f"{left[0]}, where the segment before left them")
                for other, (first, stop) in open_tiles.items():
                    if start < stop and first < end:
                        got = f"writes over temporaries of the tile at row {other[1]}"
                        self.fail(part, at, got, "tiles under way at once lie apart")
                if w[SEGMENT] < self.shape.segment_ptr[p + 1] - self.shape.segment_ptr[p] - 1:
                    open_tiles[tile] = (start, end)
