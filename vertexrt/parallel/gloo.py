"""Processes that torchrun has started, connected by PyTorch's gloo over TCP."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from vertexrt.errors import DeviceError, ParallelError, one_line
from vertexrt.parallel.communicator import Array, Deadline, bytes_of, ended, silent

RESTARTS = "TORCHELASTIC_RESTART_COUNT"  # of torchrun
SHOWN = 100  # characters of gloo's own text
LEAST = 0.001  # seconds: gloo takes 0 for no limit


class GlooCommunicator:
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
            got = f"the processes do not find each other: {_shown(error)}"
            expected = "RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT as torchrun sets them"
            raise ParallelError.at(
                "parallel", got, expected, "start all of them with torchrun"
            ) from error
        self._torch: Any = torch
        self._dist: Any = dist
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def exchange(self, send: Sequence[Array], receive: Sequence[Array], limit: float) -> None:
        """Send an array to each process and fill one from each; see `Communicator`."""
        deadline, waiting = Deadline(limit), []
        for peer in range(self.size):
            if peer == self.rank:
                continue
            for start, arrays in ((self._dist.irecv, receive), (self._dist.isend, send)):
                if not arrays[peer].size:
                    continue
                try:
                    tensor = self._torch.from_numpy(bytes_of(arrays[peer]))
                    waiting.append((peer, start(tensor, peer, group=self._group)))
                except RuntimeError as error:
                    raise ended(peer, self.size, _shown(error)) from error
        for peer, work in waiting:
            try:
                work.wait(timedelta(seconds=max(deadline.left(), LEAST)))
            except RuntimeError as error:
                if deadline.left() <= 0:
                    raise silent(peer, self.size, limit) from error
                raise ended(peer, self.size, _shown(error)) from error

    def close(self) -> None:
        """Leave the group; a process group that the caller has made stays."""
        self._dist.destroy_process_group(self._group)


def _shown(error: Exception) -> str:
    """Return the gist of gloo's text: without the file that it names first."""
    text = one_line(str(error).rpartition("] ")[2] if "] " in str(error) else str(error))
    return text[:SHOWN].partition(". ")[0]


def _no_torch(got: str) -> DeviceError:
    expected = "RANK and WORLD_SIZE are set, as torchrun does, so that PyTorch's gloo is needed"
    return DeviceError.at(
        "parallel", got, expected, "pip install 'vertexrt[torch]', or use mpiexec"
    )
