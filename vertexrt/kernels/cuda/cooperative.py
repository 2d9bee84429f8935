"""Launches whose blocks all run at once, through the CUDA driver."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import numpy as np

from vertexrt.kernels.cuda.device import LaunchStruct
from vertexrt.kernels.cuda.driver import launch_configured

Array = np.ndarray[Any, Any]

# CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, ..._NON_PORTABLE_CLUSTER_SIZE_ALLOWED
MOST_SHARED, LARGE_CLUSTERS = 8, 14
LARGEST_CLUSTER = 16  # blocks of a cluster
COOPERATIVE, CLUSTER = 2, 4  # CUlaunchAttributeID


@cache
def driver() -> ctypes.CDLL:
    """Return the CUDA driver, which CuPy has loaded."""
    return ctypes.CDLL("libcuda.so.1")


class LaunchAttribute(ctypes.Structure):
    """CUlaunchAttribute: a number, and up to 64 bytes of value."""

    _fields_ = (
        ("id", ctypes.c_int),
        ("pad", ctypes.c_int),
        ("value", ctypes.c_int * 16),
    )


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        *((name, ctypes.c_uint) for name in ("gx", "gy", "gz", "bx", "by", "bz", "shared")),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(LaunchAttribute)),
        ("count", ctypes.c_uint),
    )


def launch_config(blocks: int, shared: int, cluster: int, stream: int) -> LaunchConfig:
    """Return how to launch blocks of 256 threads together.

    Args:
        shared: bytes of each block; cluster: blocks of one, 1 for none.
    """
    config = LaunchConfig(blocks, 1, 1, 256, 1, 1, shared, stream)
    attributes = (LaunchAttribute * 2)(
        LaunchAttribute(COOPERATIVE, 0, (1,)), LaunchAttribute(CLUSTER, 0, (cluster, 1, 1))
    )
    config.attributes = ctypes.cast(attributes, ctypes.POINTER(LaunchAttribute))
    config.count = 2 if cluster > 1 else 1
    return config


class CooperativeLaunch:
    """What the driver is given to launch a function, made once: it takes longer than the call."""

    def __init__(self, function: int, config: LaunchConfig) -> None:
        address = ctypes.cast(driver().cuLaunchKernelEx, ctypes.c_void_p).value or 0
        self._config = config
        self._given = address, ctypes.addressof(config), function

    def __call__(self, arguments: LaunchStruct) -> int:
        """Launch with a struct, which the driver copies; return its error."""
        code: int = launch_configured(*self._given, arguments.extra)
        return code
