"""What makes a product on a CPU: fixed limits, and a table that is timed on this machine."""

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import cast

import numpy as np
import pytest

import vertexrt as vrt
from tests.package_source import ROOT
from vertexrt.cache import entries, folders
from vertexrt.cache.folders import CacheWarning
from vertexrt.config import temporary_cache
from vertexrt.engine.variant import Passes, Use
from vertexrt.errors import UsageError
from vertexrt.kernels.backend import BLAS, FIXED, TIMED, HostExecutable
from vertexrt.kernels.cpu.choose_products import (
    ANY_ROWS,
    KIND,
    ROWS,
    STRIP_ROWS,
    ProductShape,
    choose,
    corrected,
    entry_name,
    fixed_rows,
    ratios_of,
    strips_from,
    time_product,
)
from vertexrt.kernels.cpu.products import register_size
from vertexrt.models import TreeLSTM

HIDDEN = 128
SHAPES = [
    ProductShape(form, "float", m, HIDDEN)
    for form in ("x W^T", "d W", "d^T x")
    for m in (HIDDEN, 3 * HIDDEN, 4 * HIDDEN)
]


# Tiles make these of any number of rows where vectors are wide; elsewhere BLAS makes those of more
# rows than were timed.
WIDE = register_size() == 16


def keep(ratio: float) -> None:
    """Keep a table in which BLAS takes so many times as long as tiles."""
    for shape in SHAPES:
        entries.write(KIND, entry_name(shape), b"", dict.fromkeys(ROWS, ratio))


def network(passes: Passes | None = None) -> vrt.Network:
    function = TreeLSTM(vocab=20, embed=HIDDEN, hidden=HIDDEN, classes=HIDDEN)
    return vrt.compile(function, device="cpu", threads=1, seed=3, passes=passes)


def batch() -> vrt.GraphBatch:
    pulls = {"word": np.array([1, 2, -1, 3, -1]), "label": np.array([0, 1, 2, 3, 4])}
    return vrt.GraphBatch.from_graphs(
        [vrt.InputGraph.from_children([[], [], [0, 1], [], [2, 3]], pulls)] * 5
    )


def made_of(net: vrt.Network) -> list[str]:
    """Return what `explain` says of the products; none is so small that no table has it."""
    net.step(batch(), vrt.SGD(0.0))
    return [line for line in net.explain().splitlines() if f"{HIDDEN}]: " in line]


@pytest.mark.parametrize(
    ("ratios", "fixed", "rows"),
    [
        ({}, 512, 512),
        ({1: 2.0, 16: 1.5, 256: 1.1}, 512, 512),  # as the limit says
        ({1: 2.0, 16: 0.97, 256: 1.1}, 512, 512),  # within the noise
        ({1: 2.0, 16: 1.5, 256: 0.97}, ANY_ROWS, ANY_ROWS),
        ({1: 2.0, 16: 1.5, 256: 0.9}, 512, 64),  # between 16 and 256
        ({1: 2.0, 16: 1.5, 256: 0.9}, ANY_ROWS, 64),
        ({1: 0.5, 16: 0.5, 256: 0.5}, ANY_ROWS, 0),
        ({1: 0.5, 16: 1.5, 256: 1.5}, 512, 512),  # one border alone
        ({1: 2.0, 16: 1.5, 256: 1.2}, 64, 256),
        ({1: 2.0, 16: 1.5, 256: 1.04}, 64, 64),
    ],
)
def test_a_limit_is_corrected_where_the_other_is_clearly_faster(
    ratios: dict[int, float], fixed: int, rows: int
) -> None:
    assert corrected(fixed, ratios) == rows


@pytest.mark.parametrize(
    ("form", "m", "n", "size", "rows"),
    [
        ("x W^T", 768, 256, 16, ANY_ROWS),
        ("x W^T", 2048, 512, 16, 512),
        ("x W^T", 768, 256, 8, 64),
        ("d W", 2048, 512, 16, 512),
        ("x W^T", 64, 3, 16, ANY_ROWS),
        ("d W", 5, 4096, 8, ANY_ROWS),
        ("d^T x", 1024, 256, 16, ANY_ROWS),
        ("d^T x", 2048, 512, 16, 24),
        ("d^T x", 1024, 256, 8, 16),
    ],
)
def test_the_limits_are_those_that_were_measured(
    form: str, m: int, n: int, size: int, rows: int
) -> None:
    assert fixed_rows(ProductShape(form, "float", m, n), size) == rows


