"""The shim's matrix unit computes what a GPU's does."""

from __future__ import annotations

import numpy as np
import pytest

from tests.backend.test_cuda_shim import HEAD, arguments, launch
from tests.shim import build as shim
from tests.shim.build import build

pytestmark = pytest.mark.skipif(not shim.available(), reason="no C++ compiler")

MATRICES = """
#include "mac.cuh"
VRT_KERNEL(multiplied, Args, 32) {
    const int g = threadIdx.x / 4, t = threadIdx.x % 4;
    const real* const b = a.x + 128;
    const real* const c = b + 64;
    const float of_a[4] = {a.x[g * 8 + t], a.x[(g + 8) * 8 + t], a.x[g * 8 + t + 4],
                           a.x[(g + 8) * 8 + t + 4]};
    float d[4];
    for (int e = 0; e < 4; ++e) d[e] = c[(g + e / 2 * 8) * 8 + 2 * t + e % 2];
    mma(d, of_a, b[t * 8 + g], b[(t + 4) * 8 + g], d);
    for (int e = 0; e < 4; ++e) a.y[(g + e / 2 * 8) * 8 + 2 * t + e % 2] = d[e];
}
"""


@pytest.mark.parametrize("seed", [0, 1])
def test_a_matrix_unit_truncates_operands_and_sums(seed: int) -> None:
    a, b, c = (
        np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
        for shape in ((16, 8), (8, 8), (16, 8))
    )
    y, x = np.empty_like(c), np.concatenate([part.ravel() for part in (a, b, c)])
    module = build(HEAD + MATRICES)
    module.seed(seed)
    assert launch(module, "multiplied", 1, 32, arguments(y, x)) == 0
    module.seed(0)
    held = [(part.view(np.uint32) & 0xFFFFE000).view(np.float32).astype(float) for part in (a, b)]
    wanted = c + held[0] @ held[1]
    assert (np.abs(y) <= np.abs(wanted) + 1e-15).all()
    np.testing.assert_allclose(y, wanted, rtol=1.2e-7)
