"""What to write in place of names that there are not: `instead.toml`, which errors read."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

from vertexrt.errors import MissingAttributeError, nearest

MOST_LISTED = 24  # names that an error lists


@cache
def _table() -> dict[tuple[str, str], str]:
    text = Path(__file__).with_suffix(".toml").read_text("utf-8")
    return {
        (owner, name): found
        for owner, rows in tomllib.loads(text).items()
        for names, found in rows.items()
        for name in names.split()
    }


def replacement(owner: str, name: str) -> str:
    """Return what to write in place of a name of an object; "" where nothing is known."""
    return _table().get((owner, name)) or _table().get((owner, "*"), "")


def no_name(owner: str, name: str, names: Iterable[str]) -> AttributeError:
    """Return the error for a name that there is not.

    Args:
        owner: what users call the object.
        names: those that it has; private ones are not told.
    """
    if name.startswith("_"):  # what Python and its libraries look for
        return AttributeError(name)
    known = [each for each in names if not each.startswith("_")]
    expected, found = "a name that it has", replacement(owner, name)
    if not found and len(known) <= MOST_LISTED:
        expected = f"one of {', '.join(known)}"
    action = f"write {found}" if found else f"correct the name.{nearest(name, known)}"
    return MissingAttributeError.at(owner, f"there is no {owner}.{name}", expected, action)


def instead(owner: str, names: Iterable[str] = ()) -> Callable[..., NoReturn]:
    """Make the `__getattr__` of a class, or of a module with names, which says what to write."""

    def refuse(*given: Any) -> NoReturn:  # a class gives the object first
        raise no_name(owner, given[-1], names or dir(type(given[0])))

    return refuse
