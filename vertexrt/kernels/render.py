"""Render the scalar expressions of the tables of ops and of update rules as text of a language.

A dialect says how constants, choices and functions look there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vertexrt.ir.expressions import translate


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


def render(expression: str, operands: Sequence[str], dialect: Dialect, draw: str = "") -> str:
    """Return an expression of the op table in a dialect.

    Args:
        expression: as in the op table.
        operands: text of x0, x1, ...; may stand anywhere an atom may.
        draw: text of what is drawn, for the ops that name it.
    """
    names = {f"x{k}": operand for k, operand in enumerate(operands)}
    return render_names(expression, {**names, "draw": draw}, dialect)


def render_names(expression: str, names: Mapping[str, str], dialect: Dialect) -> str:
    """Return an expression in a dialect.

    Args:
        names: text of each name in it; may stand anywhere an atom may.
    """
    return translate(expression, names, dialect)
