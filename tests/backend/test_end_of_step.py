"""The end of a step on its own: processors share an update, decide once and wait for each other."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from tests.optimizers import OPTIMIZERS, make_store, set_gradients, state_of
from vertexrt.engine import update as updates
from vertexrt.engine.parameters import ParameterStore
from vertexrt.engine.update import Outcome, Update, apply_update, collect, cut, end_of_step
from vertexrt.kernels.cpu import counters
from vertexrt.kernels.cpu.update import arguments_of, finish

Array = np.ndarray[Any, Any]

every_optimizer = pytest.mark.parametrize("name", OPTIMIZERS)

# The end of a step on its own.


def run_finish(
    store: ParameterStore, update: Update, touched: list[dict[str, Array]], parts: int
) -> None:
    """End a step of some groups, whose losses are 1, with a thread for each processor."""
    groups = len(touched)
    gate = np.zeros(counters.gate_words(groups, parts), np.int32)
    ending = end_of_step(store, cut(store, touched), update, gate, [0] * groups, 1.0)
    loss, weight = np.ones(1, store.dtype), np.zeros(0, store.dtype)
    records = [np.zeros(32, np.int32) for _ in range(groups)]
    limit = int(2 * counters.cycles_per_second())
    given = arguments_of(ending)
    calls = [
        threading.Thread(
            target=finish, args=(records[g], r, parts, g, 0, limit, loss, 1, weight, given)
        )
        for g in range(groups)
        for r in range(parts)
    ]
    for call in calls:
        call.start()
    for call in calls:
        call.join()
    assert not any(record.any() for record in records)


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


@every_optimizer
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("groups", "parts"), [(1, 1), (1, 3), (3, 1), (2, 2), (5, 1)])
def test_shares_of_pieces_make_the_whole(name: str, dtype: str, groups: int, parts: int) -> None:
    one, other = wide(dtype, groups), wide(dtype, groups)
    first, second = (OPTIMIZERS[name](clip_norm=3.0) for _ in range(2))
    for step in range(2):
        touched = groups_of(one, groups, step)
        before = one.values.copy()
        run_finish(one, first.request(one), touched, parts)
        first.settle(Outcome(True))
        touched = groups_of(other, groups, step)
        expected = np.add.reduce(other.copies[:groups].astype(np.float64))
        collect(other, touched)
        tolerance = 1e-5 if dtype == "float32" else 1e-13
        np.testing.assert_allclose(other.gradients, expected, rtol=tolerance, atol=tolerance)
        second.settle(apply_update(other, second.request(other)))
        np.testing.assert_array_equal(one.values, other.values)
        np.testing.assert_array_equal(one.copies, other.copies)
        assert not one.copies.any()
        assert (one.value("w") != one.views(before)["w"]).mean() > 0.9
    others = state_of(second)
    for key, value in state_of(first).items():
        np.testing.assert_array_equal(value, others[key], err_msg=key)


def test_pieces_have_every_touched_element_once() -> None:
    store = wide("float32", 3)
    touched = groups_of(store, 3, 0)
    made = cut(store, touched)
    for k, rows_of in enumerate([store.touched, *touched[1:]]):
        count = np.zeros(store.values.size, np.int64)
        for (start, width), spans in zip(made.pieces, made.spans, strict=True):
            for row in made.listed[spans[k, 0] : spans[k, 1]]:
                count[start + row * width : start + (row + 1) * width] += 1
        want = np.zeros_like(count)
        want[: store.dense_size] = 1
        for name, rows in rows_of.items():
            store.views(want)[name][rows] = 1  # type: ignore[arg-type]
        np.testing.assert_array_equal(count, want)
    assert len(made.pieces) > 5
    assert (made.pieces[:, 1] <= updates.PIECE).all()


def test_decisions_are_made_once() -> None:
    gate = np.zeros(counters.gate_words(1, 2), np.int32)
    assert counters.decide(gate, counters.LOSS, counters.EXPIRED) == counters.EXPIRED
    assert counters.decide(gate, counters.LOSS, counters.GO) == counters.EXPIRED
    assert counters.await_decision(gate, counters.LOSS, 1, 0) == counters.EXPIRED
    assert counters.await_decision(gate, counters.NORM, 1, 0) == counters.EXPIRED


def test_who_waits_goes_on_while_another_moves() -> None:
    gate = np.zeros(counters.gate_words(2, 1), np.int32)
    limit = int(0.2 * counters.cycles_per_second())
    found: list[int] = []
    counters.await_decision(np.ones_like(gate), counters.LOSS, 2, limit)  # compiles
    counters.move_on(np.zeros_like(gate), 2, 1, 1)
    waiting = threading.Thread(
        target=lambda: found.append(counters.await_decision(gate, counters.LOSS, 2, limit))
    )
    waiting.start()
    pause = threading.Event()
    for done in range(1, 13):
        pause.wait(0.05)
        counters.move_on(gate, 2, 1, done)
    assert not found
    counters.decide(gate, counters.LOSS, counters.GO)
    waiting.join()
    assert found == [counters.GO]
