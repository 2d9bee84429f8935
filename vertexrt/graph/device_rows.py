"""Rows of a pull that lie in the memory of a GPU: known by their address, never read here."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable
from typing import Any, NoReturn

import numpy as np

from vertexrt.errors import PullError
from vertexrt.graph.owned import REALS

ALIGNED = 16  # bytes, of what kernels load at once


class DeviceRows:
    """Real numbers [N, *shape] in C order in the memory of a GPU, as another library has them.

    Args:
        given: has `__cuda_array_interface__`: an array of CuPy, PyTorch, JAX or Numba. It stays
            alive, and what is written to it shows.
    Raises: PullError, for other dtypes than float32 and float64, and layouts that kernels do not
        read.
    """

    __slots__ = ("address", "dtype", "given", "shape")

    def __init__(self, given: Any) -> None:
        try:
            facts = given.__cuda_array_interface__
        except (AttributeError, KeyError, RuntimeError) as error:  # PyTorch's, of what has none
            got = f"a {type(given).__name__} on a GPU that is no array ({error})"
            _refuse(got, "float32 or float64 rows", "give one that is dense and detached")
        self.given = given
        self.address, _ = facts["data"]
        self.shape: tuple[int, ...] = tuple(facts["shape"])
        self.dtype = np.dtype(facts["typestr"])
        if self.dtype.kind != "f" or self.dtype not in REALS.values() or not self.shape:
            got = f"an array on a GPU of {self.dtype} {list(self.shape)}"
            _refuse(got, "float32 or float64 rows; whole numbers decide what runs", "copy it here")
        steps = itertools.accumulate(self.shape[:0:-1], operator.mul, initial=self.dtype.itemsize)
        if facts.get("strides") not in (None, tuple(steps)[::-1]):  # bytes to the next, in C order
            _refuse("an array on a GPU that is a view", "its rows in C order", "make it contiguous")
        if self.address % ALIGNED:
            got = f"an array on a GPU at the address {self.address}"
            _refuse(got, f"a multiple of {ALIGNED} bytes", "copy it")

    @classmethod
    def like(cls, given: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> DeviceRows | None:
        """Return an array of a GPU as rows, if its own attributes say that it has this form.

        None where they say otherwise, or are not known here; `DeviceRows(given)` tells more. CuPy
        and PyTorch make `__cuda_array_interface__` anew each time: 3 to 6 us of the host.
        """
        library = type(given).__module__.partition(".")[0]
        if library == "cupy":
            real, dense = given.dtype == dtype, given.flags.c_contiguous
        elif library == "torch":
            real = given.is_cuda and given.is_floating_point() and not given.requires_grad
            dense = given.element_size() == dtype.itemsize and given.is_contiguous()
        else:
            return None
        if not (real and dense and given.shape == shape):
            return None
        address = given.data.ptr if library == "cupy" else given.data_ptr()
        return None if address % ALIGNED else cls.at(address, given, shape, dtype)

    @classmethod
    def at(
        cls, address: int, given: Any, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> DeviceRows:
        """Return rows at an address of a device, which `given` keeps alive."""
        rows = cls.__new__(cls)
        rows.address, rows.given, rows.shape, rows.dtype = address, given, shape, dtype
        return rows

    @staticmethod
    def of(given: Any) -> Any:
        """Return an array of a GPU as rows; what is rows already, and one of NumPy, as it is."""
        return given if isinstance(given, DeviceRows | np.ndarray) else DeviceRows(given)

    def __len__(self) -> int:
        return self.shape[0]

    def __reduce__(self) -> NoReturn:
        _refuse("an array on a GPU is to be pickled", "arrays of the host", "copy it to the host")

    @property
    def nbytes(self) -> int:
        """How much of it has to be copied from the host: nothing."""
        return 0

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """What it was given."""
        found: dict[str, Any] = self.given.__cuda_array_interface__
        return found


def on_device(given: object) -> bool:
    """Tell whether an array lies in the memory of a GPU."""
    if isinstance(given, DeviceRows | np.ndarray):
        return isinstance(given, DeviceRows)
    tensor = getattr(given, "is_cuda", None)  # of PyTorch, whose interface raises if it is sparse
    return hasattr(given, "__cuda_array_interface__") if tensor is None else bool(tensor)


def refuse_device_rows(tables: Iterable[object]) -> None:
    """Refuse pulls on a GPU, where the network is on the host. Raises: PullError."""
    for table in tables:
        if not isinstance(table, DeviceRows):
            continue
        action = "copy it to the host, or compile with device='cuda'"
        _refuse("a pull lies on a GPU", "the host, where the network is", action)


def _refuse(got: str, expected: str, action: str) -> NoReturn:
    raise PullError.at("pull", got, expected, action)
