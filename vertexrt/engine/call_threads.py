"""Calls that are done at once, the first by the caller, whatever ends that one.

What was begun is noted before it begins; `settle` may be called at any time, and again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from vertexrt.locks import CallThreads

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


class CallsAtOnce:
    """Does calls at once, in threads that are started when they are needed."""

    def __init__(self) -> None:
        self._threads = CallThreads()
        self._calls = _NOTHING

    def run(self, calls: Sequence[Call], stop: Call) -> None:
        """Do calls at once, the first in this thread; when this returns or raises, all have ended.

        Args:
            stop: lets those return that wait for others.
        Raises: what a call has raised.
        """
        self.settle()
        first, *rest = calls
        if not rest:
            return first()
        given = self._calls = _Calls(rest[::-1], stop, [])
        try:
            self._threads.start(len(rest))
            for _ in rest:
                self._threads.put(given.work)
            first()
            given.work()
            self._threads.wait()
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
            self._threads.wait()
            self._calls = _NOTHING
