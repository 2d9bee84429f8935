"""Products by tiles of our own, and by BLAS where these are not for: against NumPy."""

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from vertexrt.kernels.cpu.compile import library_of

TOLERANCE = {"float": 2e-6, "double": 1e-14}
DTYPES = {"float": np.float32, "double": np.float64}
# Rows, outputs and inner elements: below and above what BLAS takes without packing, with tiles that
# are not full, and widths that are no multiple of a vector.
SIZES = [
    (1, 16, 16),
    (3, 1024, 256),
    (17, 512, 1024),
    (24, 768, 256),
    (45, 96, 208),
    (127, 256, 320),
    (129, 256, 256),
    (31, 250, 130),
    (40, 32, 4096),
]


def call(real: str, name: str) -> Callable[..., None]:
    """Return a function of the library."""
    kinds = [ctypes.c_void_p] * 3 + [ctypes.c_int64] * 5
    function = ctypes.CFUNCTYPE(None, *kinds)(library_of(real)[name])

    def run(*given: Any) -> None:
        function(*(x.ctypes.data if isinstance(x, np.ndarray) else x for x in given))

    return run


def drawn(real: str, *shape: int) -> np.ndarray:
    return np.random.default_rng(shape).standard_normal(shape).astype(DTYPES[real])


def require_close(got: np.ndarray, want: np.ndarray, real: str) -> None:
    assert np.linalg.norm(got - want) <= TOLERANCE[real] * np.linalg.norm(want)


@pytest.mark.parametrize("real", DTYPES)
@pytest.mark.parametrize(("rows", "m", "n"), SIZES)
def test_products_of_a_weight(rows: int, m: int, n: int, real: str) -> None:
    """Of all outputs, and of some of them: the others are left alone."""
    w, x, d = drawn(real, m, n), drawn(real, rows, n), drawn(real, rows, m)
    exact = (x.astype(float) @ w.astype(float).T, d.astype(float) @ w.astype(float))
    names = ("vrt_product", "vrt_product_transposed")
    for name, given, want in zip(names, (x, d), exact, strict=True):
        width = want.shape[1]
        for lo, hi in ((0, width), (width // 4, width // 2), (5, 5)):
            y = np.full(want.shape, 7.0, DTYPES[real])
            call(real, name)(w, given, y, rows, m, n, lo, hi)
            if hi > lo:
                require_close(y[:, lo:hi], want[:, lo:hi], real)
            assert (np.delete(y, range(lo, hi), 1) == 7.0).all()


@pytest.mark.parametrize("real", DTYPES)
@pytest.mark.parametrize(("rows", "m", "n"), SIZES)
def test_sums_of_outer_products(rows: int, m: int, n: int, real: str) -> None:
    """They add to the gradient, in some of its rows."""
    d, x, before = drawn(real, rows, m), drawn(real, rows, n), drawn(real, m, n)
    want = before + d.astype(float).T @ x.astype(float)
    for lo, hi in ((0, m), (m // 4 + 1, m // 2)):
        g = before.copy()
        call(real, "vrt_outer")(g, d, x, rows, m, n, lo, hi)
        require_close(g[lo:hi], want[lo:hi], real)
        np.testing.assert_array_equal(
            np.delete(g, range(lo, hi), 0), np.delete(before, range(lo, hi), 0)
        )


def test_no_rows_write_nothing() -> None:
    w, y = drawn("float", 32, 32), np.full((2, 32), 7.0, np.float32)
    for name in ("vrt_product", "vrt_product_transposed"):
        call("float", name)(w, y, y, 0, 32, 32, 0, 32)
    assert (y == 7.0).all()
