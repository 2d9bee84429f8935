"""The arena of a run: it grows, its first elements are zero in every run; where it begins."""

import re
from pathlib import Path

import numpy as np
import pytest

from vertexrt.engine.batched import RunMemory
from vertexrt.engine.parameters import ParameterStore
from vertexrt.memory.aligned import CACHE_LINE, HUGE_PAGE, aligned_zeros


def test_the_arena_grows_and_never_shrinks() -> None:
    memory = RunMemory(np.zeros(4, np.float32))
    first = memory.take(100, 8)
    assert len(first) >= 100
    assert memory.take(50, 8) is first
    assert len(memory.take(1000, 8)) >= 1000
    assert memory.arena.dtype == np.float32


def test_zeros_are_zero_after_a_run_with_fewer_of_them() -> None:
    memory = RunMemory(np.zeros(4, np.float64))
    memory.take(100, 16)[16:] = 1.0
    memory.take(100, 4)[4:] = 2.0  # this run keeps its tensors from element 4 on
    assert not memory.take(100, 16)[:16].any()


def test_an_arena_that_grows_keeps_what_forward_left() -> None:
    memory = RunMemory(np.zeros(4, np.float64))
    left = memory.take(100, 4)
    left[4:] = np.arange(4, len(left))
    grown = memory.take(2 * len(left), 4)
    np.testing.assert_array_equal(grown[: len(left)], left)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_an_arena_and_weights_begin_at_cache_lines_and_large_ones_at_huge_pages(dtype: str) -> None:
    memory = RunMemory(np.zeros(4, np.dtype(dtype)))
    assert memory.take(100, 4).ctypes.data % CACHE_LINE == 0
    assert memory.take(HUGE_PAGE, 4).ctypes.data % HUGE_PAGE == 0
    small = ParameterStore({"w": (8, 8)}, dtype)
    assert small.values.ctypes.data % CACHE_LINE == small.gradients.ctypes.data % CACHE_LINE == 0
    large = ParameterStore({"w": (1024, 512)}, dtype)
    assert large.values.ctypes.data % HUGE_PAGE == large.gradients.ctypes.data % HUGE_PAGE == 0
    assert not large.values.any()
    assert large.values.size == 1024 * 512


@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="no huge pages to ask for"
)
def test_numpy_asks_for_huge_pages_for_all_of_a_large_array() -> None:
    """`HUGE_PAGE` bytes of weights lie in the part that NumPy has told Linux of."""
    weights = aligned_zeros(HUGE_PAGE // 4, np.dtype(np.float32))
    weights[:] = 1.0
    begin = weights.ctypes.data
    flags: list[str] = []
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if found := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            low, high = (int(end, 16) for end in found.groups())
        elif line.startswith("VmFlags:") and low < begin + weights.nbytes and begin < high:
            flags += [line]
    assert flags
    assert all(" hg" in line for line in flags)
