"""In place of NCCL: devices of threads of one process hand bytes to each other."""

from __future__ import annotations

import queue
from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np

from vertexrt.kernels.cuda.device import Message

Read = Callable[[int, int], bytes]
Write = Callable[[int, bytes], None]
PATIENCE = 60.0  # seconds for bytes of a thread that has not died

_pipes: dict[tuple[int, int, int], queue.Queue[bytes | None]] = defaultdict(queue.Queue)


class Death(BaseException):
    """The end of a process, in the midst of an exchange; nothing catches it but the test."""


class ThreadLink:
    """A link between threads. What does not come leaves it stuck, as a stream would be.

    Args:
        number: of the link; place: rank and size.
        read, write: memory of the device.
        dies_at: number of the exchange at which this process ends.
        hangs_at: number of the exchange from which on it sends nothing.
        flag: int64 [1], memory that kernels of the device may read; by default NumPy's.
    Attributes:
        sent: bytes so far; exchanges: how many.
        stuck: an exchange waits for what does not come; aborted: it was told to end.
        stopped: see `Link`. On a device, kernels after a stuck exchange run when it is aborted;
            here they run at once, so that they are told as soon as it is stuck.
    """

    def __init__(
        self,
        number: int,
        place: tuple[int, int],
        memory: tuple[Read, Write],
        dies_at: int = -1,
        hangs_at: int = -1,
        flag: np.ndarray | None = None,
    ) -> None:
        self._number, (self._rank, self._size) = number, place
        self._read, self._write = memory
        self._dies_at, self._hangs_at = dies_at, hangs_at
        self.sent = self.exchanges = 0
        self.stuck = self.aborted = False
        self._flag = np.zeros(1, np.int64) if flag is None else flag
        self.stopped = int(self._flag.ctypes.data)

    def exchange(self, send: Sequence[Message], receive: Sequence[Message]) -> None:
        """Hand over at once; wait for what comes."""
        self.exchanges += 1
        if self.exchanges == self._dies_at:
            for peer in range(self._size):
                self._pipe(self._rank, peer).put(None)
            raise Death
        if self.exchanges == self._hangs_at:
            for peer, _ in send:
                self._pipe(self._rank, peer).put(None)
            self._stick()
        if self.stuck:
            return
        for peer, (address, size) in send:
            self._pipe(self._rank, peer).put(self._read(address, size))
            self.sent += size
        for peer, (address, size) in receive:
            found = self._pipe(peer, self._rank).get(timeout=PATIENCE)
            if found is None or len(found) != size:  # NCCL waits for ever then, too
                self._stick()
                return
            self._write(address, found)

    def _stick(self) -> None:
        self.stuck, self._flag[0] = True, 1

    def _pipe(self, sender: int, receiver: int) -> queue.Queue[bytes | None]:
        return _pipes[self._number, sender, receiver]

    def failure(self) -> str:
        """Know of none: a stream that waits has no error."""
        return ""

    def abort(self) -> None:
        """Let the stream go on."""
        self.stuck, self.aborted = False, True
