"""Kernels as machine code: a task program is lowered, rendered, compiled and loaded."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from vertexrt.config import config
from vertexrt.kernels.cpu.compile import library_of, load
from vertexrt.kernels.cpu.context import Contexts
from vertexrt.kernels.cpu.render import render
from vertexrt.kernels.layout import Array
from vertexrt.lower.kernel import KernelIR
from vertexrt.lower.verify import verify

REALS = {np.dtype(np.float32): "float", np.dtype(np.float64): "double"}


class LoadedKernels:
    """Kernels of task programs; those of a dtype are compiled when it is first asked for.

    Attributes:
        kernels: as they were lowered.
        contexts: makes what they read of a minibatch.
    """

    def __init__(self, kernels: Sequence[KernelIR]) -> None:
        self.kernels = [verify(kernel) for kernel in kernels] if config().check else kernels
        self.contexts = Contexts()
        self._addresses: dict[np.dtype[Any], Array] = {}

    @property
    def scratch(self) -> list[tuple[int, int, int]]:
        """What `Executable.scratch` says."""
        return [kernel.needs for kernel in self.kernels]

    def addresses(self, dtype: np.dtype[Any]) -> Array:
        """Return the addresses of all, int64."""
        found = self._addresses.get(dtype)
        if found is None:
            real = REALS[dtype]
            found = np.array([_address(kernel, real) for kernel in self.kernels], np.int64)
            self._addresses[dtype] = found
        return found


def _address(kernel: KernelIR, real: str) -> int:
    """Compile and load a kernel; equal ones are one."""
    used = library_of(real)
    name = "k" + hashlib.sha256(repr((kernel, real)).encode()).hexdigest()[:24]
    return load(render(kernel, real, name), [name], used)[name]
