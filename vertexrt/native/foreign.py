"""What loops may do beyond Python: call a function by its address, and fill read-only memory."""

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
        values = [x.ctypes.data if isinstance(x, np.ndarray) else x for x in given]
        return ctypes.CFUNCTYPE(KINDS[self.result], *kinds)(address)(*map(_plain, values))


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def filled_here(array: Any) -> Any:
    """Return an array of one axis that is read-only for all others, to be filled."""
    memory = (ctypes.c_byte * array.nbytes).from_address(array.ctypes.data)
    return np.frombuffer(memory, array.dtype) if array.nbytes else array
