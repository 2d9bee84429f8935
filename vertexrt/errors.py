"""The errors that vertexrt raises for mistakes a user can repair, and the form of their text.

Every message reads `[where] what was got; what was expected; what to do`. The tests compare texts,
so an error is made with `at`, a text alone with `message`, a list of near names with `nearest`.
"""

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Self

__all__ = [
    "CheckpointError",
    "DataError",
    "DeviceError",
    "FieldError",
    "GraphError",
    "NoKernelError",
    "NumericError",
    "ParallelError",
    "PlanError",
    "PullError",
    "RoomError",
    "TraceError",
    "UnknownParameterError",
    "UsageError",
    "VertexrtError",
]


class VertexrtError(Exception):
    """Stand above every error that vertexrt raises on purpose."""

    @classmethod
    def at(cls, where: str, got: str, expected: str, action: str) -> Self:
        """Return an error whose text `message` writes."""
        return cls(message(where, got, expected, action))

    def moved(self, where: str) -> Self:
        """Return the same error of another place, such as a line of a file."""
        return type(self)(f"[{where}]{str(self).partition(']')[2]}")


class GraphError(VertexrtError):
    """Report an input graph that cannot be evaluated: a cycle, a child out of range."""


class TraceError(VertexrtError):
    """Report a fault in the declaration of a vertex function."""


class FieldError(TraceError, AttributeError):
    """Report a field that a state does not have; `hasattr` takes it for an answer."""


class PullError(VertexrtError):
    """Report a pulled array that is missing or has the wrong shape, dtype or values."""


class DataError(VertexrtError):
    """Report a data set that cannot be read: malformed text, no examples, a wrong checksum."""


class UsageError(VertexrtError):
    """Report an option, a flag or a name that vertexrt does not know."""


class MissingKeyError(UsageError, KeyError):
    """Report a name that there is not; mappings take it for a KeyError."""

    __str__ = Exception.__str__  # KeyError shows the text in quotes


class UnknownParameterError(MissingKeyError):
    """Report a parameter that a network does not have."""


class MissingAttributeError(UsageError, AttributeError):
    """Report a name that an object does not have; `hasattr` takes it for an answer."""


class CheckpointError(VertexrtError):
    """Report parameters or a checkpoint that do not belong to this network, or a damaged file."""


class PlanError(VertexrtError):
    """Report a program, schedule or memory plan that breaks one of its own invariants."""


class NumericError(VertexrtError):
    """Report a loss, a gradient or an update that is not finite."""


class DeviceError(VertexrtError):
    """Report a device or backend that is not available on this machine."""


class ParallelError(VertexrtError):
    """Report that another process of a group has ended, or does not answer."""


class RoomError(VertexrtError, MemoryError):
    """Report what there is not enough memory for."""


class NoKernelError(DeviceError):
    """A function has no kernel of the kind that was asked for; another engine runs it."""


@contextmanager
def from_system(
    kind: type[VertexrtError], where: str, got: str, expected: str, action: str
) -> Iterator[None]:
    """Raise an error of ours for an OSError in the block; `got` is followed by its reason."""
    try:
        yield
    except OSError as error:
        reason = f"{got} ({error.strerror or error})"
        raise kind.at(where, reason, expected, action) from error


def message(where: str, got: str, expected: str, action: str) -> str:
    """Return the text of an error in the one form that vertexrt uses.

    Args:
        where: op, function or file that found the mistake; put in square brackets.
        got: what was found.
        expected: what would have been right.
        action: what the user can do; a closing full stop is added where it is missing.
    """
    end = "" if action.endswith((".", "?", "!")) else "."
    return f"[{where}] {got}; {expected}; {action}{end}"


def number_of(number: int, one: str, more: str = "") -> str:
    """Write how many things there are: `1 graph`, `2 graphs`; `more` is a plural without -s."""
    return f"{number} {one if number == 1 else more or one + 's'}"


def one_line(text: str) -> str:
    """Return a text of others in which what would end a line, or move the cursor, reads as \\n."""
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def nearest(name: object, known: Iterable[str]) -> str:
    """Return the known names closest to `name` as ` Nearest: 'a', 'b'`, or "" when none is close.

    Args:
        name: what was given for a name.
        known: names that would have been accepted, of which three are offered at most.
    """
    spelling: dict[str, str] = {}
    for candidate in known:
        spelling.setdefault(candidate.lower(), candidate)
    found = difflib.get_close_matches(str(name).lower(), list(spelling), n=3, cutoff=0.5)
    if not found:
        return ""
    return " Nearest: " + ", ".join(f"'{spelling[candidate]}'" for candidate in found)