@pytest.mark.parametrize(
    ("form", "real", "m", "n", "size", "rows"),
    [
        ("x W^T", "float", 5, 64, 16, STRIP_ROWS),  # whatever the outputs
        ("x W^T", "float", 768, 256, 16, 64),
        ("x W^T", "float", 96, 100, 16, 25),
        ("x W^T", "float", 72, 256, 16, ANY_ROWS),  # a strip has 64 outputs
        ("x W^T", "double", 72, 256, 16, 64),  # 32
        ("x W^T", "float", 4096, 1024, 16, ANY_ROWS),
        ("d W", "float", 768, 256, 16, ANY_ROWS),  # which reads W as it lies
    ],
)
def test_a_weight_is_transposed_for_many_rows(
    form: str, real: str, m: int, n: int, size: int, rows: int
) -> None:
    assert strips_from(ProductShape(form, real, m, n), size) == rows


def test_what_is_decided_says_from_how_many_rows_a_weight_is_transposed() -> None:
    shape = ProductShape("x W^T", "float", 256, 64)
    assert f"W is transposed from {STRIP_ROWS} rows on; not timed" in str(choose(shape, FIXED))
    assert "transposed" not in str(choose(shape, BLAS))
    assert "transposed" not in str(choose(shape._replace(form="d W"), FIXED))


def test_a_table_that_says_blas_makes_it_blas_and_results_agree(choices_folder: Path) -> None:
    keep(0.5)
    by_table, by_blas = (network(Passes(products=way)) for way in (TIMED, BLAS))
    by_tiles = network(Passes(products=FIXED))
    timed = "BLAS; at 1, 4, 16, 64, 256 rows BLAS takes 0.50"
    for net, words in ((by_table, timed), (by_tiles, "register tiles"), (by_blas, "BLAS")):
        lines = made_of(net)
        assert len(lines) >= 6
        assert all(f": {words}" in line for line in lines), lines
    losses = [[net.step(batch(), vrt.SGD(0.1)) for _ in range(3)] for net in (by_table, by_blas)]
    assert losses[0] == losses[1]
    function = TreeLSTM(vocab=20, embed=HIDDEN, hidden=HIDDEN, classes=HIDDEN)
    oracle = vrt.compile(function, device="reference", dtype="float64", threads=1, seed=3)
    exact = [oracle.step(batch(), vrt.SGD(0.1)) for _ in range(3)]
    np.testing.assert_allclose(losses[0], exact, rtol=1e-5)
    np.testing.assert_allclose(
        [by_tiles.step(batch(), vrt.SGD(0.1)) for _ in range(3)], exact, rtol=1e-5
    )


def test_blas_is_kept_to_a_thread_only_where_it_is_called(choices_folder: Path) -> None:
    keep(2.0)
    runs = [
        net.executor.model.prepare(Use(frozenset({"loss"}), loss=True), batch())
        for net in (network(Passes(products=TIMED)), network(Passes(products=BLAS)))
    ]
    above = [cast("HostExecutable", run.ready.executable).blas_above for (run,) in runs]
    assert [rows < ANY_ROWS for rows in above] == [not WIDE, True]
    assert above[1] == 0


class TwoRows(vrt.VertexFunction):
    """Two products with one weight: one product of two rows for each vertex."""

    def __init__(self) -> None:
        super().__init__(state={})
        self.w = vrt.Parameter((HIDDEN, HIDDEN))

    def forward(self) -> None:
        one, other = (vrt.tanh(self.w @ self.pull(name, (HIDDEN,))) for name in ("x", "y"))
        self.push("z", one * other)


