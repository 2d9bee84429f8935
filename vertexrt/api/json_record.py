"""Read JSON that others may have written: parsed strictly, each field with its type and limits.

A record is read like this, and whatever is missing, of another type, out of its limits or not asked
for raises an error that names the field:

    fields = JsonRecord(parse_json(text), "last.safetensors", "state")
    epoch, best = fields.whole("epoch", 0, 1000), fields.real("best")
    fields.end()

or, where a dataclass says what there is, `fields.build(RunState)`.
"""

import json
import math
import re
from collections.abc import Callable, Collection
from dataclasses import is_dataclass
from typing import Annotated, Any, NoReturn, TypeVar, get_args, get_origin, get_type_hints

from vertexrt.errors import CheckpointError, VertexrtError, nearest, one_line

Built = TypeVar("Built")
DEEPEST = 32  # lists and objects inside each other
SHOWN = 60  # characters of a wrong value that an error shows
ACTION = "Use an earlier checkpoint or a fresh copy"
# A text (also one without its end), or what opens or closes a level.
_LEVELS = re.compile(r'"(?:[^"\\]|\\.)*+"?|[\[{]|[\]}]', re.DOTALL)


def parse_json(text: str | bytes) -> Any:
    """Parse JSON: UTF-8, numbers that are finite, no name twice in an object, 32 levels at most.

    Raises: ValueError.
    """
    if isinstance(text, bytes):
        text = text.decode("utf-8")
    level = 0
    for found in _LEVELS.finditer(text):
        level += {"[": 1, "{": 1, "]": -1, "}": -1}.get(found[0], 0)
        if level > DEEPEST:
            raise ValueError(f"more than {DEEPEST} levels")
    return json.loads(
        text, parse_constant=_no_constant, parse_float=_finite, object_pairs_hook=_each_once
    )


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number of JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the number {text[:SHOWN]} is too large")
    return value


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name stands twice in an object")
    return found


def _is_real(value: Any) -> bool:
    if type(value) is float:
        return math.isfinite(value)
    return type(value) is int and abs(value) < 2**1023


