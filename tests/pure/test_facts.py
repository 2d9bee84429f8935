"""What is packed into one array of facts comes out of it again, inside a compiled call too."""

from __future__ import annotations

import numpy as np

from vertexrt.engine.facts import fact, pack_facts, row_at, table_at


def test_what_is_packed_comes_out_again() -> None:
    rows, table = np.arange(5), np.arange(6).reshape(3, 2)
    flags = np.array([True, False])
    none, narrow = np.zeros(0, np.int64), np.zeros((4, 0), np.int64)
    facts = pack_facts((7, rows, none, table, narrow, flags, True))
    assert facts.dtype == np.int64
    assert fact(facts, 0) == 7
    assert np.array_equal(row_at(facts, 1), rows)
    assert row_at(facts, 2).size == 0
    assert np.array_equal(table_at(facts, 3), table)
    assert table_at(facts, 4).shape == (4, 0)
    assert row_at(facts, 5).tolist() == [1, 0]
    assert fact(facts, 6) == 1


def test_there_may_be_none() -> None:
    assert pack_facts(()).size == 0
