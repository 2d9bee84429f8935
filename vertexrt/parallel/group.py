"""Processes that train together: which share of a batch is whose, and sums in a fixed order.

A sum of floats depends on its order. So a batch is cut into a number of shares that does not depend
on the number of processes, and their gradients are added up in pairs, pairs of pairs, and so on. A
process has neighbouring shares, whole subtrees of that tree; what is left is added up over the
processes in the same way (`sum_over`). So sums have the same bits for 1, 2, 4, ... processes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from vertexrt.checks import is_real, is_whole
from vertexrt.errors import UsageError, number_of
from vertexrt.parallel.communicator import Communicator
from vertexrt.parallel.sums import HostArrays, sum_over

Array = npt.NDArray[Any]

STEP_LIMIT = 7.0  # seconds: what is lost is known within ten
SETUP_LIMIT = 600.0  # seconds, until the first step has been done: others may compile


class ProcessGroup:
    """Processes that train together. Made by `vrt.parallel.init`.

    Args:
        communicator: what sends between them; by default there is one process.
        shares, limit: see `init`.
    Attributes:
        communicator: see above.
        rank: number of this process, from 0.
        size: how many processes there are.
        shares: parts that each batch is cut into.
        signal: a whole number that a step tells the other processes. When a step has been waited
            for it is the largest that they told; until then, where steps are not waited for, 0.
        warm: a step has been done: what steps need is compiled.
    Raises: UsageError, when the shares do not fit.
    """

    def __init__(
        self,
        communicator: Communicator | None = None,
        shares: int | None = None,
        limit: float = STEP_LIMIT,
    ) -> None:
        self.communicator = communicator or Communicator()
        self.rank, self.size = self.communicator.rank, self.communicator.size
        if not is_real(limit) or not 0 < limit < SETUP_LIMIT:
            raise UsageError.at(
                "parallel",
                f"limit={limit!r:.60}",
                f"seconds, above 0 and below {SETUP_LIMIT:g}",
                "correct it",
            )
        whole = shares is None or (is_whole(shares) and shares > 0)
        if not whole or (shares and (shares & (shares - 1) or shares % self.size)):
            raise UsageError.at(
                "parallel",
                f"{shares!r:.60} shares for {number_of(self.size, 'process', 'processes')}",
                "a power of two that is a multiple of the number of processes",
                "give 8 for 1, 2, 4 or 8 processes, or leave shares out",
            )
        self.shares = shares or self.size
        self.signal = 0
        self._limit = limit
        self.warm = False
        found = self.gather(np.array(self.shares, np.int64)).tolist()
        if len(set(found)) > 1:
            raise UsageError.at(
                "parallel",
                f"{found} shares",
                "the same number in every process",
                "give all the same",
            )

    def __repr__(self) -> str:
        return (
            f"ProcessGroup(process {self.rank} of {self.size}, {number_of(self.shares, 'share')})"
        )

    def shared_out(self, shares: int | None) -> ProcessGroup:
        """Return a group of the same processes with other shares. Raises: UsageError."""
        return ProcessGroup(self.communicator, shares, self._limit)

    @property
    def own(self) -> slice:
        """Which shares are those of this process."""
        each = self.shares // self.size
        return slice(self.rank * each, (self.rank + 1) * each)

    def gather(self, array: Array, more: float = 0.0) -> Array:
        """Return an array of each process, [size, ...], by rank; they have one shape and dtype.

        Args:
            more: seconds to wait beyond `limit`, where processes may come later than in a step.
        Raises: ParallelError, when a process is lost.
        """
        found = np.empty((self.size, *array.shape), array.dtype)
        found[self.rank] = array
        mine = np.require(array, None, ["C", "W"])  # PyTorch warns of what it may not write
        rows = list(found.reshape(self.size, -1))
        self.communicator.exchange([mine] * self.size, rows, self.limit + more)
        return found

    def gather_rows(self, own: Array, lengths: list[int]) -> list[Array]:
        """Return flat arrays of all processes, by rank, where their lengths are known."""
        found = [np.empty(length, own.dtype) for length in lengths]
        found[self.rank] = own
        self.communicator.exchange([own] * self.size, found, self.limit)
        return found

    def add_up(self, flat: Array) -> None:
        """Replace a flat array by the sum of those of all processes, in place and in fixed order.

        Raises: ParallelError, when a process is lost.
        """
        arrays = HostArrays(self.communicator)
        total = sum_over(self.rank, self.size, flat, arrays, self.limit)
        if total is not flat:
            arrays.copy(flat, total)

    def find_lost(self, limit: float) -> None:
        """Raise ParallelError for a process that does not answer within some seconds."""
        sent = [np.zeros(1, np.int8)] * self.size
        self.communicator.exchange(sent, [each.copy() for each in sent], limit)

    def largest(self, number: int, more: float = 0.0) -> int:
        """Return the largest of the numbers of all processes; see `gather`."""
        return int(self.gather(np.array(number, np.int64), more).max())

    def broadcast(self, content: bytes) -> bytes:
        """Return what process 0 passes; others pass anything.

        Raises: ParallelError, when a process is lost.
        """
        length = int(self.gather(np.array(len(content), np.int64))[0])
        text = np.zeros(length, np.uint8)
        if self.rank == 0:
            text[:] = np.frombuffer(content, np.uint8)
        return bytes(self.gather(text)[0])

    def barrier(self, more: float = 0.0) -> None:
        """Wait until all processes are here; see `gather`.

        Raises: ParallelError, when a process is lost.
        """
        self.gather(np.zeros(1, np.int8), more)

    @property
    def limit(self) -> float:
        """Seconds to wait for another process: ten minutes until a step has been done."""
        return self._limit if self.warm else SETUP_LIMIT

    def began(self) -> None:
        """Note that a step has been done, or that there is nothing more to compile."""
        self.warm = True

    def close(self) -> None:
        """Leave the group; what torchrun or mpiexec has started ends by itself."""
        self.communicator.close()
