"""Products of the path by matrix units, run by the shim: how close they come to float64."""

from __future__ import annotations

import numpy as np
import pytest

from tests.backend.test_cuda_shim import arguments, launch
from tests.shim import build as shim

pytestmark = pytest.mark.skipif(not shim.available(), reason="no C++ compiler")

KERNEL = """
#define VRT_BLOCKS 1
#define VRT_SHARED_BYTES 166912
#include "persistent.cuh"
struct Args3 { real* y; const real* x; unsigned* counter; int n; };
VRT_KERNEL(NAME, Args3, PROCESSOR) {
    constexpr int OWN = SIZE_OWN, DEEP = SIZE_DEEP, ROWS = SIZE_ROWS;
    VRT_SHARED(real, part);
    const real* const x = a.x + OWN * DEEP;
    WeightsInRegisters<OWN, DEEP> share;
    load_weights<false, OWN, DEEP>(share, a.x, DEEP, [](int q) { return q; });
    multiply(part, product<ROWS, 4, OWN, DEEP>(
                       share, a.n, [&](int i) { return x + i * DEEP; },
                       [&](int i, int q, real sum) { a.y[i * OWN + q] = sum; }));
}
"""


def shrinkage(own: int, deep: int, rows: int) -> tuple[float, float]:
    """Return by how much products of positive numbers are too small, and how far they are off.

    Args:
        rows: of x, as many as matrix units take at once.
    """
    name = f"product_{own}_{deep}_{rows}"
    text = KERNEL.replace("NAME", name).replace("SIZE_ROWS", str(rows))
    module = shim.build(text.replace("SIZE_OWN", str(own)).replace("SIZE_DEEP", str(deep)))
    rng = np.random.default_rng(0)
    both = rng.uniform(0, 1, (own + rows, deep)).astype(np.float32)
    y = np.zeros((rows, own), np.float32)
    assert launch(module, name, 1, 256, arguments(y, both, n=rows), 200 << 10) == 0
    exact = both[own:].astype(np.float64) @ both[:own].astype(np.float64).T
    off = (exact - y) / exact
    return float(off.mean()), float(np.sqrt((off**2).mean()))


@pytest.mark.parametrize("rows", [8, 16])
@pytest.mark.parametrize(("own", "deep"), [(32, 1024), (64, 512), (64, 256)])
def test_products_of_the_path_keep_their_digits(own: int, deep: int, rows: int) -> None:
    """Sums of 48 elements of parts that are cut, not rounded, come to 5.7e-7."""
    mean, off = shrinkage(own, deep, rows)
    assert abs(mean) < 1.5e-7
    assert off < 1.7e-7
