"""Which elements of a device's arena are copied to the host after an evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from vertexrt.engine.batched import Run, start_of
from vertexrt.engine.outputs import CopiedRows, copied_rows

Array = np.ndarray[Any, Any]


class Fetch(NamedTuple):
    """The pushes of a run that are wanted on the host.

    Attributes:
        names: of the pushes; sizes: elements of a row of each.
        copied: their rows.
    """

    run: Run
    names: Sequence[str]
    sizes: Sequence[int]
    copied: CopiedRows

    @property
    def pieces(self) -> list[slice]:
        """Elements of the arena, push after push."""
        found = []
        for name, size in zip(self.names, self.sizes, strict=True):
            start = start_of(self.run, ("push", name))
            for rows in self.copied.slices:
                found.append(slice(start + rows.start * size, start + rows.stop * size))
        return found

    def outputs(self, values: Array) -> dict[str, Array]:
        """Return the pushes, given the elements of all pieces: copies."""
        count, at, found = sum(rows.stop - rows.start for rows in self.copied.slices), 0, {}
        for name, size in zip(self.names, self.sizes, strict=True):
            rows = values[at : at + count * size].reshape(count, size)
            shape = len(self.copied.at), *self.run.variant.push_shape(name)
            found[name] = rows.take(self.copied.at, axis=0).reshape(shape)
            at += count * size
        return found


def fetch_of(
    run: Run, names: Sequence[str], vertices: npt.NDArray[np.int64] | None = None
) -> Fetch:
    """Return what is copied for the pushes of some vertices, of all by default."""
    table = run.variant.table
    sizes = [table.specs[table.numbers["push", name]].size for name in names]
    if vertices is None:
        copied = CopiedRows([slice(0, run.num_rows)], run.row_of)
    else:
        copied = copied_rows(run.row_of[vertices])
    return Fetch(run, names, sizes, copied)
