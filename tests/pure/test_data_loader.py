"""The loader: every graph once an epoch, the same order for a seed, and a state to go on from."""

from __future__ import annotations

import itertools
import json
import os
import time
from typing import Any

import numpy as np
import pytest

import vertexrt as vrt
from tests.messages import refused, table
from vertexrt.data import Loader

SIZES = np.random.default_rng(0).integers(1, 30, 60)
GRAPHS = [
    vrt.InputGraph.chain(int(n), {"number": np.full(n, k)}) for k, n in enumerate(SIZES.tolist())
]
FEW = GRAPHS[:23]


def numbers(batch: vrt.GraphBatch) -> list[int]:
    """Return which of the graphs a minibatch holds."""
    return batch.pulls["number"][batch.graph_ptr[:-1]].tolist()  # type: ignore[index,no-any-return]


def epochs(loader: Loader, count: int) -> list[list[list[int]]]:
    return [[numbers(batch) for batch in loader] for _ in range(count)]


@pytest.mark.parametrize(
    ("count", "size", "shuffle", "bucket"),
    [
        (23, 5, True, 3),
        (23, 5, False, 1),
        (9, 3, True, 100),
        (1, 4, True, 1),
        (60, 1, True, 1),
        (60, 7, False, 3),
    ],
)
def test_epochs_are_those_of_their_order(count: int, size: int, shuffle: bool, bucket: int) -> None:
    options: dict[str, Any] = {"shuffle": shuffle, "bucket": bucket}
    loader = Loader(GRAPHS[:count], size, seed=9, **options)
    found = epochs(loader, 2)
    for epoch, batches in enumerate(found):
        assert sorted(itertools.chain(*batches)) == list(range(count))
        assert sorted(map(len, batches))[1:] == [size] * (len(loader) - 1)
        order = loader.order(epoch)
        assert all(ids.dtype == np.int32 for ids in order)
        assert batches == [ids.tolist() for ids in order]
    assert loader.epoch == 2
    if count > 9:
        other = epochs(Loader(GRAPHS[:count], size, seed=10, **options), 1)
        assert (found[0] != found[1]) == (found[0] != other[0]) == shuffle


def test_minibatches_by_size_hold_like_sizes() -> None:
    spread = [
        np.mean([np.ptp(SIZES[ids]) for ids in Loader(GRAPHS, 6, bucket=bucket).order(0)])
        for bucket in (1, 3, 10)
    ]
    assert all(a > 1.5 * b for a, b in itertools.pairwise(spread))


def noisy(batch: vrt.GraphBatch, rng: np.random.Generator) -> vrt.GraphBatch:
    time.sleep(rng.random() / 500)  # minibatches are done in another order than they began
    pulls = {**batch.pulls, "noise": rng.random(batch.num_vertices)}
    return vrt.GraphBatch(batch.graph_ptr, batch.child_ptr, batch.child, pulls)


def drawn(loader: Loader) -> list[float]:
    return [float(batch.pulls["noise"].sum()) for batch in loader]  # type: ignore[union-attr]


@pytest.mark.parametrize("workers", [1, 3])
def test_workers_change_nothing(workers: int) -> None:
    alone, ahead = (Loader(FEW, 2, seed=1, prepare=noisy, workers=w) for w in (0, workers))
    assert [drawn(ahead), drawn(ahead)] == [drawn(alone), drawn(alone)]
    assert epochs(Loader(FEW, 4, workers=workers), 1) == epochs(Loader(FEW, 4), 1)


def running_threads() -> set[str]:
    """Return the threads of this process that the system knows: `threading` knows not all."""
    return set(os.listdir("/proc/self/task"))


def test_workers_end_with_the_loop() -> None:
    before = running_threads()
    for _ in Loader(FEW, 1, prepare=noisy, workers=2):
        assert running_threads() - before  # threads of others may end meanwhile
        break
    end = time.monotonic() + 20.0
    while running_threads() - before and time.monotonic() < end:
        time.sleep(0.001)  # they are told to end, and end when they run
    assert not running_threads() - before


@pytest.mark.parametrize("done", [0, 1, 4, 5])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_loaded_state_goes_on(done: int, workers: int) -> None:
    numpy: Any = np.int64  # its whole numbers are some, and JSON can hold the state
    first = Loader(FEW, numpy(5), bucket=numpy(2), seed=numpy(3), workers=workers)
    epochs(first, 1)
    seen = [numbers(batch) for batch in itertools.islice(first, done)]
    state = json.loads(json.dumps(first.state()))
    assert (state["epoch"], state["batch"]) == (1, done)
    again = Loader(FEW, 5, bucket=2, seed=3, workers=workers)
    again.load_state(state)
    whole = epochs(Loader(FEW, 5, bucket=2, seed=3), 3)
    assert [seen + epochs(again, 1)[0], epochs(again, 1)[0]] == whole[1:]


def test_a_loop_that_was_left_begins_its_epoch_again() -> None:
    loader = Loader(FEW, 5)
    first = numbers(next(iter(loader)))
    assert epochs(loader, 1)[0][0] == first


LOADER, NOTHING = Loader(FEW, 5), Loader(FEW, 5, prepare=lambda batch, rng: None)  # type: ignore[arg-type,return-value]
MISTAKES = table(__file__, "MISTAKES")


@pytest.mark.parametrize("code", MISTAKES)
def test_what_does_not_fit(code: str) -> None:
    refused(lambda: eval(code), MISTAKES[code])
