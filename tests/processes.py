"""Processes that are threads, so that what a group does can be tested without starting any.

Tests that start some find a port here, where these meet.
"""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from vertexrt.errors import ParallelError
from vertexrt.parallel.communicator import Communicator, ended, silent

T = TypeVar("T")
Pipes = dict[tuple[int, int], "queue.Queue[Any]"]


class ThreadCommunicator(Communicator):
    """A communicator between threads; bytes sent are counted."""

    def __init__(self, rank: int, size: int, pipes: Pipes) -> None:
        self.rank, self.size, self._pipes = rank, size, pipes
        self.sent = 0

    def exchange(
        self, send: Sequence[np.ndarray], receive: Sequence[np.ndarray], limit: float
    ) -> None:
        others = [peer for peer in range(self.size) if peer != self.rank]
        for peer in others:
            self._pipes[self.rank, peer].put(np.array(send[peer]))
            self.sent += send[peer].nbytes
        for peer in others:
            try:
                found = self._pipes[peer, self.rank].get(timeout=limit)
            except queue.Empty as error:
                raise silent(peer, self.size, limit) from error
            if found is None:
                raise ended(peer, self.size, "its thread is over")
            assert found.nbytes == receive[peer].nbytes
            receive[peer][...] = found.reshape(receive[peer].shape)

    def close(self) -> None:
        """Tell the others."""
        for peer in range(self.size):
            if peer != self.rank:
                self._pipes[self.rank, peer].put(None)


def together(size: int, work: Callable[[ThreadCommunicator], T]) -> list[T | Exception]:
    """Call a function in so many threads at once; return what each returned or raised."""
    pipes: Pipes = {(i, j): queue.Queue() for i in range(size) for j in range(size)}
    found: list[Any] = [None] * size

    def run(rank: int) -> None:
        communicator = ThreadCommunicator(rank, size, pipes)
        try:
            found[rank] = work(communicator)
        except Exception as error:  # noqa: BLE001 - handed on: the caller looks at it
            found[rank] = error
        finally:
            communicator.close()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def lost(found: Sequence[object]) -> list[str]:
    """Return the texts of the errors for lost processes."""
    return [str(each) for each in found if isinstance(each, ParallelError)]
