"""Uploads of runs that are kept: their indices and scripts stay on the device.

A launch of such a run only writes addresses: of the arena, of gradients, of what is pulled and
given. What a plan is given in place of its pulls goes up to where theirs are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vertexrt.engine.batched import Part, Run
from vertexrt.graph.device_rows import DeviceRows
from vertexrt.kernels.cuda.device import Allocation
from vertexrt.kernels.cuda.executable import Uploads
from vertexrt.kernels.cuda.pack import FIXED, SCALE, TEMPORARY
from vertexrt.kernels.cuda.session import Session
from vertexrt.kernels.cuda.upload import ReadyRun, RecentUploads, UploadSlot

Array = np.ndarray[Any, Any]

MOST_UPLOADS, MOST_BYTES = 256, 64 << 20  # on the device
PIECE = 1 << 18  # bytes that are on their way while the next ones are copied
PLANNED = "planned"  # under which name a kept run says that it is a plan's
SCALARS = np.dtype([("scale", np.float64), ("seed", np.int64)])  # as `pack` writes them


@dataclass(slots=True)
class KeptUpload:
    """Launches of a run that are ready in memory of their own.

    Attributes:
        kept: of the run, which is known by it.
        rows: of `Destination`, which went up as well; seed_rows: of `Part`.
        reals: of its real pulls and gradients of pushes those that kernels read: which, the word of
            each, and address and bytes of what went up; 0, where it is an array of the device.
        there: of these, arrays of the host that went up and are the same each time.
        changed: rows of `Inputs.index` that are others than what went up.
        arena, gradients: addresses that the words were written for; scalars: loss scale and seed.
    """

    ready: ReadyRun
    memory: Allocation
    kept: dict[object, Any]
    rows: Array
    seed_rows: tuple[int, ...]
    reals: list[tuple[int, int, int, int]]
    there: dict[int, Array]
    changed: set[int]
    arena: int
    gradients: int
    scalars: tuple[float, int]


class KeptUploads(RecentUploads[KeptUpload]):
    """The uploads of a session that were used last."""

    def __init__(self, session: Session) -> None:
        super().__init__(session.device, MOST_UPLOADS, MOST_BYTES)
        self._session = session

    def ready(self, run: Run, part: Part) -> ReadyRun | None:
        """Return launches of a kept run that are on the device, given new addresses."""
        key = id(run.kept), part.launches.start or 0
        found = self.find(key)
        if found is None or found.rows is not part.to.rows or found.seed_rows != part.seed_rows:
            return None
        reals, words, new = run.reals(part), found.ready.words, []
        for k, word, place, size in found.reals:
            rows = reals[k]
            if type(rows) is DeviceRows:
                words[word] = rows.address
                continue
            if rows.nbytes > size:
                return None
            words[word] = place
            if rows is not found.there.get(k):
                new.append((place, rows))
            if part.reals is not None:
                found.there[k] = rows
        numbers = _uploads_of(run).numbers
        new += [(int(words[numbers[f"int_{k}"]]), run.inputs.index[k]) for k in found.changed]
        scalars = part.loss_scale, part.random_seed
        if scalars != found.scalars:
            new.append((int(words[SCALE]), np.array([scalars], SCALARS)))
        self._write(found, run, part)
        found.ready.slot = self._upload(new) if new else None
        found.scalars = scalars
        found.changed.clear()
        return found.ready

    def change(self, run: Run, rows: Sequence[int]) -> None:
        """Note rows of `Inputs.index` of a kept run that are others now."""
        found = self.find((id(run.kept), 0))
        if found is not None:
            of, integers = _uploads_of(run), len(run.inputs.ints)
            numbers = [k for k in rows if k < integers]
            found.changed.update(k for k in numbers if of.wanted[of.numbers[f"int_{k}"]])

    def _upload(self, new: Sequence[tuple[int, Array]]) -> UploadSlot:
        """Copy arrays to addresses of the device; return what from."""
        session, at = self._session, 0
        slot, need = session.buffers.next(), sum([array.nbytes for _, array in new])
        slot.open = True
        if len(slot.pinned) < need:
            session.buffers.grow(slot, need)
        for to, array in new:
            given = array.reshape(-1).view(np.uint8)
            for first in range(0, len(given), PIECE):  # which goes up while the next is copied
                part = given[first : first + PIECE]
                piece = slot.pinned[at : at + len(part)]
                piece[:] = part
                session.device.upload(to + first, piece)
                at += len(part)
        return slot

    def _write(self, found: KeptUpload, run: Run, part: Part) -> None:
        """Write where the arena and gradients of a launch are."""
        session, words = self._session, found.ready.words
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

    def take(self, run: Run, part: Part, ready: ReadyRun) -> None:
        """Give what was just uploaded memory of its own, where there is some."""
        key, slot, session = (id(run.kept), part.launches.start or 0), ready.slot, self._session
        assert slot is not None, "it was just uploaded"
        assert run.kept is not None, run
        of, size, reals = _uploads_of(run), slot.used, run.reals(part)
        if part.launches.stop == run.layout.forward_launches:  # which reads none
            reals = run.reals(part._replace(d_pushes=()))
        read = [(k, w) for k, w in enumerate(of.real_words[: len(reals)]) if of.wanted[w]]
        lent = {k for k, _ in read if isinstance(reals[k], DeviceRows)}
        # Those that are given with a part are the same arrays each time, and small; others come
        # once, but for those of a plan.
        once = part.reals is None and PLANNED not in run.kept
        if size > MOST_BYTES or (once and len(lent) < len(read)):
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
        kept = [
            (k, word, *((0, -1) if k in lent else (int(ready.words[word]), reals[k].nbytes)))
            for k, word in read
        ]
        there = {} if part.reals is None else {k: reals[k] for k, _ in read if k not in lent}
        found = kept, there, set[int](), *places, scalars
        made = KeptUpload(ready, memory, run.kept, part.to.rows, part.seed_rows, *found)
        self.hold(key, made, size)

    def forget(self, kept: int) -> None:
        """Let the upload of a plan go; kept: identity of that of its run."""
        _, size = self._held.pop((kept, 0), (None, 0))
        self._size -= size


def _uploads_of(run: Run) -> Uploads:
    executable: Any = run.ready.executable or run.ready.processors
    found: Uploads = executable
    return found
