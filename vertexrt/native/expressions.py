"""Expressions of Python as instructions."""

from __future__ import annotations

import ast
import operator
import types
from collections.abc import Callable
from typing import Any

import numpy as np

from vertexrt.config import config
from vertexrt.native import arithmetic, arrays
from vertexrt.native.arrays import Cut
from vertexrt.native.calls import METHODS, call_of
from vertexrt.native.scope import Scope
from vertexrt.native.text import Variable, whole
from vertexrt.native.values import (
    INT,
    TRUTH,
    Array,
    Scalar,
    ScalarType,
    Static,
    Tuple,
    TupleType,
    Value,
    type_of,
)

SIGNS: dict[type, str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%",
    ast.Pow: "**", ast.LShift: "<<", ast.RShift: ">>", ast.BitAnd: "&", ast.BitOr: "|",
    ast.BitXor: "^", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==",
    ast.NotEq: "!=",
}  # fmt: skip
OF_KNOWN: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv,
    "//": operator.floordiv, "%": operator.mod, "**": operator.pow, "<<": operator.lshift,
    ">>": operator.rshift, "&": operator.and_, "|": operator.or_, "^": operator.xor,
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq,
    "!=": operator.ne,
}  # fmt: skip

OF_ONE: dict[type, Callable[[Any], Any]] = {
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Invert: operator.invert,
}


def value(scope: Scope, node: ast.expr) -> Value:
    """Return the value of an expression."""
    translate = EXPRESSIONS.get(type(node))
    if translate is None:
        scope.error(f"the expression {ast.unparse(node)}", "one that is translated")
    return translate(scope, node)


def _constant(scope: Scope, node: ast.Constant) -> Value:
    return Static(node.value)


def _name(scope: Scope, node: ast.Name) -> Value:
    return scope.look_up(node.id)


def _tuple(scope: Scope, node: ast.Tuple) -> Value:
    return Tuple(tuple(several(scope, node.elts)))


def several(scope: Scope, nodes: list[ast.expr]) -> list[Value]:
    """Return the values of expressions, of which a starred one stands for several."""
    found: list[Value] = []
    for node in nodes:
        if isinstance(node, ast.Starred):
            found += parts_of(scope, value(scope, node.value))
        else:
            found.append(value(scope, node))
    return found


def parts_of(scope: Scope, given: Value) -> tuple[Value, ...]:
    """Return the parts of a tuple."""
    if isinstance(given, Tuple):
        return given.parts
    if isinstance(given, Static) and isinstance(given.value, tuple):
        return tuple(Static(each) for each in given.value)
    scope.error(f"a {scope.describe(given)}", "a tuple")


def _attribute(scope: Scope, node: ast.Attribute) -> Value:
    name, part = node.attr, _part_of_variable(scope, node)
    if part is not None:
        return part
    of = value(scope, node.value)
    found: Value | None = None
    if isinstance(of, Tuple) and name in field_names(of):
        found = of.parts[field_names(of).index(name)]
    elif isinstance(of, Array):
        found = _attribute_of_array(scope, of, name)
    elif isinstance(of, Static) and isinstance(of.value, types.ModuleType | type | np.dtype):
        found = Static(getattr(of.value, name))
    if found is None:
        scope.error(f"{name} of a {scope.describe(of)}", "an attribute that is translated")
    return found


def field_names(of: Tuple | TupleType) -> tuple[str, ...]:
    """Return what the class of a tuple calls its parts."""
    found: tuple[str, ...] = getattr(of.record, "_fields", ())
    return found


def _part_of_variable(scope: Scope, node: ast.Attribute) -> Value | None:
    """Read a field of a variable, where it is that: its other fields are left alone."""
    variable = scope.names.get(node.value.id) if isinstance(node.value, ast.Name) else None
    if not (isinstance(variable, Variable) and isinstance(variable.type, TupleType)):
        return None
    names = field_names(variable.type)
    return scope.text.read_part(variable, names.index(node.attr)) if node.attr in names else None


def _attribute_of_array(scope: Scope, of: Array, name: str) -> Value | None:
    known = {"dtype": of.type.dtype, "itemsize": of.type.dtype.itemsize, "ndim": of.type.ndim}
    if name in known:
        return Static(known[name])
    if name == "shape":
        return Tuple(of.extents)
    if name == "size":
        return arrays.size_of(scope.text, of)
    if name == "data":
        return scope.text.number(INT, f"ptrtoint ptr {of.data} to i64")
    return of if name == "ctypes" else None  # of which only the address is taken


