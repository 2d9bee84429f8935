"""CUDA source becomes machine code without a device, once; what is wrong with it is seen."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from vertexrt.config import config
from vertexrt.errors import DeviceError
from vertexrt.kernels.cuda import compile as compiler
from vertexrt.kernels.cuda.compile import (
    ALL_FIT,
    Usage,
    compile_cubin,
    compile_in_registers,
    parse_usage,
    spilled_of,
)

ARCHITECTURES = ("sm_80", "sm_90a", "sm_100")

TWO_KERNELS = """
#include "vertexrt.cuh"
struct Args { real* y; const real* x; int n; };
VRT_KERNEL(scale, Args, 256) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < a.n) store(a.y + 4 * i, load<4>(a.x + 4 * i));
}
VRT_KERNEL(total, Args, 64) {
    VRT_SHARED(real, dynamic);
    __shared__ real part[2];
    const real x = warp_sum(a.x[threadIdx.x]);
    part[threadIdx.x / 32] = x;
    dynamic[threadIdx.x] = x;
    __syncthreads();
    a.y[threadIdx.x] = part[0] + part[1] + dynamic[threadIdx.x ^ 1];
}
"""

INDEXED_ARRAY = """
#include "vertexrt.cuh"
struct Args { real* y; const int* at; };
VRT_KERNEL(indexed, Args, 32) {
    real x[512];
    for (int i = 0; i < 512; ++i) x[i] = a.y[i];
    for (int i = 0; i < 512; ++i) x[a.at[i] & 511] += a.y[i + 1];
    for (int i = 0; i < 512; ++i) a.y[i] = x[i];
}
"""

MANY_VALUES = """
#include "vertexrt.cuh"
struct Args { real* y; };
VRT_KERNEL(crowded, Args, 1024) {
    real x[256];
#pragma unroll
    for (int i = 0; i < 256; ++i) x[i] = a.y[i * 1024 + threadIdx.x];
    for (int k = 0; k < 9; ++k) {
        __syncthreads();
#pragma unroll
        for (int i = 0; i < 256; ++i) x[i] = x[i] * x[(i * 37 + 11) % 256] + real(k);
    }
#pragma unroll
    for (int i = 0; i < 256; ++i) a.y[i * 1024 + threadIdx.x] = x[i];
}
"""


@pytest.fixture
def fresh(cache_folder: Path) -> Iterator[Path]:
    """Give an empty cache folder; skip where NVRTC is missing."""
    try:
        compiler.load_nvrtc()
    except DeviceError as error:
        pytest.skip(str(error))
    return cache_folder


def forget(folder: Path) -> None:
    """Give the cache folder another path, by which nothing is known yet in this process."""
    other = folder.with_name("the same")
    other.symlink_to(folder)
    os.environ["VERTEXRT_CACHE"] = str(other)  # the fixture puts it back
    config.cache_clear()


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("real", ["float", "double"])
def test_kernels_compile_and_their_usage_is_read(fresh: Path, arch: str, real: str) -> None:
    cubin = compile_cubin(TWO_KERNELS, arch, {"VRT_REAL": real} if real == "double" else {})
    assert cubin.content.startswith(b"\x7fELF")
    assert cubin.path.read_bytes().startswith(cubin.content)
    assert cubin.path.parent == fresh / "cuda"
    assert set(cubin.usage) == {"scale", "total"}
    assert spilled_of(cubin) == ALL_FIT
    assert all(8 <= use.registers <= 64 for use in cubin.usage.values())
    # The device may keep some shared memory for itself, in front of a kernel's own.
    own = 2 * (4 if real == "float" else 8)
    assert own <= cubin.usage["total"].shared_bytes <= own + 1040
    assert cubin.usage["scale"].shared_bytes in (0, 1024)


def test_equal_sources_compile_once(fresh: Path) -> None:
    first = compile_cubin(TWO_KERNELS, "sm_90a")
    written = first.path.stat()
    assert compile_cubin(TWO_KERNELS, "sm_90a") is first
    forget(fresh)  # as a new process does
    again = compile_cubin(TWO_KERNELS, "sm_90a")
    assert again is not first
    assert (again.content, again.usage) == (first.content, first.usage)
    assert again.path.stat() == written, "compiled again"


@pytest.mark.parametrize("change", ["source", "arch", "defines", "header"])
def test_what_changes_code_changes_its_key(
    fresh: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    first = compile_cubin(TWO_KERNELS, "sm_90a")
    source, arch, defines = TWO_KERNELS, "sm_90a", {}
    if change == "source":
        source += "\n"
    if change == "arch":
        arch = "sm_80"
    if change == "defines":
        defines = {"VRT_REAL": "double"}
    if change == "header":
        (name, text), *_ = compiler.GENERATED.items()
        monkeypatch.setitem(compiler.GENERATED, name, text + "\n")
        forget(fresh)
    assert compile_cubin(source, arch, defines).path.name != first.path.name


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize(("name", "source"), [("indexed", INDEXED_ARRAY), ("crowded", MANY_VALUES)])
def test_local_memory_is_refused(fresh: Path, arch: str, name: str, source: str) -> None:
    cubin = compile_cubin(source, arch)
    use = cubin.usage[name]
    assert spilled_of(cubin) == (
        max(use.stack_bytes, use.spill_store_bytes),
        f"[cuda] kernel {name} has {use.stack_bytes} bytes of stack, spills "
        f"{use.spill_store_bytes} and reloads {use.spill_load_bytes} bytes at {use.registers} "
        "registers; values in registers: in local memory they take many times as long; take "
        f"engine='batched' or device='cpu', and report this as a bug with {cubin.path}.",
    )
    assert use.stack_bytes > 0
    assert (use.spill_store_bytes > 0) == (name == "crowded")


SPILLS = "#if %s\n" + INDEXED_ARRAY + "\n#else\n" + TWO_KERNELS + "\n#endif\n"


def test_what_spills_is_compiled_for_one_block(fresh: Path) -> None:
    for when, count in (("0", 1), ("!defined(VRT_BLOCKS)", 3)):
        cubin = compile_in_registers(SPILLS % when, "sm_90a")
        assert set(cubin.usage) == {"scale", "total"}
        assert len(list((fresh / "cuda").glob("*.cubin"))) == count
    with pytest.raises(DeviceError, match="kernel indexed has 2048 bytes of stack"):
        compile_in_registers(SPILLS % "1", "sm_90a")


def test_an_error_names_its_line_and_keeps_the_source(fresh: Path) -> None:
    source = '#include "vertexrt.cuh"\n__device__ int f() { return unheard; }\n'
    with pytest.raises(DeviceError) as raised:
        compile_cubin(source, "sm_90a")
    text = str(raised.value)
    assert text.startswith("[cuda] a kernel does not compile for sm_90a: kernels.cu(2): error: ")
    assert 'identifier "unheard" is undefined' in text
    kept = Path(text.rpartition(" with ")[2].removesuffix("."))
    assert kept.read_text() == source


def test_an_unknown_architecture_is_an_error(fresh: Path) -> None:
    with pytest.raises(DeviceError, match=r"does not compile for sm_1: .*gpu-architecture"):
        compile_cubin(TWO_KERNELS, "sm_1")


def test_a_module_without_a_log_is_compiled_anew(
    fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NVRTC may take code from a cache of its own, and then says nothing of registers."""
    compile_ = compiler.Nvrtc.compile
    seen: list[bool] = []

    def silent(self: compiler.Nvrtc, source: str, headers: object, options: list[str]) -> object:
        content, log = compile_(self, source, headers, options)  # type: ignore[arg-type]
        seen.append("--no-cache" in options)
        return content, log if seen[-1] else ""

    monkeypatch.setattr(compiler.Nvrtc, "compile", silent)
    assert set(compile_cubin(TWO_KERNELS, "sm_90a").usage) == {"scale", "total"}
    assert seen == [False, True]


