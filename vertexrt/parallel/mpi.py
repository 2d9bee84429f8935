"""Processes that mpiexec has started, connected by mpi4py."""

from __future__ import annotations

import atexit
import time
from collections.abc import Sequence
from typing import Any

from vertexrt.errors import DeviceError, ParallelError
from vertexrt.parallel.communicator import Array, Deadline, bytes_of, ended, silent

SPINS = 2000  # looks at a request before it is looked at every PAUSE seconds
PAUSE = 0.0001
GRACE = 2.0  # seconds in which the other processes may say what they miss


class MpiCommunicator:
    """The processes of MPI's COMM_WORLD.

    Raises: DeviceError, when mpi4py is not installed.
    """

    def __init__(self) -> None:
        try:
            from mpi4py import MPI  # optional; it starts MPI
        except (ImportError, RuntimeError) as error:
            expected = "the process was started by mpiexec, so that mpi4py is needed"
            action = "pip install 'vertexrt[mpi]', or use torchrun"
            raise DeviceError.at(
                "parallel", f"mpi4py does not load ({error})", expected, action
            ) from error
        self._mpi: Any = MPI
        self._world: Any = MPI.COMM_WORLD.Dup()
        self.rank, self.size = self._world.Get_rank(), self._world.Get_size()

    def exchange(self, send: Sequence[Array], receive: Sequence[Array], limit: float) -> None:
        """Send an array to each process and fill one from each; see `Communicator`."""
        deadline = Deadline(limit)
        waiting: list[tuple[int, Any]] = []
        for peer in range(self.size):
            if peer == self.rank:
                continue
            for start, arrays in ((self._world.Irecv, receive), (self._world.Isend, send)):
                if arrays[peer].size:
                    buffer = [bytes_of(arrays[peer]), self._mpi.BYTE]
                    waiting.append((peer, start(buffer, peer)))
        for peer, request in waiting:
            try:
                self._wait(peer, request, deadline)
            except ParallelError:
                self._abort_at_exit()
                raise

    def _wait(self, peer: int, request: Any, deadline: Deadline) -> None:
        """Wait for a request: MPI has no wait with a limit."""
        spins = 0
        try:
            while not request.Test():
                spins += 1
                if spins > SPINS:
                    if deadline.left() < 0:
                        raise silent(peer, self.size, deadline.limit)
                    time.sleep(PAUSE)
        except self._mpi.Exception as error:
            raise ended(peer, self.size, str(error)) from error

    def _abort_at_exit(self) -> None:
        """End all processes when this one ends: MPI's own end would wait for the lost one."""
        atexit.register(self._mpi.COMM_WORLD.Abort, 1)  # ours is freed by then
        atexit.register(time.sleep, GRACE)  # called first

    def close(self) -> None:
        """Leave; MPI itself ends with the process."""
        self._world.Free()
