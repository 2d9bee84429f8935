"""Products of many rows by warp groups: every form, against NumPy in float64."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.papers.stacks import Form, Stack
from tests.backend.test_cuda_products import device_named
from tests.devices import SHIM_AND_GPU
from tests.paper_device import PaperDevice, on_paper
from tests.shim_device import ShimDevice
from vertexrt.kernels.cuda.device import Device
from vertexrt.kernels.cuda.device_executor import CudaExecutor
from vertexrt.kernels.cuda.driver import (
    GEMM,
    PARTIAL,
    TILE,
    addresses_of,
    encode,
    launch,
    load_wide,
    split_bytes,
    splits_of,
    wide_splits,
)
from vertexrt.kernels.cuda.launch_text import Launches
from vertexrt.kernels.cuda.pack import ADDRESSES
from vertexrt.lower.kernel import MatrixProduct, Memory, Operand, Outer, PlaceRows, ValuePlace
from vertexrt.lower.launches import LaunchPlan, LibraryProduct

FLOAT32 = np.dtype(np.float32)
SCALARS = np.array([0, 1], np.float32)
# Elements that rows, columns and the depth have less than whole tiles and chunks: neighbours are
# loaded by four, two and one.
LESS = [(4, 8, 20), (3, 10, 6), (1, 5, 1)]


def operand(number: int, size: int) -> Operand:
    return Operand(ValuePlace(Memory.TENSOR, number, size, PlaceRows.ROW), None)


def of_form(form: str, rows: int, wide: int, deep: int) -> tuple[LibraryProduct, list[np.ndarray]]:
    """Return a product, and drawn x, w (or what there is of a gradient) and y (or d)."""
    rng = np.random.default_rng(rows)
    x, y = operand(0, deep), operand(1, wide)
    draws = [(rows, deep), (wide, deep), (rows, wide)]
    if form == "outer":
        x, y, draws = operand(0, wide), operand(1, rows), [(deep, wide), (rows, wide), (deep, rows)]
        made = LibraryProduct(Outer(0, y, x, False, 1, rows, wide, ((0, rows),)))
    elif form == "transposed":
        draws[1] = (deep, wide)
        made = LibraryProduct(MatrixProduct(0, True, x, y, False, 1, deep, wide, ((0, wide),)))
    else:
        made = LibraryProduct(MatrixProduct(0, False, x, y, False, 1, wide, deep, ((0, wide),)))
    return made, [rng.standard_normal(shape).astype(np.float32) for shape in draws]


def exact(form: str, x: np.ndarray, w: np.ndarray, y: np.ndarray) -> np.ndarray:
    if form == "outer":
        return w + y.astype(np.float64).T @ x
    return x.astype(np.float64) @ (w if form == "transposed" else w.T)


def run(device: Device, form: str, rows: int, wide: int, deep: int) -> tuple[np.ndarray, ...]:
    """Return what the device makes of a drawn product, and what NumPy does."""
    return multiplied(device, form, *of_form(form, rows, wide, deep))


def multiplied(
    device: Device, form: str, step: LibraryProduct, arrays: list[np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Return what the device makes of a product, and what NumPy does."""
    names = ["tensor_0", "gradient_0" if form == "outer" else "param_0", "tensor_1"]
    memory = [device.allocate(array.nbytes) for array in arrays]
    for at, array in zip(memory, arrays, strict=True):
        pinned = device.pinned(array.nbytes)
        pinned[:] = array.reshape(-1).view(np.uint8)
        device.upload(at.address, pinned)
        device.wait(device.record())
    every = [*ADDRESSES, *names]
    words = np.zeros(len(every), np.int64)
    words[len(ADDRESSES) :] = [at.address for at in memory]
    numbers = {name: k for k, name in enumerate(every)}
    launches = Launches(LaunchPlan((step,)), (step,))
    program = encode([launches], lambda step: 0, numbers)
    count = len(arrays[0])
    table = np.array([[0, count, 0, 0, 0, 0]], np.int64)
    size = split_bytes(device.processors)
    left = device.allocate(size)
    device.clear(left.address, size)
    wide = left.address, *load_wide(device, FLOAT32)
    calls = addresses_of(device.calls, SCALARS, device.processors, wide)
    calls[GEMM] = 0  # nobody calls cuBLAS
    lookups = np.zeros(2, np.int64), np.zeros(2, np.int64)
    device.check(launch(table, program, words, lookups, calls)[0], 0, 0)
    made = 1 if form == "outer" else 2
    pinned = device.pinned(arrays[made].nbytes)
    device.download(pinned, memory[made].address)
    device.wait(device.record())
    return pinned.view(np.float32).reshape(arrays[made].shape), exact(form, *arrays)


