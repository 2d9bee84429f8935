"""The language of the op table and of update rules: scalar expressions in Python's syntax.

An expression is written once, over names (x0, x1, ... for ops). What reads it is a *target*: text
of some language, instructions of LLVM, or arrays of NumPy; numbers of Python are computed by Python
itself. The draws of dropout are here in NumPy.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import CodeType
from typing import Any, Protocol, TypeVar

import numpy as np

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
        """Return a function of FUNCTIONS of a value."""


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


@dataclass(frozen=True, slots=True, eq=False)
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
    {name: f"vrt_{name}" for name in ("exp", "log", "sqrt", "tanh", "sigmoid")}
    | {name: name for name in ("floor", "sin", "cos", "erf")},
)


@cache
def code_of(expression: str, names: Sequence[str], dialect: Dialect) -> CodeType:
    """Return the code of Python of an expression over names, in a dialect that is Python."""
    text = translate(expression, {name: name for name in names}, dialect)
    return compile(text, "<expression>", "eval")


# Values.

Array = np.ndarray[Any, Any]


def sigmoid(x: Array) -> Array:
    """Return 1 / (1 + e**-x) without overflow."""
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1.0, e) / (1.0 + e)


_PLAIN = ("exp", "log", "sqrt", "tanh", "floor", "sin", "cos")
_ERF = np.vectorize(math.erf, otypes=[float])  # NumPy has none
FUNCTIONS = {"sigmoid": sigmoid, **{name: getattr(math, name) for name in (*_PLAIN, "erf")}}
_GLOBALS = {"__builtins__": {}, **FUNCTIONS}
_OF_ARRAYS = {"sigmoid": sigmoid, "erf": _ERF, "where": np.where}
_OF_ARRAYS |= {name: getattr(np, name) for name in _PLAIN}
NUMPY = Dialect("{value}", "where({test}, {yes}, {no})", {name: name for name in FUNCTIONS})


def evaluate_arrays(expression: str, names: Mapping[str, Any]) -> Any:
    """Return the value of an expression over arrays and numbers, which broadcast."""
    if not any(isinstance(x, np.ndarray | np.generic) for x in names.values()):
        names = {name: np.float64(x) for name, x in names.items()}  # which divide by zero
    with np.errstate(all="ignore"):
        return eval(code_of(expression, tuple(names), NUMPY), _OF_ARRAYS, dict(names))


def evaluate(expression: str, operands: Sequence[float]) -> float | None:
    """Return the value of an expression of the op table, or None where it is not a finite number.

    Args:
        expression: in x0, x1, ...; random ops (`draw`) have no constant value.
    """
    if "draw" in expression:
        return None
    out = float(evaluate_arrays(expression, {f"x{k}": x for k, x in enumerate(operands)}))
    return out if math.isfinite(out) else None


@cache
def _tuple_code(expressions: tuple[str, ...]) -> CodeType:
    return compile(f"({''.join(f'{each}, ' for each in expressions)})", "<expressions>", "eval")


def evaluate_all(expressions: tuple[str, ...], names: Mapping[str, float]) -> tuple[float, ...]:
    """Return the values of expressions over names; `**` may be used in them."""
    return eval(_tuple_code(expressions), _GLOBALS, names)  # type: ignore[no-any-return]


def draws(seed: int, key: int, p: float | None, counters: Array, elements: Array) -> Array:
    """Return factors of dropout, [counters, elements]: 0, or 1 / (1 - p); without p, uniform ones.

    Each is drawn from a hash of (seed, key, counter, element) to 32 bits, as compiled kernels draw
    them: counter-based random numbers (Salmon et al., SC 2011) with the finaliser of MurmurHash3.
    """
    u = np.uint32
    with np.errstate(over="ignore"):
        h = u(seed) ^ (counters.astype(u)[:, None] * u(0x9E3779B1))
        h = (h ^ (h >> u(16))) * u(0x85EBCA6B)
        h = h + u(key) * u(0xC2B2AE35) + elements.astype(u) * u(0x27D4EB2F)
        h = (h ^ (h >> u(16))) * u(0x85EBCA6B)
        h = (h ^ (h >> u(13))) * u(0xC2B2AE35)
        h = h ^ (h >> u(16))
    if p is None:  # 23 bits, in the middle of what they stand for: exact in float32
        return np.asarray(((h >> u(9)) + 0.5) * 2.0**-23)
    threshold = u(min(int(p * 2**32), 2**32 - 1))
    return np.where(h >= threshold, 1.0 / (1.0 - p), 0.0)
