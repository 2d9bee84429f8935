"""Uploads of runs that are kept: their indices and scripts stay on the device.

A launch of such a run only writes addresses: of the arena, of gradients, of pulls and seeds.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np

from vertexrt.engine.batched import Part, Run
from vertexrt.engine.layouts import Recent
from vertexrt.graph.device_rows import DeviceRows
from vertexrt.kernels.cuda.device import Allocation
from vertexrt.kernels.cuda.pack import FIXED, SCALE
from vertexrt.kernels.cuda.session import TEMPORARY, Session
from vertexrt.kernels.cuda.upload import ReadyRun

Array = np.ndarray[Any, Any]

MOST_UPLOADS, MOST_BYTES = 256, 64 << 20  # on the device
SCALARS = np.dtype([("scale", np.float64), ("seed", np.int64)])  # as `pack` writes them


@dataclass(slots=True)
class KeptUpload:
    """Launches of a run that are ready in memory of their own.

    Attributes:
        kept: of the run, which is known by it.
        rows: of `Destination`, which went up as well; seed_rows: of `Part`.
        reals: of its real pulls and seeds those that kernels read: which, the word of each, and
            None where they are rows of the device; else the array of the host that went up.
        arena, gradients: addresses that the words were written for; scalars: loss scale and seed.
    """

    ready: ReadyRun
    memory: Allocation
    kept: dict[object, Any]
    rows: Array
    seed_rows: tuple[int, ...]
    reals: list[tuple[int, int, Array | None]]
    arena: int
    gradients: int
    scalars: tuple[float, int]


class KeptUploads(Recent[KeptUpload]):
    """The uploads of a session that were used last."""

    def __init__(self, session: Session) -> None:
        super().__init__(MOST_UPLOADS, MOST_BYTES)
        self._session = session
        self._leaving: deque[tuple[Any, KeptUpload]] = deque()  # with what comes after their use

    def ready(self, run: Run, part: Part) -> ReadyRun | None:
        """Return launches of a kept run that are on the device, given new addresses."""
        key = id(run.kept), part.launches.start or 0
        found = self.find(key)
        if found is None or found.rows is not part.to.rows or found.seed_rows != part.seed_rows:
            return None
        reals = run.reals(part)
        words = found.ready.words
        for k, word, own in found.reals:
            rows = reals[k]
            if own is None and type(rows) is DeviceRows:
                words[word] = rows.address
            elif rows is not own:
                return None
        self._write(found, run, part)
        return found.ready

    def _write(self, found: KeptUpload, run: Run, part: Part) -> None:
        """Write where the arena and gradients of a launch are, and its scalars, if they differ."""
        session, words = self._session, found.ready.words
        found.ready.slot = None
        first, count = FIXED + len(run.layout.plan.base), len(session.param_at)
        arena = session.arena.address
        if arena != found.arena:
            words[FIXED:first] += arena - found.arena
            if run.ready.executable is not None:  # those of a persistent kernel lie elsewhere
                words[TEMPORARY] += arena - found.arena
            found.arena = arena
        gradients = part.to.gradients or session.gradients.address
        if gradients != found.gradients:
            words[first + count : first + 2 * count] += gradients - found.gradients
            found.gradients = gradients
        scalars = part.loss_scale, part.random_seed
        if scalars != found.scalars:
            slot = found.ready.slot = session.buffers.next()
            slot.open = True
            if len(slot.pinned) < SCALARS.itemsize:
                session.buffers.grow(slot, SCALARS.itemsize)
            piece = slot.pinned[: SCALARS.itemsize]
            piece.view(SCALARS)[0] = scalars
            session.device.upload(int(words[SCALE]), piece)
            found.scalars = scalars

    def take(self, run: Run, part: Part, ready: ReadyRun) -> None:
        """Give what was just uploaded memory of its own, where there is some."""
        key, slot, session = (id(run.kept), part.launches.start or 0), ready.slot, self._session
        assert slot is not None, "it was just uploaded"
        size, reals = slot.used, _reals(run, part)
        if reals is None:
            return
        session.device.follow_caller()  # its work may still read the memory that is taken now
        try:
            memory = session.device.allocate(size)
        except MemoryError:
            return
        session.device.upload(memory.address, slot.pinned[:size])
        start = slot.memory.address
        for addresses in (ready.job, ready.addresses):
            inside = (addresses >= start) & (addresses < start + size)
            addresses[inside] += memory.address - start
        places = session.arena.address, part.to.gradients or session.gradients.address
        scalars = part.loss_scale, part.random_seed
        assert run.kept is not None, run
        made = KeptUpload(
            ready, memory, run.kept, part.to.rows, part.seed_rows, reals, *places, scalars
        )
        for gone in self.keep(key, made, size):  # freed when launches that read it are done
            self._leaving.append((session.device.record(), gone))
        while self._leaving and session.device.has_come(self._leaving[0][0]):
            self._leaving.popleft()

    def clear(self) -> None:
        """Forget all, when nothing runs."""
        super().clear()
        self._leaving.clear()


def _reals(run: Run, part: Part) -> list[tuple[int, int, Array | None]] | None:
    """Return `KeptUpload.reals`; None, where one of these is not on the device.

    Those that are given with a part are the same arrays each time, and small; others come once.
    Launches of the way forward read no seeds.
    """
    executable: Any = run.ready.executable or run.ready.processors
    forward = part.launches.stop == run.layout.forward_launches
    reals = run.reals(part._replace(seeds=()) if forward else part)
    found = []
    for k, (word, rows) in enumerate(zip(executable.real_words, reals, strict=False)):
        if executable.wanted[word]:
            lent = isinstance(rows, DeviceRows)
            if not lent and part.reals is None:
                return None
            found.append((k, word, None if lent else rows))
    return found
