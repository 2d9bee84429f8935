"""Rows that launches looked up, grouped by what they looked up."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from vertexrt.kernels.cuda.lookups import sort_lookups
from vertexrt.scheduler.rows import EDGE_ORDER, ORDER

TABLE_ROWS = 7
Segments = list[tuple[int, list[int]]]


def sorted_by(lists: list[list[int]], padded: bool) -> tuple[list[Segments], tuple[int, ...]]:
    """Return the segments of each launch that are not empty; and the sizes of what goes up."""
    sizes = np.array([len(each) for each in lists])
    ends = np.cumsum(sizes)
    table = np.zeros((len(lists), 6), np.int64)
    table[:, 1], table[:, 2] = sizes, ends - sizes
    words = np.array([w for each in lists for w in each], np.int32)
    order, extents = np.arange(len(words), dtype=np.int32), np.zeros((EDGE_ORDER + 1, 2), np.int64)
    extents[ORDER] = 0, len(words)
    reads = np.array([0, 1], np.int64), np.zeros(1, np.int64)
    seen = np.full(TABLE_ROWS, -1, np.int32)
    rows = np.zeros(0, np.int32)
    ptr, at, word, first, member = sort_lookups(
        table, reads, words[None], (order, extents), rows, seen, padded
    )
    assert (seen == -1).all()
    found: list[Segments] = []
    for t in range(len(lists)):
        segments = range(at[ptr[t]], at[ptr[t] + 1])
        read = [(int(word[s]), member[first[s] : first[s + 1]].tolist()) for s in segments]
        found.append([(w, own) for w, own in read if own])
    return found, (len(word), len(first), len(member))


LISTS = st.lists(st.lists(st.integers(-1, TABLE_ROWS - 1), min_size=1, max_size=9), max_size=4)


@given(LISTS, st.booleans())
def test_each_launch_has_its_rows_by_what_they_looked_up(
    lists: list[list[int]], padded: bool
) -> None:
    """Lists that are filled up have sizes of the launches."""
    found, sizes = sorted_by(lists, padded)
    for each, segments in zip(lists, found, strict=True):
        words = list(dict.fromkeys(w for w in each if w >= 0))
        rows = [[i for i, other in enumerate(each) if other == w] for w in words]
        assert segments == list(zip(words, rows, strict=True))
    rows_of_all = sum(map(len, lists))
    assert not padded or sizes == (rows_of_all, rows_of_all + 1, rows_of_all)
