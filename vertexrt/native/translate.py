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
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from types import CodeType, FunctionType
from typing import Any, cast

import numpy as np

from vertexrt.config import config
from vertexrt.native import foreign
from vertexrt.native.code import REALS, Code, Lines, Register, word
from vertexrt.native.fingerprint import code_text
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
    common,
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
    ast.Not: operator.not_,
}
AND, OR = ast.BitAnd(), ast.BitOr()  # of truths


NUMBERS = (int, float, np.number, np.bool_)  # types that are called to convert a number


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


class Translation(Scope):
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
        value = self.given_back = self.read(self.given_back)
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
        kinds = [each.type for each in registers(self.given_back)]
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

    def run(self, nodes: Sequence[ast.stmt]) -> None:
        """Append statements."""
        for node in nodes:
            self.at_line = node.lineno
            self._append(node)

    def _append(self, node: ast.stmt) -> None:
        match node:
            case ast.Expr(value):
                if not isinstance(value, ast.Constant):  # a docstring
                    self.visit(value)
            case ast.Assign(targets, value):
                given = self.visit(value)
                for target in targets:
                    self._assign(target, given)
            case ast.AnnAssign(target, _, value):
                if value is not None:
                    self._assign(target, self.visit(value))
            case ast.AugAssign(ast.Name(name), op, value):
                self.assign(name, self._operate(op, self.look_up(name), self.visit(value)))
            case ast.AugAssign(ast.Subscript(of, index), op, value):
                at = self._part(self.as_array(self.visit(of)), index)
                if at.type.ndim:
                    self.error("arithmetic of arrays", "a loop over their elements")
                given = self.visit(value)
                self._store(at, self._operate(op, self.get(at), given))
            case ast.AugAssign(target):
                self.error(f"an assignment to {ast.unparse(target)}", "to a name or an element")
            case ast.If(test, body, orelse):
                known = self.visit(test)
                if isinstance(known, Static):
                    self.run(body if known.value else orelse)
                else:
                    truth = self.truth(known)
                    self.either(truth, partial(self.run, body), partial(self.run, orelse))
            case ast.While(test, body):
                with self.repeat(lambda: self.truth(self.visit(test))):
                    self.run(body)
            case ast.For():
                self._for(node)
            case ast.Break():
                self.go_to(self.loops[-1][1])
            case ast.Continue():
                self.go_to(self.loops[-1][0])
            case ast.Return(value):
                self._return(value)
            case ast.Assert(test, told):
                holds = self.truth(self.visit(test))
                why = told.value if isinstance(told, ast.Constant) else ast.unparse(test)
                self.fail_unless(holds, str(why))
            case ast.Pass():
                pass
            case _:
                first = ast.unparse(node).splitlines()[0]
                self.error(f"the statement {first}", "one translated here")

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
            pairs = zip(to.extents, given.extents, strict=True)
            same = [one.equals(other) for one, other in pairs if one != other]
            if same:
                why = f"line {self.at_line}: arrays of different shapes"
                self.fail_unless(functools.reduce(Register.__and__, same), why)
            self.write(to, given)
            return
        type = element_type(to.type.dtype)
        number = self.number(given, type)
        if number.type in REALS and type not in REALS:
            self.error("a real number in an array of whole ones", "a whole one")
        self.write(to, number)

    def _for(self, node: ast.For) -> None:
        if node.orelse:
            self.error("an `else` of a loop", "none")
        numbered, over = False, node.iter
        match node.iter:
            case ast.Call(ast.Name("range"), bounds):
                self._for_range(node, self._several(bounds))
                return
            case ast.Call(ast.Name("enumerate"), [over]):
                numbered = True
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
        first, end, by, *_ = (self.whole(each) for each in (*bounds, Static(1)))
        if by.name.startswith("%"):
            why = f"line {self.at_line}: a range has a step that is not positive"
            self.fail_unless(by > 0, why)
        with self.loop(first, end, step=by) as k:
            self._assign(node.target, k)
            self.run(node.body)

    def _for_each(self, node: ast.For, parts: Sequence[Value], numbered: bool) -> None:
        """Append a loop over a tuple: the body once for each part, which may differ in type."""
        end = self.label()
        for k, part in enumerate(parts):
            for each in ast.walk(node.target):  # each part has variables of its own
                if isinstance(each, ast.Name):
                    self.names.pop(each.id, None)
            match node.target:
                case ast.Tuple([ast.Name(number), target]) if numbered:
                    self.names[number] = Static(k)
                    self._assign(target, part)
                case target:
                    self._assign(target, part)
            after = self.label()
            with self.inside(after, end):
                self.run(node.body)
            self.enter(after)
        self.enter(end)

    def _return(self, node: ast.expr | None) -> None:
        if node is not None:
            given = self.visit(node)
            if self.given_back == Static(None):
                type = type_of(given)
                if type is None:
                    self.error(
                        "a value that is only known here", "numbers, arrays or tuples of them"
                    )
                self.given_back = self.new_variable(type, zero=True)  # for where it fails
            self.give(self.given_back, self.fit(given, cast("Type", type_of(self.given_back))))
        self.go_to(EXIT)

    # Expressions.

    def visit(self, node: ast.expr) -> Value:
        """Append an expression, and return its value."""
        match node:
            case ast.Constant(value):
                return Static(value)
            case ast.Name(name):
                return self.look_up(name)
            case ast.Tuple(parts):
                return Tuple(tuple(self._several(parts)))
            case ast.Attribute(of, name):
                return self._attribute(of, name)
            case ast.Subscript(of, index):
                return self._subscript(self.visit(of), index)
            case ast.BinOp(left, op, right):
                return self._operate(op, self.visit(left), self.visit(right))
            case ast.UnaryOp(op, operand):
                return self._unary(op, self.visit(operand))
            case ast.BoolOp(op, values):
                return self._either_or_both(isinstance(op, ast.Or), list(values))
            case ast.Compare(first, ops, others):
                before = self.visit(first)
                found: Value = Static(True)
                for sign, other in zip(ops, others, strict=True):
                    after = self.visit(other)
                    holds = self._compare(sign, before, after)
                    found = holds if found == Static(True) else self._operate(AND, found, holds)
                    before = after
                return found
            case ast.IfExp(test, body, orelse):
                return self._choice(self.visit(test), body, orelse)
            case ast.Call(function, arguments, keywords):
                if keywords:
                    self.error("an argument by keyword", "arguments by position")
                return self._call(function, arguments)
        self.error(f"the expression {ast.unparse(node)}", "one that is translated")

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

    def _attribute(self, node: ast.expr, name: str) -> Value:
        of = self.names.get(node.id) if isinstance(node, ast.Name) else None
        if not isinstance(of, Tuple):
            of = self.visit(node)
        found: Value | None = None
        if isinstance(of, Tuple) and name in field_names(of):
            found = self.read(of.parts[field_names(of).index(name)])  # its other fields are not
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

    def _subscript(self, of: Value, index: ast.expr) -> Value:
        if not (isinstance(of, Tuple) or (isinstance(of, Static) and isinstance(of.value, tuple))):
            return self.get(self._part(self.as_array(of), index))
        parts = self.parts_of(of)
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

    def _unary(self, op: ast.unaryop, given: Value) -> Value:
        if isinstance(given, Static):
            return Static(OF_ONE[type(op)](given.value))
        if isinstance(op, ast.Not):
            return self.truth(given) ^ 1
        number = self.number(given)
        if isinstance(op, ast.USub):
            if number.type in REALS:
                return self.op(number.type, f"fneg {number}")
            return self._operate(ast.Sub(), Static(0), number)
        if isinstance(op, ast.Invert):
            return self._operate(ast.BitXor(), number, Static(-1))
        return number

    def _either_or_both(self, ends: bool, rest: list[ast.expr]) -> Value:
        """Return the truth of `or`, or of `and`; what follows is done only where it counts.

        Args:
            ends: the value that ends it.
        """
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

    def _compare(self, sign: ast.cmpop, left: Value, right: Value) -> Value:
        if isinstance(sign, ast.Is | ast.IsNot):
            objects = [each.value for each in (left, right) if isinstance(each, Static)]
            same = len(objects) == 2 and objects[0] is objects[1]
            return Static(same is isinstance(sign, ast.Is))
        if isinstance(sign, ast.In | ast.NotIn):
            found: Value = Static(False)
            for each in self.parts_of(right):
                test = self._compare(ast.Eq(), left, each)
                found = test if found == Static(False) else self._operate(OR, found, test)
            if isinstance(sign, ast.NotIn):
                return self._operate(ast.BitXor(), found, Static(True))
            return found
        return self._operate(sign, left, right)

    def _choice(self, test: Value, body: ast.expr, orelse: ast.expr) -> Value:
        """Return one of two values: only one of both is made."""
        if isinstance(test, Static):
            return self.visit(body if test.value else orelse)
        found: list[tuple[Value, Lines]] = []

        def make(of: ast.expr) -> None:
            value = self.visit(of)
            found.append((value, self.gap()))

        self.either(self.truth(test), partial(make, body), partial(make, orelse))
        (first, _), (second, _) = found
        type, other = type_of(first), type_of(second)
        if is_number(type) and is_number(other) and type != other:
            type = common(*(each.type for each in self.numbers(first, second)))
        if type is None:
            self.error("a value that is known only here, of a variable", "numbers or arrays")
        variable = self.new_variable(type)
        for value, gap in found:
            with self.filling(gap):
                self.give(variable, self.fit(value, type))
        return self.read(variable)

    # Calls.

    def _call(self, node: ast.expr, arguments: list[ast.expr]) -> Value:
        if isinstance(node, ast.Attribute) and node.attr in ("view", "reshape", "copy"):
            of = self.visit(node.value)
            if isinstance(of, Array):
                return self._call_method(node.attr, of, self._several(arguments))
        function = self.visit(node)
        if not isinstance(function, Static):
            self.error(f"a call of a {describe(function)}", "a function")
        called, given = function.value, self._several(arguments)
        if isinstance(called, type) and hasattr(called, "_fields"):
            return Tuple(tuple(given), called)
        known = self._call_known(called, given)
        if known is not None:
            return known
        called = getattr(called, "__wrapped__", called)
        if not isinstance(called, FunctionType):
            self.error(f"a call of {getattr(called, '__name__', called)}", "what is translated")
        return self._call_translated(called, given)

    def _call_method(self, name: str, array: Array, given: list[Value]) -> Value:
        """Append a call of a method of an array."""
        match name:
            case "copy":
                made = self.new(array.type.dtype, array.extents)
                self.write(made, array)
                return made
            case "reshape":
                extents = tuple(map(self.whole, given))
                if [each.name for each in extents] == ["-1"]:
                    extents = (self.multiply(array.extents),)
                kind = ArrayType(array.type.dtype, len(extents))
                return replace(array, type=kind, extents=extents)
        if array.type.ndim != 1:
            self.error(f"a view of an array of {array.type.ndim} axes", "of one axis")
        dtype, (size,) = self._dtype(given), array.extents
        wide, narrow = dtype.itemsize, array.type.dtype.itemsize
        if wide > narrow:
            size //= wide // narrow
        elif wide < narrow:
            size *= narrow // wide
        return Array(ArrayType(dtype, 1), array.data.to(stored_as(dtype)), (size,), array.roots)

    def _dtype(self, named: Sequence[Value]) -> np.dtype[Any]:
        """Return a dtype that is the only argument left, if it is not the usual one."""
        if not named:
            return np.dtype(np.float64)
        if not isinstance(named[0], Static):
            self.error("a dtype that is a number", "one that is known")
        found: np.dtype[Any] = np.dtype(named[0].value)
        return found

    def _call_known(self, called: Any, given: list[Value]) -> Value | None:
        """Append a call of what stands for instructions of its own; None for any other."""
        if isinstance(called, foreign.Foreign):
            return self._call_address(called, *given)
        if isinstance(called, type) and issubclass(called, NUMBERS):
            return self._cast(np.dtype(called), given[0])
        match called:
            case builtins.len:
                (of,) = given
                if isinstance(of, Register | Variable):
                    self.error("the length of a number", "that of an array")
                if isinstance(of, Array):
                    return of.extents[0]
                return Static(len(of.parts if isinstance(of, Tuple) else of.value))
            case builtins.min | builtins.max:
                return self._extreme(called, given)
            case builtins.abs:
                return self._size(self.number(given[0]))
            case math.isfinite:
                number = self.convert(self.number(given[0]), DOUBLE)
                return self._size(number) < self.const(math.inf)
            case math.sqrt:
                number = self.convert(self.number(given[0]), DOUBLE)
                return self.call(DOUBLE, "llvm.sqrt.f64", [number])
            case np.empty | np.zeros | np.full:
                shape, *more = given
                parts = shape.parts if isinstance(shape, Tuple) else (shape,)
                dtype = self._dtype(more[called is np.full :])
                made = self.new(dtype, tuple(map(self.whole, parts)), called is np.zeros)
                if called is np.full:
                    self.write(made, self.number(more[0]))
                return made
            case foreign.filled_here:
                return replace(self.as_array(given[0]), roots=frozenset())
        return None

    def _extreme(self, called: Callable[..., Any], given: list[Value]) -> Value:
        """Return the first of the smallest numbers, or of the largest, as `min` and `max` do."""
        known = [each.value for each in given if isinstance(each, Static)]
        if len(known) == len(given):
            return Static(called(known))
        like = next(each.type for each in given if isinstance(each, Register))
        found, *others = [self.number(each, like) for each in given]
        for other in others:
            if found.type != other.type:
                type = common(found.type, other.type)
                found, other = self.convert(found, type), self.convert(other, type)
            test = self.apply("<" if called is min else ">", other, found)
            found = self.select(test, other, found)
        return found

    def _size(self, number: Register) -> Register:
        """Return a number without its sign."""
        if number.type in REALS:
            return self.call(number.type, f"llvm.fabs.f{REALS[number.type]}", [number])
        zero = self.const(0, number.type)
        other = zero - number
        return self.select(number < zero, other, number)

    def _call_address(self, kind: foreign.Foreign, address: Value, *values: Value) -> Value:
        """Append a call of a function by its address."""

        def address_of(number: Register) -> Register:
            return self.op("ptr", f"inttoptr {number} to ptr")

        def passed(type: str, value: Value) -> Register:
            if type == "ptr" and isinstance(value, Array):
                return value.data
            if type == DOUBLE:
                return self.convert(self.number(value, DOUBLE), DOUBLE)
            number = self.whole(value)
            return address_of(number) if type == "ptr" else self.convert(number, type)

        types, pointer = kind.arguments.split(), address_of(self.whole(address))
        if len(types) != len(values):
            self.error(f"{len(values)} arguments", f"{len(types)}")
        arguments = ", ".join(str(passed(*each)) for each in zip(types, values, strict=True))
        call = f"call {kind.result} {pointer.name}({arguments})"
        if kind.result == "void":
            self.line(call)
            return Static(None)
        found = self.op(kind.result, call)
        return self.convert(found, INT) if kind.result == "i32" else found

    def _cast(self, dtype: np.dtype[Any], given: Value) -> Value:
        """Convert a number; one of fewer than 64 bits keeps the lowest."""
        if isinstance(given, Static):
            return Static(dtype.type(given.value))
        found = self.convert(self.number(given), element_type(dtype))
        if dtype.kind == "b":
            return found
        return self.convert(self.convert(found, stored_as(dtype)), element_type(dtype))

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
        roots = (_union(own, array.roots) for array in arrays_in(made.given_back))
        return held_in(cast("Type", type_of(made.given_back)), iter(held()), roots)

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
