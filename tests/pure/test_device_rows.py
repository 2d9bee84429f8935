"""Arrays of a GPU, read by their own attributes; stand-ins for those of CuPy and of PyTorch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.backend.test_on_device import Lent
from vertexrt.graph.device_rows import DeviceRows

SHAPE, REAL = (3, 2), np.dtype(np.float32)


class OfCuPy(Lent):
    """An array as CuPy has it."""

    __module__ = "cupy"

    def __init__(self, array: np.ndarray[Any, Any], in_order: bool = True, skip: int = 0) -> None:
        super().__init__(array)
        self.shape, self.dtype = array.shape, array.dtype
        self.flags = SimpleNamespace(c_contiguous=in_order)
        self.data = SimpleNamespace(ptr=self.held.ctypes.data + skip)


class OfPyTorch(OfCuPy):
    """A tensor as PyTorch has it."""

    __module__ = "torch"
    requires_grad, is_cuda = False, True

    def is_floating_point(self) -> bool:
        return bool(self.dtype.kind == "f")

    def element_size(self) -> int:
        return int(self.dtype.itemsize)

    def is_contiguous(self) -> bool:
        return bool(self.flags.c_contiguous)

    def data_ptr(self) -> int:
        return int(self.data.ptr)


@pytest.mark.parametrize("library", [OfCuPy, OfPyTorch])
def test_an_array_that_has_the_form(library: type[OfCuPy]) -> None:
    given = library(np.ones(SHAPE, REAL))
    found, wanted = DeviceRows.like(given, SHAPE, REAL), DeviceRows(given)
    assert found is not None
    assert found.given is given
    assert (found.address, found.shape, found.dtype) == (wanted.address, SHAPE, REAL)


@pytest.mark.parametrize("library", [OfCuPy, OfPyTorch])
@pytest.mark.parametrize(
    ("array", "options"),
    [
        (np.ones((3, 3), REAL), {}),
        (np.ones(SHAPE, np.float64), {}),
        (np.ones(SHAPE, np.int32), {}),
        (np.ones(SHAPE, REAL), {"in_order": False}),
        (np.ones(SHAPE, REAL), {"skip": 4}),
    ],
    ids=["shape", "dtype", "whole", "order", "address"],
)
def test_an_array_of_another_form(
    library: type[OfCuPy], array: np.ndarray[Any, Any], options: dict[str, Any]
) -> None:
    assert DeviceRows.like(library(array, **options), SHAPE, REAL) is None


def test_what_is_not_known_here_is_left_to_others() -> None:
    tensor = OfPyTorch(np.ones(SHAPE, REAL))
    for name, value in (("requires_grad", True), ("is_cuda", False)):
        setattr(tensor, name, value)
        assert DeviceRows.like(tensor, SHAPE, REAL) is None
        setattr(tensor, name, not value)
    assert DeviceRows.like(Lent(np.ones(SHAPE, REAL)), SHAPE, REAL) is None
    assert DeviceRows.like(np.ones(SHAPE, REAL), SHAPE, REAL) is None
