"""What moves bytes between processes: one call, which every way of starting processes implements.

All sums, gathers and barriers of `ProcessGroup` are made of this call, so their order does not
depend on the library underneath.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from vertexrt.errors import ParallelError

Array = npt.NDArray[Any]


class Communicator(Protocol):
    """Processes that send arrays to each other.

    Attributes:
        rank: number of this process, from 0.
        size: how many there are.
    """

    rank: int
    size: int

    def exchange(self, send: Sequence[Array], receive: Sequence[Array], limit: float) -> None:
        """Send an array to each process and fill one from each; all processes call it alike.

        Args:
            send, receive: contiguous, one for each process; those of this process itself are left
                alone. What i sends to j has as many bytes as what j receives from i.
            limit: seconds after which a process counts as lost.
        Raises: ParallelError, that names a process that has ended or does not answer.
        """

    def close(self) -> None:
        """Leave; nothing is sent afterwards."""


class Alone:
    """The communicator of one process."""

    rank = 0
    size = 1

    def exchange(self, send: Sequence[Array], receive: Sequence[Array], limit: float) -> None:
        """Do nothing: there is nobody else."""

    def close(self) -> None:
        """Do nothing."""


class Deadline:
    """A time limit of several waits together.

    Args:
        limit: seconds from now.
    """

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self._end = time.monotonic() + limit

    def left(self) -> float:
        """Return the seconds that are left; below 0 when it is over."""
        return self._end - time.monotonic()


def bytes_of(array: Array) -> Array:
    """Return a contiguous array as its bytes, not copied."""
    return array.reshape(-1).view(np.uint8)


def ended(peer: int, size: int, why: str) -> ParallelError:
    """Return the error for a process that has closed its connection."""
    return _lost(peer, size, f"has ended ({why})", "a process that answers")


def silent(peer: int, size: int, limit: float) -> ParallelError:
    """Return the error for a process that does not answer."""
    got = f"has not answered for {limit:g} s"
    return _lost(peer, size, got, "it hangs, or waits for one that hangs")


def _lost(peer: int, size: int, got: str, expected: str) -> ParallelError:
    action = (
        "look at what it printed last; `vertexrt train --continue` goes on from the last "
        "checkpoint, which torchrun --max-restarts calls again"
    )
    return ParallelError.at("parallel", f"process {peer} of {size} {got}", expected, action)
