"""Groups of parameters: a rate or a decay of their own, or frozen; `vrt.Adam(..., groups=...)`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, TypedDict

from vertexrt.api.declaration import is_real
from vertexrt.engine.update import UpdateGroup
from vertexrt.errors import UsageError, nearest
from vertexrt.ir.updates import NOT_NEGATIVE


class GroupOptions(TypedDict, total=False):
    """What a group may have of its own; the rest is the optimizer's.

    Attributes:
        lr: learning rate. Where the optimizer's is set to another number, by a schedule say, this
            one changes in proportion.
        weight_decay: as the optimizer's.
        frozen: the parameters rest, and do not count in `clip_norm`.
    """

    lr: float
    weight_decay: float
    frozen: bool


KNOWN = ("lr", "weight_decay", "frozen")


class ParameterGroups:
    """Groups by pattern of names: `*` is any text, `?` any character, as file names have them.

    Where several match a name, the options of later ones win.

    Args:
        title: of the optimizer, for messages.
        given: pattern -> options.
        lr: of the optimizer, now: the rates of groups keep their ratio to it.
    Raises: UsageError, for what is no such mapping, and for options out of their range.
    """

    def __init__(self, title: str, given: Mapping[str, GroupOptions] | None, lr: float) -> None:
        given = {} if given is None else given
        if not isinstance(given, Mapping):
            raise _refusal(title, f"groups is a {type(given).__name__}")
        self.given = {key: _checked(title, key, own, lr) for key, own in given.items()}
        self._title, self._lr = title, lr
        self._parts: list[tuple[tuple[str, ...], GroupOptions]] = []

    def divide(self, names: Sequence[str]) -> None:
        """Say which parameters each group has.

        Raises: UsageError, when a pattern matches no name.
        """
        for pattern in self.given:
            if not any(fnmatchcase(name, pattern) for name in names):
                raise UsageError.at(
                    self._title,
                    f"no trained parameter is called {pattern!r}",
                    f"the names are {', '.join(names) or 'none'}",
                    f"correct the pattern in groups.{nearest(pattern, names)}",
                )
        parts: dict[tuple[Any, ...], tuple[list[str], GroupOptions]] = {}
        for name in names:
            own = self._options_of(name)
            key = tuple(own.get(option) for option in KNOWN)
            parts.setdefault(key, ([], own))[0].append(name)
        self._parts = [(tuple(each), own) for each, own in parts.values()]

    def _options_of(self, name: str) -> GroupOptions:
        own = GroupOptions()
        for pattern, options in self.given.items():
            if fnmatchcase(name, pattern):
                own.update(options)
        return own

    def at(self, lr: float, weight_decay: float, decoupled: bool) -> tuple[UpdateGroup, ...]:
        """Return the groups of an update, of which none is frozen; () where there are none.

        Args:
            lr, weight_decay: of the optimizer; decoupled: see `ir.updates`.
        """
        if not self.given:
            return ()
        found = [UpdateGroup((), lr, 0.0, 1.0)]  # all may be frozen
        for names, own in self._parts:
            if own.get("frozen"):
                continue
            rate = own["lr"] * (lr / self._lr) if "lr" in own else lr
            decay = own.get("weight_decay", weight_decay)
            shrink = 1.0 - rate * decay if decoupled else 1.0
            found.append(UpdateGroup(names, rate, 0.0 if decoupled else decay, shrink))
        return tuple(found)


def _checked(title: str, pattern: object, own: object, lr: float) -> GroupOptions:
    """Return the options of a group; UsageError, when they are none."""
    where = f"groups[{pattern!r:.60}]"
    if not isinstance(pattern, str) or not isinstance(own, Mapping):
        raise _refusal(title, f"{where} is {own!r:.60}")
    for name, value in own.items():
        _check_option(title, where, name, value)
    if "lr" in own and lr == 0.0:
        action = "give the optimizer a rate, and freeze the others by frozen"
        got = f"{where} has a rate beside lr=0.0"
        raise UsageError.at(title, got, "lr > 0, which it keeps its ratio to", action)
    found = GroupOptions()
    found.update({k: v if k == "frozen" else float(v) for k, v in own.items()})  # type: ignore[typeddict-item]
    return found


def _check_option(title: str, where: str, name: str, value: object) -> None:
    if name not in KNOWN:
        close = nearest(str(name), KNOWN)
        expected = "one of " + ", ".join(KNOWN)
        raise _refusal(title, f"an option {name!r} in {where}", expected, close)
    switch = name == "frozen"
    fits = is_real(value) and NOT_NEGATIVE.holds(value)
    if not (isinstance(value, bool) if switch else fits):
        expected = "True or False" if switch else f"{name} >= 0"
        raise _refusal(title, f"{where} has {name}={value!r:.60}", expected)


def _refusal(title: str, got: str, expected: str = "", close: str = "") -> UsageError:
    action = 'write groups={"embedding": {"lr": 1e-4}, "*.b": {"weight_decay": 0.0}}'
    return UsageError.at(title, got, expected or "options by pattern of names", action + close)
