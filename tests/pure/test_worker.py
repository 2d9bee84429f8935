"""The arena of a worker: it grows, and its first elements are zero in every run."""

import numpy as np

from vertexrt.engine.batched import Worker


def test_the_arena_grows_and_never_shrinks() -> None:
    worker = Worker(np.zeros(4, np.float32))
    first = worker.take(100, 8)
    assert len(first) >= 100
    assert worker.take(50, 8) is first
    assert len(worker.take(1000, 8)) >= 1000
    assert worker.arena.dtype == np.float32


def test_zeros_are_zero_after_a_run_with_fewer_of_them() -> None:
    worker = Worker(np.zeros(4, np.float64))
    worker.take(100, 16)[16:] = 1.0
    worker.take(100, 4)[4:] = 2.0  # this run keeps its tensors from element 4 on
    assert not worker.take(100, 16)[:16].any()


def test_an_arena_that_grows_keeps_what_forward_left() -> None:
    worker = Worker(np.zeros(4, np.float64))
    left = worker.take(100, 4)
    left[4:] = np.arange(4, len(left))
    grown = worker.take(2 * len(left), 4)
    np.testing.assert_array_equal(grown[: len(left)], left)