def test_a_product_of_two_rows_a_vertex_calls_blas_in_smaller_launches(
    choices_folder: Path,
) -> None:
    shape = ProductShape("x W^T", "float", HIDDEN, HIDDEN)
    entries.write(KIND, entry_name(shape), b"", {1: 2.0, 4: 2.0, 16: 2.0, 64: 0.5, 256: 0.5})
    assert choose(shape, TIMED).rows == 32
    net = vrt.compile(TwoRows(), device="cpu", threads=1, passes=Passes(products=TIMED))
    given = dict.fromkeys(("x", "y"), np.ones((5, HIDDEN), np.float32))
    vertices = vrt.GraphBatch.from_graphs([vrt.InputGraph.from_children([[]] * 5, given)])
    (run,) = net.executor.model.prepare(Use(frozenset({"z"})), vertices)
    assert cast("HostExecutable", run.ready.executable).blas_above == 16


def test_a_table_that_says_tiles_stays_with_them(choices_folder: Path) -> None:
    keep(2.0)
    assert choose(SHAPES[0], TIMED).rows == (ANY_ROWS if WIDE else max(ROWS))
    assert choose(SHAPES[0], BLAS).rows == 0


def test_tiles_make_products_of_any_width() -> None:
    """The last vector of 130 elements is not full."""
    odd = ProductShape("x W^T", "float", 256, 130)
    assert choose(odd, FIXED).rows == fixed_rows(odd, register_size()) > 0


def test_a_damaged_table_is_timed_again(choices_folder: Path) -> None:
    path = entries.write(KIND, entry_name(SHAPES[0]), b"", dict.fromkeys(ROWS, 0.5))
    path.write_bytes(path.read_bytes()[:-40] + bytes(40))
    ratios = ratios_of(SHAPES[0])
    assert list(ratios) == list(ROWS)
    kept = entries.read(KIND, entry_name(SHAPES[0]))
    assert kept is not None
    assert {int(rows): ratio for rows, ratio in kept.facts.items()} == ratios


def test_what_cannot_be_kept_is_not_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache_folder: Path
) -> None:
    """Neither the cache folder nor that in the temporary folder is this user's alone."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folders.forget()
    for folder in (cache_folder, temporary_cache()):
        folder.mkdir()
        folder.chmod(0o777)
    with pytest.warns(CacheWarning, match="can be written by others"):
        assert ratios_of(SHAPES[0]) == {}
    assert choose(SHAPES[0], TIMED).rows == fixed_rows(SHAPES[0], register_size())
    folders.forget()


def test_small_products_are_not_timed(choices_folder: Path) -> None:
    assert ratios_of(ProductShape("x W^T", "float", 64, 64)) == {}
    assert not (choices_folder / KIND).exists()


def test_timing_a_layer_takes_much_less_than_a_second() -> None:
    for form in ("x W^T", "d W", "d^T x"):
        time_product(ProductShape(form, "float", 64, 64))  # compiles
        start = time.thread_time()
        time_product(ProductShape(form, "float", 2048, 512))
        assert time.thread_time() - start < 0.5


def test_a_weight_that_is_too_large_is_not_timed() -> None:
    assert time_product(ProductShape("x W^T", "float", 1 << 17, 1 << 8)) == {}


def test_what_is_no_choice_is_refused() -> None:
    with pytest.raises(UsageError, match=r"products='mkl'.*timed, fixed, blas"):
        network(Passes(products="mkl"))


STEPS = """
import hashlib, sys
sys.path.insert(0, ".")
import vertexrt as vrt
from tests.pure.test_product_choice import TIMED, Passes, batch, network
net = network(Passes(products=TIMED))
for _ in range(3):
    net.step(batch(), vrt.Adagrad(0.1))
parts = [net.parameters[name].tobytes() for name in sorted(net.parameters)]
print(hashlib.sha256(b"".join(parts)).hexdigest())
"""


def test_bits_do_not_depend_on_timings(choices_folder: Path) -> None:
    """Nothing is timed unless it is asked for: a seed gives the same bits with empty caches."""
    network().step(batch(), vrt.Adagrad(0.1))
    assert not (choices_folder / KIND).exists()


def test_two_processes_have_the_same_bits(choices_folder: Path) -> None:
    """The first times the table, the second reads it."""
    made = [
        subprocess.run(
            [sys.executable, "-W", "ignore::DeprecationWarning", "-c", STEPS],
            cwd=ROOT, capture_output=True, text=True, check=True,
        ).stdout
        for _ in range(2)
    ]  # fmt: skip
    assert len(list((choices_folder / KIND).iterdir())) == len(SHAPES)
    assert made[0] == made[1] != ""
