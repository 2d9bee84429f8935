"""What compiled loops hash whole numbers by (FNV), and the place in a table (Fibonacci)."""

from __future__ import annotations

from typing import Any

import numpy as np

PRIME = np.uint64(0x100000001B3)
SPREAD = np.uint64(0x9E3779B97F4A7C15)
LOW = 0xFFFFFFFF  # the bits of an int32


def mixed(key: Any, value: Any) -> Any:
    """Mix a value into a hash."""
    return (key ^ np.uint64(int(value) & LOW)) * PRIME
