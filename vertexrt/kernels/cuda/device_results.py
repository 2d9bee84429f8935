"""Pushes of a run that leave the arena of a GPU: rows are copied by what is launched after it.

They go to arrays of the device, or to memory from where they are brought to the host at once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from vertexrt.engine.batched import Destination, RowCopies, Run
from vertexrt.engine.results import PushPlaces, PushRows
from vertexrt.kernels.cuda.session import Session

Array = np.ndarray[Any, Any]
Int64 = npt.NDArray[np.int64]


class LeftPushes(NamedTuple):
    """Where the pushes of a run go.

    Attributes:
        to: of `Part`; arrays: of the device, by name, that get them.
        shapes: by name, of those that are brought to the host; size: bytes of all.
    """

    to: Destination
    arrays: Mapping[str, Any]
    shapes: Mapping[str, tuple[int, ...]]
    size: int

    def read(self, results: Array, dtype: npt.DTypeLike) -> Mapping[str, Any]:
        """Return them, given the bytes of those of the host: copies."""
        if not self.shapes:
            return self.arrays
        found = views_of(results, self.shapes, dtype)
        return {name: values.copy() for name, values in found.items()}


NOTHING = LeftPushes(Destination(), {}, {}, 0)


def leave(
    session: Session, run: Run, names: Sequence[str], vertices: Int64 | None, stays: bool
) -> LeftPushes:
    """Say where pushes of some vertices go, of all by default.

    Args:
        stays: to new arrays of the device.
    """
    if not names:
        return NOTHING
    if not stays:
        session.take_arena(run)  # whose error says more
    shapes, rows, places = PushPlaces.of(run, [PushRows(name, vertices) for name in names])
    if stays:
        made = [session.device.empty(shape, session.dtype) for shape in shapes]
        copies = RowCopies(places, [at for _, at in made])
        to = Destination(copies=copies, rows=rows)
        return LeftPushes(to, {n: array for n, (array, _) in zip(names, made, strict=True)}, {}, 0)
    sizes = [math.prod(shape) * session.dtype.itemsize for shape in shapes]
    session.taken = session.memory.scratch(session.taken, sum(sizes))
    at = list(accumulate(sizes[:-1], initial=session.taken.address))
    to = Destination(copies=RowCopies(places, at), rows=rows)
    return LeftPushes(to, {}, dict(zip(names, shapes, strict=True)), sum(sizes))


def views_of(
    results: Array, shapes: Mapping[str, tuple[int, ...]], dtype: npt.DTypeLike
) -> dict[str, Array]:
    """Return the parts of bytes that arrays of some shapes fill, one after another."""
    found, first, numbers = {}, 0, results.view(dtype)
    for name, shape in shapes.items():
        end = first + math.prod(shape)
        found[name], first = numbers[first:end].reshape(shape), end
    return found
