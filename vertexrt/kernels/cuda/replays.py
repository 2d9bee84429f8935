"""Launches of batches whose layout comes again: one CUDA graph in place of a hundred launches.

A launch takes the host 2 to 6 us, so that steps of wide levels wait for the host. Batches of one
layout (`engine/layouts.py`) are uploaded to the same memory. Where the words of a run are those of
the run before, its launches differ in nothing, so they are captured once and replayed, and with
them the end of a step, as long as that is the same each time (a rate may fall). How many rows of a
table a batch looks up differs from batch to batch, so its lists are filled up to the most there may
be.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from vertexrt.engine.batched import Part, Run
from vertexrt.engine.layouts import BatchLayout
from vertexrt.graph.device_rows import DeviceRows
from vertexrt.kernels.cuda.executable import CudaExecutable
from vertexrt.kernels.cuda.session import Session
from vertexrt.kernels.cuda.upload import RecentUploads, UploadRoom

Array = np.ndarray[Any, Any]
Int64 = npt.NDArray[np.int64]

MOST_REPLAYS, MOST_BYTES = 64, 64 << 20  # of a session; bytes are of uploads
LEAST_KEPT = 4  # replays that there is room for
LEAST_STEPS, MOST_STEPS = 8, 1 << 12  # launches that are worth a graph, and that one may have


@dataclass(slots=True)
class Replay(UploadRoom):
    """Launches of a layout.

    Attributes:
        layout: known by it; fits: its launches may be a graph.
        words, end: of the run that was last.
        graph: of the launches, once words have come twice.
        holds_end: the graph has the end of a step; steady: until now that was always the same.
    """

    layout: BatchLayout
    fits: bool
    words: Int64 | None = None
    end: Sequence[bytes] = ()
    graph: Callable[[], None] | None = None
    holds_end: bool = False
    steady: bool = True

    def launch(
        self,
        session: Session,
        words: Int64,
        launch_rows: Callable[[], None],
        end: Sequence[bytes],
    ) -> None:
        """Launch a run and the end of a step, by a graph where there is one.

        Args:
            words: of the run; launch_rows: launches it; end: of `Session.launch_each`.
        """
        known = self.words is not None and np.array_equal(words, self.words)
        self.steady &= not known or end == self.end
        if not known or (self.holds_end and not self.steady):
            if self.graph is not None:  # which is rare: something has moved
                session.memory.synchronize()
            self.words, self.graph, self.holds_end = words.copy(), None, False
        elif self.graph is None and self.fits:
            with_end = end if self.steady else ()

            def ask() -> None:
                launch_rows()
                session.launch_each(with_end)

            self.graph, self.holds_end = session.device.capture(ask), self.steady
        self.end = end
        (self.graph or launch_rows)()
        if self.graph is None or not self.holds_end:
            session.launch_each(end)


class Replays(RecentUploads[Replay]):
    """The replays of a session that were used last."""

    def __init__(self, session: Session) -> None:
        super().__init__(session.device, MOST_REPLAYS, MOST_BYTES)
        self._session = session

    @property
    def graphs(self) -> int:
        """Count the graphs of all."""
        return sum([each.graph is not None for each, _ in self._held.values()])

    def replay(self, run: Run, part: Part) -> Replay | None:
        """Return where a run goes up to, and what launches it; None, if its layout is new."""
        size = _bytes_of(run) if run.layout.came_again else MOST_BYTES
        if size > MOST_BYTES // LEAST_KEPT:
            return None
        # An upload comes while the run before is under way, so each buffer has a place of its own.
        turn = self._session.buffers.turn
        key = id(run.layout), turn, part.launches.start, part.launches.stop
        found = self.find(key)
        if found is None:
            executable = cast("CudaExecutable", run.ready.executable)
            programs = executable.table_of(run)[part.launches, 0]
            fits = LEAST_STEPS <= np.diff(executable.program[0])[programs].sum() <= MOST_STEPS
            found = Replay(self._session.memory, run.layout, bool(fits))
            self.hold(key, found, size)
        return found


def _bytes_of(run: Run) -> int:
    """Return about how many bytes of a run go up."""
    own = [run.layout.indices, run.inputs.index, run.layout.weight, *run.inputs.floats]
    return sum([0 if isinstance(each, DeviceRows) else each.nbytes for each in own])
