"""What makes a product on a CPU: fixed limits, and a table that is timed on this machine."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vertexrt as vrt
from vertexrt.cache import entries, folders
from vertexrt.cache.folders import CacheWarning
from vertexrt.config import temporary_cache
from vertexrt.engine.variant import Passes
from vertexrt.errors import UsageError
from vertexrt.kernels.backend import BLAS, FIXED, TIMED
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


def keep(ratio: float) -> None:
    """Keep a table in which BLAS takes so many times as long as tiles."""
    for shape in SHAPES:
        entries.write(KIND, entry_name(shape), b"", dict.fromkeys(ROWS, ratio))


def network(products: str = FIXED, **options: Any) -> vrt.Network:
    function = TreeLSTM(vocab=20, embed=HIDDEN, hidden=HIDDEN, classes=HIDDEN)
    options = {"device": "cpu", "passes": Passes(products=products), **options}
    return vrt.compile(function, threads=1, seed=3, **options)


def batch() -> vrt.GraphBatch:
    pulls = {"word": np.array([1, 2, -1, 3, -1]), "label": np.array([0, 1, 2, 3, 4])}
    return vrt.GraphBatch.from_graphs(
        [vrt.InputGraph.from_children([[], [], [0, 1], [], [2, 3]], pulls)] * 5
    )


def made_of(net: vrt.Network) -> list[str]:
    """Return what `explain` says of the products; none is so small that no table has it."""
    net.step(batch(), vrt.SGD(0.0))
    return [line for line in net.explain().splitlines() if f"{HIDDEN}]: " in line]


# Ratios of 1, 16 and 256 rows, and the limit that is fixed -> the limit.
CORRECTED = {
    ", 512": 512,
    "2.0 1.5 1.1, 512": 512,  # as the limit says
    "2.0 0.97 1.1, 512": 512,  # within the noise
    "2.0 1.5 0.97, ANY_ROWS": ANY_ROWS,
    "2.0 1.5 0.9, 512": 64,  # between 16 and 256
    "2.0 1.5 0.9, ANY_ROWS": 64,
    "0.5 0.5 0.5, ANY_ROWS": 0,
    "0.5 1.5 1.5, 512": 512,  # one border alone
    "2.0 1.5 1.2, 64": 256,
    "2.0 1.5 1.04, 64": 64,
}


@pytest.mark.parametrize("case", CORRECTED)
def test_a_limit_is_corrected_where_the_other_is_clearly_faster(case: str) -> None:
    ratios, fixed = case.split(", ")
    measured = dict(zip((1, 16, 256), map(float, ratios.split()), strict=False))
    assert corrected(eval(fixed), measured) == CORRECTED[case]


# Form, type, outputs, inner elements and a vector's: up to how many rows tiles make a product, as
# it was measured, and from how many on they transpose the weight.
LIMITS: dict[str, tuple[int, int]] = {
    "x W^T, float, 768, 256, 16": (ANY_ROWS, 64),
    "x W^T, float, 2048, 512, 16": (512, 128),
    "x W^T, float, 768, 256, 8": (64, 64),
    "x W^T, float, 64, 3, 16": (ANY_ROWS, 16),
    "x W^T, float, 5, 64, 16": (ANY_ROWS, STRIP_ROWS),  # whatever the outputs
    "x W^T, float, 96, 100, 16": (ANY_ROWS, 25),
    "x W^T, float, 72, 256, 16": (ANY_ROWS, ANY_ROWS),  # a strip has 64 outputs
    "x W^T, double, 72, 256, 16": (ANY_ROWS, 64),  # 32
    "x W^T, float, 4096, 1024, 16": (512, ANY_ROWS),
    "d W, float, 768, 256, 16": (ANY_ROWS, ANY_ROWS),  # which reads W as it lies
    "d W, float, 2048, 512, 16": (512, ANY_ROWS),
    "d W, float, 5, 4096, 8": (ANY_ROWS, ANY_ROWS),
    "d^T x, float, 1024, 256, 16": (ANY_ROWS, ANY_ROWS),
    "d^T x, float, 2048, 512, 16": (24, ANY_ROWS),
    "d^T x, float, 1024, 256, 8": (16, ANY_ROWS),
}


@pytest.mark.parametrize("product", LIMITS)
def test_the_limits_are_those_that_were_measured(product: str) -> None:
    form, real, m, n, size = product.split(", ")
    shape = ProductShape(form, real, int(m), int(n))
    assert (fixed_rows(shape, int(size)), strips_from(shape, int(size))) == LIMITS[product]


def test_what_is_decided_says_from_how_many_rows_a_weight_is_transposed() -> None:
    shape = ProductShape("x W^T", "float", 256, 64)
    assert f"W is transposed from {STRIP_ROWS} rows on; not timed" in str(choose(shape, FIXED))
    assert "transposed" not in str(choose(shape, BLAS))
    assert "transposed" not in str(choose(shape._replace(form="d W"), FIXED))


def test_a_table_that_says_blas_makes_it_blas_and_results_agree(choices_folder: Path) -> None:
    keep(0.5)
    timed = "BLAS; at 1, 4, 16, 64, 256 rows BLAS takes 0.50"
    nets = [network(TIMED), network(BLAS), network(FIXED)]
    for net, words in zip(nets, (timed, "BLAS", "register tiles"), strict=True):
        lines = made_of(net)
        assert len(lines) >= 6
        assert all(f": {words}" in line for line in lines), lines
    nets.append(network(device="reference", dtype="float64"))
    by_table, by_blas, by_tiles, exact = (
        [net.step(batch(), vrt.SGD(0.1)) for _ in range(3)] for net in nets
    )
    assert by_table == by_blas
    np.testing.assert_allclose([by_blas, by_tiles], [exact, exact], rtol=1e-5)


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


def test_products_of_little_or_very_large_weights_are_not_timed(choices_folder: Path) -> None:
    assert ratios_of(ProductShape("x W^T", "float", 64, 64)) == {}
    assert not (choices_folder / KIND).exists()
    assert time_product(ProductShape("x W^T", "float", 1 << 17, 1 << 8)) == {}


def test_what_is_no_choice_is_refused() -> None:
    with pytest.raises(UsageError, match=r"products='mkl'.*timed, fixed, blas"):
        network("mkl")


def test_bits_do_not_depend_on_timings(choices_folder: Path) -> None:
    """Nothing is timed unless it is asked for: a seed gives the same bits with empty caches."""
    network(passes=None).step(batch(), vrt.Adagrad(0.1))
    assert not (choices_folder / KIND).exists()
