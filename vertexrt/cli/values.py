"""A parser that raises our errors, and readers of values that options take."""

from __future__ import annotations

import argparse
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from vertexrt.cli.limits import LONGEST_NAME, LONGEST_PATH, REAL, WHOLE
from vertexrt.errors import UsageError, nearest

# Digits of ASCII only: no spaces, signs, underscores, other bases or other scripts.
_WHOLE = re.compile(r"[0-9]{1,20}")
_REAL = re.compile(r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,5})?")
_NAME = re.compile(r"[^\W\d]\w*")  # of an argument
LONGEST_REAL = 64  # characters
SHOWN = 60  # characters of a wrong value that an error repeats


class Parser(argparse.ArgumentParser):
    """An argument parser that raises UsageError instead of leaving the process.

    An option that is given twice is an error: one of the values would be ignored.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{**settings, "allow_abbrev": False})
        self.defaults: Mapping[str, str] = {}  # by option, what its help says of them
        for name in (None, "store"):
            self.register("action", name, Once)

    def error(self, text: str) -> NoReturn:
        """Raise a UsageError that carries argparse's text."""
        raise UsageError.at(
            self.prog, text, "the form that the help shows", f"Run `{self.prog} --help`"
        )

    def add_whole(
        self, name: str, text: str, bounds: tuple[int, int] | None = None, default: Any = None
    ) -> None:
        """Add an option that takes a whole number."""
        flag = _flag(name)
        read = whole(flag, *(bounds or WHOLE[name]))
        self.add_argument(
            flag, metavar="N", type=read, default=default, help=self._help(name, text)
        )

    def add_real(self, name: str, text: str, metavar: str = "X") -> None:
        """Add an option that takes a number."""
        flag = _flag(name)
        read = real(flag, REAL[name])
        self.add_argument(flag, metavar=metavar, type=read, help=self._help(name, text))

    def add_word(
        self, name: str, known: Sequence[str], text: str, metavar: str, default: Any = None
    ) -> None:
        """Add an option that takes one of some words."""
        flag = _flag(name)
        read, text = one_of(flag, known), self._help(name, text)
        self.add_argument(flag, metavar=metavar, type=read, default=default, help=text)

    def add_path(self, name: str, text: str, metavar: str, default: Any = None) -> None:
        """Add an option that takes a path."""
        flag, text = _flag(name), self._help(name, text)
        self.add_argument(flag, metavar=metavar, type=path(flag), default=default, help=text)

    def _help(self, name: str, text: str) -> str:
        return f"{text} ({self.defaults[name]})" if name in self.defaults else text

    def add_settings(self) -> None:
        """Add the option that sets any argument of a model."""
        self.add_argument(
            "--set",
            metavar="NAME=VALUE",
            type=setting("--set"),
            action="append",
            help="any argument of the model's __init__; may be given several times",
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


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


class Once(argparse.Action):
    """Store a value, the first time."""

    given = False

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        """Store what argparse has read."""
        if option_string is not None and self.given:
            _refuse(option_string, "two values", "one, since only one can hold", "Leave one out")
        self.given = option_string is not None
        setattr(namespace, self.dest, values)


def whole(flag: str, least: int, most: int) -> Callable[[str], int]:
    """Return a reader of whole numbers, written in decimal digits."""

    def read(text: str) -> int:
        if _WHOLE.fullmatch(text) is None or int(text) < least:
            _refuse_value(flag, text, f"a whole number, {least} or more")
        if int(text) > most:
            _refuse_value(flag, text, f"a whole number, {most} at most")
        return int(text)

    return read


def real(flag: str, below: float) -> Callable[[str], float]:
    """Return a reader of numbers from 0 up to `below`, written as 0.05 or 5e-2."""
    limit = "" if below > 1.0 else f" and less than {below:g}"

    def read(text: str) -> float:
        fits = len(text) <= LONGEST_REAL and _REAL.fullmatch(text) is not None
        value = float(text) if fits else math.nan
        if not 0.0 <= value < below:
            _refuse_value(flag, text, f"a number, 0 or more{limit}")
        if value == 0.0 and re.search("[1-9]", re.split("[eE]", text)[0]):
            _refuse_value(flag, text, "a number that is not too small to be told from 0")
        return value

    return read


def one_of(flag: str, known: Sequence[str]) -> Callable[[str], str]:
    """Return a reader that accepts one of the `known` words only."""

    def read(text: str) -> str:
        if text not in known:
            _refuse_value(flag, text, "one of " + ", ".join(known), nearest(text, known))
        return text

    return read


def path(flag: str) -> Callable[[str], str]:
    """Return a reader of names and paths: what a system takes as a path, and not empty."""

    def read(text: str) -> str:
        whole_path = os.fsencode(text) if _encodable(text) else b"\0"
        longest = max(len(part) for part in whole_path.split(b"/"))
        if not text or re.search(rb"[\0-\x1f\x7f]", whole_path):
            _refuse_value(flag, text, "a name or a path, not empty, without control characters")
        if len(whole_path) > LONGEST_PATH or longest > LONGEST_NAME:
            bounds = f"at most {LONGEST_PATH} bytes, {LONGEST_NAME} between two slashes"
            _refuse_value(flag, text, bounds)
        return text

    return read


def setting(flag: str) -> Callable[[str], tuple[str, bool | int | float | str]]:
    """Return a reader of NAME=VALUE: true, false, a number or a text, within the name's limits."""

    def read(text: str) -> tuple[str, bool | int | float | str]:
        name, _, value = text.partition("=")
        if not _NAME.fullmatch(name) or not value.isprintable() or not value:
            _refuse_value(flag, text, "NAME=VALUE, NAME being an argument of the model")
        if name in WHOLE:
            return name, whole(f"{flag} {name}", *WHOLE[name])(value)
        return name, real(f"{flag} {name}", REAL[name])(value) if name in REAL else scalar(value)

    return read


def scalar(text: str) -> bool | int | float | str:
    """Return what a text stands for: true, false, a number or itself."""
    if text in ("true", "false"):
        return text == "true"
    digits = text.removeprefix("-")
    if _WHOLE.fullmatch(digits):
        return int(text)
    return float(text) if _REAL.fullmatch(digits) else text


def list_of(
    flag: str, read: Callable[[str], int] | Callable[[str], str]
) -> Callable[[str], tuple[int | str, ...]]:
    """Return a reader of values with commas between them, each once."""

    def read_all(text: str) -> tuple[int | str, ...]:
        found = tuple(read(part) for part in text.split(","))
        if len(set(found)) < len(found):
            _refuse_value(flag, text, "each value once")
        return found

    return read_all


def _encodable(text: str) -> bool:
    """Tell whether a text can be a path: it has no half of a surrogate pair."""
    return not re.search("[\ud800-\udc7f\udd00-\udfff]", text)


def _refuse_value(flag: str, text: str, expected: str, near: str = "") -> NoReturn:
    shown = text if len(text) <= SHOWN else text[:SHOWN] + "..."
    shown = shown if shown.isprintable() else ascii(shown)[1:-1]
    _refuse(flag, f"'{shown}'", expected, "Change it." + near)


def _refuse(flag: str, got: str, expected: str, action: str) -> NoReturn:
    raise UsageError.at(flag, f"got {got}", f"expected {expected}", action)
