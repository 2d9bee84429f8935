"""The `cuda` backend: task programs for a device. `engine.device_model` runs them."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import numpy.typing as npt

from vertexrt.errors import DeviceError, message
from vertexrt.ir.passes.fuse import TaskProgram
from vertexrt.ir.passes.segment import SegmentedTask
from vertexrt.kernels.cuda.device import Device
from vertexrt.kernels.cuda.emit import APART
from vertexrt.kernels.cuda.executable import CudaExecutable
from vertexrt.kernels.layout import Binding, Processors


class CudaBackend:
    """Generated kernels and cuBLAS.

    Args:
        dtype: of parameters and values.
    """

    name = "cuda"
    apart = APART
    most_scratch = 64 << 20  # 256 MiB of floats: launches wide enough to fill a device

    def __init__(self, device: Device, dtype: npt.DTypeLike) -> None:
        self.device = device
        self.dtype = dtype

    def alone(self) -> AbstractContextManager[object]:
        """Change nothing: the device has its own order."""
        return nullcontext()

    def load(self, programs: list[TaskProgram], binding: Binding) -> CudaExecutable:
        """Generate, compile or find in the cache."""
        return CudaExecutable(programs, binding, self.device, self.dtype)

    def load_segments(self, tasks: list[SegmentedTask], binding: Binding) -> Processors:
        """Refuse: scripts do not run on a device yet."""
        raise DeviceError(
            message(
                "cuda",
                "engine='persistent'",
                "engine='batched', the only one on a GPU so far",
                "take engine='batched', or device='cpu'",
            )
        )
