"""Products by register tiles, and by BLAS: against NumPy."""

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vertexrt.kernels.cpu.choose_products import ANY_ROWS
from vertexrt.kernels.cpu.products import library_of

TOLERANCE = {"float": 2e-6, "double": 1e-14}
DTYPES = {"float": np.float32, "double": np.float64}
VECTORS = (4, 8, 16)  # float32 elements of a register, whatever this processor has
# Rows, outputs and inner elements: with tiles and blocks that are not full, sums of several blocks,
# few outputs, and widths that are no multiple of a vector.
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
    (300, 5, 256),
    (513, 640, 64),
    (7, 3, 2),
    (65, 150, 300),
]


def call(real: str, name: str, size: int = 0) -> Callable[..., None]:
    """Return a function of the library, for vectors of a size."""
    kinds = [ctypes.c_void_p] * 3 + [ctypes.c_int64] * (7 if name == "vrt_product" else 6)
    function = ctypes.CFUNCTYPE(None, *kinds)(library_of(real, size)[name])

    def run(*arguments: Any) -> None:
        function(*(x.ctypes.data if isinstance(x, np.ndarray) else x for x in arguments))

    return run


def drawn(real: str, *shape: int) -> np.ndarray:
    return np.random.default_rng(shape).standard_normal(shape).astype(DTYPES[real])


def require_close(got: np.ndarray, want: np.ndarray, real: str) -> None:
    assert np.linalg.norm(got - want) <= TOLERANCE[real] * np.linalg.norm(want)


def require_bound(got: np.ndarray, a: np.ndarray, b: np.ndarray, real: str) -> None:
    """Require a product, up to what its terms could lose if they did not cancel."""
    a, b = a.astype(float), b.astype(float)
    assert (np.abs(got - a @ b) <= TOLERANCE[real] * (np.abs(a) @ np.abs(b))).all()


# By BLAS, as rows say, by tiles that read the weight as it lies, or transpose it.
@pytest.mark.parametrize(
    ("tiled", "strips"), [(0, 1), (64, 40), (ANY_ROWS, ANY_ROWS), (ANY_ROWS, 1)]
)
@pytest.mark.parametrize("size", VECTORS)
@pytest.mark.parametrize("real", DTYPES)
@pytest.mark.parametrize(("rows", "m", "n"), SIZES)
def test_products_of_a_weight(
    rows: int, m: int, n: int, real: str, size: int, tiled: int, strips: int
) -> None:
    """Of all outputs, and of some of them: the others are left alone."""
    w, x, d = drawn(real, m, n), drawn(real, rows, n), drawn(real, rows, m)
    exact = (x.astype(float) @ w.astype(float).T, d.astype(float) @ w.astype(float))
    names = {"vrt_product": (tiled, strips), "vrt_product_transposed": (tiled,)}
    for (name, limits), operand, want in zip(names.items(), (x, d), exact, strict=True):
        width = want.shape[1]
        for lo, hi in ((0, width), (width // 4, width // 2), (5, 5)):
            y = np.full(want.shape, 7.0, DTYPES[real])
            call(real, name, size)(w, operand, y, rows, m, n, lo, hi, *limits)
            if hi > lo:
                require_close(y[:, lo:hi], want[:, lo:hi], real)
            assert (np.delete(y, range(lo, hi), 1) == 7.0).all()


@pytest.mark.parametrize("tiled", [0, 64, ANY_ROWS])  # by BLAS, as rows say, by tiles
@pytest.mark.parametrize("size", VECTORS)
@pytest.mark.parametrize("real", DTYPES)
@pytest.mark.parametrize(("rows", "m", "n"), SIZES)
def test_sums_of_outer_products(
    rows: int, m: int, n: int, real: str, size: int, tiled: int
) -> None:
    """They add to the gradient, in some of its rows."""
    d, x, before = drawn(real, rows, m), drawn(real, rows, n), drawn(real, m, n)
    want = before + d.astype(float).T @ x.astype(float)
    for lo, hi in ((0, m), (m // 4 + 1, m // 2)):
        g = before.copy()
        call(real, "vrt_outer", size)(g, d, x, rows, m, n, lo, hi, tiled)
        require_close(g[lo:hi], want[lo:hi], real)
        np.testing.assert_array_equal(
            np.delete(g, range(lo, hi), 0), np.delete(before, range(lo, hi), 0)
        )


def test_no_rows_write_nothing() -> None:
    w, y = drawn("float", 32, 32), np.full((2, 32), 7.0, np.float32)
    for strips in (0, ANY_ROWS):
        call("float", "vrt_product")(w, y, y, 0, 32, 32, 0, 32, ANY_ROWS, strips)
    call("float", "vrt_product_transposed")(w, y, y, 0, 32, 32, 0, 32, ANY_ROWS)
    assert (y == 7.0).all()


@settings(deadline=None)  # a first call compiles
@given(st.data())
def test_products_of_any_size(data: st.DataObject) -> None:
    """All three, of some outputs."""
    real, size = data.draw(st.sampled_from(sorted(DTYPES))), data.draw(st.sampled_from(VECTORS))
    rows, m, n = (data.draw(st.integers(1, most)) for most in (130, 320, 320))
    tiled, strips = (data.draw(st.sampled_from((0, 64, ANY_ROWS))) for _ in range(2))
    if data.draw(st.booleans()):
        m, n = (-(-extent // 16) * 16 for extent in (m, n))
    w, x, d = drawn(real, m, n), drawn(real, rows, n), drawn(real, rows, m)
    y, back, gradient = (np.zeros(shape, w.dtype) for shape in ((rows, m), (rows, n), (m, n)))
    hi, end = data.draw(st.integers(1, m)), data.draw(st.integers(1, n))
    lo, first = data.draw(st.integers(0, hi - 1)), data.draw(st.integers(0, end - 1))
    call(real, "vrt_product", size)(w, x, y, rows, m, n, lo, hi, tiled, strips)
    require_bound(y[:, lo:hi], x, w[lo:hi].T, real)
    call(real, "vrt_product_transposed", size)(w, d, back, rows, m, n, first, end, tiled)
    require_bound(back[:, first:end], d, w[:, first:end], real)
    call(real, "vrt_outer", size)(gradient, d, x, rows, m, n, lo, hi, tiled)
    require_bound(gradient[lo:hi], d[:, lo:hi].T, x, real)


@pytest.mark.parametrize("size", VECTORS)
def test_a_row_has_the_same_bits_whatever_rows_are_with_it(size: int) -> None:
    """Where tiles make all of them, and none or all transpose the weight."""
    w, x, d = drawn("float", 160, 320), drawn("float", 61, 320), drawn("float", 61, 160)
    for name, limits, operand, width in (
        ("vrt_product", (ANY_ROWS, ANY_ROWS), x, 160),
        ("vrt_product", (ANY_ROWS, 1), x, 160),
        ("vrt_product_transposed", (ANY_ROWS,), d, 320),
    ):
        product = call("float", name, size)
        whole, one = (np.empty((rows, width), np.float32) for rows in (61, 1))
        product(w, operand, whole, 61, 160, 320, 0, width, *limits)
        for row in (0, 1, 30, 60):
            product(w, operand[row : row + 1].copy(), one, 1, 160, 320, 0, width, *limits)
            np.testing.assert_array_equal(one[0], whole[row])
