"""Devices whose memory is the host's, the CPU and NumPy as the reference: what the engine asks."""

from __future__ import annotations

from typing import Any

import numpy as np

from vertexrt.engine.host import HostExecutor, compile_on
from vertexrt.engine.variant import CompileOptions
from vertexrt.errors import UsageError
from vertexrt.ir.program import Program
from vertexrt.kernels.backend import PRODUCTS, HostBackend
from vertexrt.kernels.cpu.backend import CpuBackend
from vertexrt.kernels.reference.backend import ReferenceBackend

# Passes that only a GPU has, and what there is in their place.
OF_GPU = {
    "hold": "weights where the caches have them",
    "cuts": "wide products in their places",
}


def usable() -> bool:
    """Tell that there always is one."""
    return True


def check(device: str, options: CompileOptions) -> None:
    """Refuse to turn off, or to have, what only a GPU has, and what no device has."""
    if options.passes.streams > 1:
        raise UsageError.at(
            "compile",
            f"Passes(streams={options.passes.streams}) with device={device!r}",
            "streams=1: what is independent goes to threads there",
            "leave streams out, or take device='cuda'",
        )
    for name, form in OF_GPU.items():
        if not getattr(options.passes, name):
            raise UsageError.at(
                "compile",
                f"Passes({name}=False) with device={device!r}",
                f"{form}, the only form there",
                f"leave {name} out, or take device='cuda'",
            )
    if options.passes.products not in PRODUCTS:
        raise UsageError.at(
            "compile",
            f"Passes(products={options.passes.products!r})",
            "one of " + ", ".join(PRODUCTS),
            "leave products out",
        )


def backend_of(device: str, dtype: np.dtype[Any], products: str) -> HostBackend:
    """Return the backend of a device; see `kernels.backend`."""
    return CpuBackend(dtype, products) if device == "cpu" else ReferenceBackend()


def compile_for(device: str, traced: Program, options: CompileOptions) -> HostExecutor:
    """Compile a program of F; see `devices`."""
    backend = backend_of(device, options.dtype, options.passes.products)
    return compile_on(backend, traced, options)
