"""Machine code is loaded wherever there is memory: in the middle of holes that lie far apart."""

import platform
import subprocess
import sys

import pytest

SCRIPT = """
import ctypes
import numpy as np
from vertexrt.kernels.cpu.arithmetic import Arithmetic
from vertexrt.kernels.cpu.code import Code, Register
from vertexrt.kernels.cpu.libraries import module_of
from vertexrt.native.load import load

def text(k):
    x, n = Register("ptr", "%x"), Register("i64", "%n")
    code = Code(f"f{k}", [x, n], "double")
    with code.loop(0, n, independent=True) as j:
        value = code.load("double", x, j, independent=True)
        code.store(Arithmetic(code).binary("*", value, code.const(k + 0.1)), x, j, independent=True)
    return module_of(code)

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
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(
        load(module, [name], {})[name]
    )
    x = np.ones(9)
    function(x.ctypes.data, 9)
    assert (x == k + 0.1).all()
print("right")
"""


@pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64", reason="of Linux on x86-64"
)
def test_code_and_its_constants_may_not_be_torn_apart() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout == "right\n", done.stderr
