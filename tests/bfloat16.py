"""Rounding to bfloat16, in NumPy."""

from __future__ import annotations

import numpy as np


def rounded(values: np.ndarray) -> np.ndarray:
    """Round to bfloat16, to the nearest, ties to even."""
    bits = np.asarray(values, np.float32).view(np.uint32)
    kept = (bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)
    return (kept << np.uint32(16)).view(np.float32)
