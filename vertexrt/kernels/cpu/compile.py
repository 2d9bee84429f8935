"""What kernels call, compiled and loaded: BLAS, and the libraries."""

from __future__ import annotations

import functools

from vertexrt.kernels.cpu.libraries import EXPORTS, library
from vertexrt.native.blas import blas_address
from vertexrt.native.load import LoadedCode, load, machine


def register_size() -> int:
    """Return how many float32 elements a vector register of this processor holds."""
    features = machine()[1][2]
    return 16 if "+avx512f" in features else 8 if "+avx2" in features else 4


@functools.cache
def library_of(real: str, size: int = 0) -> LoadedCode:
    """Return the addresses of what kernels of `float` or `double` call.

    Args:
        size: of vectors, in float32 elements; 0 for this processor's.
    """
    gemm = blas_address("sgemm" if real == "float" else "dgemm")
    return load(library(real, size or register_size()), EXPORTS, {"vrt_gemm": gemm})
