"""Rows of tables that a minibatch looks up come out once, rising, and leave no marks."""

from __future__ import annotations

import numpy as np
import pytest

from vertexrt.engine.graph_facts import FEW, mark_rows, new_marks, rows_looked_up, take_marked

ALL = np.zeros(300, np.int32)  # vertices are of one function


@pytest.mark.parametrize("rows", [1, 7, 8, 9, 100])
def test_marked_rows_are_taken_once(rows: int) -> None:
    rng = np.random.default_rng(rows)
    marks = new_marks(rows)
    first, second = (rng.integers(-1, rows, 30).astype(np.int32) for _ in range(2))
    mark_rows(marks, first, ALL, 0)
    mark_rows(marks, second, ALL, 0)
    both = {*first.tolist(), *second.tolist()} - {-1}
    assert take_marked(marks).tolist() == sorted(both)
    assert take_marked(marks).tolist() == []


def test_nothing_is_looked_up() -> None:
    marks = new_marks(8)
    mark_rows(marks, np.full(5, -1, np.int32), ALL, 0)
    assert take_marked(marks).tolist() == []


@pytest.mark.parametrize("vertices", [1, 9, FEW, FEW + 1, 300])
def test_few_and_many_lookups_come_out_alike(vertices: int) -> None:
    rng = np.random.default_rng(vertices)
    marks = new_marks(50)
    index = rng.integers(-1, 50, (3, vertices)).astype(np.int32)
    for functions in (np.zeros(vertices, np.int32), rng.integers(0, 2, vertices).astype(np.int32)):
        for lookups in ([(1, 0)], [(0, 1), (2, 0)], []):
            given = np.array(lookups, np.int64).reshape(-1, 2)
            found = rows_looked_up(marks, index, given, functions)
            own = {row for pull, f in lookups for row in index[pull, functions == f].tolist()}
            assert found.tolist() == sorted(own - {-1})
            assert not marks.any()