def test_the_log_of_a_module_is_read_kernel_by_kernel() -> None:
    """Of sides that are functions, the one that spills most counts."""
    log = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'c' for 'sm_80'
ptxas info    : Function properties for c
ptxas         .     2048 bytes stack frame, 16 bytes spill stores, 24 bytes spill loads
ptxas info    : Used 34 registers, used 0 barriers, 364 bytes cmem[0]
ptxas info    : Compile time = 29.032 ms
ptxas info    : Compiling entry function 'k' for 'sm_90a'
ptxas info    : Function properties for k
ptxas         .     320 bytes stack frame, 8 bytes spill stores, 32 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 1332 bytes smem
ptxas info    : Function properties for _Z12outside_pathRK3JobILi72EE11Instruction
ptxas         .     0 bytes stack frame, 64 bytes spill stores, 68 bytes spill loads
ptxas info    : Function properties for _Z5apartIXadL_Z6side_0EEEbRKT0_i
ptxas         .     0 bytes stack frame, 56 bytes spill stores, 84 bytes spill loads
ptxas info    : Function properties for _Z5apartIXadL_Z6side_1EEEbRKT0_i
ptxas         .     0 bytes stack frame, 12 bytes spill stores, 12 bytes spill loads
"""
    assert parse_usage(log) == {
        "c": Usage(34, 2048, 16, 24, 0),
        "k": Usage(255, 0, 56, 84, 1332),
    }
