"""The shim runs CUDA source as a GPU would: right where it is right, and wrong code shows."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest

from tests.shim import build as shim
from tests.shim.build import ShimModule, build
from vertexrt.errors import DeviceError

pytestmark = pytest.mark.skipif(not shim.available(), reason="no C++ compiler")

SEEDS = (0, 1, 2, 3, 4, 5, 6, 7)
DEADLOCK, MISALIGNED, ILLEGAL_ADDRESS, TOO_MANY_THREADS, INVALID = 719, 716, 700, 701, 1

HEAD = """
#include "vertexrt.cuh"
struct Args { real* y; const real* x; unsigned* counter; int n; };
"""

SUM = """
VRT_KERNEL(NAME, Args, 128) {
    __shared__ real part[4];
    VRT_SHARED(real, totals);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int k = 0; k < a.n; ++k) {
        const real sum = warp_sum(a.x[(blockIdx.x * a.n + k) * 128 + threadIdx.x]);
        if (lane == 0) part[warp] = sum;
        FIRST
        if (threadIdx.x == 0) totals[k] = part[0] + part[1] + part[2] + part[3];
        SECOND
    }
    if (threadIdx.x < a.n) a.y[blockIdx.x * a.n + threadIdx.x] = totals[threadIdx.x];
}
"""


class Args(ctypes.Structure):
    _fields_ = (
        ("y", ctypes.c_void_p),
        ("x", ctypes.c_void_p),
        ("counter", ctypes.c_void_p),
        ("n", ctypes.c_int),
    )


@pytest.fixture(autouse=True)
def in_order_afterwards() -> Iterator[None]:
    yield
    build(HEAD).seed(0)


def launch(
    module: ShimModule,
    name: str,
    blocks: int | tuple[int, int, int],
    threads: int | tuple[int, int, int],
    args: ctypes.Structure,
    shared_bytes: int = 0,
    size: int | None = None,
) -> int:
    """Call the stand-in for cuLaunchKernel."""
    kind = [ctypes.c_void_p, *[ctypes.c_uint] * 7, *[ctypes.c_void_p] * 3]
    call = ctypes.CFUNCTYPE(ctypes.c_int, *kind)(module.launch)
    length = ctypes.c_size_t(ctypes.sizeof(args) if size is None else size)
    extra = (ctypes.c_void_p * 5)(1, ctypes.addressof(args), 2, ctypes.addressof(length), 0)
    grid = blocks if isinstance(blocks, tuple) else (blocks, 1, 1)
    block = threads if isinstance(threads, tuple) else (threads, 1, 1)
    function = module.functions[name]
    return int(call(function, *grid, *block, shared_bytes, None, None, ctypes.addressof(extra)))


def arguments(
    y: npt.NDArray[np.generic],
    x: npt.NDArray[np.generic] | None = None,
    counter: npt.NDArray[np.uint32] | None = None,
    n: int = 0,
) -> Args:
    return Args(
        y.ctypes.data,
        None if x is None else x.ctypes.data,
        None if counter is None else counter.ctypes.data,
        n,
    )


def sum_kernel(name: str, **barriers: str) -> str:
    text = SUM.replace("NAME", name)
    for place in ("FIRST", "SECOND"):
        text = text.replace(place, barriers.get(place, "__syncthreads();"))
    return text


def sums(module: ShimModule, name: str, seed: int) -> bool:
    """Tell whether a kernel adds up what 5 blocks of 128 threads read, 6 times each."""
    x = np.random.default_rng(seed).integers(-9, 9, (5, 6, 128)).astype(np.float32)
    y = np.full((5, 6), np.nan, np.float32)
    module.seed(seed)
    assert launch(module, name, 5, 128, arguments(y, x, n=6), 6 * y.itemsize) == 0
    return bool(np.array_equal(y, x.sum(2)))


@pytest.mark.parametrize("place", ["FIRST", "SECOND"])
@pytest.mark.parametrize("instead", ["", "__syncwarp();"])
def test_a_missing_barrier_shows(place: str, instead: str) -> None:
    module = build(HEAD + sum_kernel("total", **{place: instead}))
    assert not all(sums(module, "total", seed) for seed in SEEDS)


def test_a_missing_warp_barrier_shows() -> None:
    text = """
