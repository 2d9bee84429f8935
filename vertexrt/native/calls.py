"""The functions of Python, `math` and NumPy that loops may call."""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable, Hashable
from dataclasses import replace
from functools import partial, reduce
from typing import Any

import numpy as np

from vertexrt.native.code import REALS, Register, constant
from vertexrt.native.foreign import Foreign, filled_here
from vertexrt.native.scope import Scope
from vertexrt.native.values import (
    DOUBLE,
    INT,
    Array,
    ArrayType,
    Static,
    Tuple,
    Value,
    element_type,
    stored_as,
)

Given = list[Value]
Call = Callable[[Scope, Given], Value]

NUMBERS = (int, float, np.number, np.bool_)  # types that are called to convert a number


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
    like = next(each.type for each in given if isinstance(each, Register))
    return reduce(partial(scope.extreme, sign), [scope.number(each, like) for each in given])


def _abs(scope: Scope, given: Given) -> Register:
    number = scope.number(given[0])
    if number.type in REALS:
        return scope.call(number.type, f"llvm.fabs.f{REALS[number.type]}", [number])
    zero = constant(0, number.type)
    other = scope.integer("sub", zero, number)
    return scope.select(scope.test("<", number, zero), other, number)


def _is_finite(scope: Scope, given: Given) -> Value:
    number = scope.convert(scope.number(given[0]), DOUBLE)
    return scope.test("<", _abs(scope, [number]), constant(math.inf, DOUBLE))


def _root(scope: Scope, given: Given) -> Value:
    return scope.call(DOUBLE, "llvm.sqrt.f64", [scope.convert(scope.number(given[0]), DOUBLE)])


def _dtype(scope: Scope, given: Given, at: int) -> np.dtype[Any]:
    if len(given) <= at:
        return np.dtype(np.float64)
    named = given[at]
    if not isinstance(named, Static):
        scope.error("a dtype that is a number", "one that is known")
    found: np.dtype[Any] = np.dtype(named.value)
    return found


def _array(zero: bool, at: int, scope: Scope, given: Given) -> Array:
    """Make an array of a shape, whose dtype is the argument `at`."""
    shape = given[0]
    parts = shape.parts if isinstance(shape, Tuple) else (shape,)
    return scope.new(_dtype(scope, given, at), tuple(map(scope.whole, parts)), zero)


def _full(scope: Scope, given: Given) -> Value:
    made = _array(False, 2, scope, given)
    scope.write(made, scope.number(given[1]))
    return made


def _view(scope: Scope, given: Given) -> Value:
    array = scope.as_array(given[0])
    if array.type.ndim != 1:
        scope.error(f"a view of an array of {array.type.ndim} axes", "of one axis")
    return scope.viewed(array, _dtype(scope, given, 1))


def _reshape(scope: Scope, given: Given) -> Value:
    array, *shape = given
    held = scope.as_array(array)
    extents = tuple(map(scope.whole, shape))
    if [each.name for each in extents] == ["-1"]:
        extents = (scope.multiply(held.extents),)
    return replace(held, type=ArrayType(held.type.dtype, len(extents)), extents=extents)


def _copy(scope: Scope, given: Given) -> Value:
    array = scope.as_array(given[0])
    made = scope.new(array.type.dtype, array.extents)
    scope.write(made, array)
    return made


def _filled_here(scope: Scope, given: Given) -> Value:
    return replace(scope.as_array(given[0]), roots=frozenset())


def _call_address(kind: Foreign, scope: Scope, given: Given) -> Value:
    """Call a function by its address."""

    def passed(type: str, value: Value) -> Register:
        if type == "ptr" and isinstance(value, Array):
            return value.data
        if type == DOUBLE:
            return scope.convert(scope.number(value, DOUBLE), DOUBLE)
        number = scope.whole(value)
        return scope.as_address(number) if type == "ptr" else scope.convert(number, type)

    address, *values = given
    types, pointer = kind.arguments.split(), scope.as_address(scope.whole(address))
    if len(types) != len(values):
        scope.error(f"{len(values)} arguments", f"{len(types)}")
    arguments = ", ".join(str(passed(*each)) for each in zip(types, values, strict=True))
    call = f"call {kind.result} {pointer.name}({arguments})"
    if kind.result == "void":
        scope.line(call)
        return Static(None)
    found = scope.op(kind.result, call)
    return scope.convert(found, INT) if kind.result == "i32" else found


def _cast(dtype: np.dtype[Any], scope: Scope, given: Given) -> Value:
    """Convert a number; one of fewer than 64 bits keeps the lowest."""
    if isinstance(given[0], Static):
        return Static(dtype.type(given[0].value))
    found = scope.convert(scope.number(given[0]), element_type(dtype))
    if dtype.kind == "b":
        return found
    return scope.convert(scope.convert(found, stored_as(dtype)), element_type(dtype))


def call_of(called: Any) -> Call | None:
    """Return what a call does that stands for instructions of its own; None for any other."""
    if isinstance(called, Foreign):
        return partial(_call_address, called)
    if isinstance(called, builtins.type) and issubclass(called, NUMBERS):
        return partial(_cast, np.dtype(called))
    return CALLS.get(called) if isinstance(called, Hashable) else None


CALLS: dict[Any, Call] = {
    len: _len,
    min: partial(_extreme, "<"),
    max: partial(_extreme, ">"),
    abs: _abs,
    math.isfinite: _is_finite,
    math.sqrt: _root,
    np.empty: partial(_array, False, 1),
    np.zeros: partial(_array, True, 1),
    np.full: _full,
    filled_here: _filled_here,
}
METHODS: dict[str, Call] = {"view": _view, "reshape": _reshape, "copy": _copy}
