"""Devices whose memory is the host's: the CPU, and NumPy as the oracle."""

from __future__ import annotations

from vertexrt.config import config
from vertexrt.engine.devices import CompileOptions
from vertexrt.engine.model import CompiledModel
from vertexrt.errors import UsageError, message
from vertexrt.ir.program import Program
from vertexrt.kernels.cpu.backend import CpuBackend
from vertexrt.kernels.reference.backend import ReferenceBackend

BACKENDS = {"cpu": CpuBackend, "reference": ReferenceBackend}


def usable() -> bool:
    """Tell that there always is one."""
    return True


def check(device: str, options: CompileOptions) -> None:
    """Refuse to turn off, or to have, what only a GPU has."""
    if options.passes.streams > 1:
        raise UsageError(
            message(
                "compile",
                f"Passes(streams={options.passes.streams}) with device={device!r}",
                "streams=1: what is independent goes to threads there",
                "leave streams out, or take device='cuda'",
            )
        )
    if not options.passes.hold:
        raise UsageError(
            message(
                "compile",
                f"Passes(hold=False) with device={device!r}",
                "weights where the caches have them, the only form there",
                "leave hold out, or take device='cuda'",
            )
        )


def compile_for(device: str, traced: Program, options: CompileOptions) -> CompiledModel:
    """Compile a program of F; see `devices`."""
    return CompiledModel(
        traced,
        BACKENDS[device](),
        options.dtype,
        options.policy,
        options.passes,
        options.threads or options.processors or config().threads,
        options.engine,
        options.processors,
    )
