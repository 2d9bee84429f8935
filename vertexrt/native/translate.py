"""Translate a function of Python, and those that it calls, to functions of one module of LLVM.

A function is translated once for all calls with arguments of the same types. What it calls is
translated first, so that the type of a result is known; there is no recursion.
"""

from __future__ import annotations

import ast
import builtins
import functools
import itertools
import linecache
import math
import operator
import types
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from types import CodeType, FunctionType
from typing import Any, NoReturn, cast

import numpy as np

from vertexrt.config import config
from vertexrt.native.code import REALS, Code, Lines, Register, word
from vertexrt.native.fingerprint import code_text
from vertexrt.native.foreign import Foreign, filled_here
from vertexrt.native.scope import (
    DECLARED,
    DOUBLE,
    EXIT,
    INT,
    WORD,
    Array,
    ArrayType,
    Scope,
    Static,
    Tuple,
    TupleType,
    Type,
    Value,
    Variable,
    arrays_in,
    describe,
    element_type,
    held_in,
    is_number,
    registers,
    stored_as,
    type_of,
    words,
)

# Operators: how arithmetic knows them, and what they do with what is known.
OPERATORS: dict[type, tuple[str, Callable[[Any, Any], Any]]] = {
    ast.Add: ("+", operator.add),
    ast.Sub: ("-", operator.sub),
    ast.Mult: ("*", operator.mul),
    ast.Div: ("/", operator.truediv),
    ast.FloorDiv: ("//", operator.floordiv),
    ast.Mod: ("%", operator.mod),
    ast.Pow: ("**", operator.pow),
    ast.LShift: ("<<", operator.lshift),
    ast.RShift: (">>", operator.rshift),
    ast.BitAnd: ("&", operator.and_),
    ast.BitOr: ("|", operator.or_),
    ast.BitXor: ("^", operator.xor),
    ast.Lt: ("<", operator.lt),
    ast.LtE: ("<=", operator.le),
    ast.Gt: (">", operator.gt),
    ast.GtE: (">=", operator.ge),
    ast.Eq: ("==", operator.eq),
    ast.NotEq: ("!=", operator.ne),
}
OF_ONE: dict[type, Callable[[Any], Any]] = {
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Invert: operator.invert,
}


# The functions of Python, `math` and NumPy that loops may call.

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
    numbers = [scope.number(each, like) for each in given]
    return functools.reduce(partial(scope.extreme, sign), numbers)


def _abs(scope: Scope, given: Given) -> Register:
    number = scope.number(given[0])
    if number.type in REALS:
        return scope.call(number.type, f"llvm.fabs.f{REALS[number.type]}", [number])
    zero = scope.const(0, number.type)
    other = zero - number
    return scope.select(number < zero, other, number)


def _is_finite(scope: Scope, given: Given) -> Value:
    number = scope.convert(scope.number(given[0]), DOUBLE)
    return _abs(scope, [number]) < scope.const(math.inf, DOUBLE)


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

    def address_of(number: Register) -> Register:
        return scope.op("ptr", f"inttoptr {number} to ptr")

    def passed(type: str, value: Value) -> Register:
        if type == "ptr" and isinstance(value, Array):
            return value.data
        if type == DOUBLE:
            return scope.convert(scope.number(value, DOUBLE), DOUBLE)
        number = scope.whole(value)
        return address_of(number) if type == "ptr" else scope.convert(number, type)

    address, *values = given
    types, pointer = kind.arguments.split(), address_of(scope.whole(address))
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


# Functions.


class NativeModule:
    """The functions of a module: call `translate` for one, and what it calls comes with it."""

    def __init__(self) -> None:
        self.functions: list[Translation] = []
        self._made: dict[Any, Translation | None] = {}

    def translate(self, function: FunctionType, arguments: Sequence[Type | Static]) -> Translation:
        """Translate a function for arguments of some types, or that are known.

        Raises: TranslationError, for what is not translated.
        """
        key = (function, *arguments)
        if key not in self._made:
            self._made[key] = None  # while it is translated
            code = Translation(function, self, len(self._made), arguments)
            self._made[key] = code
            self.functions.append(code)
        found = self._made[key]
        if found is None:
            Scope(function).error(f"{function.__name__} calls itself", "a loop")
        return found


