"""Locks of the process, and what a fork does with them.

A forked child has one thread, and every lock as it was. One that another thread held would never
be free again. What such a thread was changing would stay half changed: so a fork waits until no
thread is inside of what is shared, and the child finds it whole.
"""

from __future__ import annotations

import functools
import os
import threading
import weakref
from collections.abc import Callable
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
