"""What `gather` and `gather_all` return: the state of a child, one attribute a field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

from vertexrt.errors import FieldError, TraceError, nearest
from vertexrt.ir.user_line import user_line
from vertexrt.ir.values import Construction, Operators, Value


class State(Operators):
    """The fields of a child's state, each a value: `self.gather(0).h`.

    Raises: FieldError for a field that the vertex function does not declare, TraceError where the
        state itself is used as a value.
    """

    def __init__(self, fields: Mapping[str, Value]) -> None:
        self.__dict__.update(fields)

    def __getattr__(self, name: str) -> Value:
        if name.startswith("__"):  # what Python and its libraries look for
            raise AttributeError(name)
        raise FieldError.at(
            "gather",
            f"field {name!r} at {user_line()}",
            f"the declared state {sorted(vars(self))}",
            f"declare it in state={{...}} and scatter it.{nearest(name, vars(self))}",
        )

    def __repr__(self) -> str:
        return f"State({', '.join(f'{name}: {v.type}' for name, v in vars(self).items())})"

    def _as_value(self, builder: Construction) -> NoReturn:
        """Refuse to stand for a value: the user has to pick a field."""
        self._refuse()

    def _refuse(self, *_: object) -> NoReturn:
        raise TraceError.at(
            "gather",
            f"a whole state is used as a value at {user_line()}",
            f"one of its fields {sorted(vars(self))}",
            f"write .{min(vars(self), default='field')} after gather()",
        )

    _builder = __getitem__ = _refuse
