"""Check the options of optimizers. All raise UsageError with the name of the class."""

from __future__ import annotations

from typing import Any

from vertexrt.api.declaration import is_real
from vertexrt.errors import UsageError
from vertexrt.ir.updates import ABOVE_ZERO, Option, Range


def checked(title: str, name: str, value: Any, numbers: Range, more: str = "") -> float:
    """Return a number of a range; `more` is what else would be taken, for the message."""
    if not (is_real(value) and numbers.holds(value)):
        expected = f"{name} {numbers.text}{more}"
        raise UsageError.at(title, f"{name}={value!r}", expected, "set it")
    return float(value)


def checked_bound(title: str, name: str, value: Any) -> float | None:
    """Return a bound of gradients, above 0, or None."""
    return None if value is None else checked(title, name, value, ABOVE_ZERO, ", or None")


def checked_option(title: str, option: Option, value: Any) -> float | tuple[float, ...]:
    """Return the value of an option of a row: a number, or a tuple of them."""
    if not option.parts:
        return checked(title, option.name, value, option.range)
    if not isinstance(value, (tuple, list)) or len(value) != len(option.parts):
        expected = f"{len(option.parts)} numbers"
        raise UsageError.at(title, f"{option.name}={value!r}", expected, "set all")
    return tuple(
        checked(title, f"{option.name}[{k}]", v, option.range) for k, v in enumerate(value)
    )
