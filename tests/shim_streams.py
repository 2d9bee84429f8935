"""Streams in place of a GPU's: what is asked for waits in queues, and runs as late as it may.

A GPU may run two launches on different streams in any order, unless an event is between them. So
the queues are emptied in an order that is as far from the host's as events allow: a missing event
shows as a wrong result.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.shim.build import ShimModule

ASKED, FIRST, LAST = "asked", "first", "last"  # or a seed
POINTER, UNSIGNED, INT = ctypes.c_void_p, ctypes.c_uint, ctypes.c_int
LAUNCH = ctypes.CFUNCTYPE(INT, POINTER, *[UNSIGNED] * 7, POINTER, POINTER, POINTER)
OPERANDS = (POINTER, POINTER, INT, POINTER, INT, POINTER, POINTER, INT)
GEMM = ctypes.CFUNCTYPE(INT, POINTER, *[INT] * 5, *OPERANDS)
RECORD = ctypes.CFUNCTYPE(INT, POINTER, POINTER)
WAIT = ctypes.CFUNCTYPE(INT, POINTER, POINTER, UNSIGNED)


class Queues:
    """The streams of a device, numbered from 1, and what is in them.

    Args:
        order: of streams whose turn it may be: as `asked`, always the `first` that is ready (the
            main one runs ahead), always the `last` (the main one lags behind), or the seed of a
            choice.
    Attributes:
        ran: how many launches and products each stream has run.
        failed: the first error of a kernel.
        waits: how often a stream was asked to wait for an event.
        ignored: the number of a wait that is not done, as if the host had not asked for it.
    """

    def __init__(self, module: ShimModule, order: str | int = LAST) -> None:
        self.order = order
        self.rng = np.random.default_rng(order if isinstance(order, int) else 0)
        self.ran: dict[int, int] = {}
        self.failed = 0
        self.waits, self.ignored = 0, -1
        self._queue: dict[int, deque[tuple[int, Callable[[], bool]]]] = {}
        self._asked = 0
        self._recorded: dict[int, int] = {}  # event -> how often it was asked to be recorded
        self._come: dict[int, int] = {}  # event -> how often it has been
        real_launch = LAUNCH(module.launch)
        real = {32: GEMM(module.gemm32), 64: GEMM(module.gemm64)}

        def launch(function: Any, *given: Any) -> int:
            *shape, stream, _, extra = given
            parts = ctypes.cast(extra, ctypes.POINTER(POINTER * 4)).contents
            size = ctypes.cast(parts[3] or 0, ctypes.POINTER(ctypes.c_size_t)).contents.value
            held = ctypes.create_string_buffer(ctypes.string_at(parts[1] or 0, size), size)

            def run() -> bool:
                length = ctypes.c_size_t(size)
                again = (POINTER * 5)(1, ctypes.addressof(held), 2, ctypes.addressof(length), 0)
                self._note(real_launch(function, *shape, None, None, again), stream)
                return True

            return self.ask(stream, run)

        def gemm(width: int) -> Callable[..., int]:
            def ask(handle: int, *given: Any) -> int:
                def run() -> bool:
                    self._note(real[width](handle, *given), handle)
                    return True

                return self.ask(handle, run)

            return ask

        def record(event: int, stream: int) -> int:
            self._recorded[event] = self._recorded.get(event, 0) + 1

            def run() -> bool:
                self._come[event] = self._come.get(event, 0) + 1
                return True

            return self.ask(stream, run)

        def wait(stream: int, event: int, _: int) -> int:
            self.waits += 1
            if self.waits - 1 == self.ignored:
                return 0
            wanted = self._recorded.get(event, 0)  # as it is when the host asks
            return self.ask(stream, lambda: self._come.get(event, 0) >= wanted)

        self._callbacks = (
            LAUNCH(launch),
            GEMM(gemm(32)),
            GEMM(gemm(64)),
            RECORD(record),
            WAIT(wait),
        )

    def addresses(self) -> tuple[int, ...]:
        """Return what to call: launch, gemm32, gemm64, record and wait."""
        return tuple(ctypes.cast(c, POINTER).value or 0 for c in self._callbacks)

    def ask(self, stream: int, run: Callable[[], bool]) -> int:
        """Put something behind what a stream has; it is called until it returns True."""
        self._queue.setdefault(stream, deque()).append((self._asked, run))
        self._asked += 1
        return 0

    def noted(self) -> list[Callable[[], bool]]:
        """Return what was asked for, stream by stream; it stays in the queues."""
        return [run for queue in self._queue.values() for _, run in queue]

    def _note(self, code: int, stream: int) -> None:
        self.failed = self.failed or code
        self.ran[stream] = self.ran.get(stream, 0) + 1

    def _turn(self) -> list[int]:
        """List the streams that have something, in the order in which they are tried."""
        waiting = sorted(stream for stream, queue in self._queue.items() if queue)
        if self.order == ASKED:
            return sorted(waiting, key=lambda stream: self._queue[stream][0][0])
        if self.order == FIRST:
            return waiting
        if self.order == LAST:
            return waiting[::-1]
        return self.rng.permutation(waiting).tolist()

    def drain(self) -> None:
        """Run all that was asked for."""
        while turn := self._turn():
            for stream in turn:
                if self._queue[stream][0][1]():
                    self._queue[stream].popleft()
                    break
            else:
                raise AssertionError(f"streams {turn} wait for events that do not come")
