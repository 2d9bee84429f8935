"""Skip what needs a device that is not there, with the reason that a user would read."""

import pytest

from vertexrt.errors import DeviceError
from vertexrt.kernels.cuda.cupy_device import import_cupy


def require(device: str) -> None:
    """Skip where a device is missing."""
    if device != "cuda":
        return
    try:
        import_cupy()
    except DeviceError as error:
        pytest.skip(str(error))
