"""Skip what needs a device that is not there, with the reason that a user would read."""

import pytest

from tests.shim.build import available
from vertexrt.errors import DeviceError
from vertexrt.kernels.cuda.cupy_device import import_cupy

gpu = pytest.mark.gpu
shim = pytest.mark.skipif(not available(), reason="no C++ compiler to run CUDA kernels on the CPU")
NEEDED = {"shim": shim, "cuda": gpu}  # by a test that has such a device, place or way
SHIM_AND_GPU = [*NEEDED]
on_gpus = pytest.mark.parametrize("device", SHIM_AND_GPU)


def require(device: str) -> None:
    """Skip where a device is missing."""
    if device != "cuda":
        return
    try:
        import_cupy()
    except DeviceError as error:
        pytest.skip(str(error))
