"""Ways of running that are judged by NumPy in float64, and by the slopes of what it computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.devices import gpu, shim
from tests.runs import Way

Array = np.ndarray[Any, Any]

STEP = 1e-5  # of central differences
PERSISTENT = Way("cpu", engine="persistent", processors=2, threads=2)
WAYS = [
    pytest.param(Way(), id="reference"),
    pytest.param(Way("cpu"), id="cpu"),
    pytest.param(Way("cpu", threads=2), id="threads"),
    pytest.param(PERSISTENT, id="persistent"),
    *(
        pytest.param(way, id=f"{device}-{way.engine}", marks=mark)
        for device, mark in (("shim", shim), ("cuda", gpu))
        for way in (Way(device), Way(device, engine="persistent", processors=2))
    ),
]


def assert_slope(
    name: str, gradient: Array, value: Array, loss: Callable[[Array], float], rtol: float = 0.0
) -> None:
    """Compare a gradient with central differences in two directions.

    Args:
        rtol: of the slope, where that is steep.
    """
    rng = np.random.default_rng(len(name))
    for _ in range(2):
        d = rng.standard_normal(value.shape)
        slope = (loss(value + STEP * d) - loss(value - STEP * d)) / (2 * STEP)
        bound = max(1e-8, rtol * max(1.0, abs(slope)))
        assert abs(slope - float((gradient * d).sum())) < bound, name