class JsonRecord:
    """Hand out the fields of a JSON object, each checked.

    Args:
        value: what was parsed.
        where: the file, for errors.
        name: of the record inside the file; "" for the outermost.
        action: what an error says to do.
        error: its class.
    Raises: `error`, here and in every method, that names file, field, value and what fits.
    """

    def __init__(
        self,
        value: Any,
        where: str,
        name: str = "",
        action: str = ACTION,
        error: type[VertexrtError] = CheckpointError,
    ) -> None:
        self.where = where
        self.name = name
        self.action = action
        self.error = error
        if not isinstance(value, dict):
            self._refuse(name or "the record", value, "an object with named fields")
        self._fields: dict[str, Any] = value
        self._unread = set(value)
        self._inside: dict[str, JsonRecord] = {}

    def unread(self) -> list[str]:
        """Return the names that were not asked for, in the order of the file."""
        return [name for name in self._fields if name in self._unread]

    def end(self, known: Collection[str] | None = None) -> None:
        """Refuse fields that were not asked for, or have no `known` name; records inside, too."""
        if known is not None:
            self._unread = {*self._fields} - {*known}
        for name in self.unread():
            read = [each for each in self._fields if each not in self._unread]
            path = one_line(self._path(name)[:SHOWN])
            self._fail(f"the field '{path}' is not known{nearest(name, read)}")
        for inner in self._inside.values():
            inner.end()

    def null(self, field: str) -> bool:
        """Tell whether a field is null; it still counts as not read when it is not."""
        if self._take(field) is None:
            return True
        self._unread.add(field)
        return False

    def whole(self, field: str, least: int, most: int) -> int:
        """Return a whole number within its limits."""
        value = self._take(field)
        if type(value) is not int or not least <= value <= most:
            self._refuse(field, value, f"a whole number from {least} to {most}")
        return int(value)

    def real(self, field: str, least: float = -math.inf, most: float = math.inf) -> float:
        """Return a finite number within its limits."""
        value = self._take(field)
        if not _is_real(value) or not least <= value <= most:
            bounds = "" if math.isinf(least) else f" from {least:g}"
            bounds += "" if math.isinf(most) else f" to {most:g}"
            self._refuse(field, value, f"a number{bounds}")
        return float(value)

    def text(self, field: str, known: Collection[str] | None = None) -> str:
        """Return a text, one of those `known` where they are given."""
        value = self._take(field)
        if not isinstance(value, str) or (known is not None and value not in known):
            self._refuse(field, value, "a text" if known is None else f"one of {', '.join(known)}")
        if "\0" in value:
            self._refuse(field, value, "a text without NUL")
        return value

    def flag(self, field: str) -> bool:
        """Return true or false."""
        value = self._take(field)
        if type(value) is not bool:
            self._refuse(field, value, "true or false")
        return bool(value)

    def texts(self, field: str) -> tuple[str, ...]:
        """Return a list of texts."""
        value = self._take(field)
        if not isinstance(value, list):
            self._refuse(field, value, "a list of texts")
        for each in value:
            if not isinstance(each, str):
                self._refuse(field, each, "texts")
        return tuple(value)

    def each(
        self, field: str, count: int, read: Callable[..., Any], *limits: Any
    ) -> tuple[Any, ...]:
        """Return a list of `count` values, of one or more where that is 0, each as `read` does."""
        value = self._take(field)
        if not isinstance(value, list) or not value or (count and len(value) != count):
            self._refuse(field, value, f"a list of {count or 'one or more'}")
        inner = self._inner({str(n): each for n, each in enumerate(value)}, self._path(field))
        return tuple(read(inner, str(n), *limits) for n in range(len(value)))

    def record(self, field: str) -> "JsonRecord":
        """Return the record in a field."""
        return self._inner(self._take(field), self._path(field))

    def records(self, field: str) -> "list[JsonRecord]":
        """Return the records in a list."""
        value = self._take(field)
        if not isinstance(value, list):
            self._refuse(field, value, "a list")
        path = self._path(field)
        return [self._inner(each, f"{path}.{number}") for number, each in enumerate(value)]

    def _inner(self, value: Any, path: str) -> "JsonRecord":
        if path not in self._inside:
            self._inside[path] = JsonRecord(value, self.where, path, self.action, self.error)
        return self._inside[path]

    def build(self, kind: type[Built]) -> Built:
        """Return the record as a dataclass, or as a `dict[str, ...]`, by the types of its fields.

        `Annotated[int, JsonRecord.whole, 0, 9]` names what reads a field, and its limits. Others
        are a key of `READERS`, a dataclass or a dict, a list of such records, or one of these or
        None; any other type is not looked at.
        """
        if get_origin(kind) is dict:
            hints = dict.fromkeys(self.unread(), get_args(kind)[1])
        else:
            hints = get_type_hints(kind, include_extras=True)
        return kind(**{name: self._value(name, hint) for name, hint in hints.items()})

    def _value(self, field: str, kind: Any) -> Any:
        of, inner = get_origin(kind), get_args(kind)
        if of is Annotated:
            read: Callable[..., Any] = inner[1]
            return read(self, field, *inner[2:])
        if type(None) in inner:
            return None if self.null(field) else self._value(field, inner[0])
        if of is list:
            return [record.build(inner[0]) for record in self.records(field)]
        if of is dict or is_dataclass(kind):
            return self.record(field).build(kind)
        return READERS[kind](self, field) if kind in READERS else self._take(field)

    def plain(self) -> dict[str, Any]:
        """Return the whole record as it was parsed, for values that are only shown."""
        self._unread.clear()
        return dict(self._fields)

    def refuse(self, field: str, expected: str) -> NoReturn:
        """Raise the error for a field whose value does not fit the others."""
        self._refuse(field, self._fields[field], expected)

    def _take(self, field: str) -> Any:
        if field not in self._fields:
            self._fail(f"the field '{self._path(field)}' is missing")
        self._unread.discard(field)
        return self._fields[field]

    def _path(self, field: str) -> str:
        return f"{self.name}.{field}" if self.name else field

    def _refuse(self, field: str, value: Any, expected: str) -> NoReturn:
        nested = isinstance(value, list | dict)
        shown = f"a {type(value).__name__} of {len(value)}" if nested else repr(value)
        shown = shown if len(shown) <= SHOWN else shown[:SHOWN] + "..."
        name = field if field == self.name else self._path(field)
        self._fail(f"{name} is {shown}", f"expected {expected}")

    def _fail(self, got: str, expected: str = "expected what vertexrt writes") -> NoReturn:
        raise self.error.at(self.where, got, expected, self.action)


READERS: dict[Any, Callable[..., Any]] = {
    bool: JsonRecord.flag,
    float: JsonRecord.real,
    str: JsonRecord.text,
}
