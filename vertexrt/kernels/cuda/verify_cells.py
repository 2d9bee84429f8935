"""Verify the scripts of cells before a launch: what lies in which place is followed word by word.

Each group's script is executed on places that hold numbers of rows in place of states. What must
hold: every row of the group on the side runs once, after its children (back, after its parents);
what it reads of a place is its child's, or what its parent left for it; nothing is sent to a place
that another processor may still read; and what is taken from memory is there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vertexrt.engine.batched import Run
from vertexrt.errors import PlanError
from vertexrt.kernels.cuda.cell_script import (
    BACK,
    END,
    IS_CELL,
    LAYER,
    LEAVE,
    LEVEL,
    MEET,
    NEXT,
    PIECE,
    READS_ABOVE,
    TAKE,
)
from vertexrt.kernels.cuda.persistent_launch import WrittenScripts
from vertexrt.kernels.cuda.verify_rounds import verify_rounds
from vertexrt.scheduler.schedule import Schedule
from vertexrt.script.groups import bounds_of

Array = np.ndarray[Any, Any]


@dataclass(slots=True)
class Row:
    """What a level does on a row: pairs of rows (or edges) and places.

    `above` is the edge to its parent in a layer above, -1 for none.
    """

    row: int
    place: int
    edge: int
    children: list[tuple[int, int]]
    parents: list[tuple[int, int]]
    above: int


@dataclass(slots=True)
class Level:
    """A level, one for each time that it is repeated."""

    cell: int
    sent: int
    rows: list[Row]


@dataclass(slots=True)
class Moved:
    """An instruction that fills places: with which rows, or edges."""

    op: int
    pairs: list[tuple[int, int]] = field(default_factory=list)


def verify_cells(
    table: Array, schedule: Schedule, graph_ptr: Array, written: WrittenScripts
) -> None:
    """Check the scripts of all groups on all sides that run cells.

    Raises: PlanError, which names side, group and level.
    """
    facts, words = written.executable.cells, written.cells.reshape(-1, 4)
    groups = written.groups
    bounds = bounds_of(graph_ptr, groups)
    for s in range(len(facts.sides)):
        if not facts.sides[s, IS_CELL]:
            continue
        back, reads_above = bool(facts.sides[s, BACK]), bool(facts.sides[s, READS_ABOVE])
        above, layer = 1 << 62, facts.sides[s, LAYER]
        if layer >= 0 and len(schedule.above_edge):
            above = int(schedule.above_edge[layer])
        programs = np.flatnonzero(facts.side_of == s)
        masks = {int(facts.cell_of[p]): int(facts.chip_of[p]) for p in programs}
        for g in range(groups):
            begin, first = written.cell_sections.reshape(-1, groups, 2)[s, g].tolist()
            wanted: dict[int, int] = {}
            for p, n, row in table[:, :3].tolist():
                if facts.side_of[p] == s:
                    mine = (r for r in range(row, row + n))
                    inside = (r for r in mine if bounds[g] <= schedule.order[r] < bounds[g + 1])
                    wanted |= dict.fromkeys(inside, int(facts.cell_of[p]))
            script = list(decode_cells(words[begin:], first, back, masks, reads_above))
            name = f"side {s}, group {g}"
            _Group(schedule, wanted, back, above, masks, reads_above, name).run(script)


def decode_cells(
    words: Array, first: int, back: bool, masks: dict[int, int], reads_above: bool = False
) -> Iterator[Level | Moved]:
    """Yield what a script says, with each repetition as a level of its own.

    Args:
        masks: `chip_of` of each cell; reads_above: rows have pairs of their parents above.
    """
    piece, end, at = 0, first, 0
    while True:
        x, y, z, _ = words[piece + at].tolist()
        op, size = x & 0xFF, 1
        if at >= end or end > PIECE:
            raise PlanError.at("cells", f"word {at} of a piece of {end}", "an end", "report this")
        if op == END:
            return
        if op == NEXT:
            piece, end, at = y, z, 0
            continue
        if op == LEVEL:
            size = y >> 16
            level = words[piece + at : piece + at + size]
            yield from _levels(level, x >> 8, back, masks[x >> 8], reads_above)
        elif op in (TAKE, LEAVE):
            size = 1 + (y + 1) // 2
            pairs = words[piece + at + 1 : piece + at + size].reshape(-1, 2)[:y].tolist()
            yield Moved(op, [(row, place) for row, place in pairs])
        else:
            yield Moved(op)
        at += size


def _levels(words: Array, cell: int, back: bool, mask: int, reads_above: bool) -> Iterator[Level]:
    _, counts, times, stride = words[0].tolist()
    children_on, edges_on, _, above_on = words[1].tolist()
    count, sent = counts & 0xFF, counts >> 8 & 0xFF
    pairs = [(row, place) for row, place in words[2 + count :].reshape(-1, 2).tolist()]
    for t in range(times):
        rows = []
        for row, place, edge, lists in words[2 : 2 + count].tolist():
            first, n, parents = lists & 0xFFFF, lists >> 16 & 0xFF, lists >> 24
            at = place if back else 0
            own = [(c + t * children_on if c >= 0 else c, p) for c, p in pairs[first : first + n]]
            above = [(e, p) for e, p in pairs[at : at + parents]] if back else []
            place, highest = 0 if back else place, -1
            if reads_above:
                edge_above = pairs[at + parents][0]
                highest = edge_above + t * above_on if edge_above >= 0 else -1
            if t:
                chain = next(n for n in range(len(own)) if mask >> n & 1)
                child, other = own[chain]
                # By which the repetition before has left something.
                left = edge + chain + (t - 1) * edges_on
                if t % 2:
                    own[chain] = child, above[0][1] if back else place
                    above = [(left, other) for _ in above]
                    place = 0 if back else other
                above = [(left, p) for _, p in above]
            rows.append(Row(row + t * stride, place, edge + t * edges_on, own, above, highest))
        yield Level(cell, sent, rows)


@dataclass(slots=True)
class _Group:
    """Follows the script of a group.

    Attributes:
        wanted: the cell of each row that it must run.
        above: the first edge whose parent is of a layer above; masks, reads_above: of
            `decode_cells`.
        at: which instruction it follows.
        holds: of each place the row, or edge; read: places that were read since all have met.
        stored: rows of this side that all can read in memory.
    """

    s: Schedule
    wanted: dict[int, int]
    back: bool
    above: int
    masks: dict[int, int]
    reads_above: bool
    at: str
    holds: dict[int, int] = field(default_factory=dict)
    read: set[int] = field(default_factory=set)
    done: set[int] = field(default_factory=set)
    stored: set[int] = field(default_factory=set)

    def run(self, script: list[Level | Moved]) -> None:
        """Follow it."""
        name = self.at
        for n, x in enumerate(script):
            self.at = f"{name}, instruction {n}"
            if isinstance(x, Level):
                self._level(x)
            elif x.op == MEET:
                self.stored |= self.done
                self.read.clear()
            else:
                for what, place in x.pairs:
                    late = x.op == TAKE and what in self.wanted and what not in self.stored
                    self._check(not late, f"row {what} is taken before all have stored it")
                    self.holds[place] = what
        left = sorted(self.wanted.keys() - self.done)
        self._check(not left, f"rows {left[:5]} do not run")

    def _level(self, level: Level) -> None:
        s = self.s
        for k, x in enumerate(level.rows):
            cell = self.wanted.get(x.row)
            self._check(cell == level.cell, f"row {x.row} runs cell {level.cell}, not {cell}")
            self._check(x.row not in self.done, f"row {x.row} runs again")
            first, end = int(s.edge_ptr[x.row]), int(s.edge_ptr[x.row + 1])
            self._check(x.edge == first, f"edges of row {x.row} from {x.edge} on, not {first}")
            children = s.child_row[first:end].tolist()
            missing = [-1] * (len(x.children) - len(children))
            found = [child for child, _ in x.children]
            self._check(found == children + missing, f"children {found} of row {x.row}")
            if self.back:
                a, b = s.parent_ptr[x.row], s.parent_ptr[x.row + 1]
                above = [e for e, _ in x.parents]
                edges = s.parent_edge[a:b].tolist()
                own = [e for e in edges if e < self.above]
                self._check(above == own, f"parents' edges {above}")
                higher = [e for e in edges if e >= self.above and self.reads_above]
                self._check([x.above] == (higher or [-1]), f"edge {x.above} from a layer above")
            mask = self.masks[level.cell]
            inside = [y for n, y in enumerate(x.children) if mask < 0 or mask >> n & 1]
            for what, place in x.parents if self.back else inside:
                if what < 0:
                    self._check(place == 0, f"an absent child of row {x.row} in place {place}")
                    continue
                held = self.holds.get(place) if place or not self._is_zero(what) else what
                self._check(held == what, f"row {x.row} reads {what}, place {place} has {held}")
                self.read.add(place)
            self._check(not k < level.sent or x.place > 0, f"row {x.row} is sent to no place")
        if self.back:
            for x in level.rows:
                for slot, (_, place) in enumerate(x.children):
                    if place > 0:
                        self.holds[place] = x.edge + slot
        sent = level.rows[: level.sent]
        for x in sent:
            self._check(x.place not in self.read, f"place {x.place} is sent to and may be read")
        if sent:  # all meet
            self.read.clear()
        for x in sent:
            self.holds[x.place] = x.row
        self.done |= {x.row for x in level.rows}

    def _is_zero(self, edge: int) -> bool:
        """Tell whether an edge is one that its parent does not read: of a slot, or beside slots."""
        if edge >= self.s.edge_ptr[-1]:  # of a relation whose children are counted, no more
            return self.back
        parent = int(np.searchsorted(self.s.edge_ptr, edge, "right")) - 1
        mask = self.masks.get(self.wanted.get(parent, -1), -1)
        return self.back and mask >= 0 and not mask >> edge - int(self.s.edge_ptr[parent]) & 1

    def _check(self, holds: bool, got: str) -> None:
        if not holds:
            wanted = "rows in order, each in its place"
            raise PlanError.at("cells", f"{self.at}: {got}", wanted, "report this as a bug")


def verify_launch(run: Run, table: Array, written: WrittenScripts) -> None:
    """Check all scripts of a launch before it, as they go up to the device.

    Args:
        table: the launches that the scripts stand for.
    Raises: PlanError, which names group or launch, and the instruction.
    """
    executable = written.executable
    tasks = [each.task for each in executable.writer.tasks]
    verify_rounds(run, table, tasks, executable.facts, written)
    verify_cells(table, run.layout.schedule, run.share.batch.graph_ptr, written)
