"""How long something is being compiled, and a line that says so when that takes long.

It goes to stderr if that is a terminal, or if a command says that its user is to know; once in a
process for each thing.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

from vertexrt.config import config

SECONDS = 1.0

_told: set[str] = set()
_wanted = False
_of_thread = threading.local()


def always(wanted: bool) -> None:
    """Say whether lines go to a stderr that is no terminal too."""
    global _wanted
    _wanted = wanted


@contextmanager
def compiling(what: str) -> Iterator[None]:
    """Print a line if what is done inside takes over a second.

    Args:
        what: is compiled, such as "host code".
    """
    timer = threading.Timer(SECONDS, _tell, (what,))
    timer.daemon = True
    timer.start()
    begin, before = perf_counter(), seconds()
    try:
        yield
    finally:
        timer.cancel()
        _of_thread.seconds = before + perf_counter() - begin  # what is compiled inside included


def seconds() -> float:
    """Return how long this thread has compiled so far."""
    return getattr(_of_thread, "seconds", 0.0)


def _tell(what: str) -> None:
    terminal = sys.stderr.isatty()
    if what in _told or not (terminal or _wanted):
        return
    _told.add(what)
    clear = "\r\x1b[2K" if terminal else ""  # a progress bar may stand there
    text = f"compiling {what}, once on this machine; it is kept in {config().cache_dir}"
    print(f"{clear}vertexrt: {text}", file=sys.stderr, flush=True)
