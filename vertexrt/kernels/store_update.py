"""The update that ends a step: what is asked of a backend, and how a store is cut for it.

    pieces    int64 [P, 2] first element of row 0 and elements a row
    spans     int64 [P, groups, 2] which entries of `listed` are the piece's rows: in column 0 all
              that were touched, in column k those that group k touched
    listed    int64 row numbers
    copies    [groups, total] gradients of each group; those of all are added up in copies[0]

Sums go over the groups and over the pieces in order, so that results repeat bit for bit.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from vertexrt.ir.numpy_arithmetic import evaluate_arrays
from vertexrt.ir.updates import UpdateRule
from vertexrt.native.compiled import compiled

Array = np.ndarray[Any, Any]
FloatArray = npt.NDArray[np.floating[Any]]
RowArray = npt.NDArray[np.int64]

LANES = 64  # partial sums of a loss or a norm; 32 or fewer are not vectorised (10 GB/s against 28)

Counts = tuple[Array, Array, Array]  # of updates, of versions of the values, of random draws

FOUND_NORM, FOUND_TRIED, FOUND_DONE = range(3)  # of `StoreUpdate.found`


class StoreUpdate(NamedTuple):
    """The update that ends a step.

    Attributes:
        rule: what is computed; scalars: float64 [groups, *], of each group of parameters the weight
            decay that is added to gradients, the factor of values, and those of the rule.
        parts: int64 [groups + 1], the first piece of each group, and how many pieces there are.
        clip_norm: largest norm of the gradients, or 0 for any.
        limit: of `engine.update.limit_of`.
        values: [total]; gradients: [trained]; moments: [*, trained], the state in the order of the
            rule. Frozen parameters come last in `values`.
        pieces, spans, listed: how the store is cut, see the module.
        counts: int64 [1] each, which are one more when the parameters have changed, in one call.
        found: [3] float64, the norm where it is bounded, whether a piece had to be tried, and
            whether the parameters have changed: they have, unless the norm or what the update would
            write is not finite.
    """

    rule: UpdateRule
    scalars: Array
    parts: Array
    clip_norm: float
    limit: float
    values: Array
    gradients: Array
    moments: Array
    pieces: Array
    spans: Array
    listed: Array
    counts: Counts
    found: Array


@compiled
def cut_pieces(
    most: int, dense: int, tables: Any, entries: Any, listed: Any
) -> tuple[RowArray, RowArray]:
    """Cut the dense part of a store and rows of tables into pieces of at most `most` elements.

    Args:
        tables: [T, 2] first element and elements a row; entries: [T, groups, 2] which entries of
            `listed` are touched rows of a table, in column 0 all, else the group's.
    Returns: pieces and spans. The row of a piece of the dense part is the first entry, 0.
    """
    count, groups = -(-dense // most), entries.shape[1]
    for t in range(len(tables)):
        count += -(-(entries[t, 0, 1] - entries[t, 0, 0]) // _rows_of(tables[t, 1], most))
    pieces = np.empty((count, 2), np.int64)
    spans = np.zeros((count, groups, 2), np.int64)
    p = _cut_dense(most, dense, pieces, spans)
    for t in range(len(tables)):
        before, step = p, _rows_of(tables[t, 1], most)
        for first in range(entries[t, 0, 0], entries[t, 0, 1], step):
            end = min(first + step, entries[t, 0, 1])
            pieces[p, 0], pieces[p, 1] = tables[t, 0], tables[t, 1]
            spans[p, 0, 0], spans[p, 0, 1] = first, end
            for k in range(1, groups):  # rows are sorted: go on after the last piece
                at = spans[p - 1, k, 1] if p > before else entries[t, k, 0]
                spans[p, k, 0] = at
                while at < entries[t, k, 1] and listed[at] <= listed[end - 1]:
                    at += 1
                spans[p, k, 1] = at
            p += 1
    return pieces, spans


def _cut_dense(most: int, dense: int, pieces: Any, spans: Any) -> int:
    """Write the pieces of the dense part, and return how many there are."""
    p = 0
    for start in range(0, dense, most):
        pieces[p, 0], pieces[p, 1] = start, min(most, dense - start)
        for k in range(spans.shape[1]):
            spans[p, k, 1] = 1
        p += 1
    return p


def _rows_of(width: int, most: int) -> int:
    """Return how many rows of so many elements make a piece of at most `most`."""
    return max(1, most // width)


@compiled
def sum_loss(losses: Any, weight: Any) -> float:
    """Sum the losses of all rows in float64, as often as each counts, in a fixed order.

    Args:
        weight: [rows], or empty where each row counts once.
    """
    partial = np.zeros(LANES)
    for block in range(0, len(losses), LANES):
        x = losses[block : block + LANES]
        if len(weight):
            w = weight[block : block + LANES]
            for j in range(len(x)):
                partial[j] += np.float64(x[j]) * np.float64(w[j])
        else:
            for j in range(len(x)):
                partial[j] += np.float64(x[j])
    total = 0.0
    for j in range(LANES):
        total += partial[j]
    return total


@compiled
def add_up(copies: Any, pieces: Any, spans: Any, listed: Any) -> None:
    """Add the gradients of the other groups to the first one's, in their order, and clear them."""
    for p in range(len(pieces)):
        start, width = pieces[p]
        for k in range(1, spans.shape[1]):
            for r in range(spans[p, k, 0], spans[p, k, 1]):
                begin = start + listed[r] * width
                total = copies[0, begin : begin + width]
                other = copies[k, begin : begin + width]
                for i in range(width):
                    total[i] += other[i]
                other[:] = 0.0


