"""The language of the op table and of update rules: scalar expressions in Python's syntax.

An expression is written once, over names (x0, x1, ... for ops). What reads it is a *target*: text
of some language, instructions of LLVM, or values that are computed at once.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Protocol, TypeVar

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

V = TypeVar("V")


class Target(Protocol[V]):
    """What an expression is translated to."""

    def constant(self, value: float) -> V:
        """Return a real number."""

    def binary(self, operator: str, left: V, right: V) -> V:
        """Return the result of +, -, * or /."""

    def negative(self, value: V) -> V:
        """Return -value."""

    def compare(self, operator: str, left: V, right: V) -> V:
        """Return the truth of >=, >, == or !=."""

    def choose(self, test: V, yes: V, no: V) -> V:
        """Return one of two values; both may be computed."""

    def call(self, name: str, arguments: Sequence[V]) -> V:
        """Return exp, log, sqrt, tanh, floor or sigmoid of a value."""


@cache
def _parse(expression: str) -> ast.expr:
    return ast.parse(expression, mode="eval").body


def translate(expression: str, names: Mapping[str, V], target: Target[V]) -> V:
    """Translate an expression.

    Args:
        names: what each name in it stands for.
    """

    def visit(node: ast.expr) -> V:
        match node:
            case ast.Name():
                return names[node.id]
            case ast.Constant(value=(int() | float()) as value):
                return target.constant(float(value))
            case ast.BinOp():
                return target.binary(OPERATORS[type(node.op)], visit(node.left), visit(node.right))
            case ast.UnaryOp():
                return target.negative(visit(node.operand))
            case ast.Compare():
                operator = OPERATORS[type(node.ops[0])]
                return target.compare(operator, visit(node.left), visit(node.comparators[0]))
            case ast.IfExp():
                return target.choose(visit(node.test), visit(node.body), visit(node.orelse))
            case ast.Call(func=ast.Name(id=name)):
                return target.call(name, [visit(argument) for argument in node.args])
        raise AssertionError(
            f"{expression!r}: {ast.dump(node)} is not in the language of the tables"
        )

    return visit(_parse(expression))
