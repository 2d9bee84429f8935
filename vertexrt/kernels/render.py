"""Scalar expressions of the tables of ops and of update rules as text of a language."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one target writes what differs: format strings over {value}, {test}, {yes}, {no}.

    It is a target of translation, to texts.
    """

    constants: str
    choice: str
    functions: Mapping[str, str]  # name in the table -> name in the target

    def constant(self, value: float) -> str:
        """Return a real number."""
        return self.constants.format(value=repr(value))

    def binary(self, operator: str, left: str, right: str) -> str:
        """Return the result of an operator, or of a comparison."""
        return f"({left} {operator} {right})"

    compare = binary

    def negative(self, value: str) -> str:
        """Return -value."""
        return f"(-{value})"

    def choose(self, test: str, yes: str, no: str) -> str:
        """Return one of two values."""
        return self.choice.format(test=test, yes=yes, no=no)

    def call(self, name: str, arguments: Sequence[str]) -> str:
        """Return the call of a function."""
        return f"{self.functions[name]}({', '.join(arguments)})"


CUDA = Dialect(
    "real({value})",
    "({test} ? {yes} : {no})",
    {"floor": "floor", **{f: f"vrt_{f}" for f in ("exp", "log", "sqrt", "tanh", "sigmoid")}},
)
