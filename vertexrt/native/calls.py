"""The functions of Python, `math` and NumPy that loops may call."""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable, Hashable
from dataclasses import replace
from functools import partial, reduce
from typing import Any

import numpy as np

from vertexrt.native import arithmetic, arrays
from vertexrt.native.foreign import Foreign, filled_here
from vertexrt.native.scope import Scope
from vertexrt.native.text import whole
from vertexrt.native.values import (
    DOUBLE,
    INT,
    TRUTH,
    Array,
    ArrayType,
    Scalar,
    ScalarType,
    Static,
    Tuple,
    Value,
    literal,
)

Given = list[Value]
Call = Callable[[Scope, Given], Value]

NUMBERS = (int, float, np.number, np.bool_)  # types that are called to convert a number
INFINITY = literal(math.inf, DOUBLE)


def _len(scope: Scope, given: Given) -> Value:
    (of,) = given
    if isinstance(of, Array):
        return of.extents[0]
    if isinstance(of, Tuple):
        return Static(len(of.parts))
    if isinstance(of, Static):
        return Static(len(of.value))
    scope.error("the length of a number", "that of an array")


def _extreme(sign: str, scope: Scope, given: Given) -> Value:
    known = [each.value for each in given if isinstance(each, Static)]
    if len(known) == len(given):
        return Static(max(known) if sign == ">" else min(known))
    like = next(each.type for each in given if isinstance(each, Scalar))
    numbers = [scope.number(each, like) for each in given]
    return reduce(partial(arithmetic.extreme, scope.text, sign), numbers)


def _abs(scope: Scope, given: Given) -> Value:
    number = scope.number(given[0])
    if number.type.real:
        word = "f32" if number.type.name == "float" else "f64"
        return scope.text.number(
            number.type, f"call {number.type.name} @llvm.fabs.{word}({number})"
        )
    less = arithmetic.compare(scope.text, "<", number, whole(0))
    other = scope.text.number(number.type, f"sub nsw i64 0, {number.text}")
    return arithmetic.choose(scope.text, less, other, number)


def _is_finite(scope: Scope, given: Given) -> Value:
    number = arithmetic.convert(scope.text, scope.number(given[0]), DOUBLE)
    size = scope.number(_abs(scope, [number]))
    return arithmetic.compare(scope.text, "<", size, INFINITY)


def _root(scope: Scope, given: Given) -> Value:
    number = arithmetic.convert(scope.text, scope.number(given[0]), DOUBLE)
    return scope.text.number(DOUBLE, f"call double @llvm.sqrt.f64({number})")


def _extents(scope: Scope, shape: Value) -> tuple[Scalar, ...]:
    parts = shape.parts if isinstance(shape, Tuple) else (shape,)
    return tuple(scope.whole(part) for part in parts)


def _dtype(scope: Scope, given: Given, at: int) -> np.dtype[Any]:
    if len(given) <= at:
        return np.dtype(np.float64)
    named = given[at]
    if not isinstance(named, Static):
        scope.error("a dtype that is a number", "one that is known")
    found: np.dtype[Any] = np.dtype(named.value)
    return found


def _new(
    scope: Scope, dtype: np.dtype[Any], extents: tuple[Scalar, ...], zero: str = "false"
) -> Array:
    """Return a new array, if there was memory for it."""
    array = arrays.new(scope.text, dtype, extents, zero)
    scope.leave_on_failure()
    scope.allocates = True
    return array


def _array(zero: str, scope: Scope, given: Given) -> Value:
    return _new(scope, _dtype(scope, given, 1), _extents(scope, given[0]), zero)


def _full(scope: Scope, given: Given) -> Value:
    shape, value, *_ = given
    made = _new(scope, _dtype(scope, given, 2), _extents(scope, shape))
    arrays.fill(scope.text, made, scope.number(value))
    return made


def _view(scope: Scope, given: Given) -> Value:
    array = scope.array(given[0])
    if array.type.ndim != 1:
        scope.error(f"a view of an array of {array.type.ndim} axes", "of one axis")
    return arrays.reinterpreted(scope.text, array, _dtype(scope, given, 1))


