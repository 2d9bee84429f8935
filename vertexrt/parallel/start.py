"""Find the processes that were started together, from what torchrun or mpiexec left behind."""

import os
from collections.abc import Mapping

from vertexrt.errors import UsageError
from vertexrt.parallel.communicator import Communicator, GlooCommunicator, MpiCommunicator
from vertexrt.parallel.group import SETUP_LIMIT, STEP_LIMIT, ProcessGroup

MPI_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")  # Open MPI; MPICH and its kin
LOCAL_SIZES = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
LOCAL_RANKS = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")


def init(shares: int | None = None, limit: float = STEP_LIMIT) -> ProcessGroup:
    """Join the processes that torchrun or mpiexec has started with this one.

    A process that was started by neither is a group of its own, so that a script need not ask.

    Args:
        shares: parts that each batch is cut into, a power of two and a multiple of the number of
            processes. With the same shares 1, 2, 4, ... processes give the same bits; without,
            there are as many as processes, and results agree to rounding.
        limit: seconds that a step waits for another process. The first step has ten minutes, in
            which all may compile.
    Raises: UsageError, when the shares do not fit; DeviceError, when PyTorch or mpi4py is needed
        and not installed; ParallelError, when a process does not start.
    """
    return ProcessGroup(connect(os.environ), shares, limit)


def connect(environ: Mapping[str, str]) -> Communicator:
    """Return what sends between the processes of an environment."""
    if "RANK" in environ and "WORLD_SIZE" in environ:
        if _whole(environ, "WORLD_SIZE") > 1:
            return GlooCommunicator(SETUP_LIMIT)
    elif any(_whole(environ, name) > 1 for name in MPI_SIZES):
        return MpiCommunicator()
    return Communicator()


def processes_here(environ: Mapping[str, str]) -> int:
    """Return how many processes were started together on this machine."""
    return max(_whole(environ, name) for name in LOCAL_SIZES)


def number_here(environ: Mapping[str, str]) -> int | None:
    """Return which of the processes of this machine this one is, from 0; None, if nothing says."""
    names = [name for name in LOCAL_RANKS if name in environ]
    return _whole(environ, names[0], 0) if names else None


def _whole(environ: Mapping[str, str], name: str, least: int = 1) -> int:
    """Return a number in an environment; 1, where there is none."""
    text = environ.get(name, "1")
    if not (text.isascii() and text.isdecimal() and int(text) >= least):
        raise UsageError.at(
            "parallel",
            f"{name}={text}",
            f"a whole number of at least {least}",
            "unset it, or use torchrun",
        )
    return int(text)
