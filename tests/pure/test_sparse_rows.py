"""Rows of tables that a minibatch looks up come out once, rising, and leave no marks."""

from __future__ import annotations

import numpy as np
import pytest

from vertexrt.engine.graph_facts import LookedUp, new_marks, rows_looked_up, rows_of_graphs


@pytest.mark.parametrize("vertices", [1, 9, 64, 300])
def test_rows_come_out_once(vertices: int) -> None:
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


def test_nothing_is_looked_up() -> None:
    marks, functions = new_marks(8), np.zeros(5, np.int32)
    found = rows_looked_up(marks, np.full((1, 5), -1, np.int32), np.zeros((1, 2), int), functions)
    assert found.tolist() == []
    assert not marks.any()


def test_rows_of_some_graphs() -> None:
    rng, marks = np.random.default_rng(0), new_marks(50)
    lists = [rng.integers(0, 50, count).astype(np.int32) for count in (3, 0, 7, 30)]
    first = np.append(0, np.cumsum([len(each) for each in lists]))
    for graphs in ([], [1], [2, 0], [3, 1, 0, 2]):
        chosen = np.array(graphs, np.int64)
        found = rows_of_graphs(marks, LookedUp(first, np.concatenate(lists)), chosen)
        assert found.tolist() == sorted({row for g in graphs for row in lists[g].tolist()})
        assert not marks.any()
