"""Which elements of a device's arena are copied to the host after an evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from vertexrt.engine.batched import Run, copied_rows
from vertexrt.engine.variant import Variant

Array = np.ndarray[Any, Any]


class Pushed(NamedTuple):
    """A push of a variant: number of its tensor, elements of a row, and their shape."""

    number: int
    size: int
    shape: tuple[int, ...]


class Fetch(NamedTuple):
    """The pushes of a run that are wanted on the host.

    Attributes:
        pieces: elements of the arena, push after push.
        pushes: by name; rows: of all slices of one; at: the place of each wanted row among these.
    """

    pieces: list[slice]
    pushes: dict[str, Pushed]
    rows: int
    at: npt.NDArray[np.int64]

    def outputs(self, values: Array) -> dict[str, Array]:
        """Return the pushes, given the elements of all pieces: copies."""
        first, found = 0, {}
        for name, push in self.pushes.items():
            end = first + self.rows * push.size
            rows = values[first:end].reshape(self.rows, push.size)
            found[name] = rows.take(self.at, 0).reshape(len(self.at), *push.shape)
            first = end
        return found


NOTHING = Fetch([], {}, 0, np.zeros(0, np.int64))


def fetch_of(
    run: Run, names: Sequence[str], vertices: npt.NDArray[np.int64] | None = None
) -> Fetch:
    """Return what is copied for the pushes of some vertices, of all by default."""
    if not names:
        return NOTHING
    pushes = {name: _pushed(run.variant, name) for name in names}
    if vertices is None:
        slices, at, rows = [slice(0, run.num_rows)], run.row_of, run.num_rows
    else:
        slices, at = copied_rows(run.row_of[vertices])
        rows = sum([part.stop - part.start for part in slices])
    pieces = []
    for push in pushes.values():
        first, size = int(run.layout.plan.base[push.number]), push.size
        pieces += [slice(first + r.start * size, first + r.stop * size) for r in slices]
    return Fetch(pieces, pushes, rows, at)


def _pushed(variant: Variant, name: str) -> Pushed:
    table = variant.table
    number = table.numbers[variant.pushes.keys[name]]
    return Pushed(number, table.specs[number].size, variant.pushes.shapes[name])
