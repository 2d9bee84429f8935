"""Locks of the process, what a fork does with them, and threads that no signal leaves waiting.

A forked child has one thread, and every lock as it was. One that another thread held would never
be free again. What such a thread was changing would stay half changed: so a fork waits until no
thread is inside of what is shared, and the child finds it whole.
"""

from __future__ import annotations

import _thread
import functools
import os
import threading
import weakref
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Protocol


class ProcessLock:
    """A lock that lives as long as the process: `with lock.held:`; a thread may take it again.

    It guards what is whole at any time, so a forked child gets a new one. A `with` of a method that
    is written in Python could take it and be left by a signal before it is inside.
    """

    def __init__(self) -> None:
        self._renew()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self.held = threading.RLock()


class CallThreads:
    """Threads that do calls besides the caller's, and end with this object.

    A signal may end the caller between any two instructions of Python, but not inside of what C
    does: a queue, a list, starting a thread, a `with` of a lock. Pools of `concurrent.futures`, and
    `threading.Thread.start`, wait by locks that are written in Python: after a signal there, they
    may hang.
    """

    def __init__(self) -> None:
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._working: list[threading.Lock] = []  # one a thread, held while it works

    def __del__(self) -> None:
        for _ in getattr(self, "_working", ()):  # a signal may have come before there is one
            self._queue.put(None)

    def start(self, most: int) -> None:
        """Start threads until there are so many."""
        for _ in range(most - len(self._working)):
            _thread.start_new_thread(_serve, (self._queue, self._working))

    def put(self, call: Callable[[], None]) -> None:
        """Let a thread do a call, which raises nothing."""
        self._queue.put(call)

    def wait(self) -> None:
        """Wait until no thread works; what it has taken to do, it holds its lock since before."""
        for working in self._working:
            with working:
                pass


def _serve(queue: SimpleQueue[Callable[[], None] | None], working: list[threading.Lock]) -> None:
    mine = threading.Lock()
    working.append(mine)  # before anything is taken
    while (call := queue.get()) is not None:
        with mine:
            call()
        del call  # what it has made is not kept


class Shared(Protocol):
    """What threads use in turn: a thread that uses it holds `lock`."""

    lock: Any

    def after_fork(self) -> None:
        """Make it work in a forked child, with a new lock."""


_shared: weakref.WeakSet[Shared] = weakref.WeakSet()
_held: list[Shared] = []
_lock = threading.RLock()  # of both


def share(thing: Shared) -> None:
    """Hold a thing's lock while the process forks, for as long as the thing lives."""
    with _lock:
        _hold_shared_at_fork()
        _shared.add(thing)


def hold_at_fork(
    before: Callable[[], object], parent: Callable[[], object], child: Callable[[], object]
) -> None:
    """Call functions before a fork and after it in both processes, where there are forks.

    Before a fork the last ones are called first: so a lock that is taken inside of another one is
    given here before it.
    """
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=before, after_in_parent=parent, after_in_child=child)


@functools.cache
def _hold_shared_at_fork() -> None:
    """Do so from the first thing on, after the lock of the compiler, which is taken inside."""
    hold_at_fork(_before_fork, _in_parent, _in_child)


def _before_fork() -> None:
    _lock.acquire()
    _held[:] = _shared
    for thing in _held:
        thing.lock.acquire()


def _in_parent() -> None:
    for thing in _held:
        thing.lock.release()
    _held.clear()
    _lock.release()


def _in_child() -> None:
    for thing in _held:
        thing.after_fork()
    _held.clear()
    _lock.release()
