"""The compiled loops that find which rows of tables a minibatch looks up."""

from __future__ import annotations

from typing import Any

import numpy as np

from vertexrt.native.compiled import compiled

Array = np.ndarray[Any, Any]

EIGHT = 8  # marks are read so many at once
FEW = 64  # lookups that are sorted faster than a table's marks are read


def new_marks(rows: int) -> Array:
    """Return a mark for each row of a table, all False, and at least one after them."""
    return np.zeros((rows // EIGHT + 1) * EIGHT, np.bool_)


@compiled
def mark_rows(marks: Array, index: Array, functions: Array, function: int) -> None:
    """Mark the rows that an index has; -1 marks the last place, so that nothing branches on it.

    Args:
        functions: of each place of the index, of which one counts.
    """
    last = len(marks) - 1
    for v in range(len(index)):
        marks[index[v] if (index[v] >= 0) & (functions[v] == function) else last] = True


@compiled
def mark_listed(marks: Array, first: Array, rows: Array, lists: Array) -> None:
    """Mark the rows of some lists; list k is `rows[first[k] : first[k + 1]]`."""
    for k in lists:
        for at in range(first[k], first[k + 1]):
            marks[rows[at]] = True


@compiled
def take_marked(marks: Array) -> Array:
    """Return the rows that are marked, rising, as int64, and clear the marks."""
    marks[len(marks) - 1] = False  # of no row
    words = marks.view(np.uint64)
    count = 0
    for v in range(len(marks)):
        count += int(marks[v])
    rows = np.empty(count + 1, np.int64)  # one place more, which rows without a mark are put in
    found = 0
    for w in range(len(words)):
        if words[w] == 0:
            continue
        for row in range(EIGHT * w, EIGHT * (w + 1)):
            rows[found] = row  # without a branch: which rows are marked cannot be predicted
            found += int(marks[row])
        words[w] = 0
    return rows[:count]


def list_rows(marks: Array, index: Array, lookups: Array, functions: Array) -> Array:
    """Return what `rows_looked_up` does, for few vertices: the marks are not gone through."""
    rows = np.empty(len(lookups) * index.shape[1], np.int64)
    count = 0
    for pull, function in lookups:
        for v in range(index.shape[1]):
            row = index[pull, v]
            if row < 0 or functions[v] != function or marks[row]:
                continue
            marks[row] = True
            at = count
            while at > 0 and rows[at - 1] > row:
                rows[at] = rows[at - 1]
                at -= 1
            rows[at] = row
            count += 1
    for r in range(count):
        marks[rows[r]] = False
    return rows[:count]


@compiled
def union_of(marks: Array, rows: Array) -> Array:
    """Return the rows that are listed, each once, rising; marks as of `rows_looked_up`."""
    for row in rows:
        marks[row] = True
    return take_marked(marks)


@compiled
def ranges_of(rows: Array, offset: int, width: int) -> tuple[Array, Array]:
    """Return flat ranges of rows of a table: first elements, int64, and widths, int32."""
    starts = np.empty(len(rows), np.int64)
    widths = np.empty(len(rows), np.int32)
    for k in range(len(rows)):
        starts[k] = offset + rows[k] * width
        widths[k] = width
    return starts, widths


@compiled
def rows_looked_up(marks: Array, index: Array, lookups: Array, functions: Array) -> Array:
    """Return the rows of a table that a minibatch looks up, rising, as int64.

    Args:
        marks: of the table, all False; left so.
        index: of `Inputs`, functions: its `readers`; lookups: of the table, of `Variant.lookups`.
    """
    if len(lookups) * index.shape[1] <= FEW:
        return list_rows(marks, index, lookups, functions)
    for pull, function in lookups:
        mark_rows(marks, index[pull], functions, function)
    return take_marked(marks)


@compiled
def ranges_looked_up(
    marks: Array, index: Array, lookups: Array, functions: Array, offset: int, width: int
) -> tuple[Array, Array]:
    """Return the same as flat ranges; see `ranges_of`."""
    return ranges_of(rows_looked_up(marks, index, lookups, functions), offset, width)
