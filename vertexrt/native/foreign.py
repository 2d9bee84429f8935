"""What there is beyond Python: functions by their address, memory that is read-only, capsules."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np

KINDS: dict[str, Any] = {
    "ptr": ctypes.c_void_p,
    "i32": ctypes.c_int32,
    "i64": ctypes.c_int64,
    "double": ctypes.c_double,
    "void": None,
}


@dataclass(frozen=True, slots=True)
class Foreign:
    """The kind of a function that is called by its address, its first argument here.

    Attributes:
        result: i32, i64, double or void; arguments: these, and ptr for an array or an address.
    """

    result: str
    arguments: str

    def __call__(self, address: int, *given: Any) -> Any:
        """Call it from Python."""
        kinds = [KINDS[name] for name in self.arguments.split()]
        function = ctypes.CFUNCTYPE(KINDS[self.result], *kinds)(_plain(address))
        return function(*map(_plain, given))


def _plain(value: Any) -> Any:
    """Return a number, or the address of an array, as ctypes takes it."""
    if isinstance(value, np.ndarray):
        return value.ctypes.data
    return value.item() if isinstance(value, np.generic) else value


def filled_here(array: Any) -> Any:
    """Return an array of one axis that is read-only for all others, to be filled."""
    memory = (ctypes.c_byte * array.nbytes).from_address(array.ctypes.data)
    return np.frombuffer(memory, array.dtype) if array.nbytes else array


def pointer_in(capsule: Any) -> int:
    """Return the address that a capsule of Python holds."""
    api = ctypes.pythonapi
    api.PyCapsule_GetName.restype = ctypes.c_char_p
    api.PyCapsule_GetName.argtypes = [ctypes.py_object]
    api.PyCapsule_GetPointer.restype = ctypes.c_void_p
    api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    address: int = api.PyCapsule_GetPointer(capsule, api.PyCapsule_GetName(capsule))
    return address
