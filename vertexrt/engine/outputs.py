"""What runs have pushed, in the user's vertex order: of all vertices, or of chosen ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from vertexrt.engine.batched import Run, read_rows

Array = np.ndarray[Any, Any]
MOST_SLICES = 16  # of rows that are copied apart; more copies would take longer than more rows


class RowsOfRun(NamedTuple):
    """Which rows of a run are wanted.

    Attributes:
        to: int64, which of the results they are; None for all, in order.
        rows: of the run, in that order.
    """

    to: Array | None
    rows: Array


class ChosenRows(NamedTuple):
    """Where the results of vertices lie.

    Attributes:
        length: of results; parts: of each run.
    """

    length: int
    parts: tuple[RowsOfRun, ...]


def chosen_rows(runs: Sequence[Run], vertices: Array | None = None) -> ChosenRows:
    """Find the rows of some of the user's vertices, in that order; of all by default."""
    if len(runs) == 1:
        rows = runs[0].row_of if vertices is None else runs[0].row_of[vertices]
        return ChosenRows(len(rows), (RowsOfRun(None, rows),))
    if vertices is None:
        parts = tuple(RowsOfRun(run.share.vertices, run.row_of) for run in runs)
        return ChosenRows(sum(len(part.rows) for part in parts), parts)
    return ChosenRows(len(vertices), tuple(_of_share(run, vertices) for run in runs))


def _of_share(run: Run, vertices: Array) -> RowsOfRun:
    """Find those of some vertices that a share of the batch has."""
    own = run.share.vertices
    number = np.minimum(np.searchsorted(own, vertices), len(own) - 1)
    to = np.flatnonzero(own[number] == vertices)
    return RowsOfRun(to, run.row_of[number[to]])


def outputs_of(
    runs: Sequence[Run], arenas: Sequence[Array], name: str, chosen: ChosenRows
) -> Array:
    """Return a push of chosen vertices: [n, *shape], a copy."""
    pushes = runs[0].variant.pushes
    key, shape = pushes.keys[name], pushes.shapes[name]
    parts = [
        read_rows(run, data, key).take(part.rows, axis=0)
        for run, data, part in zip(runs, arenas, chosen.parts, strict=True)
    ]
    if len(parts) == 1:
        return parts[0].reshape(chosen.length, *shape)
    whole = np.empty((chosen.length, *shape), parts[0].dtype)
    for found, part in zip(parts, chosen.parts, strict=True):
        whole[part.to] = found.reshape(len(found), *shape)
    return whole


def pushed_by(
    runs: Sequence[Run], arenas: Sequence[Array], names: Sequence[str], vertices: Array | None
) -> dict[str, Array]:
    """Return pushes by name, of chosen vertices; of all by default."""
    if not names:
        return {}
    chosen = chosen_rows(runs, vertices)
    return {name: outputs_of(runs, arenas, name, chosen) for name in names}


class CopiedRows(NamedTuple):
    """Slices of a run's rows that have all rows that are wanted.

    Attributes:
        slices: rising, without overlap.
        at: int64, the place of each wanted row among those of all slices.
    """

    slices: list[slice]
    at: npt.NDArray[np.int64]


def copied_rows(rows: Array) -> CopiedRows:
    """Cover rows by a few slices: neighbours are one; where there are too many, one has all."""
    if not len(rows):
        return CopiedRows([], np.zeros(0, np.int64))
    each = np.unique(rows).astype(np.int64)
    ends = np.flatnonzero(np.diff(each) > 1)
    if len(ends) >= MOST_SLICES:
        first = int(each[0])
        return CopiedRows([slice(first, int(each[-1]) + 1)], rows.astype(np.int64) - first)
    begin, end = np.append(each[0], each[ends + 1]), np.append(each[ends], each[-1]) + 1
    at = np.searchsorted(each, rows)
    return CopiedRows([slice(int(a), int(b)) for a, b in zip(begin, end, strict=True)], at)
