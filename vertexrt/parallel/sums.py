"""Sums of flat arrays in a fixed order, wherever the arrays are."""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from vertexrt.parallel.communicator import Communicator

Array = npt.NDArray[Any]
Flat = TypeVar("Flat")


def add(left: Array, right: Array) -> Array:
    """Add arrays of the host; the left is overwritten and returned."""
    return np.add(left, right, out=left)


class HostArrays:
    """What sums over processes need of flat arrays of one dtype; here those of NumPy.

    An array has a length, and slices that are parts of it. `new` returns one as long as another, of
    any content; `add` adds the right to the left, in place, and returns the left, the right may be
    lost; `copy` copies the second over the first; `exchange` is that of a `Communicator`.
    """

    new = staticmethod(np.empty_like)
    add = staticmethod(add)
    copy = staticmethod(np.copyto)

    def __init__(self, communicator: Communicator) -> None:
        self.exchange = communicator.exchange


def add_in_pairs(parts: Iterable[Flat], add: Callable[[Any, Any], Any] = add) -> Flat:
    """Add up arrays in pairs, then pairs of pairs; the first of each pair is overwritten.

    As many are kept at once as the tree has levels.

    Args:
        add: of `HostArrays`, or of the like on a device.
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


def sum_over(rank: int, size: int, flat: Any, arrays: Any, limit: float) -> Any:
    """Return the sum of a flat array of all processes, in fixed order; see `parts_over`."""
    return add_in_pairs(parts_over(rank, size, flat, arrays, limit), arrays.add)


def parts_over(rank: int, size: int, flat: Any, arrays: Any, limit: float) -> list[Any]:
    """Return the sum of a flat array of all processes, or two arrays whose sum it is, in order.

    The array itself is lost. Two processes hand each other the whole array. More of them add up one
    piece each, in the same order, and hand round the sums: a reduce-scatter and an all-gather
    (Thakur, Rabenseifner and Gropp 2005, with their direct exchange), 2 (N - 1) / N times the
    array's bytes.

    Args:
        rank, size: number of this process, and how many there are.
        arrays: `HostArrays`, or the like on a device.
        limit: seconds of an exchange.
    Raises: ParallelError, when a process is lost.
    """
    if size == 1:
        return [flat]
    if size == 2:
        both = [flat if k == rank else arrays.new(flat) for k in range(2)]
        arrays.exchange([flat] * 2, both, limit)
        return both
    each = -(-len(flat) // size)
    pieces = [flat[k * each : (k + 1) * each] for k in range(size)]
    mine = pieces[rank]
    found = [mine if k == rank else arrays.new(mine) for k in range(size)]
    arrays.exchange(pieces, found, limit)
    total = add_in_pairs(found, arrays.add)
    if total is not mine:
        arrays.copy(mine, total)
    arrays.exchange([mine] * size, pieces, limit)
    return [flat]