@pytest.mark.parametrize("less", LESS)
@pytest.mark.parametrize("form", ["plain", "transposed", "outer"])
@pytest.mark.parametrize("name", SHIM_AND_GPU)
def test_products_of_many_rows(name: str, form: str, less: tuple[int, int, int]) -> None:
    device = device_named(name)
    down, across = (2, 2) if name == "shim" else (12, 11)
    rows, wide, deep = TILE * down - less[0], TILE * across - less[1], 128 - less[2]
    if name == "cuda" and not device.warp_groups:
        pytest.skip("the device has no warp groups")
    found, wanted = run(device, form, rows, wide, deep)
    assert np.abs(found - wanted).max() <= 1e-6 * np.abs(wanted).max()


@pytest.mark.parametrize("form", ["plain", "transposed", "outer"])
@pytest.mark.parametrize("name", SHIM_AND_GPU)
def test_blocks_share_the_depth_where_there_are_few_tiles(name: str, form: str) -> None:
    device = device_named(name)
    if not device.warp_groups:
        pytest.skip("the device has no warp groups")
    down, across, deep = (1, 1, 777) if name == "shim" else (3, 7, 2333)
    rows, wide = TILE * down - 3, TILE * across - 5
    assert splits_of(wide, rows, deep, device.processors) > 2
    found, wanted = run(device, form, rows, wide, deep)
    assert np.abs(found - wanted).max() <= 1e-6 * np.abs(wanted).max()


@pytest.mark.parametrize("name", SHIM_AND_GPU)
def test_what_is_infinite_stays_so(name: str) -> None:
    device = device_named(name)
    down, across = (2, 2) if name == "shim" else (12, 11)
    if not device.warp_groups:
        pytest.skip("the device has no warp groups")
    step, (x, w, y) = of_form("plain", TILE * down, TILE * across, 64)
    w = np.abs(w) + 0.1
    w[:, 5] = 0.5
    x[3, 5], x[4, 5], x[5] = np.inf, np.finfo(np.float32).max, np.nan
    found, _ = multiplied(device, "plain", step, [x, w, y])
    assert (found[3] == np.inf).all()
    np.testing.assert_allclose(found[4], 0.5 * x[4, 5], rtol=1e-6)
    assert np.isnan(found[5]).all()
    assert np.isfinite(np.delete(found, [3, 5], 0)).all()


def test_tiles_have_to_fill_the_device() -> None:
    calls = addresses_of(PaperDevice().calls, SCALARS, 132, (64, 1, 2, 3))
    sizes = {
        (2240, 10000, 650): 1,
        (2240, 650, 10000): 1,
        (2048, 512, 1600): 2,
        (1600, 512, 2048): 2,
        (1024, 256, 6400): 8,
        (1600, 1024, 256): 1,
    }
    assert {size: wide_splits(calls, *size) for size in sizes} == sizes
    few, shallow, narrow = (256, 256, 1024), (2240, 10000, 32), (16000, 5, 256)
    assert not any(wide_splits(calls, *size) for size in (few, shallow, narrow))
    calls[PARTIAL] = 0  # the network has small weights
    once = {size: splits for size, splits in sizes.items() if wide_splits(calls, *size)}
    assert once
    assert set(once.values()) == {1}


def test_what_splits_leave_has_room_once_a_handle() -> None:
    net = on_paper(Stack(Form("LSTM", 128)), 2, of_device=2, engine="batched")
    assert isinstance(net.executor, CudaExecutor)
    session = net.executor.session
    first, second = (replace(session.device.calls, stream=stream) for stream in (3, 4))
    other = replace(first, handle=9)
    places = [int(session.calls_of(calls)[PARTIAL]) for calls in (first, second, other)]
    assert places[0] == places[1] != places[2]
    assert all(places)
    small = on_paper(Stack(Form("LSTM", 4)), 2, of_device=2, engine="batched")
    assert isinstance(small.executor, CudaExecutor)
    assert not small.executor.session.calls_of(first)[PARTIAL]


def test_devices_without_them_leave_all_to_the_library() -> None:
    others = ShimDevice(warp_groups=False), ShimDevice(precision="tf32")
    assert not any(any(load_wide(device, FLOAT32)) for device in others)
    assert not any(load_wide(ShimDevice(), np.dtype(np.float64)))
