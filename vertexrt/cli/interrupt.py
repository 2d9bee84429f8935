"""Let a training run end at a minibatch boundary when Ctrl-C or SIGTERM arrives."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Self

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(BaseException):
    """Leave the command at once, with the exit code 128 + `number`."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Interrupt:
    """Catch SIGINT and SIGTERM inside a `with` block and put the old handlers back after it.

    Before `defer()` a signal raises Interrupted at once: there is nothing to save yet. After it,
    the first signal is only noted in `number` (0: none came) and the second one raises.
    """

    def __init__(self) -> None:
        self.number = 0
        self._deferred = False
        self._before: dict[int, object] = {}

    def __enter__(self) -> Self:
        # Python only lets the main thread install handlers; elsewhere the program's own stay.
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                self._before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def defer(self) -> None:
        """Note signals from here on instead of leaving at once."""
        self._deferred = True

    @property
    def name(self) -> str:
        """Name the signal that came, such as SIGTERM."""
        return signal.Signals(self.number).name

    @property
    def exit_code(self) -> int:
        """Return 130 for SIGINT and 143 for SIGTERM, as a shell does."""
        return 128 + self.number

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if not self._deferred or self.number:
            raise Interrupted(number)
        self.number = number
