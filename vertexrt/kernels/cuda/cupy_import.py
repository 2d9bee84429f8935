"""Whether CuPy and a GPU are there."""

from __future__ import annotations

import importlib.util
from typing import Any

from vertexrt.errors import DeviceError


def import_cupy() -> Any:
    """Import CuPy and look for a device.

    Raises: DeviceError, when one of them is missing; the text says which.
    """
    try:
        import cupy
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == "cupy"
        raise DeviceError.at(
            "cuda",
            "CuPy is not installed" if missing else f"CuPy does not load: {first_line(error)}",
            "CuPy for the CUDA version of the driver",
            "pip install -e '.[cuda13]' in the checkout (or [cuda12]), or use device='cpu'",
        ) from None
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise DeviceError.at(
            "cuda",
            f"no usable GPU: {first_line(error)}",
            "a CUDA device, and a driver as new as CuPy's CUDA",
            "update the driver, install the other of the extras cuda12 and cuda13, "
            "or use device='cpu'",
        ) from None
    if count == 0:
        raise DeviceError.at("cuda", "no GPU", "a CUDA device", "use device='cpu', or 'auto'")
    return cupy


def first_line(error: Exception) -> str:
    """Return the first line of an error's text that says something."""
    lines = [line.strip() for line in str(error).splitlines()]
    return next((line for line in lines if line.strip("=")), type(error).__name__)


def usable() -> bool:
    """Tell whether there is a GPU that this backend can use; never raises."""
    if importlib.util.find_spec("cupy") is None:
        return False
    try:
        cupy = import_cupy()
        return int(cupy.cuda.Device().compute_capability) >= 80
    except DeviceError:
        return False
