"""What moves bytes between processes: nothing for one alone, PyTorch's gloo, or MPI.

All sums, gathers and barriers of `ProcessGroup` are made of one call, `Communicator.exchange`, so
their order does not depend on the library underneath.
"""

import atexit
import os
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import numpy.typing as npt

from vertexrt.errors import DeviceError, ParallelError, one_line

Array = npt.NDArray[Any]

RESTARTS = "TORCHELASTIC_RESTART_COUNT"  # of torchrun
SHOWN = 100  # characters of gloo's own text
LEAST = 0.001  # seconds: gloo takes 0 for no limit
SPINS = 2000  # looks at a request of MPI before it is looked at every PAUSE seconds
PAUSE = 0.0001
GRACE = 2.0  # seconds in which the other processes may say what they miss


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


class Communicator:
    """Processes that send arrays to each other; of this class itself there is but one.

    Attributes:
        rank: number of this process, from 0.
        size: how many there are.
    """

    rank = 0
    size = 1

    def exchange(self, send: Sequence[Array], receive: Sequence[Array], limit: float) -> None:
        """Send an array to each process and fill one from each; all processes call it alike.

        Args:
            send, receive: contiguous, one for each process; those of this process itself are left
                alone. What i sends to j has as many bytes as what j receives from i.
            limit: seconds after which a process counts as lost.
        Raises: ParallelError, that names a process that has ended or does not answer.
        """
        deadline, waiting = Deadline(limit), []
        for peer in range(self.size):
            for sends, arrays in ((False, receive), (True, send)):
                if peer != self.rank and arrays[peer].size:
                    content = arrays[peer].reshape(-1).view(np.uint8)  # not copied
                    waiting.append((peer, self.start(sends, content, peer)))
        for peer, request in waiting:
            self.wait(peer, request, deadline)

    def start(self, sends: bool, content: Array, peer: int) -> Any:
        """Begin to send bytes to a process, or to receive them; return what `wait` waits for."""

    def wait(self, peer: int, request: Any, deadline: Deadline) -> None:
        """Wait for what `start` returned. Raises: ParallelError."""

    def close(self) -> None:
        """Leave; nothing is sent afterwards."""


class GlooCommunicator(Communicator):
    """A process group of torch.distributed, whose environment torchrun sets.

    Args:
        limit: seconds to wait for all processes to start.
    Raises: DeviceError, when PyTorch is not installed or has no gloo; ParallelError, when a process
        does not start.
    """

    def __init__(self, limit: float) -> None:
        try:
            import torch  # optional; loading it takes seconds
            import torch.distributed as dist
            from torch.distributed.rendezvous import rendezvous
        except ImportError as error:
            raise _no_torch(f"PyTorch is not there ({error})") from error
        if not (dist.is_available() and dist.is_gloo_available()):
            raise _no_torch("this PyTorch has no gloo")
        timeout = timedelta(seconds=limit)
        try:
            if dist.is_initialized():  # by the caller, with whatever backend
                self._group = dist.new_group(backend="gloo", timeout=timeout)
            else:
                store, rank, size = next(rendezvous("env://", timeout=timeout))
                # The store outlives a restart, with the addresses of processes that are gone.
                own = dist.PrefixStore(f"vertexrt/{os.environ.get(RESTARTS, '0')}", store)
                options = {"rank": rank, "world_size": size, "timeout": timeout}
                dist.init_process_group("gloo", store=own, **options)
                self._group = dist.group.WORLD
        except (RuntimeError, ValueError) as error:
            raise ParallelError.at(
                "parallel",
                f"the processes do not find each other: {_shown(error)}",
                "RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT as torchrun sets them",
                "start all of them with torchrun",
            ) from error
        self._torch: Any = torch
        self._dist: Any = dist
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def start(self, sends: bool, content: Array, peer: int) -> Any:
        """Begin to send or to receive; see `Communicator`."""
        begin = self._dist.isend if sends else self._dist.irecv
        try:
            return begin(self._torch.from_numpy(content), peer, group=self._group)
        except RuntimeError as error:
            raise ended(peer, self.size, _shown(error)) from error

    def wait(self, peer: int, request: Any, deadline: Deadline) -> None:
        """Wait for a request; see `Communicator`."""
        try:
            request.wait(timedelta(seconds=max(deadline.left(), LEAST)))
        except RuntimeError as error:
            if deadline.left() <= 0:
                raise silent(peer, self.size, deadline.limit) from error
            raise ended(peer, self.size, _shown(error)) from error

    def close(self) -> None:
        """Leave the group; a process group that the caller has made stays."""
        self._dist.destroy_process_group(self._group)


