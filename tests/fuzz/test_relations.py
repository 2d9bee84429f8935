"""Networks agree with themselves after a change that may not matter; wide ones with the oracle.

`python -m tests.fuzz relations` and `python -m tests.fuzz wide` run more of them.
"""

from __future__ import annotations

import pytest

from tests.devices import require, shim
from tests.fuzz import relations, wide
from tests.fuzz.campaign import Settings
from tests.fuzz.test_fuzz import run

QUICK = (0, 3, 7, 8, 9, 10, 11, 13, 14, 15, 16, 17)  # of wide networks


@pytest.mark.parametrize("first", range(0, 45, 15))
def test_results_do_not_depend_on_what_should_not_matter(first: int) -> None:
    run(range(first, first + 15), Settings(per=3), one=relations.run_one)


def test_nor_do_they_in_float32() -> None:
    run(range(100, 109), Settings(dtype="float32", per=3), one=relations.run_one)


def test_nor_do_they_on_a_cpu() -> None:
    run(range(200, 260, 10), Settings("cpu", per=2, nodes=12), one=relations.run_one)


@shim
def test_nor_do_they_on_the_shim() -> None:
    run(range(300, 348, 12), Settings("shim", per=2, most=4, nodes=8), one=relations.run_one)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_nor_do_they_on_a_gpu(dtype: str) -> None:
    require("cuda")
    run(range(400, 416), Settings("cuda", dtype, per=3, nodes=12), one=relations.run_one)


def test_wide_networks() -> None:
    run(QUICK, Settings(per=1), one=wide.run_one)


def test_wide_networks_on_a_cpu() -> None:
    run((8, 11, 16), Settings("cpu", per=1), one=wide.run_one)


@shim
def test_wide_tables_on_the_shim() -> None:
    """Issue 52: on the persistent engine, columns from 1,024 on were never updated."""
    run((76,), Settings("shim", per=1), one=wide.run_one)


@pytest.mark.gpu
@pytest.mark.parametrize("part", range(5))
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_wide_networks_on_a_gpu(dtype: str, part: int) -> None:
    """In parts, since compiling them takes minutes."""
    require("cuda")
    seeds = (*range(16), 52, 76, 87, 125)
    run(seeds[part::5], Settings("cuda", dtype, per=1), one=wide.run_one)
