"""What is packed into one array comes out of it again, inside a compiled call too."""

from __future__ import annotations

import numpy as np

from vertexrt.engine.packed_args import number_at, pack_args, row_at, table_at


def test_what_is_packed_comes_out_again() -> None:
    rows, table = np.arange(5), np.arange(6).reshape(3, 2)
    flags = np.array([True, False])
    none, narrow = np.zeros(0, np.int64), np.zeros((4, 0), np.int64)
    packed = pack_args((7, rows, none, table, narrow, flags, True))
    assert packed.dtype == np.int64
    assert number_at(packed, 0) == 7
    assert np.array_equal(row_at(packed, 1), rows)
    assert row_at(packed, 2).size == 0
    assert np.array_equal(table_at(packed, 3), table)
    assert table_at(packed, 4).shape == (4, 0)
    assert row_at(packed, 5).tolist() == [1, 0]
    assert number_at(packed, 6) == 1


def test_there_may_be_none() -> None:
    assert pack_args(()).size == 0