def _shown(error: Exception) -> str:
    """Return the gist of gloo's text: without the file that it names first."""
    text = one_line(str(error).rpartition("] ")[2] if "] " in str(error) else str(error))
    return text[:SHOWN].partition(". ")[0]


def _no_torch(got: str) -> DeviceError:
    return DeviceError.at(
        "parallel",
        got,
        "RANK and WORLD_SIZE are set, as torchrun does, so that PyTorch's gloo is needed",
        "pip install -e '.[torch]' in the checkout, or use mpiexec",
    )


class MpiCommunicator(Communicator):
    """The processes of MPI's COMM_WORLD, through mpi4py.

    Raises: DeviceError, when mpi4py is not installed.
    """

    def __init__(self) -> None:
        try:
            from mpi4py import MPI  # optional; it starts MPI
        except (ImportError, RuntimeError) as error:
            raise DeviceError.at(
                "parallel",
                f"mpi4py does not load ({error})",
                "the process was started by mpiexec, so that mpi4py is needed",
                "pip install -e '.[mpi]' in the checkout, or use torchrun",
            ) from error
        self._mpi: Any = MPI
        self._world: Any = MPI.COMM_WORLD.Dup()
        self.rank, self.size = self._world.Get_rank(), self._world.Get_size()

    def start(self, sends: bool, content: Array, peer: int) -> Any:
        """Begin to send or to receive; see `Communicator`."""
        begin = self._world.Isend if sends else self._world.Irecv
        return begin([content, self._mpi.BYTE], peer)

    def wait(self, peer: int, request: Any, deadline: Deadline) -> None:
        """Wait for a request: MPI has no wait with a limit."""
        spins = 0
        try:
            while not request.Test():
                spins += 1
                if spins > SPINS:
                    if deadline.left() < 0:
                        raise silent(peer, self.size, deadline.limit)
                    time.sleep(PAUSE)
        except (self._mpi.Exception, ParallelError) as error:
            # All processes end when this one ends: MPI's own end would wait for the lost one.
            atexit.register(self._mpi.COMM_WORLD.Abort, 1)  # ours is freed by then
            atexit.register(time.sleep, GRACE)  # called first
            if isinstance(error, ParallelError):
                raise
            raise ended(peer, self.size, str(error)) from error

    def close(self) -> None:
        """Leave; MPI itself ends with the process."""
        self._world.Free()


def ended(peer: int, size: int, why: str) -> ParallelError:
    """Return the error for a process that has closed its connection."""
    return _lost(peer, size, f"has ended ({why})", "a process that answers")


def silent(peer: int, size: int, limit: float) -> ParallelError:
    """Return the error for a process that does not answer."""
    got = f"has not answered for {limit:g} s"
    return _lost(peer, size, got, "it hangs, or waits for one that hangs")


def _lost(peer: int, size: int, got: str, expected: str) -> ParallelError:
    return ParallelError.at(
        "parallel",
        f"process {peer} of {size} {got}",
        expected,
        "look at what it printed last; `vertexrt train --continue` goes on from the last "
        "checkpoint, which torchrun --max-restarts calls again",
    )
