"""Render the scalar expressions of the tables of ops and of update rules in a backend's language.

A table writes an expression once, in Python syntax over names (x0, x1, ... for ops); a dialect says
how constants, choices and functions look in NumPy, numba or CUDA.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

OPERATORS: dict[type[ast.AST], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.GtE: ">=",
    ast.Gt: ">",
    ast.Eq: "==",
    ast.NotEq: "!=",
}


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one target writes what differs: format strings over {value}, {test}, {yes}, {no}."""

    constant: str
    choice: str
    functions: Mapping[str, str]  # name in the table -> name in the target


NUMPY = Dialect(
    "{value}",
    "np.where({test}, {yes}, {no})",
    {f: f"np.{f}" for f in ("exp", "log", "sqrt", "tanh")} | {"sigmoid": "sigmoid"},
)
NUMBA = Dialect(
    "F({value})",
    "({yes} if {test} else {no})",
    {f: f for f in ("exp", "log", "sqrt", "tanh", "sigmoid")},
)

CUDA = Dialect(
    "real({value})",
    "({test} ? {yes} : {no})",
    {f: f"vrt_{f}" for f in ("exp", "log", "sqrt", "tanh", "sigmoid")},
)


@cache
def _parse(expression: str) -> ast.expr:
    return ast.parse(expression, mode="eval").body


def render(expression: str, operands: Sequence[str], dialect: Dialect, keep: str = "") -> str:
    """Return an expression of the op table in a dialect.

    Args:
        expression: as in the op table.
        operands: text of x0, x1, ...; may stand anywhere an atom may.
        keep: text of the dropout factor, for the ops that name it.
    """
    names = {f"x{k}": operand for k, operand in enumerate(operands)}
    return render_names(expression, {**names, "keep": keep}, dialect)


def render_names(expression: str, names: Mapping[str, str], dialect: Dialect) -> str:
    """Return an expression in a dialect.

    Args:
        names: text of each name in it; may stand anywhere an atom may.
    """

    def text(node: ast.expr) -> str:
        if isinstance(node, ast.Name):
            return names[node.id]
        if isinstance(node, ast.Constant):
            return dialect.constant.format(value=repr(float(node.value)))  # type: ignore[arg-type]
        if isinstance(node, ast.BinOp):
            return f"({text(node.left)} {OPERATORS[type(node.op)]} {text(node.right)})"
        if isinstance(node, ast.UnaryOp):
            return f"(-{text(node.operand)})"
        if isinstance(node, ast.Compare):
            symbol = OPERATORS[type(node.ops[0])]
            return f"({text(node.left)} {symbol} {text(node.comparators[0])})"
        if isinstance(node, ast.IfExp):
            return dialect.choice.format(
                test=text(node.test), yes=text(node.body), no=text(node.orelse)
            )
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            inner = ", ".join(text(a) for a in node.args)
            return f"{dialect.functions[node.func.id]}({inner})"
        raise AssertionError(
            f"{expression!r}: {ast.dump(node)} is not in the language of the tables"
        )

    return text(_parse(expression))
