"""The table of devices: which module compiles a function for each, and whether it can be had.

Nothing slow is imported: the command line takes the names of what there is from here.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Protocol, cast

from vertexrt.errors import DeviceError, nearest

if TYPE_CHECKING:
    from vertexrt.engine.executor import Executor
    from vertexrt.engine.variant import CompileOptions
    from vertexrt.ir.program import Program

# A module is imported when its device is asked for: it may need what is not installed.
MODULES = {
    "cpu": "vertexrt.kernels.host",
    "cuda": "vertexrt.kernels.cuda.compile_for_gpu",
    "reference": "vertexrt.kernels.host",
}
DEVICES = ("auto", *MODULES)
BEST_FIRST = ("cuda", "cpu")  # of which `auto` takes the first that is usable
WITH_PRECISIONS = ("auto", "cuda")  # whose products of float32 may have fewer digits
KERNEL_FORMS = ("ir", "llvm")  # that `explain` prints
PRECISIONS = ("float32", "tf32", "bf16")
ENGINES = ("batched", "persistent", "auto")
DTYPES = ("float32", "float64")


class DeviceModule(Protocol):
    """What a module of the table has."""

    def usable(self) -> bool:
        """Tell whether this machine has the device; never raises."""

    def check(self, device: str, options: CompileOptions) -> None:
        """Raise UsageError for options that the device does not have."""

    def compile_for(self, device: str, traced: Program, options: CompileOptions) -> Executor:
        """Compile a program of F.

        Raises: DeviceError, when there is no such device, or it has too little memory.
        """


def device_named(device: str) -> str:
    """Return the name of the device that `auto` stands for: a GPU where there is a usable one."""
    if device != "auto":
        return device
    return next(name for name in BEST_FIRST if module_of(name).usable())


def module_of(device: str) -> DeviceModule:
    """Import the module of a device.

    Raises: DeviceError for a device that is unknown.
    """
    if device not in MODULES:
        raise DeviceError.at(
            "device",
            f"device is {device!r}",
            "one of " + ", ".join(DEVICES),
            f"choose one of these.{nearest(device, DEVICES)}",
        )
    return cast("DeviceModule", importlib.import_module(MODULES[device]))
