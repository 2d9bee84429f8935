"""Products of the path by matrix units, run by the shim: how close they come to float64."""

from __future__ import annotations

import numpy as np
import pytest

from tests.backend.test_cuda_shim import arguments, launch
from tests.bfloat16 import rounded
from tests.shim import build as shim
from vertexrt.errors import DeviceError
from vertexrt.kernels.cuda.compile import compile_cubin

Array = np.ndarray
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
    PLACE share;
    load_weights<false, OWN, DEEP>(share, a.x, DEEP, [](int q) { return q; });
    make_all_partial_sums<ROWS, 4, OWN, DEEP>(
        share, 0, a.n, [&](int i) { return x + i * DEEP; }, part);
    __syncthreads();
    for (int at = this_thread(); at < a.n * OWN; at += PROCESSOR)
        a.y[at] = total_of_parts<1, ROWS, OWN, DEEP>(part, at / OWN, at % OWN).v[0];
}
"""


IN_REGISTERS = "WeightsInRegisters<OWN, DEEP> share;"
IN_SHARED_MEMORY = """WeightsInSharedMemory<OWN, DEEP> share;
    share.take(reinterpret_cast<unsigned char*>(part) + (64 << 10));"""


def product_of(
    both: Array, own: int, rows: int, place: str = IN_REGISTERS, head: str = ""
) -> Array:
    """Return the products of the last rows of an array with the first ones.

    Args:
        own: rows of the weight; rows: of x, as many as matrix units take at once.
    """
    deep, name = both.shape[1], f"product_{own}_{both.shape[1]}_{rows}"
    sizes = {"NAME": name, "SIZE_ROWS": max(rows, 8), "SIZE_OWN": own, "SIZE_DEEP": deep}
    text = head + KERNEL.replace("PLACE share;", place)
    for word, value in sizes.items():
        text = text.replace(word, str(value))
    y = np.zeros((rows, own), np.float32)
    done = launch(shim.build(text), name, 1, 256, arguments(y, both, n=rows), 200 << 10)
    assert done == 0
    return y


def shrinkage(own: int, deep: int, rows: int) -> tuple[float, float]:
    """Return by how much products of positive numbers are too small, and how far they are off."""
    rng = np.random.default_rng(0)
    both = rng.uniform(0, 1, (own + rows, deep)).astype(np.float32)
    y = product_of(both, own, rows)
    exact = both[own:].astype(np.float64) @ both[:own].astype(np.float64).T
    off = (exact - y) / exact
    return float(off.mean()), float(np.sqrt((off**2).mean()))


@pytest.mark.parametrize(("own", "deep"), [(32, 1024), (64, 512), (64, 256)])
def test_products_of_the_path_keep_their_digits(own: int, deep: int) -> None:
    """Sums of 48 elements of parts that are cut, not rounded, come to 5.7e-7."""
    mean, off = shrinkage(own, deep, 8)
    assert abs(mean) < 1.5e-7
    assert off < 1.7e-7


@pytest.mark.parametrize("place", [IN_REGISTERS, IN_SHARED_MEMORY])
@pytest.mark.parametrize(
    ("own", "deep", "rows"),
    [(32, 256, 3), (32, 256, 8), (20, 100, 7), (4, 1024, 8), (40, 64, 6)],
)
def test_pairs_of_bfloat16_are_multiplied(place: str, own: int, deep: int, rows: int) -> None:
    """Weights are rounded, and what matrix units multiply: five rows or more."""
    both = np.random.default_rng(1).standard_normal((own + rows, deep)).astype(np.float32)
    y = product_of(both, own, rows, place, "#define VRT_MANTISSA 7\n")
    w, x = rounded(both[:own]), both[own:] if rows < 5 else rounded(both[own:])
    exact = x.astype(np.float64) @ w.astype(np.float64).T
    assert np.abs(y - exact).max() < 2e-6 * np.abs(exact).max()


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_products_of_pairs_compile_for_a_gpu_without_spills(arch: str) -> None:
    text = "#define VRT_MANTISSA 7\n" + KERNEL.replace("PLACE share;", IN_REGISTERS)
    for word, value in {"NAME": "k", "SIZE_ROWS": 8, "SIZE_OWN": 64, "SIZE_DEEP": 256}.items():
        text = text.replace(word, str(value))
    try:
        cubin = compile_cubin(text, arch)
    except DeviceError as error:
        if "NVRTC, is not installed" not in str(error):
            raise
        pytest.skip(str(error))
    assert cubin.usage["k"].local == 0
