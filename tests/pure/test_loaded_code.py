"""Machine code: it is loaded wherever there is memory, and small."""

import ctypes
import gc
import platform
import subprocess
import sys
from pathlib import Path

import pytest

import vertexrt as vrt
from vertexrt.models.tree_lstm import TreeLSTM
from vertexrt.native.code import Code, module_of
from vertexrt.native.load import KIND, LoadedCode, load

MODULES = """
import ctypes
import numpy as np
from vertexrt.native.code import Code, module_of
from vertexrt.native.load import load

def text(k):
    code = Code(f"f{k}", "*x n", "double")
    x, n = code.arguments
    with code.loop(0, n, independent=True) as j:
        x[j] = x[j] * code.const(k + 0.1)
    return module_of([code])

"""
SCRIPT = """
load(text(0), ["f0"], {})
modules = [(f"f{k}", text(k)) for k in range(1, 6)]
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
PAGE, APART, NOTHING, PRIVATE = 4096, 3 << 30, 0, 0x4022

def reserve(size):
    return libc.mmap(None, size, NOTHING, PRIVATE, -1, 0)

reserved = [reserve(APART) for _ in range(8)]
for _ in range(60000):  # until no gap is left above
    if reserve(PAGE) < min(reserved):
        break
for start in reserved:
    libc.munmap(start + APART // 2, PAGE)
for k, (name, module) in enumerate(modules, 1):
    code = load(module, [name], {})
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(code[name])
    x = np.ones(9)
    function(x.ctypes.data, 9)
    assert (x == k + 0.1).all()
print("right")
"""


@pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64", reason="of Linux on x86-64"
)
def test_code_and_its_constants_may_not_be_torn_apart() -> None:
    assert run(MODULES + SCRIPT) == "right\n"


MEMORY = """
import gc

def resident():
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

def several(first):
    for k in range(first, first + 60):
        load(text(k), [f"f{k}"], {})

several(0)
before = resident()
several(60)
print((resident() - before) // 60)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_what_compiling_and_loading_took_is_freed() -> None:
    """It was 80 KB for each of these small modules, and 1.3 MB for a network (issue 52)."""
    assert int(run(MODULES + MEMORY)) < 20_000


def run(script: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False
    )
    assert not done.stderr
    return done.stdout


def test_code_is_freed_with_the_last_network_that_uses_it() -> None:
    """Issue 52."""

    def codes() -> list[LoadedCode]:
        gc.collect()
        return [each for each in gc.get_objects() if type(each) is LoadedCode]  # others may warn

    before = codes()  # of tests before this one, and held: it may be freed at any time

    def loaded() -> int:
        return len(codes()) - len(before)

    def trained() -> vrt.Network:
        net = vrt.compile(TreeLSTM(vocab=9, embed=3, hidden=3, classes=2), device="cpu", seed=1)
        lists = {"word": [1, 2, -1], "label": [0, 1, 1]}
        graph = vrt.InputGraph.from_children([[], [], [0, 1]], lists)
        net.step(vrt.GraphBatch.from_graphs([graph]), vrt.SGD(0.1))
        return net

    first = trained()  # with what the process keeps
    alone = loaded()
    second = trained()
    assert loaded() == alone  # equal programs are one
    del first
    assert loaded() == alone
    del second
    assert loaded() < alone
    assert trained().parameters


def test_equal_code_of_other_addresses_is_loaded_again() -> None:
    """Issue 52: while the first was alive, the second counted in the memory of the first."""
    text = """
    @count = external global i64
    define i64 @next() {
      %before = load i64, ptr @count
      %now = add i64 %before, 1
      store i64 %now, ptr @count
      ret i64 %now
    }
    """
    counts = [ctypes.c_int64(start) for start in (10, 20)]
    codes = [load(text, ["next"], {"count": ctypes.addressof(each)}) for each in counts]
    for code in codes:
        ctypes.CFUNCTYPE(ctypes.c_int64)(code["next"])()
    assert [each.value for each in counts] == [11, 21]


def test_kernels_are_not_unrolled(cache_folder: Path) -> None:
    """Copies of a known length: unrolled, LLVM makes vectors of hundreds of single elements."""
    code = Code("copies", "*x *y", "float")
    x, y = code.arguments
    for k in range(4):
        with code.loop(0, 64, independent=True) as j:
            element = x[j + 64 * k]
            y[j + 100 * k] = element
    sizes = []
    for unroll in (True, False):
        load(module_of([code]), ["copies"], {}, unroll)
        sizes.append(sum(path.stat().st_size for path in (cache_folder / KIND).iterdir()))
    assert 0 < sizes[1] - sizes[0] < sizes[0]  # another entry, and a smaller one
