"""SciPy's BLAS: where its functions are, and how many threads they take."""

from __future__ import annotations

import functools
from typing import Any

import scipy.linalg.cython_blas
from threadpoolctl import ThreadpoolController

from vertexrt.locks import ProcessLock
from vertexrt.native.foreign import pointer_in


def blas_address(name: str) -> int:
    """Return the address of a function of SciPy's BLAS."""
    return pointer_in(scipy.linalg.cython_blas.__pyx_capi__[name])


@functools.cache
def blas_threads() -> Any:
    """Return the BLAS thread pools of the process: each worker calls BLAS on its own thread."""
    return ThreadpoolController().select(user_api="blas")


class _OneThread:
    """BLAS on one thread while anyone computes; the limit is the process's, networks are many.

    A signal may end `begin` and `end` anywhere: both can be called again, and then are right.
    """

    def __init__(self) -> None:
        self._lock = ProcessLock()
        self._users: set[object] = set()
        self._before: list[tuple[Any, int]] = []  # libraries, and the threads that they had

    def begin(self, user: object) -> None:
        """Keep BLAS to one thread from now on, until `end`."""
        with self._lock.held:
            self._users.add(user)
            if not self._before:
                several = ((each, each.num_threads) for each in blas_threads().lib_controllers)
                self._before = [(each, threads) for each, threads in several if threads != 1]
            for library, _ in self._before:
                library.set_num_threads(1)

    def end(self, user: object) -> None:
        """Let BLAS have its threads again, when the last one has ended."""
        with self._lock.held:
            self._users.discard(user)
            if not self._users:
                for library, threads in self._before:
                    library.set_num_threads(threads)
                self._before = []


one_thread = _OneThread()


def blas_name() -> str:
    """Name the libraries of BLAS in this process, with their versions and what they run on."""
    known = ("internal_api", "version", "architecture", "threading_layer")
    found = [" ".join(str(each.get(word)) for word in known) for each in blas_threads().info()]
    return ", ".join(sorted(set(found)))
