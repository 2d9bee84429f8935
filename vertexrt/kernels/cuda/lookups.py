"""Group what the launches of a minibatch looked up, so that gradients of tables have an order."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from vertexrt.native.compiled import compiled
from vertexrt.scheduler.rows import EDGE_ORDER, ORDER, part_of

Array = np.ndarray[Any, Any]


class _Segments(NamedTuple):
    """The word of each segment, where its rows begin, and these; where its next row goes."""

    word: Array
    ptr: Array
    row: Array
    free: Array


@compiled
def sort_lookups(
    table: Array,
    lookups: tuple[Array, Array],
    ints: Array,
    schedule: tuple[Array, Array],
    rows: Array,
    seen: Array,
    padded: bool,
) -> tuple[Array, Array, Array, Array, Array]:
    """Group the rows of each launch by what they looked up, in order of first appearance.

    So a table's gradient is added up by one block for each of its rows, in a fixed order.

    Args:
        lookups: CSR of the integer pulls that each program's lookups read; -1 - pull for one of
            edges.
        ints: [pulls, V + E]; schedule: indices and extents, of `number_rows`.
        rows: of launches that take a list.
        seen: int32 [largest index + 1], all -1; left so.
        padded: each lookup has as many segments as rows, the last ones empty, so that what is
            returned has the same size for all batches of a layout.
    Returns: lookup_ptr and lookup_at of `driver.launch`; segment_word, segment_ptr, segment_row.
    """
    (lookups_ptr, pulls), (indices, extents) = lookups, schedule
    orders = part_of(indices, extents, ORDER), part_of(indices, extents, EDGE_ORDER)
    total, lookup, longest = 0, 0, 0  # the most rows of all lookups, these, the most of a launch
    for t in range(len(table)):
        count = lookups_ptr[table[t, 0] + 1] - lookups_ptr[table[t, 0]]
        most = max(table[t, 1], table[t, 4])
        total += count * most
        lookup += count
        longest = max(longest, most)
    lookup_ptr = np.zeros(len(table) + 1, np.int64)
    lookup_at = np.zeros(lookup + 1, np.int64)
    found = _Segments(
        np.empty(total, np.int32),
        np.zeros(total + 1, np.int32),
        np.empty(total, np.int32),
        np.empty(total, np.int32),
    )
    words = np.empty(longest, np.int32)
    segments, lookup = 0, 0
    for t in range(len(table)):
        p = table[t, 0]
        for k in range(lookups_ptr[p], lookups_ptr[p + 1]):
            lookup_at[lookup] = segments
            lookup += 1
            count = _look_up(table[t], pulls[k], ints, orders, rows, words)
            first = segments
            segments = _group(words[:count], seen, found, segments)
            if padded:  # with segments that are empty
                for s in range(segments, first + count):
                    found.word[s] = 0
                    found.ptr[s + 1] = found.ptr[segments]
                segments = first + count
        lookup_ptr[t + 1] = lookup
    lookup_at[lookup] = segments
    used = segments if padded else found.ptr[segments]
    return (
        lookup_ptr,
        lookup_at,
        found.word[:segments],
        found.ptr[: segments + 1],
        found.row[:used],
    )


def _look_up(
    launch: Array, number: int, ints: Array, orders: tuple[Array, Array], rows: Array, words: Array
) -> int:
    """Write what each row of a launch looks up, or each edge, and return how many there are.

    Args:
        launch: of the table; number: of the pull; orders: order and edge_order of
            `Schedule`; the others as of `sort_lookups`.
    """
    order, edge_order = orders
    if number < 0:
        index, edges, first_edge = ints[-1 - number], launch[4], launch[5]
        for i in range(edges):
            words[i] = index[edge_order[first_edge + i]]
        return int(edges)
    n, lo, at = launch[1], launch[2], launch[3]
    index = ints[number]
    for i in range(n):
        words[i] = index[order[lo + i if lo >= 0 else rows[at + i]]]
    return int(n)


def _group(words: Array, seen: Array, found: _Segments, begin: int) -> int:
    """Add the segments of one lookup of a launch, of which so many are there.

    Args:
        words: int32 [rows] what each row looked up; -1 for nothing.
    Returns: how many segments there are then.
    """
    word, ptr, row, free = found.word, found.ptr, found.row, found.free
    end = begin
    for w in words:
        if w < 0:
            continue
        # Whether it is the first cannot be predicted, so nothing branches on it.
        old = seen[w]
        new = int(old < 0)
        s = old + (end - old) * new
        seen[w] = s
        word[end] = w  # kept, if it is new; else the next one overwrites it
        end += new
        ptr[s + 1] += 1
    for s in range(begin, end):
        free[s] = ptr[s]
        ptr[s + 1] += ptr[s]
    for i in range(len(words)):
        if words[i] >= 0:
            s = seen[words[i]]
            row[free[s]] = i
            free[s] += 1
    for s in range(begin, end):
        seen[word[s]] = -1
    return end