def _reshape(scope: Scope, given: Given) -> Value:
    array, *shape = given
    held = scope.array(array)
    extents = tuple(scope.whole(each) for each in shape)
    if [each.text for each in extents] == ["-1"]:
        extents = (arrays.size_of(scope.text, held),)
    return Array(ArrayType(held.type.dtype, len(extents)), held.data, extents, held.roots)


def _copy(scope: Scope, given: Given) -> Value:
    array = scope.array(given[0])
    made = _new(scope, array.type.dtype, array.extents)
    arrays.copy(scope.text, made, array)
    return made


def _filled_here(scope: Scope, given: Given) -> Value:
    return replace(scope.array(given[0]), roots=frozenset())


def call_address(kind: Foreign, scope: Scope, given: Given) -> Value:
    """Call a function by its address."""
    address, *values = given
    pointer = scope.text.made(f"inttoptr {scope.whole(address)} to ptr")
    words = kind.arguments.split()
    if len(words) != len(values):
        scope.error(f"{len(values)} arguments", f"{len(words)}")
    passed = ", ".join(_passed(scope, *each) for each in zip(words, values, strict=True))
    call = f"call {kind.result} {pointer}({passed})"
    if kind.result == "void":
        scope.text.line(call)
        return Static(None)
    found = scope.text.made(call)
    if kind.result == "i32":
        return scope.text.number(INT, f"sext i32 {found} to i64")
    return Scalar(DOUBLE if kind.result == "double" else INT, found)


def _passed(scope: Scope, word: str, value: Value) -> str:
    if word == "ptr" and isinstance(value, Array):
        return f"ptr {value.data}"
    if word == "double":
        return str(arithmetic.convert(scope.text, scope.number(value, DOUBLE), DOUBLE))
    number = scope.whole(value)
    if word == "i64":
        return str(number)
    change = "inttoptr" if word == "ptr" else "trunc"
    return f"{word} {scope.text.made(f'{change} {number} to {word}')}"


def _cast(type: ScalarType, dtype: np.dtype[Any], scope: Scope, given: Given) -> Value:
    """Convert a number; one of fewer than 64 bits keeps the lowest."""
    if isinstance(given[0], Static):
        return Static(dtype.type(given[0].value))
    number = scope.number(given[0])
    found = arithmetic.convert(scope.text, number, type)
    if type.real or type is TRUTH or dtype.itemsize == 8:
        return found
    short = scope.text.made(f"trunc {found} to i{8 * dtype.itemsize}")
    widen = "zext" if dtype.kind == "u" else "sext"
    return scope.text.number(type, f"{widen} i{8 * dtype.itemsize} {short} to i64")


def call_of(called: Any) -> Call | None:
    """Return what a call does that stands for instructions of its own; None for any other."""
    if isinstance(called, Foreign):
        return partial(call_address, called)
    if isinstance(called, builtins.type) and issubclass(called, NUMBERS):
        return _call_of_type(called)
    return CALLS.get(called) if isinstance(called, Hashable) else None


def _call_of_type(called: Any) -> Call:
    dtype = np.dtype(called)
    kinds = {"f": DOUBLE, "b": TRUTH}
    type = kinds.get(dtype.kind, INT)
    if dtype.kind == "f" and dtype.itemsize == 4:
        type = ScalarType("float")
    if called is np.uint64:
        type = ScalarType("i64", True)
    return partial(_cast, type, dtype)


CALLS: dict[Any, Call] = {
    len: _len,
    min: partial(_extreme, "<"),
    max: partial(_extreme, ">"),
    abs: _abs,
    math.isfinite: _is_finite,
    math.sqrt: _root,
    np.empty: partial(_array, "false"),
    np.zeros: partial(_array, "true"),
    np.full: _full,
    filled_here: _filled_here,
}
METHODS: dict[str, Call] = {"view": _view, "reshape": _reshape, "copy": _copy}
