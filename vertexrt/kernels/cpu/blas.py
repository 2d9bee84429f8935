"""SciPy's BLAS: where its functions are, and how many threads they take."""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import scipy.linalg.cython_blas
from threadpoolctl import ThreadpoolController

from vertexrt.locks import ProcessLock


def blas_address(name: str) -> int:
    """Return the address of a function of SciPy's BLAS."""
    capsule = scipy.linalg.cython_blas.__pyx_capi__[name]
    api = ctypes.pythonapi
    api.PyCapsule_GetName.restype = ctypes.c_char_p
    api.PyCapsule_GetName.argtypes = [ctypes.py_object]
    api.PyCapsule_GetPointer.restype = ctypes.c_void_p
    api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    address: int = api.PyCapsule_GetPointer(capsule, api.PyCapsule_GetName(capsule))
    return address


@functools.cache
def blas_threads() -> Any:
    """Return the BLAS thread pools of the process: each worker calls BLAS on its own thread."""
    return ThreadpoolController().select(user_api="blas")


class _OneThread:
    """BLAS on one thread while a call is inside; the limit is the process's, networks are many."""

    def __init__(self) -> None:
        self._lock = ProcessLock()
        self._inside = 0
        self._limit: Any = None

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._limit = blas_threads().limit(limits=1)
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                self._limit.restore_original_limits()


one_thread = _OneThread()


def blas_name() -> str:
    """Name the libraries of BLAS in this process, with their versions and what they run on."""
    known = ("internal_api", "version", "architecture", "threading_layer")
    found = [" ".join(str(each.get(word)) for word in known) for each in blas_threads().info()]
    return ", ".join(sorted(set(found)))
