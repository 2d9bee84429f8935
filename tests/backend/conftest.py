"""Devices as a fixture: one that is missing skips with the reason that a user would read."""

import pytest

from vertexrt.engine.model import backend_named
from vertexrt.errors import DeviceError


@pytest.fixture(params=["reference", "cpu", "cuda"])
def device(request: pytest.FixtureRequest) -> str:
    """Name a device that is there."""
    try:
        backend_named(request.param)
    except DeviceError as error:
        pytest.skip(str(error))
    return str(request.param)
