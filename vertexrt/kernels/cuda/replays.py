"""Launches of batches whose layout comes again: one CUDA graph in place of a hundred launches.

A launch takes the host 2 to 6 us, so that steps of wide levels wait for the host. Batches of one
layout (`engine/layouts.py`) are uploaded to the same memory. Where the words of a run are those of
the run before, its launches differ in nothing, so they are captured once and replayed. What sums
over what a batch looked up is asked for as before: its grid depends on the batch.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from vertexrt.engine.batched import Run
from vertexrt.engine.layouts import BatchLayout
from vertexrt.engine.part import Part
from vertexrt.graph.device_rows import DeviceRows
from vertexrt.kernels.cuda.driver import launch
from vertexrt.kernels.cuda.executable import CudaExecutable
from vertexrt.kernels.cuda.pack import FIRST_SEGMENT, SEGMENT_WORDS
from vertexrt.kernels.cuda.session import Session
from vertexrt.kernels.cuda.upload import UploadRoom
from vertexrt.native.compiled import compiled

Array = np.ndarray[Any, Any]
Int64 = npt.NDArray[np.int64]

MOST_REPLAYS, MOST_BYTES = 64, 64 << 20  # of a session; bytes are of uploads
LEAST_KEPT, LATELY = 4, 4  # replays that there is room for; times `most` that one is not asked for
LEAST_STEPS, MOST_STEPS = 8, 1 << 12  # launches that are worth a graph, and that one may have


@dataclass(slots=True)
class Replay(UploadRoom):
    """Launches of a layout.

    Attributes:
        layout: known by it; pieces: of its launches, see `pieces_of`.
        asked: when it was last, of all that were asked for.
        words: of the run that was last; graphs: what launches rows of the table, by the first of
            them and the one after the last; nothing, until words have come twice.
    """

    layout: BatchLayout
    pieces: list[tuple[int, int, bool]]
    asked: int = 0
    words: Int64 | None = None
    graphs: dict[tuple[int, int], Callable[[], None]] = field(default_factory=dict)

    def launch(
        self,
        session: Session,
        words: Int64,
        launch_rows: Callable[[int, int], None],
    ) -> None:
        """Launch a run, by graphs as far as there are some.

        Args:
            words: of the run; launch_rows: launches rows of its table.
        """
        again = self.words is not None and are_same(words, self.words)
        if not again:
            self.words = words.copy()
            if self.graphs:  # something has moved, which is rare
                session.memory.synchronize()
                self.graphs.clear()
        for begin, end, fits in self.pieces:
            graph = None
            if again and fits:
                graph = self._graph(session, launch_rows, (begin, end))
            if graph is None:
                launch_rows(begin, end)
            else:
                graph()

    def _graph(
        self, session: Session, launch_rows: Callable[[int, int], None], rows: tuple[int, int]
    ) -> Callable[[], None] | None:
        """Return what launches rows of the table; None, if it cannot be captured."""
        graph = self.graphs.get(rows)
        if graph is None:
            graph = session.device.capture(lambda: launch_rows(*rows))
            if graph is not None:
                self.graphs[rows] = graph
        return graph


@compiled
def are_same(words: Array, before: Array) -> bool:
    """Tell whether words of a run are those of another, but for what it looked up."""
    same = True
    for k in range(len(words)):
        same &= (words[k] == before[k]) | (FIRST_SEGMENT <= k < FIRST_SEGMENT + SEGMENT_WORDS)
    return same


def pieces_of(executable: CudaExecutable, table: Int64) -> list[tuple[int, int, bool]]:
    """Divide a table where rows look something up.

    Returns: the first row of each piece, the one after the last, and whether it fits in a graph.
        Nothing of an empty table: a pass may have nothing to launch.
    """
    if not len(table):
        return []
    lookups = np.diff(executable.lookups_ptr)[table[:, 0]] > 0
    steps = np.diff(executable.program[0])[table[:, 0]]
    cuts = np.flatnonzero(lookups[1:] != lookups[:-1]) + 1
    bounds = [0, *cuts.tolist(), len(table)]
    found = []
    for begin, end in pairwise(bounds):
        fits = not lookups[begin] and LEAST_STEPS <= steps[begin:end].sum() <= MOST_STEPS
        found.append((begin, end, bool(fits)))
    return found


class Replays:
    """The replays of a session that were used last.

    Attributes:
        most: how many are kept.
    """

    def __init__(self, session: Session) -> None:
        self._session, self.most = session, MOST_REPLAYS
        self._replays: OrderedDict[tuple[int, int, object, object], Replay] = OrderedDict()
        self._leaving: deque[tuple[Any, Replay]] = deque()  # with what comes after their use
        self._asked = 0

    def __len__(self) -> int:
        return len(self._replays)

    @property
    def graphs(self) -> int:
        """Count the graphs of all."""
        return sum([len(each.graphs) for each in self._replays.values()])

    def find(self, run: Run, part: Part) -> Replay | None:
        """Return where a run goes up to, and what launches it; None, if its layout is new."""
        if not run.layout.came_again:
            return None
        # An upload comes while the run before is under way, so each buffer has a place of its own.
        turn = self._session.buffers.turn
        key = id(run.layout), turn, part.launches.start, part.launches.stop
        self._asked += 1
        found = self._replays.get(key)
        if found is None:
            if not self._has_room(_bytes_of(run)):
                return None
            executable = cast("CudaExecutable", run.ready.executable)
            pieces = pieces_of(executable, executable.table_of(run)[part.launches])
            found = self._replays[key] = Replay(self._session.memory, run.layout, pieces)
        found.asked = self._asked
        self._replays.move_to_end(key)
        return found

    def _has_room(self, size: int) -> bool:
        """Tell whether there is room for one more, letting go of those not asked for of late.

        Where more come in turn than there is room for, those that are there stay.

        Args:
            size: bytes that it takes, about.
        """
        if size > MOST_BYTES // LEAST_KEPT:
            return False
        held = size + sum([each.memory.size for each in self._replays.values()])
        while self._replays and (len(self._replays) >= self.most or held > MOST_BYTES):
            oldest = next(iter(self._replays.values()))
            if self._asked - oldest.asked < LATELY * self.most:
                return False
            held -= oldest.memory.size
            self._let_go()
        while self._leaving and self._session.device.has_come(self._leaving[0][0]):
            self._leaving.popleft()
        return True

    def _let_go(self) -> None:
        """Let the oldest go; it is freed when nothing reads it any more."""
        _, gone = self._replays.popitem(last=False)
        self._leaving.append((self._session.device.record(), gone))


def _bytes_of(run: Run) -> int:
    """Return about how many bytes of a run go up."""
    own = [run.indices, run.inputs.index, run.weight, *run.inputs.floats]
    return sum([0 if isinstance(each, DeviceRows) else each.nbytes for each in own])


def rows_by_launch(
    session: Session, run: Run, table: Int64, words: Int64, lookups: tuple[Any, ...]
) -> Callable[[int, int], None]:
    """Return what launches some rows of a table by `driver.launch`.

    Args:
        lookups: lookup_ptr and lookup_at of that.
    """
    executable = cast("CudaExecutable", run.ready.executable)

    def launch_rows(begin: int, end: int) -> None:
        calls = session.calls_of(session.device.calls)
        given = lookups[0][begin:], lookups[1]
        code, row, step = launch(table[begin:end], executable.program, words, given, calls)
        session.device.check(code, begin + row, step)

    return launch_rows
