"""Rows of tables are listed for devices, where they are and where they go when packed."""

from __future__ import annotations

import numpy as np

from vertexrt.engine.parameters import ParameterStore
from vertexrt.engine.shared_step import packed_rows

SHAPES = {"table": (9, 6), "w": (5,), "narrow": (7,)}
ROWS = {"table": np.array([0, 4, 8]), "narrow": np.array([1, 6])}


def test_rows_of_all_tables_lie_behind_the_dense_part() -> None:
    store = ParameterStore(SHAPES, "float32", ["table", "narrow"])
    listed = packed_rows(store, ROWS)
    apart, joined = listed.tables(True), listed.tables(False)
    at = store.dense_size
    starts, packed = listed.memory[:5].tolist(), listed.memory[5:10].tolist()
    for name, own in ROWS.items():
        width = int(np.prod(SHAPES[name][1:]))
        expected = [store.offsets[name] + row * width for row in own]
        assert apart[name][0].tolist() == expected
        assert apart[name][1].tolist() == [width] * len(own)
        assert starts[: len(own)] == expected
        assert packed[: len(own)] == [at + k * width for k in range(len(own))]
        starts, packed, at = starts[len(own) :], packed[len(own) :], at + len(own) * width
    assert listed.size == at
    assert [each.tolist() for each in joined[""]] == [
        [*apart["table"][0], *apart["narrow"][0]],
        [6, 6, 6, 1, 1],
    ]


def test_no_row_is_looked_up() -> None:
    store = ParameterStore(SHAPES, "float32", ["table", "narrow"])
    none = dict.fromkeys(ROWS, np.zeros(0, np.int64))
    listed = packed_rows(store, none)
    assert (listed.rows, listed.size, listed.memory.size) == (0, store.dense_size, 0)
    assert all(not len(each) for pair in listed.tables(True).values() for each in pair)
