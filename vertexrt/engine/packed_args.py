"""Arguments of compiled calls that are the same for every minibatch, packed into one array.

Two dozen small arrays come as one, which the call cuts up again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = np.ndarray[Any, Any]
HEAD = 3  # of each array: where it begins, its rows and its columns


def pack_args(arrays: Sequence[Array | int]) -> npt.NDArray[np.int64]:
    """Put whole numbers, and arrays of them of one axis or two, into one array."""
    parts = [np.atleast_1d(array).astype(np.int64) for array in arrays]
    begins = np.cumsum([HEAD * len(parts), *(p.size for p in parts)])[:-1]
    heads = [
        (begin, len(p), p.shape[1] if p.ndim > 1 else 1)
        for begin, p in zip(begins.tolist(), parts, strict=True)
    ]
    return np.concatenate([np.array(heads, np.int64).reshape(-1), *(p.reshape(-1) for p in parts)])


def number_at(packed: Array, k: int) -> Any:
    """Return a number that was packed."""
    return packed[packed[HEAD * k]]


def row_at(packed: Array, k: int) -> Array:
    """Return an array of one axis that was packed."""
    begin, size = packed[HEAD * k], packed[HEAD * k + 1]
    return packed[begin : begin + size]


def table_at(packed: Array, k: int) -> Array:
    """Return an array of two axes that was packed."""
    begin, rows, columns = packed[HEAD * k], packed[HEAD * k + 1], packed[HEAD * k + 2]
    return packed[begin : begin + rows * columns].reshape(rows, columns)
