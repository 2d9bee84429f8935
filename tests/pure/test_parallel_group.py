"""Sums over processes: the same tree whatever their number, the bytes that they cost, failures."""

from __future__ import annotations

import time

import numpy as np
import pytest

from tests.processes import ThreadCommunicator, lost, together
from vertexrt.errors import DeviceError, ParallelError, UsageError
from vertexrt.parallel import ProcessGroup
from vertexrt.parallel.start import connect, processes_here
from vertexrt.parallel.sums import add_in_pairs

RNG = np.random.default_rng(5)


def tree(parts: list[np.ndarray]) -> np.ndarray:
    """Return the sum of a power of two of arrays by recursion on halves."""
    if len(parts) == 1:
        return parts[0]
    half = len(parts) // 2
    return tree(parts[:half]) + tree(parts[half:])


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 6, 7, 16])
def test_pairs_are_the_tree_of_halves(count: int) -> None:
    """Of powers of two to the bit; other counts are added up whole."""
    whole = RNG.integers(100, size=(count, 9)).astype(np.float64)
    assert np.array_equal(add_in_pairs(part.copy() for part in whole), whole.sum(axis=0))
    if count in (1, 2, 4, 16):
        parts = [RNG.standard_normal(40).astype(np.float32) * 10.0**k for k in range(count)]
        assert np.array_equal(add_in_pairs(p.copy() for p in parts), tree(parts))


@pytest.mark.parametrize("length", [0, 1, 3, 64, 1001])
def test_sums_have_the_same_bits_for_any_number_of_processes(length: int) -> None:
    shares = 16
    parts = (RNG.standard_normal((shares, length)) * 1e4).astype(np.float32)
    want = tree(list(parts))
    assert length < 64 or not np.array_equal(want, parts.sum(axis=0)), "the order matters here"
    for size in (1, 2, 4, 8, 16):

        def add_up(communicator: ThreadCommunicator) -> np.ndarray:
            group = ProcessGroup(communicator, shares)
            total = add_in_pairs(part.copy() for part in parts[group.own])
            group.add_up(total)
            return total

        for found in together(size, add_up):
            assert np.array_equal(found, want)


@pytest.mark.parametrize("size", [3, 5, 6])
def test_any_number_of_processes_agrees_on_the_bits(size: int) -> None:
    parts = RNG.standard_normal((size, 50)).astype(np.float32)

    def add_up(communicator: ThreadCommunicator) -> np.ndarray:
        mine = parts[communicator.rank].copy()
        ProcessGroup(communicator).add_up(mine)
        return mine

    found = together(size, add_up)
    assert np.allclose(found[0], parts.sum(axis=0), atol=1e-6)
    assert (np.array(found) == found[0]).all()


def test_a_sum_sends_twice_its_bytes_at_most() -> None:
    """2 (N - 1) / N times the array: what a ring sends too (Thakur et al. 2005)."""

    def count(communicator: ThreadCommunicator) -> int:
        group = ProcessGroup(communicator)
        before = communicator.sent
        group.add_up(np.ones(4000, np.float32))
        return communicator.sent - before

    for size in (2, 4, 8):
        assert together(size, count) == [2 * (size - 1) * 16000 // size] * size


def test_gathers_are_by_rank() -> None:
    def gather(communicator: ThreadCommunicator) -> tuple[list[int], int, bytes, list[list[float]]]:
        group, rank = ProcessGroup(communicator), communicator.rank
        rows = group.gather_rows(np.full(rank, float(rank)), [0, 1, 2])
        each = group.gather(np.array(10 * rank)).tolist()
        text = group.broadcast(b"of 0" if rank == 0 else b"")
        group.barrier()
        return each, group.largest(7 - rank), text, [row.tolist() for row in rows]

    want = ([0, 10, 20], 7, b"of 0", [[], [1.0], [2.0, 2.0]])
    assert together(3, gather) == [want] * 3


def test_shares_of_processes_are_neighbours() -> None:
    def own(communicator: ThreadCommunicator) -> list[int]:
        return list(range(8))[ProcessGroup(communicator, 8).own]

    assert together(4, own) == [[0, 1], [2, 3], [4, 5], [6, 7]]


@pytest.mark.parametrize(
    ("hangs", "text"),
    [(False, "process 2 of 3 has ended"), (True, "has not answered for 0.2 s")],
)
def test_a_process_that_has_ended_or_hangs_is_named(hangs: bool, text: str) -> None:
    def add_up(communicator: ThreadCommunicator) -> float:
        group = ProcessGroup(communicator, limit=0.2)
        group.began()
        if communicator.rank == 2:
            if hangs:
                time.sleep(0.6)
            return 0.0
        start = time.perf_counter()
        with pytest.raises(ParallelError) as caught:
            group.add_up(np.ones(30))
        assert time.perf_counter() - start < 2.0
        raise caught.value

    texts = lost(together(3, add_up))
    assert len(texts) == 2
    assert all(text in each and "--continue" in each for each in texts)


@pytest.mark.parametrize("shares", [0, 3, 6, 1, -4, 2.0, True, "4"])
def test_shares_that_do_not_fit_are_refused(shares: object) -> None:
    def make(communicator: ThreadCommunicator) -> ProcessGroup:
        return ProcessGroup(communicator, shares)  # type: ignore[arg-type]

    for found in together(2, make):
        assert isinstance(found, UsageError)
        assert "a power of two that is a multiple of the number of processes" in str(found)


def test_processes_have_the_same_shares() -> None:
    for found in together(2, lambda c: ProcessGroup(c, 4 if c.rank else 8)):
        assert isinstance(found, UsageError)
        assert "[8, 4] shares; the same number in every process" in str(found)


@pytest.mark.parametrize("limit", [0.0, -1.0, 600.0, "8", True, float("nan")])
def test_a_limit_is_a_time(limit: object) -> None:
    with pytest.raises(UsageError, match="seconds, above 0 and below 600"):
        ProcessGroup(limit=limit)  # type: ignore[arg-type]


def test_one_process_is_a_group_of_its_own() -> None:
    group = ProcessGroup()
    numbers = np.arange(3.0)
    group.add_up(numbers)
    assert numbers.tolist() == [0.0, 1.0, 2.0]
    assert (group.rank, group.size, group.shares) == (0, 1, 1)
    assert connect({"RANK": "0", "WORLD_SIZE": "1"}).size == connect({"PMI_SIZE": "1"}).size == 1
    assert processes_here({"LOCAL_WORLD_SIZE": "4"}) == 4
    assert processes_here({}) == 1


def test_a_wrong_environment_is_named() -> None:
    with pytest.raises(UsageError, match="WORLD_SIZE=two; a whole number"):
        connect({"RANK": "0", "WORLD_SIZE": "two"})


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, environ, extra in (
        ("torch", {"RANK": "0", "WORLD_SIZE": "2"}, r"\.\[torch\]"),
        ("mpi4py", {"PMI_SIZE": "2"}, r"\.\[mpi\]"),
    ):
        monkeypatch.setitem(__import__("sys").modules, name, None)
        with pytest.raises(DeviceError, match=extra):
            connect(environ)
