"""Rows of tables that a minibatch looks up come out once, rising, and leave no marks."""

from __future__ import annotations

import numpy as np
import pytest

from vertexrt.engine.sparse_rows import FEW, mark_rows, new_marks, rows_looked_up, take_marked


@pytest.mark.parametrize("rows", [1, 7, 8, 9, 100])
def test_marked_rows_are_taken_once(rows: int) -> None:
    rng = np.random.default_rng(rows)
    marks = new_marks(rows)
    first, second = (rng.integers(-1, rows, 30).astype(np.int32) for _ in range(2))
    mark_rows(marks, first)
    mark_rows(marks, second)
    both = {*first.tolist(), *second.tolist()} - {-1}
    assert take_marked(marks).tolist() == sorted(both)
    assert take_marked(marks).tolist() == []


def test_nothing_is_looked_up() -> None:
    marks = new_marks(8)
    mark_rows(marks, np.full(5, -1, np.int32))
    assert take_marked(marks).tolist() == []


@pytest.mark.parametrize("vertices", [1, 9, FEW, FEW + 1, 300])
def test_few_and_many_lookups_come_out_alike(vertices: int) -> None:
    rng = np.random.default_rng(vertices)
    marks = new_marks(50)
    index = rng.integers(-1, 50, (3, vertices)).astype(np.int32)
    for pulls in ([1], [0, 2], []):
        found = rows_looked_up(marks, index, np.array(pulls, np.int64))
        assert found.tolist() == sorted({*index[pulls].reshape(-1).tolist()} - {-1})
        assert not marks.any()
