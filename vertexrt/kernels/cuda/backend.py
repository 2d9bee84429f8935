"""The `cuda` backend: task programs for a device. `engine.device_model` runs them."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import numpy.typing as npt

from vertexrt.ir.passes.fuse import TaskProgram
from vertexrt.ir.passes.segment import SegmentedTask
from vertexrt.kernels.cuda.device import Device
from vertexrt.kernels.cuda.emit import APART
from vertexrt.kernels.cuda.executable import CudaExecutable
from vertexrt.kernels.cuda.persistent import PersistentExecutable
from vertexrt.kernels.layout import Binding, Processors


class CudaBackend:
    """Generated kernels and cuBLAS.

    Args:
        dtype: of parameters and values.
        processors: of a group of the persistent engine; None for as few as weights fit, from 8 on.
    """

    name = "cuda"
    apart = APART
    shares_graphs = True
    most_scratch = 64 << 20  # 256 MiB of floats: launches wide enough to fill a device

    def __init__(self, device: Device, dtype: npt.DTypeLike, processors: int | None = None) -> None:
        self.device = device
        self.dtype = dtype
        self.processors = processors

    def alone(self) -> AbstractContextManager[object]:
        """Change nothing: the device has its own order."""
        return nullcontext()

    def load(self, programs: list[TaskProgram], binding: Binding) -> CudaExecutable:
        """Generate, compile or find in the cache."""
        return CudaExecutable(programs, binding, self.device, self.dtype)

    def load_segments(self, tasks: list[SegmentedTask], binding: Binding) -> Processors:
        """Generate a persistent kernel, compile it or find it in the cache.

        Raises: DeviceError, when the weights of the path do not fit on chip.
        """
        return PersistentExecutable(tasks, binding, self.device, self.dtype, self.processors)  # type: ignore[return-value]
