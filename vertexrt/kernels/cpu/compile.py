"""What kernels call, compiled and loaded: BLAS, the libraries, the drivers that call kernels."""

from __future__ import annotations

import ctypes
import functools
from typing import Any

from vertexrt.kernels.cpu.blas import blas_address
from vertexrt.kernels.cpu.drivers import drivers
from vertexrt.kernels.cpu.libraries import EXPORTS, library
from vertexrt.native.load import load, machine


def register_size() -> int:
    """Return how many float32 elements a vector register of this processor holds."""
    features = machine()[1][2]
    return 16 if "+avx512f" in features else 8 if "+avx2" in features else 4


@functools.cache
def library_of(real: str, size: int = 0) -> dict[str, int]:
    """Return the addresses of what kernels of `float` or `double` call.

    Args:
        size: of vectors, in float32 elements; 0 for this processor's.
    """
    gemm = blas_address("sgemm" if real == "float" else "dgemm")
    return load(library(real, size or register_size()), EXPORTS, {"vrt_gemm": gemm})


@functools.cache
def driver(name: str, arguments: str = "") -> Any:
    """Return one of the drivers as a function of Python.

    Args:
        arguments: of the driver, as `arguments_of` has them.
    """
    exports = ("vrt_run", "vrt_follow", "vrt_clock")
    address = load(drivers(), exports, {})[name]
    result = None if arguments else ctypes.c_int64
    kinds: list[Any] = [_Array if word[0] == "*" else ctypes.c_int64 for word in arguments.split()]
    return ctypes.CFUNCTYPE(result, *kinds)(address)


class _Array:
    """A NumPy array as an argument of ctypes; by its address."""

    @classmethod
    def from_param(cls, array: Any) -> Any:
        return ctypes.c_void_p(array.__array_interface__["data"][0])