class Translation(Scope, ast.NodeVisitor):
    """A translated function: visits its source, and appends what that does.

    Args:
        number: of the function in its module; arguments: their types, or what is known of them.
    Attributes:
        keeps: it leaves new arrays.
    """

    def __init__(
        self,
        function: FunctionType,
        module: NativeModule,
        number: int,
        arguments: Sequence[Type | Static],
    ) -> None:
        super().__init__(function, number)
        self.module = module
        node = _node(self.function)
        mark = self.memory[0]
        self.assigned_once = _assigned_once(node)
        roots = (frozenset([k]) for k in itertools.count())
        for argument, declared in zip(node.args.args, arguments, strict=True):
            if isinstance(declared, Static):
                self.names[argument.arg] = declared
                continue
            first = len(self.arguments)
            held = [
                Register(each, f"%a{first + k}", code=self)
                for k, each in enumerate(words(declared))
            ]
            self.arguments += held
            self.assign(argument.arg, held_in(declared, iter(held), roots))
        self.run(node.body)
        self.enter(EXIT)
        value = Static(None) if self.given_back is None else self.read(self.given_back)
        if self.allocates:  # what was taken since the begin is freed, but for what is returned
            kept = arrays_in(value)
            room = self.place(f"[{max(1, len(kept))} x ptr]", of="ptr")
            for k, array in enumerate(kept):
                room[k] = array.data
            self.do("release", [self.memory, mark, room, len(kept)])
        self.keeps = self.allocates and bool(arrays_in(value))
        self._leave_with(registers(value))

    def append_call(self, code: Code, given: Sequence[Register]) -> Callable[[], list[Register]]:
        """Append a call of it; return what takes the registers of its result, when it is there."""
        kinds = [] if self.given_back is None else words(self.given_back.type)
        if not kinds:
            code.do(self.name, given)
            return list
        found = code.call(self.result, self.name, given)
        if len(kinds) == 1:
            return lambda: [found]
        return lambda: [code.op(kind, f"extractvalue {found}, {k}") for k, kind in enumerate(kinds)]

    def _leave_with(self, held: list[Register]) -> None:
        """Return what some registers hold."""
        if len(held) == 1:
            self.result = word(held[0].type)
            self.leave(held[0])
            return
        if held:
            self.result = f"{{{', '.join(word(each.type) for each in held)}}}"
        whole = Register(self.result, "undef")
        for k, each in enumerate(held):
            whole = self.op(self.result, f"insertvalue {whole}, {each}, {k}")
        self.leave(whole if held else None)

    def constants(self) -> list[str]:
        """Return the messages of failures, as the module has them."""
        return [message(name, why) for why, name in self.messages.items()]

    def generic_visit(self, node: ast.AST) -> NoReturn:
        """Refuse what is not translated."""
        text = ast.unparse(node)
        if isinstance(node, ast.stmt):
            self.error(f"the statement {text.splitlines()[0]}", "one translated here")
        self.error(f"the expression {text}", "one that is translated")

    # Statements.

    def run(self, nodes: Sequence[ast.stmt]) -> None:
        """Append statements."""
        for node in nodes:
            self.at_line = node.lineno
            self.visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):  # a docstring
            self.visit(node.value)

    def visit_Assign(self, node: ast.Assign) -> None:
        given = self.visit(node.value)
        for target in node.targets:
            self._assign(target, given)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self._assign(node.target, self.visit(node.value))

    def _assign(self, target: ast.expr, given: Value) -> None:
        """Assign a value to a name, to a part of an array, or its parts to several."""
        if isinstance(target, ast.Name):
            if target.id != "_":  # which is given up
                self.assign(target.id, given)
        elif isinstance(target, ast.Subscript):
            array = self.as_array(self.visit(target.value))
            self._store(self._part(array, target.slice), given)
        elif isinstance(target, ast.Tuple):
            count = len(target.elts)
            if isinstance(given, Array):
                parts = tuple(
                    self.get(self.part(given, [self.const(k, INT)])) for k in range(count)
                )
            else:
                parts = self.parts_of(given)
            if len(parts) != count:
                self.error(f"{len(parts)} values", f"{count}")
            for each, part in zip(target.elts, parts, strict=True):
                self._assign(each, part)
        else:
            self.error(f"an assignment to {ast.unparse(target)}", "to a name or part of an array")

    def _store(self, to: Array, given: Value) -> None:
        """Write a number to all of a part of an array, or an array of the same shape."""
        self.written |= to.roots
        if isinstance(given, Array):
            if given.type.ndim != to.type.ndim:
                self.error(f"an array of {given.type.ndim} axes", f"{to.type.ndim}")
            same = self.same_extents(to, given)
            if same is not None:
                self.fail_unless(same, f"line {self.at_line}: arrays of different shapes")
            self.write(to, given)
            return
        type = element_type(to.type.dtype)
        number = self.number(given, type)
        if number.type in REALS and type not in REALS:
            self.error("a real number in an array of whole ones", "a whole one")
        self.write(to, number)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        target = node.target
        if isinstance(target, ast.Name):
            before = self.look_up(target.id)
            self.assign(target.id, self._operate(node.op, before, self.visit(node.value)))
        elif isinstance(target, ast.Subscript):
            at = self._part(self.as_array(self.visit(target.value)), target.slice)
            if at.type.ndim:
                self.error("arithmetic of arrays", "a loop over their elements")
            given = self.visit(node.value)
            self._store(at, self._operate(node.op, self.get(at), given))
        else:
            self.error(f"an assignment to {ast.unparse(target)}", "to a name or an element")

    def visit_If(self, node: ast.If) -> None:
        test = self.visit(node.test)
        if isinstance(test, Static):
            self.run(node.body if test.value else node.orelse)
            return
        self.either(self.truth(test), partial(self.run, node.body), partial(self.run, node.orelse))

    def visit_While(self, node: ast.While) -> None:
        with self.repeat(lambda: self.truth(self.visit(node.test))):
            self.run(node.body)

    def visit_For(self, node: ast.For) -> None:
        if node.orelse:
            self.error("an `else` of a loop", "none")
        call, over = node.iter, node.iter
        numbered = False
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name):
            if call.func.id == "range":
                self._for_range(node, self._several(call.args))
                return
            if call.func.id == "enumerate":
                numbered, over = True, call.args[0]
        given = self.visit(over)
        if not isinstance(given, Array):
            self._for_each(node, self.parts_of(given), numbered)
            return
        with self.loop(0, given.extents[0]) as k:
            each = self.get(self.part(given, [k]))
            self._assign(node.target, Tuple((k, each)) if numbered else each)
            self.run(node.body)

    def _for_range(self, node: ast.For, bounds: list[Value]) -> None:
        if len(bounds) == 1:
            bounds = [Static(0), *bounds]
        step = bounds[2] if len(bounds) > 2 else Static(1)
        first, end, by = (self.whole(each) for each in (*bounds[:2], step))
        if not isinstance(step, Static):
            why = f"line {self.at_line}: a range has a step that is not positive"
            self.fail_unless(by > 0, why)
        with self.loop(first, end, step=by) as k:
            self._assign(node.target, k)
            self.run(node.body)

    def _for_each(self, node: ast.For, parts: Sequence[Value], numbered: bool) -> None:
        """Append a loop over a tuple: the body once for each part, which may differ in type."""
        end = self.label()
        names = {each.id for each in ast.walk(node.target) if isinstance(each, ast.Name)}
        for k, part in enumerate(parts):
            for name in names:  # each part has variables of its own
                self.names.pop(name, None)
            if numbered and isinstance(node.target, ast.Tuple):
                number, target = node.target.elts
                assert isinstance(number, ast.Name)
                self.names[number.id] = Static(k)
                self._assign(target, part)
            else:
                self._assign(node.target, part)
            after = self.label()
            with self.inside(after, end):
                self.run(node.body)
            self.enter(after)
        self.enter(end)

    def visit_Break(self, node: ast.Break) -> None:
        self.go_to(self.loops[-1][1])

    def visit_Continue(self, node: ast.Continue) -> None:
        self.go_to(self.loops[-1][0])

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is not None:
            given = self.visit(node.value)
            if self.given_back is None:
                type = type_of(given)
                if type is None:
                    self.error(
                        "a value that is only known here", "numbers, arrays or tuples of them"
                    )
                self.given_back = self.new_variable(type, zero=True)  # for where it fails
            self.give(self.given_back, self.fit(given, self.given_back.type))
        self.go_to(EXIT)

    def visit_Assert(self, node: ast.Assert) -> None:
        test = self.truth(self.visit(node.test))
        why = node.msg.value if isinstance(node.msg, ast.Constant) else ast.unparse(node.test)
        self.fail_unless(test, str(why))

    def visit_Pass(self, node: ast.Pass) -> None:
        pass

    # Expressions.

    def visit_Constant(self, node: ast.Constant) -> Value:
        return Static(node.value)

    def visit_Name(self, node: ast.Name) -> Value:
        return self.look_up(node.id)

    def visit_Tuple(self, node: ast.Tuple) -> Value:
        return Tuple(tuple(self._several(node.elts)))

    def _several(self, nodes: list[ast.expr]) -> list[Value]:
        """Return the values of expressions, of which a starred one stands for several."""
        found: list[Value] = []
        for node in nodes:
            if isinstance(node, ast.Starred):
                found += self.parts_of(self.visit(node.value))
            else:
                found.append(self.visit(node))
        return found

    def parts_of(self, given: Value) -> tuple[Value, ...]:
        """Return the parts of a tuple."""
        if isinstance(given, Tuple):
            return given.parts
        if isinstance(given, Static) and isinstance(given.value, tuple):
            return tuple(map(Static, given.value))
        self.error(f"a {describe(given)}", "a tuple")

    def visit_Attribute(self, node: ast.Attribute) -> Value:
        name = node.attr
        variable = self.names.get(node.value.id) if isinstance(node.value, ast.Name) else None
        if isinstance(variable, Variable) and isinstance(variable.type, TupleType):
            names = field_names(variable.type)
            if name in names:  # its other fields are left alone
                return self.read_part(variable, names.index(name))
        of = self.visit(node.value)
        found: Value | None = None
        if isinstance(of, Tuple) and name in field_names(of):
            found = of.parts[field_names(of).index(name)]
        elif isinstance(of, Array):
            found = self._attribute_of_array(of, name)
        elif isinstance(of, Static) and isinstance(of.value, types.ModuleType | type | np.dtype):
            found = Static(getattr(of.value, name))
        if found is None:
            self.error(f"{name} of a {describe(of)}", "an attribute that is translated")
        return found

    def _attribute_of_array(self, of: Array, name: str) -> Value | None:
        dtype = of.type.dtype
        match name:
            case "dtype":
                return Static(dtype)
            case "itemsize":
                return Static(dtype.itemsize)
            case "ndim":
                return Static(of.type.ndim)
            case "shape":
                return Tuple(of.extents)
            case "size":
                return self.multiply(of.extents)
            case "data":
                return self.op(INT, f"ptrtoint {of.data} to i64")
            case "ctypes":
                return of  # of which only the address is taken
        return None

    def visit_Subscript(self, node: ast.Subscript) -> Value:
        of = self.visit(node.value)
        if not (isinstance(of, Tuple) or (isinstance(of, Static) and isinstance(of.value, tuple))):
            return self.get(self._part(self.as_array(of), node.slice))
        parts, index = self.parts_of(of), node.slice
        if isinstance(index, ast.Slice):
            if index.step is not None:
                self.error("a slice with a step", "none")
            return Tuple(parts[slice(self._known(index.lower), self._known(index.upper))])
        at: int = self._known(index)
        return parts[at]

    def _known(self, node: ast.expr | None) -> Any:
        """Return an index of a tuple, which is known while the function is translated."""
        at = Static(None) if node is None else self.visit(node)
        if not isinstance(at, Static):
            self.error(
                "an index of a tuple", "one that is known; a loop over the tuple has each part"
            )
        return at.value

    def _part(self, array: Array, index: ast.expr) -> Array:
        """Return the part of an array at an index, without axes where that is one element."""
        nodes = index.elts if isinstance(index, ast.Tuple) else [index]
        if len(nodes) > array.type.ndim:
            self.error(f"{len(nodes)} indices", f"at most {array.type.ndim}")
        if any(isinstance(each, ast.Slice) for each in nodes[:-1]):
            self.error("a slice before an index", "one after all indices")
        cuts = [self._cut(each) for each in nodes]
        if config().check:
            for extent, at in zip(array.extents, cuts, strict=False):
                if isinstance(at, Register) and not at.name.startswith("-"):
                    inside = self.convert(at, WORD) < extent
                    self.fail_unless(inside, f"{self.where()}: an index is out of bounds")
        return self.part(array, cuts)

    def _cut(self, node: ast.expr) -> Register | slice:
        if not isinstance(node, ast.Slice):
            return self.whole(self.visit(node))
        if node.step is not None:
            self.error("a slice with a step", "none")
        bounds = (node.lower, node.upper)
        return slice(*(None if each is None else self.whole(self.visit(each)) for each in bounds))

    def visit_BinOp(self, node: ast.BinOp) -> Value:
        return self._operate(node.op, self.visit(node.left), self.visit(node.right))

    def _operate(self, op: ast.operator | ast.cmpop, left: Value, right: Value) -> Value:
        """Return the result of an operator."""
        sign, of_known = OPERATORS[type(op)]
        if isinstance(left, Static) and isinstance(right, Static):
            return Static(of_known(left.value, right.value))
        if sign == "+" and isinstance(left, Tuple):
            return Tuple((*left.parts, *self.parts_of(right)))
        found = self.operate(sign, *self.numbers(left, right))
        if found is None:
            self.error(f"the operator {sign} of such numbers", "one that is translated")
        return found

    def visit_UnaryOp(self, node: ast.UnaryOp) -> Value:
        given = self.visit(node.operand)
        if isinstance(node.op, ast.Not):
            if isinstance(given, Static):
                return Static(not given.value)
            return self.truth(given) ^ 1
        if isinstance(given, Static):
            return Static(OF_ONE[type(node.op)](given.value))
        number = self.number(given)
        if isinstance(node.op, ast.USub):
            if number.type in REALS:
                return self.op(number.type, f"fneg {number}")
            return self._operate(ast.Sub(), Static(0), number)
        if isinstance(node.op, ast.Invert):
            return self._operate(ast.BitXor(), number, Static(-1))
        return number

    def visit_BoolOp(self, node: ast.BoolOp) -> Value:
        """Return a truth; what follows is done only where it counts."""
        ends = isinstance(node.op, ast.Or)  # the value that ends it
        rest = list(node.values)
        while rest:
            first = self.visit(rest.pop(0))
            if not isinstance(first, Static):
                break
            if bool(first.value) is ends or not rest:
                return first
        found = self.variable(self.truth(first))
        for each in rest:
            with self.when(found[0], holds=not ends):
                found[0] = self.truth(self.visit(each))
        return found[0]

    def visit_Compare(self, node: ast.Compare) -> Value:
        left = self.visit(node.left)
        found: Value = Static(True)
        for sign, other in zip(node.ops, node.comparators, strict=True):
            right = self.visit(other)
            test = self._compare(sign, left, right)
            found = test if found == Static(True) else self._operate(ast.BitAnd(), found, test)
            left = right
        return found

    def _compare(self, sign: ast.cmpop, left: Value, right: Value) -> Value:
        if isinstance(sign, ast.Is | ast.IsNot):
            objects = [each.value for each in (left, right) if isinstance(each, Static)]
            same = len(objects) == 2 and objects[0] is objects[1]
            return Static(same is isinstance(sign, ast.Is))
        if isinstance(sign, ast.In | ast.NotIn):
            found: Value = Static(False)
            for each in self.parts_of(right):
                test = self._compare(ast.Eq(), left, each)
                found = test if found == Static(False) else self._operate(ast.BitOr(), found, test)
            if isinstance(sign, ast.NotIn):
                return self._operate(ast.BitXor(), found, Static(True))
            return found
        return self._operate(sign, left, right)

    def visit_IfExp(self, node: ast.IfExp) -> Value:
        """Return one of two values: only one of both is made."""
        test = self.visit(node.test)
        if isinstance(test, Static):
            return cast("Value", self.visit(node.body if test.value else node.orelse))
        found: list[tuple[Value, Lines]] = []

        def make(of: ast.expr) -> None:
            value = self.visit(of)
            found.append((value, self.gap()))

        self.either(self.truth(test), partial(make, node.body), partial(make, node.orelse))
        (first, _), (second, _) = found
        type = self.common_type(first, second)
        variable = self.new_variable(type)
        for value, gap in found:
            with self.filling(gap):
                self.give(variable, self.fit(value, type))
        return self.read(variable)

    # Calls.

    def visit_Call(self, node: ast.Call) -> Value:
        if node.keywords:
            self.error("an argument by keyword", "arguments by position")
        if isinstance(node.func, ast.Attribute) and node.func.attr in METHODS:
            of = self.visit(node.func.value)
            if isinstance(of, Array):
                return METHODS[node.func.attr](self, [of, *self._several(node.args)])
        function = self.visit(node.func)
        if not isinstance(function, Static):
            self.error(f"a call of a {describe(function)}", "a function")
        called, given = function.value, self._several(node.args)
        if isinstance(called, type) and hasattr(called, "_fields"):
            return Tuple(tuple(given), called)
        known = call_of(called)
        if known is not None:
            return known(self, given)
        called = getattr(called, "__wrapped__", called)
        if not isinstance(called, FunctionType):
            self.error(f"a call of {getattr(called, '__name__', called)}", "what is translated")
        return self._call_translated(called, given)

    def _call_translated(self, function: FunctionType, given: Sequence[Value]) -> Value:
        """Append a call of a function that is translated too."""
        given = self._bound(function, given)
        types = [type_of(value) or cast("Static", value) for value in given]
        made = self.module.translate(function, types)
        passed = [
            each
            for value, type in zip(given, types, strict=True)
            if not isinstance(type, Static)  # what is known is not passed
            for each in registers(value)
        ]
        held = made.append_call(self, [self.memory, *passed])
        if made.fails:
            self.leave_on_failure()
        self.allocates |= made.keeps
        own = [array.roots for value in given for array in arrays_in(value)]
        self.written |= _union(own, made.written)
        back = made.given_back
        if back is None:
            return Static(None)
        return held_in(back.type, iter(held()), (_union(own, each) for each in back.roots))

    def _bound(self, function: FunctionType, given: Sequence[Value]) -> list[Value]:
        """Return the arguments of a call, with defaults, as they are declared."""
        names = function.__code__.co_varnames[: function.__code__.co_argcount]
        defaults = function.__defaults__ or ()
        missing = len(names) - len(given)
        if not 0 <= missing <= len(defaults):
            self.error(f"{len(given)} arguments of {function.__name__}", f"{len(names)}")
        every = [*given, *map(Static, defaults[len(defaults) - missing :])]
        declared = [DECLARED.get(str(function.__annotations__.get(name))) for name in names]
        return [
            self._at_run_time(value) if type is None else self.fit(value, type)
            for type, value in zip(declared, every, strict=True)
        ]

    def _at_run_time(self, value: Value) -> Value:
        """Return constants as numbers: a function is not translated again for each."""
        if isinstance(value, Tuple):
            return Tuple(tuple(map(self._at_run_time, value.parts)), value.record)
        if isinstance(value, Static) and isinstance(value.value, tuple):
            return Tuple(tuple(self._at_run_time(Static(each)) for each in value.value))
        if isinstance(value, Static) and is_number(type_of(value)):
            return self.number(value)
        return value


