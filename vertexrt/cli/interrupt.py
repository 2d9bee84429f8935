"""What a command does to its process: Ctrl-C and SIGTERM end it in one line, and lines are printed.

A training run ends at a minibatch boundary, and a process goes on whose output nobody reads.
"""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Self, TextIO

from vertexrt.errors import one_line

SIGNALS = (signal.SIGINT, signal.SIGTERM)
TEXT = "vertexrt: interrupted\n"


class Interrupted(BaseException):
    """Leave the command at once, with the exit code 128 + `number`."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Interrupt:
    """Catch SIGINT and SIGTERM inside a `with` block.

    A signal raises Interrupted at once, until `defer()`: from there on the first signal is only
    noted in `number` (0: none came) and the second one raises. After the block the old handlers are
    back.

    Args:
        whole_process: the process is this command and nothing else. A signal before `started()`
            ends it, since an exception in the middle of an import of NumPy may be lost; after the
            block signals are ignored, since what is left is to end.
    """

    def __init__(self, *, whole_process: bool = False) -> None:
        self.number = 0
        self._whole_process = whole_process
        self._starting = whole_process
        self._deferred = False
        self._before: dict[int, object] = {}

    def __enter__(self) -> Self:
        # Python only lets the main thread install handlers; elsewhere the program's own stay.
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                self._before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            after = signal.SIG_IGN if self._whole_process else handler
            signal.signal(number, after)  # type: ignore[arg-type]

    def started(self) -> None:
        """Raise from here on: everything that the command needs is imported."""
        self._starting = False

    def defer(self) -> None:
        """Note signals from here on instead of leaving at once.

        Raises: Interrupted, when one came whose exception was lost, in a finalizer for instance.
        """
        if self.number:
            raise Interrupted(self.number)
        self._deferred = True

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Let a signal end the process, inside a call that does not come back to Python."""
        for number in self._before:
            signal.signal(number, signal.SIG_DFL)
        try:
            yield
        finally:
            for number in self._before:
                signal.signal(number, self._receive)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self._starting:
            os.write(2, TEXT.encode())
            os._exit(128 + number)
        leave = not self._deferred or self.number != 0
        self.number = number
        if leave:
            raise Interrupted(number)


def say(*texts: str, to: TextIO | None = None) -> None:
    """Print lines, on stdout by default. Text of a file does not move a terminal's cursor."""
    for text in texts:
        print("\n".join(map(one_line, text.split("\n"))), file=to, flush=True)


def discard(number: int) -> None:
    """Send what is still written to an open file nowhere: Python would fail on it when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), number)
