"""Devices as a fixture."""

import pytest

from tests.devices import require


@pytest.fixture(params=["reference", "cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    """Name a device that is there."""
    require(request.param)
    return str(request.param)