def _subscript(scope: Scope, node: ast.Subscript) -> Value:
    of = value(scope, node.value)
    if isinstance(of, Tuple) or (isinstance(of, Static) and isinstance(of.value, tuple)):
        return _part_of_tuple(scope, parts_of(scope, of), node.slice)
    return read(scope, element(scope, scope.array(of), node.slice))


def _part_of_tuple(scope: Scope, parts: tuple[Value, ...], index: ast.expr) -> Value:
    if isinstance(index, ast.Slice):
        if index.step is not None:
            scope.error("a slice with a step", "none")
        return Tuple(parts[slice(_static(scope, index.lower), _static(scope, index.upper))])
    at: int = _static(scope, index)
    return parts[at]


def _static(scope: Scope, node: ast.expr | None) -> Any:
    """Return an index of a tuple, which is known while the function is translated."""
    at = Static(None) if node is None else value(scope, node)
    if not isinstance(at, Static):
        scope.error("an index of a tuple", "one that is known; a loop over the tuple has each part")
    return at.value


def element(scope: Scope, array: Array, index: ast.expr) -> Array:
    """Return the part of an array at an index, without axes where that is one element."""
    nodes = index.elts if isinstance(index, ast.Tuple) else [index]
    if len(nodes) > array.type.ndim:
        scope.error(f"{len(nodes)} indices", f"at most {array.type.ndim}")
    if any(isinstance(each, ast.Slice) for each in nodes[:-1]):
        scope.error("a slice before an index", "one after all indices")
    cuts = [_cut(scope, each) for each in nodes]
    if config().check:
        _check_indices(scope, array, cuts)
    return arrays.part(scope.text, array, cuts)


def _cut(scope: Scope, node: ast.expr) -> Scalar | Cut:
    if not isinstance(node, ast.Slice):
        return scope.whole(value(scope, node))
    if node.step is not None:
        scope.error("a slice with a step", "none")
    lower, upper = (
        None if bound is None else scope.whole(value(scope, bound))
        for bound in (node.lower, node.upper)
    )
    return Cut(lower, upper)


def _check_indices(scope: Scope, array: Array, cuts: list[Scalar | Cut]) -> None:
    for extent, at in zip(array.extents, cuts, strict=False):
        if isinstance(at, Scalar) and not at.text.startswith("-"):
            test = scope.text.number(TRUTH, f"icmp ult {at}, {extent.text}")
            where = f"{scope.function.__code__.co_filename}:{scope.line}"
            scope.fail_unless(test, f"{where}: an index is out of bounds")


def read(scope: Scope, part: Array) -> Value:
    """Return an array, or the element that one without axes is."""
    return part if part.type.ndim else scope.text.load(part, whole(0))


def _binary(scope: Scope, node: ast.BinOp) -> Value:
    return binary(scope, SIGNS[type(node.op)], value(scope, node.left), value(scope, node.right))


def binary(scope: Scope, sign: str, left: Value, right: Value) -> Value:
    """Return the result of an operator."""
    if isinstance(left, Static) and isinstance(right, Static):
        return Static(OF_KNOWN[sign](left.value, right.value))
    if sign == "+" and isinstance(left, Tuple):
        return Tuple((*left.parts, *parts_of(scope, right)))
    found = arithmetic.binary(scope.text, sign, *_numbers(scope, left, right))
    if found is None:
        scope.error(f"the operator {sign} of such numbers", "one that is translated")
    return found


def _numbers(scope: Scope, left: Value, right: Value) -> tuple[Scalar, Scalar]:
    """Return two values as numbers; a constant has the type of the other, if that is real."""
    types = [each.type if isinstance(each, Scalar) else None for each in (left, right)]
    return scope.number(left, types[1]), scope.number(right, types[0])


def _unary(scope: Scope, node: ast.UnaryOp) -> Value:
    given, text = value(scope, node.operand), scope.text
    if isinstance(node.op, ast.Not):
        if isinstance(given, Static):
            return Static(not given.value)
        return text.number(TRUTH, f"xor {scope.truth(given)}, true")
    if isinstance(given, Static):
        return Static(OF_ONE[type(node.op)](given.value))
    number = scope.number(given)
    if isinstance(node.op, ast.USub):
        if number.type.real:
            return text.number(number.type, f"fneg {number}")
        return binary(scope, "-", Static(0), number)
    if isinstance(node.op, ast.Invert):
        return binary(scope, "^", number, Static(-1))
    return number


