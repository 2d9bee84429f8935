"""Kernels as machine code: a task program is lowered, rendered, compiled and loaded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from vertexrt.cache import notes
from vertexrt.config import config
from vertexrt.kernels.cpu.choose_products import decide, may_call_blas
from vertexrt.kernels.cpu.context import Contexts
from vertexrt.kernels.cpu.libraries import library_of
from vertexrt.kernels.cpu.render import render
from vertexrt.kernels.layout import Array
from vertexrt.lower.kernel import KernelIR
from vertexrt.lower.verify import verify
from vertexrt.native.load import LoadedCode, load

NAME = "task"  # of the function: each module is a library of its own
REALS = {np.dtype(np.float32): "float", np.dtype(np.float64): "double"}


class LoadedKernels:
    """Kernels of task programs, compiled or found in the cache.

    Args:
        products: what makes them, see `choose_products`.
    Attributes:
        scratch: what `Executable.scratch` says.
        code: of all; addresses: int64.
        calls_blas: some product may be BLAS's.
        contexts: makes what they read of a minibatch.
    """

    def __init__(self, kernels: Sequence[KernelIR], dtype: np.dtype[Any], products: str) -> None:
        if config().check:
            kernels = [verify(kernel) for kernel in kernels]
        self.scratch = [kernel.needs for kernel in kernels]
        self.contexts = Contexts()
        with notes.compiling("kernels"):
            decided = [decide(kernel, REALS[dtype], products) for kernel in kernels]
            self.code = [_code(kernel, REALS[dtype]) for kernel in decided]
        self.addresses: Array = np.array([code[NAME] for code in self.code], np.int64)
        self.calls_blas = any(map(may_call_blas, decided))


def _code(kernel: KernelIR, real: str) -> LoadedCode:
    """Compile and load a kernel; equal ones are one.

    Loops are not unrolled: LLVM would do that to those whose ends are known before it makes vectors
    of them, takes three times as long, and short loops run slower (`docs/performance.md`).
    """
    return load(render(kernel, real, NAME), [NAME], library_of(real), unroll=False)
