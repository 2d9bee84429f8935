"""How a step ends on a device: with the loss, the norm of the gradients, and an update."""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct

import numpy as np
import numpy.typing as npt

from vertexrt.ir.updates import UpdateRule

Int64 = npt.NDArray[np.int64]

PIECE, SUMMERS, THREADS, PIECES_A_BLOCK = 1024, 1024, 256, 8  # of update.cu
MOST_SCALARS = 16  # of update.cuh
STORE, FINISH = Struct(f"11q{MOST_SCALARS}d"), Struct("6q2d")  # its structs
pack_store, pack_finish = STORE.pack, FINISH.pack
NO_SCALARS = (0.0,) * MOST_SCALARS
FOUND = 8  # `Record` of processor.cuh
LOSS, NORM, _, REFUSED, GAVE_UP, GAVE_UP_AT, GAVE_UP_INSTRUCTION, REACHED = range(FOUND)
NO_STARTS, NO_WIDTHS = np.zeros(0, np.int64), np.zeros(0, np.int32)


@dataclass(slots=True)
class StepEnd:
    """How a step ends.

    Attributes:
        loss_at: element of the arena where the losses start; rows: how many; weighted: they have
            weights; loss_scale: factor of their sum.
        rule, scalars: see `layout.StoreUpdate`; clip_norm: 0, where nothing is clipped.
        starts, widths: flat ranges of the rows of tables that have a gradient.
    """

    loss_at: int
    rows: int
    weighted: bool
    loss_scale: float
    rule: UpdateRule
    scalars: tuple[float, ...]
    clip_norm: float
    starts: Int64
    widths: npt.NDArray[np.int32]
