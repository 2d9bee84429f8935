"""A GPU as a device that functions are compiled for: see `engine.devices`."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from vertexrt.engine.model import CompiledModel
from vertexrt.engine.variant import CompileOptions
from vertexrt.errors import DeviceError, UsageError
from vertexrt.ir.program import Program
from vertexrt.kernels.cuda.cupy_device import CupyDevice, import_cupy
from vertexrt.kernels.cuda.device import Device

if TYPE_CHECKING:
    from vertexrt.kernels.cuda.device_executor import CudaExecutor


def usable() -> bool:
    """Tell whether there is a GPU that this backend can use; never raises."""
    if importlib.util.find_spec("cupy") is None:
        return False
    try:
        return int(import_cupy().cuda.Device().compute_capability) >= 80
    except DeviceError:
        return False


def check(device: str, options: CompileOptions) -> None:
    """Refuse what the batched engine does not have there, and what has no other form there."""
    passes, engine = options.passes, options.engine
    refused = (
        (
            engine == "batched" and options.processors is not None,
            f"processors is {options.processors} with engine={engine!r} on a GPU",
            "processors with engine='persistent' or 'auto'",
            "leave processors out",
        ),
        (
            engine == "batched" and options.precision == "bf16",
            f"precision is 'bf16' with engine={engine!r} on a GPU",
            "engine='persistent', since rounding operands for cuBLAS costs more than it saves",
            "take precision='tf32', or engine='persistent'",
        ),
        (
            engine == "persistent" and passes.streams > 1,
            f"Passes(streams={passes.streams}) with engine='persistent'",
            "one stream, since a step is one kernel there",
            "leave streams out, or take engine='batched'",
        ),
        (
            not passes.loop,
            "Passes(loop=False) on a GPU",
            "the launches of a step in one compiled call, the only form there",
            "leave loop out, or take device='cpu'",
        ),
    )
    for is_asked, got, expected, action in refused:
        if is_asked:
            raise UsageError.at("compile", got, expected, action)


def compile_for(device: str, traced: Program, options: CompileOptions) -> CudaExecutor:
    """Compile a program of F for the GPU of this process; see `engine.devices`."""
    return compile_on(CupyDevice(options.precision), traced, options)


def compile_on(gpu: Device, traced: Program, options: CompileOptions) -> CudaExecutor:
    """Compile a program of F for a device with the calls of a GPU."""
    # 40 modules, which `auto` need not load where `usable` finds no GPU.
    from vertexrt.kernels.cuda.backend import CudaBackend
    from vertexrt.kernels.cuda.device_executor import CudaExecutor

    passes = options.passes
    # The batched engine is faster than one that reads weights from memory in each product.
    backend = CudaBackend(gpu, options.dtype, passes, options.engine != "auto")
    model = CompiledModel(traced, backend, options, 1)
    return CudaExecutor(model, gpu)
