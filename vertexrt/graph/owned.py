"""Arrays that are read-only once they are checked, and how they are made of what users give.

Compiled loops use the numbers of a graph as indices without bounds checks, so what has been checked
must not change. Read-only is not enough: the owner of an array can make it writable again, and a
read-only view shows what is written to its base. So graphs and pulls are copied into `bytes`, which
numpy never makes writable. What is in `bytes` already is shared, not copied. Shape and dtype of an
array can be set in place as well, so the arrays that are held are never handed out, only views.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import FrozenInstanceError
from typing import Any

import numpy as np
import numpy.typing as npt

Array = np.ndarray[Any, Any]
IntArray = npt.NDArray[np.int32]

INT32 = np.dtype(np.int32)
MOST = np.iinfo(np.int32).max  # vertices, slots or rows of a table: int32 numbers them
_LEAST = np.iinfo(np.int32).min
REALS: dict[int, np.dtype[Any]] = {
    4: np.dtype(np.float32),
    8: np.dtype(np.float64),
}  # by bytes an element


def own(array: Array, dtype: np.dtype[Any]) -> Array:
    """Return an array of our own in read-only memory, in C order.

    Args:
        array: of any layout; its memory is shared, where it is read-only.
        dtype: native, without objects; values are converted to it and are known to fit.
    """
    if array.base is not None and array.dtype is dtype and is_owned(array):
        return array.view()
    # Equal dtypes may be other objects, with a name or metadata: the bytes forget them.
    found = np.frombuffer(array.astype(dtype, copy=False).tobytes(), dtype)
    return found.reshape(array.shape)


def unwritten(size: int, dtype: np.dtype[Any]) -> Array:
    """Return an array [size] in read-only memory, with nothing in it yet.

    A compiled loop writes to it at once (`filled_here`), before anything else sees the `bytes`.
    """
    return np.frombuffer(bytes(size * dtype.itemsize), dtype)


def same_memory(a: Array, b: Array) -> bool:
    """Tell whether two arrays that are owned are the same elements in the same memory."""
    return a is b or (a.ctypes.data, a.dtype, a.shape) == (b.ctypes.data, b.dtype, b.shape)


def is_owned(array: Array) -> bool:
    """Tell whether an array lies in C order in read-only memory."""
    base: object = array.base
    while type(base) is np.ndarray:
        base = base.base
    return type(base) is bytes and array.flags.c_contiguous and array.flags.aligned


def read_array(given: Any) -> Array | str:
    """Return what was given as a plain numpy array, not yet owned; or what is wrong with it."""
    if type(given) is np.ndarray:
        return given
    if isinstance(given, np.ma.MaskedArray):
        return "a masked array, whose mask would be lost"
    try:
        return np.asarray(given)
    except (TypeError, ValueError, RuntimeError, OverflowError, MemoryError) as error:
        if isinstance(given, list | tuple) and isinstance(error, ValueError):
            return "rows of unequal length"
        return f"a {type(given).__name__} that is no array ({error})"


def own_numbers(array: Array) -> Array | str:
    """Return an owned array of int32, float32 or float64; or what is wrong with it.

    Floats of another byte order become native; other dtypes are refused, since a conversion would
    lose digits or guess.
    """
    dtype = REALS.get(array.dtype.itemsize) if array.dtype.kind == "f" else INT32
    if dtype is None or array.dtype.kind not in "iuf":
        return f"dtype {array.dtype}"
    if dtype is INT32 and array.size > MOST:  # of a view it may be, whose elements are not there
        return f"{array.size} elements, more than int32 can number"
    if dtype is INT32 and array.size and not (array.min() >= _LEAST and array.max() <= MOST):
        return "a whole number beyond 32 bits"
    try:
        return own(array, dtype)
    except MemoryError:  # a view may be larger than memory: np.broadcast_to
        return f"{array.size} elements, which memory does not hold"


class _HandedOut:
    """A public field of a record, read-only: a view of an array that it holds elsewhere."""

    def __init__(self, held: Callable[[Any], Any]) -> None:
        self.held = held

    def __set__(self, record: object, value: object) -> None:
        raise FrozenInstanceError("what has been checked cannot change: make another one")

    def __get__(self, record: object, cls: type) -> Any:
        if record is None:
            return self
        found = self.held(record)
        return found.view() if type(found) is np.ndarray else found


def handed_out(held: Callable[[Any], Any]) -> Any:
    """Return a public field, given what reads the value held; what is no array cannot change."""
    return _HandedOut(held)
