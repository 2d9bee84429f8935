"""The end of a step: gradients of several groups are added up, and all pieces are updated."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vertexrt as vrt
from tests.optimizers import make_store, set_gradients
from vertexrt.engine import update as updates
from vertexrt.engine.parameters import ParameterStore
from vertexrt.engine.update import apply_update, collect, updated_ranges

Array = np.ndarray[Any, Any]

WIDE = {"table": (700, 50), "w": (300, 100), "b": (9,), "other": (6, 3)}


def groups_of(store: ParameterStore, groups: int, step: int) -> list[dict[str, Array]]:
    """Draw gradients for each group; which rows they touch overlaps in part."""
    touched: list[dict[str, Array]] = []
    for k in range(groups):
        part = make_store(str(store.dtype), WIDE)
        set_gradients(part, 10 * step + k)
        rng = np.random.default_rng([step, k])
        rows = np.sort(rng.choice(700, 400, replace=False))
        part.touched["table"] = rows
        part.gradient("table")[...] = 0.0
        part.gradient("table")[rows] = rng.standard_normal((400, 50))
        store.copies[k] = part.gradients
        touched.append(dict(part.touched))
    for name in store.sparse:
        store.touched[name] = np.unique(np.concatenate([t[name] for t in touched]))
    return touched


def wide(dtype: str, groups: int) -> ParameterStore:
    store = ParameterStore(WIDE, dtype, ["table", "other"], copies=groups)
    store.values[...] = np.random.default_rng(8).standard_normal(store.values.size)
    return store


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("groups", [1, 2, 3, 5])
def test_gradients_of_groups_are_added_up(dtype: str, groups: int) -> None:
    store, optimizer = wide(dtype, groups), vrt.Adam(0.01, clip_norm=3.0)
    for step in range(2):
        touched = groups_of(store, groups, step)
        before = store.values.copy()
        expected = np.add.reduce(store.copies[:groups].astype(np.float64))
        collect(store, touched)
        tolerance = 1e-5 if dtype == "float32" else 1e-13
        np.testing.assert_allclose(store.gradients, expected, rtol=tolerance, atol=tolerance)
        optimizer._settle(apply_update(store, optimizer._next_update(store)))
        assert not store.copies.any()
        assert (store.value("w") != store.views(before)["w"]).mean() > 0.9


def test_pieces_have_every_touched_element_once() -> None:
    store = wide("float32", 3)
    touched = groups_of(store, 3, 0)
    for rows_of in (store.touched, *touched[1:]):
        ranges = updated_ranges(store, touched=rows_of)
        count = np.zeros(store.values.size, np.int64)
        for begin, end in ranges:
            count[begin:end] += 1
        want = np.zeros_like(count)
        want[: store.dense_size] = 1
        for name, rows in rows_of.items():
            store.views(want)[name][rows] = 1  # type: ignore[arg-type]
        np.testing.assert_array_equal(count, want)
        assert len(ranges) > 5
        assert (np.diff(ranges) <= updates.PIECE).all()