def field_names(of: Tuple | TupleType) -> tuple[str, ...]:
    """Return what the class of a tuple calls its parts."""
    found: tuple[str, ...] = getattr(of.record, "_fields", ())
    return found


def _assigned_once(node: ast.FunctionDef) -> frozenset[str]:
    """Return the names that have one value: arguments, and what the body itself assigns once."""
    arguments = {argument.arg for argument in node.args.args}
    stored = Counter([*arguments, *_stored(node)])
    assigned = [each for each in node.body if isinstance(each, ast.Assign)]
    first = arguments.union(*map(_stored, assigned))
    return frozenset(name for name in first if stored[name] == 1)


def _stored(node: ast.AST) -> list[str]:
    """Return the names that are assigned in some code, once for each time."""
    names = [each for each in ast.walk(node) if isinstance(each, ast.Name)]
    return [each.id for each in names if isinstance(each.ctx, ast.Store)]


def _union(roots: Sequence[frozenset[int]], of: Iterable[int]) -> frozenset[int]:
    """Return the roots of several arrays, by their numbers."""
    return frozenset().union(*(roots[k] for k in of))


def message(name: str, text: str) -> str:
    """Write a text as a module has it."""
    escaped = "".join(
        chr(b) if 32 <= b < 127 and b not in b'"\\' else f"\\{b:02X}" for b in text.encode()
    )
    return f'{name} = private constant [{len(text.encode()) + 1} x i8] c"{escaped}\\00"'


# Sources.


@functools.cache
def _parsed(path: str) -> tuple[dict[int, ast.FunctionDef], dict[int, CodeType]]:
    """Return the functions of a file by line, and their code as the file would be loaded now."""
    source = "".join(linecache.getlines(path))
    tree = ast.parse(source, path)
    nodes = {
        min([node.lineno, *(each.lineno for each in node.decorator_list)]): node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
    }

    def codes(code: CodeType) -> Iterator[CodeType]:
        for each in code.co_consts:
            if isinstance(each, CodeType):
                yield each
                yield from codes(each)

    whole = compile(source, path, "exec", dont_inherit=True)
    return nodes, {code.co_firstlineno: code for code in codes(whole)}


def _node(function: FunctionType) -> ast.FunctionDef:
    """Return the source of a function, which has to be what was loaded."""
    code = function.__code__
    nodes, codes = _parsed(code.co_filename)
    line = code.co_firstlineno
    now = codes.get(line)
    if line not in nodes or now is None or code_text(now) != code_text(code):
        Scope(function).error(
            f"{function.__name__} is not in its file as it was loaded", "the file unchanged"
        )
    return nodes[line]
