"""What is to be done of a run: which of its launches, and what they are given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]


NO_ROWS = np.zeros(0, np.int32)


class RowPlace(NamedTuple):
    """Rows of a tensor in the arena of a device.

    Attributes:
        first: element of the arena where the tensor begins; size: elements of one of its rows.
        start, length: which part of `Destination.rows` lists the rows.
    """

    first: int
    size: int
    start: int
    length: int


class RowCopies(NamedTuple):
    """Copies of rows of several tensors.

    Attributes:
        places: where the rows are; the same object, where they are the same again.
        to: addresses of the copies, real [length, size] each; orders: addresses of int64 [length],
            which of the rows comes where, or 0 where they are in order.
    """

    places: tuple[RowPlace, ...]
    to: Sequence[int]
    orders: Sequence[int]


class ShareGradients(NamedTuple):
    """Where the gradients and the loss of a share of a step of several processes are packed.

    Attributes:
        words: `Packing` of update.cu, but for the losses, which the run knows; blocks: of its
            launch.
    """

    words: bytes
    blocks: int


class Destination(NamedTuple):
    """Memory of a device, by its addresses, where a pass leaves what its caller keeps.

    Attributes:
        gradients: of the parameters, real [trained], which need not be zero before; 0, where the
            executor's own array gets them.
        loss: real [1], the summed loss times its scale; 0, where it is not wanted.
        packed: of a share; None, where gradients are not packed.
        copies: of rows, after the launches; rows: int32, of all copies, and of `Part.seed_rows`.
    """

    gradients: int = 0
    loss: int = 0
    packed: ShareGradients | None = None
    copies: RowCopies = RowCopies((), (), ())
    rows: Array = NO_ROWS


class Part(NamedTuple):
    """Launches of a run that are to be done, and what they are given.

    Attributes:
        launches: rows of the table.
        loss_scale: factor of the loss, in its gradient.
        random_seed: 32 bits.
        seeds: gradients of pushes, as `Buffers` has them.
        seed_rows: of a device, of each seed the place in `Destination.rows` of a list, which of its
            rows each row has; -1 for that of its vertex; none, where that is so of all.
        to: of a device, where its caller has memory for what is found.
        reals: the real pulls, in the order of `Inputs.floats`, of a run without them (`Run.bare`);
            None, where it has its own.
    """

    launches: slice = slice(None)
    loss_scale: float = 1.0
    random_seed: int = 0
    seeds: tuple[Array, ...] = ()
    seed_rows: tuple[int, ...] = ()
    to: Destination = Destination()
    reals: tuple[Any, ...] | None = None
