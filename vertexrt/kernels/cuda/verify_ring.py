"""Verify which rows of the ring the groups' scripts read and write (`kernels/cuda/ring_script.py`).

It is played through epoch by epoch, from the scripts alone: a row that an instruction reads has to
have been put there in an earlier epoch, and nothing else may be put there in the same one,
since processors of a group go through an epoch at different speeds. What is read from memory needs
a wait for all after its writing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from vertexrt.kernels.cuda.instruction import (
    EXPECT,
    FAR,
    FOR_ALL,
    FOR_RING,
    HAS_OPERAND,
    IS_PUT,
    IS_SENT,
    SLOT,
    USES,
)
from vertexrt.kernels.cuda.persistent_launch import WrittenScripts
from vertexrt.kernels.cuda.ring_script import EVERYBODY, GATHERS, NEEDS_ALL, OPERAND, PUTS, SENDS
from vertexrt.kernels.cuda.verify_rounds import refuse
from vertexrt.script.isa import EDGES, FIRST, FIRST_EDGE, NONE, OP, ROWS, WAIT

if TYPE_CHECKING:
    from vertexrt.kernels.cuda.persistent import PersistentExecutable

Array = np.ndarray[Any, Any]
BEFORE = -1  # the epoch of what was written before this side of the path


def verify_ring(
    executable: PersistentExecutable, written: WrittenScripts, child_row: Array
) -> None:
    """Check the scripts of all groups.

    Args:
        child_row: of the schedule.
    Raises: PlanError, which names the instruction.
    """
    if not len(written.child_slot):
        for k in range(written.common, len(written.script)):
            row = written.script[k]
            if row[WAIT] == FOR_RING or row[USES] or row[FAR]:
                refuse(row, k, "reads or writes rows of a ring", "none: no group has one")
        return
    for side, ends in enumerate(written.sections.tolist()):
        for begin, end in pairwise(ends):
            _Play(executable, written, child_row, side, begin, end).run()


class _Play:
    """One group's script of one side of the path."""

    def __init__(
        self,
        executable: PersistentExecutable,
        written: WrittenScripts,
        child_row: Array,
        side: int,
        begin: int,
        end: int,
    ) -> None:
        self.facts = executable.facts
        self.script, self.child_slot = written.script, written.child_slot
        self.child_row = child_row
        self.rows, self.far = self.facts.rings[side].tolist()
        self.alone = executable.processors == 1
        self.holds: dict[int, int] = {}  # slot -> row, when an epoch begins
        self.wrote: dict[int, int] = {}  # row -> the last epoch that wrote to it
        self.visible = 0  # the epoch that began with the last wait for all
        self.epochs: list[list[int]] = []
        for k in range(begin, end):
            if not self.epochs or self.alone or self.script[k, WAIT] != NONE:
                self.epochs.append([])
            self.epochs[-1].append(k)

    def run(self) -> None:
        """Play all epochs."""
        before: list[int] = []
        for e, epoch in enumerate(self.epochs):
            first, visible = self.script[epoch[0]], self.visible
            self._begin(epoch[0], before)
            if first[WAIT] == FOR_ALL:
                self.visible = e
            puts: dict[int, int] = {}
            for k in epoch:
                self._puts(k, puts)
            for k in epoch:
                waits = k == epoch[0] and first[WAIT] != NONE
                self._reads(k, e, puts, visible if waits else self.visible)
            for k in epoch:
                self._writes(k, e)
            self.holds |= puts
            before = epoch

    def _begin(self, at: int, before: Sequence[int]) -> None:
        """Check what the first instruction of an epoch waits for, given the epoch before."""
        first, script = self.script[at], self.script[before]
        sends = self.facts.segments[script[:, OP], SENDS] * script[:, ROWS]
        sent = int(sends[script[:, USES] & IS_SENT != 0].sum())
        if first[WAIT] != NONE and not self.alone and first[EXPECT] != sent:
            refuse(first, at, f"waits for {first[EXPECT]} elements", f"the {sent} that are sent")
        if first[WAIT] == FOR_RING and not self._all_send(script[-1] if len(script) else None):
            expected = "an instruction before it in which all send"
            refuse(first, at, "waits for rows of the ring", expected)

    def _writes(self, k: int, epoch: int) -> None:
        """Note the rows that an instruction writes to memory."""
        row = self.script[k]
        mine = range(row[FIRST], row[FIRST] + row[ROWS])
        self.wrote.update(dict.fromkeys(mine, epoch))
        if self.facts.segments[row[OP], PUTS] and not row[USES] & IS_PUT:  # only in memory
            self.holds = {s: r for s, r in self.holds.items() if r not in mine}

    def _all_send(self, row: Array | None) -> bool:
        """Tell whether every processor sends something in an instruction."""
        if row is None or not row[USES] & IS_SENT:
            return False
        return bool(self.facts.segments[row[OP], EVERYBODY])

    def _puts(self, k: int, puts: dict[int, int]) -> None:
        row = self.script[k]
        about = self.facts.segments[row[OP]]
        if not row[USES] & IS_PUT:
            return
        if not about[PUTS] or bool(row[USES] & IS_SENT) != (about[SENDS] > 0 and not self.alone):
            refuse(row, k, f"uses {row[USES]}", "what its segment puts there, and to send it")
        for i in range(row[ROWS]):
            slot, r = int(row[SLOT]) + i, int(row[FIRST]) + i
            if not 0 <= slot < self.rows or puts.get(slot, r) != r:
                refuse(row, k, f"puts row {r} in slot {slot}", "a slot that no other row is put to")
            puts[slot] = r

    def _reads(self, k: int, epoch: int, puts: dict[int, int], copied_from: int) -> None:
        row = self.script[k]
        about = self.facts.segments[row[OP]]
        if about[NEEDS_ALL] and not self.alone and self.visible != epoch:
            refuse(row, k, "does not wait for all", "a wait: it reads what the ring does not have")
        if about[OPERAND]:
            for i in range(row[ROWS]):
                r = int(row[FIRST]) + i
                if row[USES] & HAS_OPERAND:
                    self._near(k, int(row[SLOT]) + i, r, puts)
                else:
                    self._in_memory(k, r, self.visible)
        places = self._gathers(k, puts, copied_from) if about[GATHERS] else ()
        if len(places) != row[FAR]:
            refuse(row, k, f"copies {row[FAR]} rows", f"{len(places)}")

    def _gathers(self, k: int, puts: dict[int, int], copied_from: int) -> Collection[int]:
        """Check the children that an instruction reads; return the slots to which it copies."""
        row, places = self.script[k], set[int]()
        for at in range(row[FIRST_EDGE], row[FIRST_EDGE] + row[EDGES]):
            child, slot = int(self.child_row[at]), int(self.child_slot[at])
            if slot >= self.rows:
                if slot in places or slot >= self.rows + self.far or child < 0:
                    refuse(row, k, f"copies row {child} to slot {slot}", "a slot of its own")
                places.add(slot)
                self._in_memory(k, child, copied_from)
            elif slot >= 0:
                self._near(k, slot, child, puts)
            elif child >= 0:
                self._in_memory(k, child, self.visible)
        return places

    def _near(self, k: int, slot: int, r: int, puts: dict[int, int]) -> None:
        """Check that a row is in a slot, and stays there."""
        if self.holds.get(slot) != r or puts.get(slot, r) != r:
            got = f"reads row {r} in slot {slot}"
            holds = self.holds.get(slot), puts.get(slot)
            refuse(self.script[k], k, got, f"row {holds[0]}, then {holds[1]}, to be there")

    def _in_memory(self, k: int, r: int, visible: int) -> None:
        """Check that what was written of a row is there for all."""
        if not self.alone and self.wrote.get(r, BEFORE) >= visible:
            got = f"reads row {r}, of epoch {self.wrote[r]}, from memory"
            refuse(self.script[k], k, got, "a wait for all after its writing")
