"""Devices as a fixture: one that is missing skips with the reason that a user would read."""

import pytest

from vertexrt.errors import DeviceError
from vertexrt.kernels.cuda.device import import_cupy


def require(device: str) -> None:
    """Skip where a device is missing."""
    if device != "cuda":
        return
    try:
        import_cupy()
    except DeviceError as error:
        pytest.skip(str(error))


@pytest.fixture(params=["reference", "cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    """Name a device that is there."""
    require(request.param)
    return str(request.param)


@pytest.fixture
def gpu() -> None:
    """Skip where there is no GPU."""
    require("cuda")