VRT_KERNEL(turn, Args, 32) {
    __shared__ real x[32];
    x[threadIdx.x] = a.x[threadIdx.x];
    a.y[threadIdx.x] = x[31 - threadIdx.x];
}
VRT_KERNEL(turn_in_order, Args, 32) {
    __shared__ real x[32];
    x[threadIdx.x] = a.x[threadIdx.x];
    __syncwarp();
    a.y[threadIdx.x] = x[31 - threadIdx.x];
}
"""
    module = build(HEAD + text)
    x, y = np.arange(32, dtype=np.float32), np.zeros(32, np.float32)
    assert launch(module, "turn", 1, 32, arguments(y, x)) == 0
    assert np.isnan(y).any(), "shared memory that was not written is not a number"
    assert launch(module, "turn_in_order", 1, 32, arguments(y, x)) == 0
    assert np.array_equal(y, x[::-1])


STUCK = {
    "barrier": ("if (threadIdx.x < 40) __syncwarp(); else __shfl_sync(~0u, 1, 0);", "another call"),
    "lanes": ("if (threadIdx.x != 5) __syncwarp(); else __syncthreads();", "__syncthreads"),
    "mask": ("__syncwarp(1u << (threadIdx.x + 1) % 32);", "not in its mask"),
    "poll": ("while (atomicAdd(a.counter, 0u) == 0) __nanosleep(9);", "all poll"),
    "lock": ("while (atomicCAS(a.counter, 1u, 2u) != 1u) {}", "all poll"),
}


@pytest.mark.parametrize("name", STUCK)
@pytest.mark.parametrize("seed", [0, 3])
def test_a_deadlock_is_reported(name: str, seed: int, capfd: pytest.CaptureFixture[str]) -> None:
    code, text = STUCK[name]
    module = build(HEAD + f"VRT_KERNEL(stuck, Args, 64) {{\n{code}\n}}" + sum_kernel("total"))
    counter = np.zeros(1, np.uint32)
    module.seed(seed)
    assert launch(module, "stuck", 3, 64, arguments(counter, counter=counter)) == DEADLOCK
    shown = capfd.readouterr().err
    assert "[cuda shim]" in shown
    assert "kernel stuck" in shown
    assert text in shown
    assert "kernels.cu:5" in shown
    assert sums(module, "total", seed), "the next launch works"


def test_threads_that_have_ended_are_not_waited_for() -> None:
    text = """
VRT_KERNEL(few, Args, 96) {
    if (threadIdx.x >= 50) return;
    __syncwarp();
    __syncthreads();
    a.y[threadIdx.x] = __shfl_down_sync(0xffffffffu, real(threadIdx.x), 1);
}
"""
    module = build(HEAD + text)
    for seed in SEEDS:
        y = np.zeros(64, np.float32)
        module.seed(seed)
        assert launch(module, "few", 1, 96, arguments(y)) == 0
        assert y[48] == 49
        assert np.isnan(y[49]), "lane 18 of the second warp has ended"


def test_a_launch_that_a_device_refuses_is_refused(capfd: pytest.CaptureFixture[str]) -> None:
    text = """
VRT_KERNEL(odd, Args, 64) { store(a.y + 1, load<2>(a.x)); }
VRT_KERNEL(past, Args, 64) { VRT_SHARED(real, s); s[threadIdx.x] = 0; }
"""
    module = build(HEAD + text)
    x, y = np.zeros(4, np.float64).view(np.float32), np.zeros(4, np.float64).view(np.float32)
    args = arguments(y, x)
    assert launch(module, "odd", 1, 65, args) == TOO_MANY_THREADS
    assert launch(module, "odd", 0, 64, args) == INVALID
    assert launch(module, "odd", 1, 0, args) == INVALID
    assert launch(module, "odd", (1, 65536, 1), 64, args) == INVALID
    assert launch(module, "odd", 1, 64, args, size=ctypes.sizeof(args) - 4) == INVALID
    assert launch(module, "odd", 1, 64, args, shared_bytes=300_000) == INVALID
    assert launch(module, "odd", 1, 64, args) == MISALIGNED
    assert launch(module, "past", 1, 8, args, shared_bytes=32) == 0
    assert launch(module, "past", 1, 9, args, shared_bytes=32) == ILLEGAL_ADDRESS
    assert "wrote past its 32 bytes of dynamic shared memory" in capfd.readouterr().err


# The shim compiles a module once.


@pytest.mark.usefixtures("cache_folder")
def test_a_module_is_compiled_once() -> None:
    source = HEAD + sum_kernel("total")
    path = shim.library(source, [])
    written = path.stat().st_mtime_ns
    assert shim.library(source, []) == path
    assert path.stat().st_mtime_ns == written
    path.write_bytes(b"not a library")
    assert shim.library(source, []) == path
    assert path.read_bytes().startswith(b"\x7fELF")
    with pytest.raises(DeviceError) as raised:
        shim.library(HEAD + "int f() { return unheard; }", [])
    text = str(raised.value)
    assert text.startswith("[cuda shim] a kernel does not compile: kernels.cu:4:18: error: ")
    assert "unheard" in text
