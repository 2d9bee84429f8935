"""Threads besides the caller's that do calls at once, whatever ends the caller's own call.

A signal may end the caller between any two instructions of Python, but not what C does: taking from
a list, a queue or a lock, and a `with` of a lock. So nothing here depends on two of them. What was
begun is noted before it begins; `settle` may be called at any time, and again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import NamedTuple

Call = Callable[[], None]


class _Calls(NamedTuple):
    """Calls that belong together.

    Attributes:
        left: those that no thread has begun, the last first.
        stop: lets calls return that wait for others; errors: of those that have ended.
    """

    left: list[Call]
    stop: Call
    errors: list[BaseException]

    def work(self) -> None:
        """Do what is left."""
        while self.left:
            try:
                call = self.left.pop()
            except IndexError:  # another thread was faster
                return
            try:
                call()
            except BaseException as error:  # noqa: BLE001, the caller raises it
                self.errors.append(error)
                self.stop()


_NOTHING = _Calls([], lambda: None, [])


def _serve(queue: SimpleQueue[_Calls | None], working: list[threading.Lock]) -> None:
    """Do calls until there is None; a lock of `working` is held meanwhile."""
    mine = threading.Lock()
    working.append(mine)  # before anything is taken
    while _did(queue, mine):
        pass


def _did(queue: SimpleQueue[_Calls | None], mine: threading.Lock) -> bool:
    calls = queue.get()
    if calls is None:
        return False
    with mine:
        calls.work()
    return True


class CallThreads:
    """Threads that are started when they are needed, and end with this object."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[_Calls | None] = SimpleQueue()
        self._working: list[threading.Lock] = []  # one a thread, held while it works
        self._calls = _NOTHING

    def __del__(self) -> None:
        for _ in self._working:
            self._queue.put(None)

    def run(self, calls: Sequence[Call], stop: Call) -> None:
        """Do calls at once, the first in this thread; when this returns or raises, all have ended.

        Args:
            stop: lets those return that wait for others.
        Raises: what a call has raised.
        """
        self.settle()
        first, *rest = calls
        given = self._calls = _Calls(rest[::-1], stop, [])
        try:
            for _ in range(len(rest) - len(self._working)):
                given_to = self._queue, self._working
                threading.Thread(target=_serve, args=given_to, daemon=True).start()
            for _ in rest:
                self._queue.put(given)
            first()
            given.work()
            self._wait()
        except BaseException:
            self.settle()
            raise
        self._calls = _NOTHING
        if given.errors:
            raise given.errors[0]

    def settle(self) -> None:
        """Wait for calls of a `run` that was left in the middle; what was not begun is not done."""
        calls = self._calls
        if calls is not _NOTHING:
            calls.left.clear()
            calls.stop()
            self._wait()
            self._calls = _NOTHING

    def _wait(self) -> None:
        """Wait until no thread works; whatever it has begun, it holds its lock since before."""
        for working in self._working:
            with working:
                pass