@compiled
def all_within(numbers: Any, pieces: Any, spans: Any, listed: Any, limit: float) -> bool:
    """Tell whether the size of every number of all pieces is at most a limit."""
    for p in range(len(pieces)):
        start, width = pieces[p]
        for r in range(spans[p, 0, 0], spans[p, 0, 1]):
            begin = start + listed[r] * width
            if not within(numbers[begin : begin + width], limit):
                return False
    return True


@compiled
def clamp(gradients: Any, pieces: Any, spans: Any, listed: Any, most: float) -> None:
    """Set gradients of all pieces that are above a size to it, signs as they were."""
    for p in range(len(pieces)):
        start, width = pieces[p]
        for r in range(spans[p, 0, 0], spans[p, 0, 1]):
            begin = start + listed[r] * width
            for i in range(begin, begin + width):
                gradients[i] = max(min(gradients[i], most), -most)


def within(numbers: FloatArray, limit: float) -> bool:
    """Tell whether the size of every number is at most a limit; one that is nan is not."""
    fine, most = True, numbers.dtype.type(limit)
    for i in range(len(numbers)):
        fine &= bool(abs(numbers[i]) <= most)
    return fine


# A rule in NumPy: what loops of backends must make, in the same order of roundings.


def moved(
    rule: UpdateRule, values: Array, gradients: Array, state: Array, scale: float, scalars: Array
) -> tuple[Array, Array]:
    """Return what a rule makes of elements.

    Args:
        values, gradients: [N]; state: [slots, N].
        scale: factor of the gradients; scalars: of `StoreUpdate`.
    Returns: values [N] and state [slots, N].
    """
    dtype = values.dtype
    decay, shrink, *own = scalars.astype(dtype)
    names: dict[str, Any] = {f"s{k}": number for k, number in enumerate(own)}
    names |= {slot.name: kept for slot, kept in zip(rule.state, state, strict=True)}
    names["g"] = dtype.type(scale) * gradients + decay * values
    names["value"] = shrink * values
    for name, expression in rule.lines:
        names[name] = np.asarray(evaluate_arrays(expression, names), dtype)
    kept = [names[slot.name] for slot in rule.state]
    return names["value"], np.array(kept, dtype).reshape(state.shape)


def elements(update: StoreUpdate) -> list[Array]:
    """Return the positions in the store of what an update changes, each once, by group."""
    rows = [update.listed[first:last] for first, last in update.spans[:, 0]]
    found = [
        (start + each[:, None] * width + np.arange(width)).reshape(-1)
        for (start, width), each in zip(update.pieces, rows, strict=True)
    ]
    return [
        np.concatenate([np.zeros(0, np.int64), *found[first:last]])
        for first, last in itertools.pairwise(update.parts)
    ]


def moved_at(update: StoreUpdate, at: Array, scale: float, scalars: Array) -> tuple[Array, Array]:
    """Return what an update makes of the elements at some positions; see `moved`."""
    e = update
    return moved(e.rule, e.values[at], e.gradients[at], e.moments[:, at], scale, scalars)


def factor(norm: float, clip_norm: float) -> float:
    """Return the factor that clips gradients of some norm; a `clip_norm` of 0 clips nothing."""
    return clip_norm / norm if 0.0 < clip_norm < norm else 1.0
