"""Copies of rows of tensors to memory of a caller, several in one launch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from vertexrt.engine.batched import RowPlace
from vertexrt.kernels.cuda.session import Session
from vertexrt.kernels.cuda.step_end import THREADS

MOST_TAKEN, WORDS = 4, 6  # tensors of a launch, and words of one: `TakenRows` of update.cu
TO = 0  # which of these is known when it is launched
NO_ROWS = (0,) * (MOST_TAKEN * WORDS)


class TakenRows:
    """Launches that copy rows; all but addresses of a caller is written once.

    Args:
        places: of the rows; real: bytes of a number.
        arena: its address; rows: that of the lists of rows.
    """

    def __init__(self, places: tuple[RowPlace, ...], real: int, arena: int, rows: int) -> None:
        self.places, self.arena = places, arena
        self._launches: list[tuple[npt.NDArray[np.int64], int]] = []
        for k in range(0, len(places), MOST_TAKEN):
            words: list[int] = []
            blocks = 0
            for first, size, start, length in places[k : k + MOST_TAKEN]:
                count = length * size
                words += (0, arena + first * real, rows + 4 * start, count, size, blocks)
                blocks += -(-count // THREADS)
            words += NO_ROWS[len(words) :]
            self._launches.append((np.array(words, np.int64), blocks))

    def launch(self, session: Session, to: Sequence[int]) -> None:
        """Launch them; to: of `RowCopies`."""
        for k, (words, blocks) in enumerate(self._launches):
            own = slice(k * MOST_TAKEN, (k + 1) * MOST_TAKEN)
            end = WORDS * len(to[own])
            words[TO:end:WORDS] = to[own]
            session.launch_words("take_rows_kernel", [blocks], THREADS, words)
