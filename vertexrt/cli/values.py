"""A parser that raises our errors, and readers of values that options take."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from typing import NoReturn

from vertexrt.errors import UsageError, message, nearest


class Parser(argparse.ArgumentParser):
    """An argument parser that raises UsageError instead of leaving the process."""

    def error(self, text: str) -> NoReturn:
        """Raise a UsageError that carries argparse's text."""
        raise UsageError(
            message(self.prog, text, "the form that the help shows", f"Run `{self.prog} --help`")
        )

    def of_action(self, action: str | None) -> Parser:
        """Return the parser of one of this command's actions; this one, where there is none."""
        for each in self._actions:
            if isinstance(each, argparse._SubParsersAction) and action in each.choices:
                return each.choices[action]  # type: ignore[no-any-return]
        return self

    def options(self) -> list[str]:
        """Return every long option of this command."""
        return [name for action in self._actions for name in action.option_strings]


def whole(flag: str, least: int) -> Callable[[str], int]:
    """Return a reader of whole numbers."""

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least:
            raise UsageError(
                message(
                    flag, f"got '{text}'", f"expected a whole number, {least} or more", "Change it"
                )
            )
        return value

    return read


def real(flag: str, *, least: float = 0.0, below: float = math.inf) -> Callable[[str], float]:
    """Return a reader of numbers."""
    limit = "" if below == math.inf else f" and less than {below:g}"

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (least <= value < below):
            raise UsageError(
                message(
                    flag,
                    f"got '{text}'",
                    f"expected a number, {least:g} or more{limit}",
                    "Change it",
                )
            )
        return value

    return read


def one_of(flag: str, known: Sequence[str]) -> Callable[[str], str]:
    """Return a reader that accepts one of the `known` words only."""

    def read(text: str) -> str:
        if text not in known:
            raise UsageError(
                message(
                    flag,
                    f"got '{text}'",
                    "expected one of " + ", ".join(known),
                    "Change it." + nearest(text, known),
                )
            )
        return text

    return read


def list_of(
    flag: str, read: Callable[[str], int] | Callable[[str], str]
) -> Callable[[str], tuple[int | str, ...]]:
    """Return a reader of values with commas between them, each once."""

    def read_all(text: str) -> tuple[int | str, ...]:
        return tuple(dict.fromkeys(read(part) for part in text.split(",")))

    return read_all
