"""How a step ends on a device: with the loss, the norm of the gradients, and an update."""

from __future__ import annotations

import math
from dataclasses import dataclass
from struct import Struct

import numpy as np
import numpy.typing as npt

from vertexrt.engine.finite import largest_gradient, reach_of
from vertexrt.engine.update import NOTHING, Update
from vertexrt.ir.updates import UpdateRule

Int64 = npt.NDArray[np.int64]
Float = npt.NDArray[np.float64] | npt.NDArray[np.float32]

PIECE, SUMMERS, THREADS, PIECES_A_BLOCK = 1024, 1024, 256, 8  # of update.cu
MOST_SCALARS = 16  # of update.cuh
STORE, FINISH = Struct(f"11q{MOST_SCALARS + 1}d"), Struct("6q2d")  # its structs
pack_store, pack_finish = STORE.pack, FINISH.pack
NO_SCALARS = (0.0,) * MOST_SCALARS
FOUND = 9  # `Record` of processor.cuh
TRIED, LOSS, NORM, _, REFUSED, GAVE_UP, GAVE_UP_AT, GAVE_UP_INSTRUCTION, REACHED = range(FOUND)
NO_STARTS, NO_WIDTHS = np.zeros(0, np.int64), np.zeros(0, np.int32)


@dataclass(slots=True)
class StepEnd:
    """How a step ends.

    Attributes:
        loss_at: element of the arena where the losses start; rows: how many.
        rule, scalars: see `layout.StoreUpdate`; clip_norm: 0, where nothing is clipped.
        limit: up to which size of gradients no trial is needed; `NOTHING`, where all are tried.
        starts, widths: flat ranges of the rows of tables that have a gradient.
    """

    loss_at: int
    rows: int
    rule: UpdateRule
    scalars: tuple[float, ...]
    clip_norm: float
    limit: float
    starts: Int64
    widths: npt.NDArray[np.int32]


class Reach:
    """A bound of each row of an optimizer's state on a device, see `engine.finite`.

    The device knows by itself what a gradient beyond the limit has made of the state.
    """

    def __init__(self, itemsize: int) -> None:
        self._itemsize = itemsize
        self._bounds: tuple[float, ...] = ()

    def measure(self, moments: Float) -> None:
        """Look at a state that goes to the device."""
        self._bounds = tuple(float(np.abs(row).max(initial=0.0)) for row in moments)

    def limit(self, update: Update) -> float:
        """Return up to which size of gradients an update needs no trial; `NOTHING`, if it does."""
        held = reach_of(update.rule, update.options, update.decay, update.shrink, self._itemsize)
        limit = largest_gradient(self._itemsize)
        if not len(update.moments):
            return NOTHING if held is None else limit
        if held is None or any(now > most for now, most in zip(self._bounds, held, strict=True)):
            self._bounds = (math.inf,) * len(update.moments)
            return NOTHING
        self._bounds = held
        return limit
