"""Kernels as machine code, and what they call: BLAS, and the libraries."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.linalg.cython_blas

from vertexrt.cache import notes
from vertexrt.config import config
from vertexrt.kernels.cpu.context import Contexts
from vertexrt.kernels.cpu.libraries import EXPORTS, library
from vertexrt.kernels.cpu.render import render
from vertexrt.kernels.layout import Array
from vertexrt.lower.kernel import KernelIR
from vertexrt.lower.verify import verify
from vertexrt.native.load import load, machine

NAME = "task"  # of the function: each module is a library of its own
REALS = {np.dtype(np.float32): "float", np.dtype(np.float64): "double"}


def _blas(name: str) -> int:
    """Return the address of a function of SciPy's BLAS."""
    capsule = scipy.linalg.cython_blas.__pyx_capi__[name]
    api = ctypes.pythonapi
    api.PyCapsule_GetName.restype = ctypes.c_char_p
    api.PyCapsule_GetName.argtypes = [ctypes.py_object]
    api.PyCapsule_GetPointer.restype = ctypes.c_void_p
    api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    address: int = api.PyCapsule_GetPointer(capsule, api.PyCapsule_GetName(capsule))
    return address


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
    gemm = _blas("sgemm" if real == "float" else "dgemm")
    return load(library(real, size or register_size()), EXPORTS, {"vrt_gemm": gemm})


class LoadedKernels:
    """Kernels of task programs, compiled or found in the cache.

    Attributes:
        scratch: what `Executable.scratch` says.
        addresses: of all, int64.
        contexts: makes what they read of a minibatch.
    """

    def __init__(self, kernels: Sequence[KernelIR], dtype: np.dtype[Any]) -> None:
        if config().check:
            kernels = [verify(kernel) for kernel in kernels]
        self.scratch = [kernel.needs for kernel in kernels]
        self.contexts = Contexts()
        real = REALS[dtype]
        with notes.compiling("kernels"):
            found = [  # equal ones are one
                load(render(kernel, real, NAME), [NAME], library_of(real))[NAME]
                for kernel in kernels
            ]
        self.addresses: Array = np.array(found, np.int64)
