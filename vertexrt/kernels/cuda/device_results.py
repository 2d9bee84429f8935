"""Pushes of a run that leave the arena of a GPU: rows are copied by what is launched after it.

They go to arrays of the device, or to memory from where they are brought to the host at once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from vertexrt.engine.batched import Destination, Run
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

    def read(self, results: Array, dtype: npt.DTypeLike, given: bool = False) -> Mapping[str, Any]:
        """Return them, given the bytes of those of the host: a copy, unless these are given."""
        if not self.shapes:
            return self.arrays
        whole = (results if given else results[: self.size].copy()).view(dtype)
        found, first = {}, 0
        for name, shape in self.shapes.items():
            end = first + math.prod(shape)
            found[name], first = whole[first:end].reshape(shape), end
        return found


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
    wanted, real = [PushRows(name, vertices) for name in names], session.dtype.itemsize
    if stays:
        shapes, rows, places = PushPlaces.of(run, wanted)
        made = [session.device.empty(shape, session.dtype) for shape in shapes]
        to = Destination(0, 0, None, places, [at for _, at in made], rows)
        return LeftPushes(to, {n: array for n, (array, _) in zip(names, made, strict=True)}, {}, 0)

    def find() -> LeftPushes:
        shapes, rows, places = PushPlaces.of(run, wanted)
        starts, size = [], 0
        for shape in shapes:
            starts.append(size)
            size += math.prod(shape) * real
        taken = session.taken = session.memory.grown(session.taken, size)
        to = Destination(0, 0, None, places, [taken.address + at for at in starts], rows)
        return LeftPushes(to, {}, dict(zip(names, shapes, strict=True)), size)

    session.take_arena(run)  # whose error says more
    found = run.once(("left", *names), (vertices, session.taken), find)
    session.memory.scratch(session.taken, found.size)
    return found
