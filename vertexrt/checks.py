"""Checks of what users give: each exists once, and raises the error of its caller's choice."""

import sys
from typing import Any, TypeGuard

import numpy as np


def is_whole(n: object) -> TypeGuard[int]:
    """Tell whether something is an integer, of Python or of NumPy; True and False are not."""
    return isinstance(n, (int, np.integer)) and not isinstance(n, bool)


def is_real(x: object) -> TypeGuard[float]:
    """Tell whether something is a finite number, of Python or of NumPy; True and False are not."""
    if isinstance(x, bool) or not isinstance(x, (int, float, np.integer, np.floating)):
        return False
    number: Any = x  # of either library
    return bool(abs(number) <= sys.float_info.max)


def read_shape(shape: object) -> tuple[int, ...] | None:
    """Return a shape as a tuple, of one extent for a number; None where it is no shape."""
    extents = shape if isinstance(shape, (tuple, list)) else (shape,)
    return tuple(int(n) for n in extents) if all(is_whole(n) and n > 0 for n in extents) else None
