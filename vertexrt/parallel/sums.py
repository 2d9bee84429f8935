"""Sums of flat arrays in a fixed order, wherever the arrays are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from vertexrt.parallel.communicator import Communicator

Array = npt.NDArray[Any]
Flat = TypeVar("Flat")


class FlatArrays(Protocol):
    """What sums over processes need of flat arrays of one dtype, on the host or on a device.

    An array has a length, and slices that are parts of it.
    """

    def new(self, like: Any) -> Any:
        """Return an array as long as another; it holds anything."""

    def add(self, left: Any, right: Any) -> Any:
        """Add the right to the left, in place, and return the left; the right may be lost."""

    def copy(self, to: Any, source: Any) -> None:
        """Copy an array over another."""

    def exchange(self, send: Sequence[Any], receive: Sequence[Any], limit: float) -> None:
        """Send an array to each process and fill one from each; see `Communicator`."""


class HostArrays:
    """Arrays of NumPy, which a communicator sends."""

    def __init__(self, communicator: Communicator) -> None:
        self.exchange = communicator.exchange

    def new(self, like: Array) -> Array:
        """Return an array of the same dtype."""
        return np.empty_like(like)

    def add(self, left: Array, right: Array) -> Array:
        """Leave the right as it is."""
        return add(left, right)

    def copy(self, to: Array, source: Array) -> None:
        """Copy now."""
        to[:] = source


def add(left: Array, right: Array) -> Array:
    """Add arrays of the host; the left is overwritten and returned."""
    return np.add(left, right, out=left)


def add_in_pairs(parts: Iterable[Flat], add: Callable[[Any, Any], Any] = add) -> Flat:
    """Add up arrays in pairs, then pairs of pairs; the first of each pair is overwritten.

    As many are kept at once as the tree has levels.

    Args:
        add: of `FlatArrays`.
    """
    waiting: list[tuple[int, Flat]] = []  # sums of 2**level parts
    for part in parts:
        level, total = 0, part
        while waiting and waiting[-1][0] == level:
            total = add(waiting.pop()[1], total)
            level += 1
        waiting.append((level, total))
    total = waiting.pop()[1]
    while waiting:  # the number of parts is no power of two
        total = add(waiting.pop()[1], total)
    return total
