"""Products of few rows by the kernel of ours: every shape of tile against NumPy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from tests.devices import SHIM_AND_GPU, require
from vertexrt.kernels.cuda.calls import addresses_of
from vertexrt.kernels.cuda.cupy_device import CupyDevice
from vertexrt.kernels.cuda.device import Device
from vertexrt.kernels.cuda.driver import encode, launch
from vertexrt.kernels.cuda.executable import kernel_name, kernel_sources
from vertexrt.kernels.cuda.pack import ADDRESSES
from vertexrt.kernels.cuda.products import (
    ARRIVED,
    FEW_ROWS,
    MANY_ROWS,
    SHARED_ROWS,
    product_kernel,
    splits_of,
)
from vertexrt.kernels.cuda.steps import (
    BY_ROW,
    PLAIN,
    TRANSPOSED,
    Gemm,
    Launches,
    OperandRows,
    Tiles,
)
from vertexrt.lower.places import Temporary

RANGES = {"8": (0, FEW_ROWS, 8), "32": (FEW_ROWS, SHARED_ROWS, 32), "whole": (128, MANY_ROWS, 32)}
SHAPES = [
    [(PLAIN, 36, 40, 1)],
    [(TRANSPOSED, 40, 36, 1)],
    [(PLAIN, 100, 256, 1), (PLAIN, 36, 256, 2)],
    [(TRANSPOSED, 520, 64, 1), (TRANSPOSED, 260, 64, 2)],
]


def device_named(name: str) -> Device:
    """Return a device; skips, where it is missing."""
    require(name)
    if name == "cuda":
        return CupyDevice()
    from tests.shim_device import ShimDevice

    return ShimDevice(seed=1)


def run(
    device: Device,
    shapes: Sequence[tuple[int, int, int, int]],
    n: int,
    limits: tuple[int, int, int],
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return what the kernel makes of drawn operands, and what NumPy does."""
    rng = np.random.default_rng(n)
    gemms, wanted, arrays = [], [], {}
    for k, (form, m, deep, times) in enumerate(shapes):
        w = rng.standard_normal((m, deep)).astype(np.float32)
        x = rng.standard_normal((n * times, m if form == TRANSPOSED else deep)).astype(np.float32)
        exact = x.astype(np.float64) @ (w if form == TRANSPOSED else w.T)
        wanted.append(exact)
        arrays |= {f"w{k}": w, f"x{k}": x, f"y{k}": np.full(exact.shape, np.nan, np.float32)}
        operands = [OperandRows(f"{letter}{k}", BY_ROW, 0) for letter in "xy"]
        gemms.append(Gemm(form, f"w{k}", m, deep, False, times, *operands))
    tiles = Tiles(max(times for *_, times in shapes), 0, *limits)
    kernel, partial = product_kernel(gemms, tiles, Temporary(0, 0, 0))
    launches = Launches([kernel])
    function = device.load(list(kernel_sources([launches]).values()), np.dtype(np.float32))
    memory = {name: device.allocate(array.nbytes) for name, array in arrays.items()}
    memory |= {"temporary": device.allocate(4 * partial), "arrived": device.allocate(4 * ARRIVED)}
    memory["zero"] = device.allocate(0)
    for name, array in arrays.items():
        pinned = device.pinned(array.nbytes)
        pinned[:] = array.reshape(-1).view(np.uint8)
        device.upload(memory[name].address, pinned)
        device.wait(device.record())
    device.clear(memory["arrived"].address, 4 * ARRIVED)
    names = [*ADDRESSES, *arrays]
    numbers = {name: k for k, name in enumerate(names)}
    addresses = [[function[kernel_name(kernel.body)]]]
    program = encode([launches], addresses, numbers)
    words = np.array([memory[name].address for name in names], np.int64)
    table = np.array([[0, n, 0, 0, 0, 0]], np.int64)
    lookups = np.zeros(2, np.int64), np.zeros(2, np.int64)
    calls = addresses_of(device.calls, np.array([0, 1], np.float32))
    for _ in range(2):  # the counters are as they were
        code, *_ = launch(table, program, words, lookups, calls)
        device.check(code, 0, 0)
    found = []
    for k, exact in enumerate(wanted):
        pinned = device.pinned(4 * exact.size)
        device.download(pinned, memory[f"y{k}"].address)
        device.wait(device.record())
        found.append((pinned.view(np.float32).reshape(exact.shape).copy(), exact))
    return found


@pytest.mark.parametrize("limits", RANGES.values(), ids=RANGES)
@pytest.mark.parametrize("shapes", SHAPES)
@pytest.mark.parametrize("name", SHIM_AND_GPU)
def test_products_of_few_rows(
    name: str, shapes: list[tuple[int, int, int, int]], limits: tuple[int, int, int]
) -> None:
    device = device_named(name)
    most = max(times for *_, times in shapes)
    for n in (limits[0] // most + 1, limits[1] // most):
        for found, exact in run(device, shapes, n, limits):
            assert np.abs(found - exact).max() <= 2e-6 * np.abs(exact).max() * np.sqrt(10)


def test_deep_products_are_shared_by_blocks_where_there_are_few_tiles() -> None:
    few = Tiles(1, 0, *RANGES["8"])
    assert splits_of(512, 2048, few) == 8
    assert splits_of(2048, 512, few) == 2
    assert splits_of(4096, 512, few) == 1
    assert splits_of(32, 64, few) == 1
    assert splits_of(512, 2048, Tiles(1, 0, *RANGES["whole"])) == 1