def _either(scope: Scope, node: ast.BoolOp) -> Value:
    """Translate `and` and `or`: a truth, and what follows is done only where it counts."""
    ends = isinstance(node.op, ast.Or)  # the value that ends it
    text, rest = scope.text, list(node.values)
    while rest:
        first = value(scope, rest.pop(0))
        if not isinstance(first, Static):
            break
        if bool(first.value) is ends or not rest:
            return first
    found = text.variable(TRUTH)
    text.assign(found, scope.truth(first))
    done = text.new_label()
    for each in rest:
        go_on = text.new_label()
        test = scope.truth(text.read(found))
        targets = (done, go_on) if ends else (go_on, done)
        text.line(f"br {test}, label %{targets[0]}, label %{targets[1]}")
        text.begin(go_on)
        text.assign(found, scope.truth(value(scope, each)))
    text.open(done)
    return text.read(found)


def _compare(scope: Scope, node: ast.Compare) -> Value:
    left = value(scope, node.left)
    found: Value = Static(True)
    for sign, other in zip(node.ops, node.comparators, strict=True):
        right = value(scope, other)
        test = _compared(scope, sign, left, right)
        found = test if found == Static(True) else binary(scope, "&", found, test)
        left = right
    return found


def _compared(scope: Scope, sign: ast.cmpop, left: Value, right: Value) -> Value:
    if isinstance(sign, ast.Is | ast.IsNot):
        same = isinstance(left, Static) and isinstance(right, Static) and left.value is right.value
        return Static(same is isinstance(sign, ast.Is))
    if isinstance(sign, ast.In | ast.NotIn):
        found = _is_among(scope, left, parts_of(scope, right))
        return binary(scope, "^", found, Static(True)) if isinstance(sign, ast.NotIn) else found
    written = SIGNS[type(sign)]
    if isinstance(left, Static) and isinstance(right, Static):
        return Static(OF_KNOWN[written](left.value, right.value))
    return arithmetic.compare(scope.text, written, *_numbers(scope, left, right))


def _is_among(scope: Scope, left: Value, parts: tuple[Value, ...]) -> Value:
    found: Value = Static(False)
    for each in parts:
        test = _compared(scope, ast.Eq(), left, each)
        found = test if found == Static(False) else binary(scope, "|", found, test)
    return found


def _choice(scope: Scope, node: ast.IfExp) -> Value:
    """Translate `a if test else b`: only one of both is done."""
    test, text = value(scope, node.test), scope.text
    if isinstance(test, Static):
        return value(scope, node.body if test.value else node.orelse)
    yes, no, done = (text.new_label() for _ in range(3))
    text.line(f"br {scope.truth(test)}, label %{yes}, label %{no}")
    text.begin(yes)
    first = value(scope, node.body)
    kept = text.gap()
    text.go(done, no)
    second = value(scope, node.orelse)
    type = _common(scope, first, second)
    found = text.variable(type)
    text.assign(found, scope.fit(second, type))
    with text.later(kept):
        text.assign(found, scope.fit(first, type))
    text.open(done)
    return text.read(found)


def _common(scope: Scope, a: Value, b: Value) -> Any:
    """Return a type for either of two values."""
    kinds = type_of(a), type_of(b)
    if all(isinstance(kind, ScalarType) for kind in kinds) and kinds[0] != kinds[1]:
        return arithmetic.common(*(each.type for each in _numbers(scope, a, b)))
    return kinds[0]


def _call(scope: Scope, node: ast.Call) -> Value:
    if node.keywords:
        scope.error("an argument by keyword", "arguments by position")
    if isinstance(node.func, ast.Attribute) and node.func.attr in METHODS:
        of = value(scope, node.func.value)
        if isinstance(of, Array):
            return METHODS[node.func.attr](scope, [of, *several(scope, node.args)])
    function = value(scope, node.func)
    if not isinstance(function, Static):
        scope.error(f"a call of a {scope.describe(function)}", "a function")
    return _called(scope, function.value, several(scope, node.args))


def _called(scope: Scope, called: Any, given: list[Value]) -> Value:
    """Call what stands for instructions of its own, makes a record, or is translated too."""
    if isinstance(called, type) and hasattr(called, "_fields"):
        return Tuple(tuple(given), called)
    known = call_of(called)
    if known is not None:
        return known(scope, given)
    called = getattr(called, "__wrapped__", called)
    if not isinstance(called, types.FunctionType):
        scope.error(f"a call of {getattr(called, '__name__', called)}", "what is translated")
    return scope.call(scope, called, given)


EXPRESSIONS: dict[type, Callable[[Scope, Any], Value]] = {
    ast.Constant: _constant,
    ast.Name: _name,
    ast.Tuple: _tuple,
    ast.Attribute: _attribute,
    ast.Subscript: _subscript,
    ast.BinOp: _binary,
    ast.UnaryOp: _unary,
    ast.BoolOp: _either,
    ast.Compare: _compare,
    ast.IfExp: _choice,
    ast.Call: _call,
}
