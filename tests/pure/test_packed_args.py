"""What is packed into one array comes out of it again in a compiled call."""

from __future__ import annotations

from typing import Any

import numpy as np

from vertexrt.engine.packed_args import number_at, pack_args, row_at, table_at
from vertexrt.native.compiled import compiled

Array = np.ndarray[Any, Any]


@compiled
def unpack(packed: Array) -> tuple[Any, ...]:
    rows = row_at(packed, 1), row_at(packed, 2), row_at(packed, 5)
    tables = table_at(packed, 3), table_at(packed, 4)
    return (number_at(packed, 0), number_at(packed, 6)), rows, tables


def test_what_is_packed_comes_out_again() -> None:
    rows, table = np.arange(5), np.arange(6).reshape(3, 2)
    flags = np.array([True, False])
    none, narrow = np.zeros(0, np.int64), np.zeros((4, 0), np.int64)
    packed = pack_args((7, rows, none, table, narrow, flags, True))
    assert packed.dtype == np.int64
    numbers, (first, empty, truths), tables = unpack(packed)
    assert numbers == (7, 1)
    assert np.array_equal(first, rows)
    assert empty.size == 0
    assert truths.tolist() == [1, 0]
    assert np.array_equal(tables[0], table)
    assert tables[1].shape == (4, 0)


def test_there_may_be_none() -> None:
    assert pack_args(()).size == 0
