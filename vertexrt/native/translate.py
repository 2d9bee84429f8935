"""Translate a function of Python, and those that it calls, to functions of one module of LLVM.

A function is translated by running it, once for all calls with arguments of the same types. Python
itself finds what names stand for, takes tuples and records apart and computes with what is known.
All that happens at run time is asked of the function's scope, which appends it: the source of a
function is changed so that its variables are read and assigned there, and that operators, tests,
loops and calls are methods (`BECOMES`). What is done maybe, or several times, is a function.

What a function calls is translated first, so that the type of a result is known; there is no
recursion.
"""

from __future__ import annotations

import ast
import builtins
import copy
import functools
import inspect
import itertools
import linecache
import math
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import CodeType, FunctionType
from typing import Any, NoReturn, cast

import numpy as np

from vertexrt.native import foreign
from vertexrt.native.code import REALS, Code, Lines, Register, word
from vertexrt.native.fingerprint import code_text
from vertexrt.native.scope import (
    DECLARED,
    DOUBLE,
    EXIT,
    INT,
    Array,
    KnownNumber,
    Scope,
    Type,
    Value,
    arrays_in,
    common,
    describe,
    element_type,
    held_in,
    is_number,
    leaves,
    mapped,
    registers,
    stored_as,
    type_of,
    words,
)

NUMBERS = (int, float, np.number, np.bool_)  # types that are called to convert a number

# What the nodes of a source become, where `_name` stands for their field of this name.
BECOMES: dict[type[ast.AST], str] = {
    ast.Assert: "_scope.fail_unless(_scope.truth(_test), WHY)",
    ast.Break: "_scope.go_to(_scope.loops[-1][1])",
    ast.Call: "_scope.called(_func, _args)",
    ast.Continue: "_scope.go_to(_scope.loops[-1][0])",
    ast.For: """
def _turn_(_item_):
    _target = _scope.unpacked(_item_, COUNT)
    _body
_scope.each(_iter, _turn_, NAMES)
""",
    ast.If: """
def _yes_():
    _body
def _no_():
    _orelse
_scope.branch(_test, _yes_, _no_)
""",
    ast.IfExp: "_scope.choice(_test, lambda: _body, lambda: _orelse)",
    ast.Return: "_scope.give_back(_value)",
    ast.While: """
with _scope.repeat(lambda: _scope.truth(_test)):
    _body
""",
    ast.Not: "_scope.choice(_operand, lambda: False, lambda: True)",
    ast.USub: "_scope.operate('*', _operand, -1)",
    ast.UAdd: "_operand",
    ast.Invert: "_scope.operate('^', _operand, -1)",
}
ITSELF = (
    *(ast.Assign, ast.Attribute, ast.Constant, ast.Expr, ast.Pass, ast.Slice, ast.Starred),
    *(ast.Subscript, ast.Tuple),
)


Module = dict[Any, "Translation | None"]  # functions by what they are translated for


@dataclass(frozen=True, slots=True)
class Static:
    """An argument that is known while a function is translated."""

    value: Any


@dataclass(frozen=True, slots=True)
class Counted:
    """What a loop at run time goes over: `item` of each number from `first` to `end`."""

    end: Register
    item: Callable[[Register], Value]
    first: Register | int = 0
    step: Register | None = None


def translated(module: Module, function: FunctionType, arguments: Iterable[Any]) -> Translation:
    """Return a function of a module, for arguments of some types, or that are known (`Static`).

    What it calls comes with it.

    Raises: TranslationError, for what is not translated.
    """
    given = [*arguments]
    key = function, repr(given)  # a record is not the tuple that it is equal to
    if key not in module:
        module[key] = None  # while it is translated
        module[key] = Translation(function, module, len(module), given)
    found = module[key]
    if found is None:
        Scope(function).error(f"{function.__name__} calls itself", "a loop")
    return found


class Translation(Scope):
    """A translated function, and what its source asks for.

    Args:
        number: of the function in its module; arguments: their types, or what is known of them.
    Attributes:
        keeps: it leaves memory to what called it.
    """

    def __init__(
        self,
        function: FunctionType,
        module: Module,
        number: int,
        arguments: Sequence[Type | Static],
    ) -> None:
        super().__init__(function, number)
        self.module = module
        staged, self.assigned_once = _staged(function)
        mark = self.memory[0]
        roots = (frozenset([k]) for k in itertools.count())
        names = function.__code__.co_varnames[: len(arguments)]
        for name, declared in zip(names, arguments, strict=True):
            if isinstance(declared, Static):
                self.names[name] = declared.value
                continue
            first = len(self.arguments)
            held = [
                Register(each, f"%a{first + k}", code=self)
                for k, each in enumerate(words(declared))
            ]
            self.arguments += held
            self[name] = held_in(declared, iter(held), roots)
        around = inspect.getclosurevars(function).nonlocals
        namespace = {**function.__globals__, **around}
        exec(staged, namespace)
        namespace["staged"](self)
        self.enter(EXIT)
        value = self.given_back = self.read(self.given_back)
        self.keeps = self.allocates and bool(arrays_in(value))
        if self.allocates and not self.keeps:  # else what called it frees what it does not return
            self.do("release", [self.memory, mark])
        held = registers(value)
        self.result = f"{{{', '.join(word(each.type) for each in held)}}}"
        whole = Register(self.result, "undef")
        for k, each in enumerate(held):
            whole = self.op(self.result, f"insertvalue {whole}, {each}, {k}")
        self.leave(whole)

    def append_call(self, code: Code, given: Sequence[Register]) -> Iterator[Register]:
        """Append a call of it, and return the registers of its result."""
        found = code.call(self.result, self.name, given)
        held = enumerate(registers(self.given_back))
        return iter([code.op(each.type, f"extractvalue {found}, {k}") for k, each in held])

    def constants(self) -> list[str]:
        """Return the messages of failures, as the module has them."""
        return [message(name, why) for why, name in self.messages.items()]

    # Statements.

    def branch(self, test: Value, yes: Callable[[], None], no: Callable[[], None]) -> None:
        """Append what is done where a test holds, and where it does not."""
        if isinstance(test, Register):
            self.either(self.truth(test), yes, no)
        else:
            (yes if test else no)()

    def each(self, over: Value, turn: Callable[[Value], None], names: Sequence[str]) -> None:
        """Append a loop; of a tuple, its body for each part, which may differ in type.

        Args:
            names: of the target.
        """
        if isinstance(over, Array):
            over = Counted(over.shape[0], over.__getitem__)
        if isinstance(over, Counted):
            with self.loop(over.first, over.end, step=over.step) as k:
                turn(over.item(k))
            return
        end = self.label()
        for part in self.parts_of(over):
            for name in names:  # each part has variables of its own
                self.names.pop(name, None)
            after = self.label()
            with self.inside(after, end):
                turn(part)
            self.enter(after)
        self.enter(end)

    def give_back(self, *given: Value) -> None:
        """Return from the function."""
        for each in given:
            if self.given_back is None:  # zero for where it fails
                self.given_back = self.new_variable(self.type_in_memory(each), zero=True)
            self.give(self.given_back, self.fit(each, type_of(self.given_back)))
        self.go_to(EXIT)

    def unpacked(self, given: Value, count: int) -> Value:
        """Return what is assigned to so many targets; 0 for a single one."""
        if not count:
            return given
        parts = (
            tuple(given[k] for k in range(count))
            if isinstance(given, Array)
            else self.parts_of(given)
        )
        if len(parts) != count:
            self.error(f"{len(parts)} values", f"{count}")
        return parts

    def parts_of(self, given: Value) -> tuple[Value, ...]:
        """Return the parts of a tuple."""
        if not isinstance(given, tuple):
            self.error(f"a {describe(given)}", "a tuple")
        return given

    # Expressions.

    def operate(self, sign: str, left: Value, right: Value) -> Value:
        """Return the result of an operator; of what is known, that of Python."""
        if sign in ("in", "not in"):
            tests = (self.operate("==", left, each) for each in self.parts_of(right))
            found = functools.reduce(partial(self.operate, "|"), tests, False)
            return self.operate("^", found, True) if sign == "not in" else found
        tuples = isinstance(left, tuple) and sign == "+"
        if tuples or sign in ("is", "is not") or not (_is_made(left) or _is_made(right)):
            return eval(f"left {sign} right", {"left": left, "right": right})
        return self.arithmetic(sign, *self.numbers(left, right))

    def choice(self, test: Value, yes: Callable[[], Value], no: Callable[[], Value]) -> Value:
        """Return one of two values: only one of both is made."""
        if not isinstance(test, Register):
            return yes() if test else no()
        made: list[tuple[Value, Lines]] = []

        def make(of: Callable[[], Value]) -> None:
            value = of()
            made.append((value, self.gap()))

        self.either(self.truth(test), partial(make, yes), partial(make, no))
        (first, _), (second, _) = made
        type, other = self.type_in_memory(first), type_of(second)
        if is_number(type) and is_number(other) and type != other:
            type = common(*(each.type for each in self.numbers(first, second)))
        variable = self.new_variable(type)
        for value, gap in made:
            with self.filling(gap):
                self.give(variable, self.fit(value, type))
        return self.read(variable)

    # Calls.

    def called(self, called: Any, *given: Value) -> Value:
        """Append a call of what is known here."""
        if isinstance(called, foreign.Foreign):
            return self._call_address(called, *given)
        if hasattr(called, "_fields") or isinstance(getattr(called, "__self__", None), Array):
            return called(*given)
        if isinstance(called, type) and called not in (range, enumerate):
            if not any(map(_is_made, given)):
                return called(*given)
            if issubclass(called, NUMBERS):
                return self._cast(np.dtype(called), *given)
        match called:
            case builtins.len:
                (of,) = given
                if isinstance(of, Register):
                    self.error("the length of a number", "that of an array")
                return of.shape[0] if isinstance(of, Array) else len(of)
            case builtins.range:
                first, end, by, *_ = map(self.whole, (*((0,) * (len(given) == 1)), *given, 1))
                if by.name.startswith("%"):
                    why = f"line {self.line_number()}: a range has a step that is not positive"
                    self.fail_unless(by > 0, why)
                return Counted(end, lambda k: k, first, by)
            case builtins.enumerate:
                (of,) = given
                if isinstance(of, Array):
                    return Counted(of.shape[0], lambda k: (k, of[k]))
                return tuple((KnownNumber(k), part) for k, part in enumerate(of))
            case builtins.min | builtins.max:
                sign = "<" if called is min else ">"
                return functools.reduce(partial(self._extreme, sign), given)
            case builtins.abs:
                return self._size(self.number(*given))
            case math.isfinite:
                number = self.convert(self.number(*given), DOUBLE)
                return self._size(number) < self.const(math.inf)
            case math.sqrt:
                number = self.convert(self.number(*given), DOUBLE)
                return self.call(DOUBLE, "llvm.sqrt.f64", [number])
            case np.empty | np.zeros | np.full:
                shape, *more = given
                value = more.pop(0) if called is np.full else None
                parts = shape if isinstance(shape, tuple) else (shape,)
                dtype = np.dtype(*more) if more else np.dtype(float)
                made = self.new(dtype, tuple(map(self.whole, parts)), called is np.zeros)
                if called is np.full:
                    made.fill(value)
                return made
            case foreign.filled_here:
                (of,) = given
                return Array(of.dtype, of.first, of.shape)
        called = getattr(called, "__wrapped__", called)
        if not isinstance(called, FunctionType):
            self.error(f"a call of {getattr(called, '__name__', called)}", "what is translated")
        return self._call_translated(called, given)

    def _extreme(self, sign: str, found: Value, other: Value) -> Value:
        """Return the first of the smallest numbers, or of the largest, as `min` and `max` do."""
        return self.choice(self.operate(sign, other, found), lambda: other, lambda: found)

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
                return value.first
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
            return None
        found = self.op(kind.result, call)
        return self.convert(found, INT) if kind.result == "i32" else found

    def _cast(self, dtype: np.dtype[Any], given: Value) -> Value:
        """Convert a number; one of fewer than 64 bits keeps the lowest."""
        found = self.convert(self.number(given), element_type(dtype))
        if dtype.kind == "b":
            return found
        return self.convert(self.convert(found, stored_as(dtype)), element_type(dtype))

    def _call_translated(self, function: FunctionType, given: Sequence[Value]) -> Value:
        """Append a call of a function that is translated too."""
        bound = inspect.signature(function).bind(*given)
        bound.apply_defaults()
        values = []
        for name, value in bound.arguments.items():
            type = DECLARED.get(str(function.__annotations__.get(name)))
            values.append(self._at_run_time(value) if type is None else self.fit(value, type))
        types = [Static(v) if None in leaves(type_of(v)) else type_of(v) for v in values]
        made = translated(self.module, function, types)
        passed = [  # what is known is not passed
            each
            for value, type in zip(values, types, strict=True)
            if not isinstance(type, Static)
            for each in registers(value)
        ]
        held = made.append_call(self, [self.memory, *passed])
        if made.fails:
            self.leave_on_failure()
        self.allocates |= made.keeps
        own = [array.roots for value in values for array in arrays_in(value)]
        self.written |= _union(own, made.written)
        roots = (_union(own, array.roots) for array in arrays_in(made.given_back))
        return held_in(type_of(made.given_back), held, roots)

    def _at_run_time(self, value: Value) -> Value:
        """Return constants as numbers: a function is not translated again for each."""
        return mapped(lambda x: self.number(x) if is_number(type_of(x)) else x, value)


def _is_made(value: Value) -> bool:
    """Tell whether a value is there at run time."""
    return isinstance(value, Register | Array | tuple)


def _union(roots: Sequence[frozenset[int]], of: Iterable[int]) -> frozenset[int]:
    """Return the roots of several arrays, by their numbers."""
    return frozenset().union(*(roots[k] for k in of))


def message(name: str, text: str) -> str:
    """Write a text as a module has it."""
    codes = [*text.encode(), 0]
    return f"{name} = private constant [{len(codes)} x i8] [{', '.join(f'i8 {c}' for c in codes)}]"


# Sources.


class _Filled(ast.NodeTransformer):
    """Puts nodes where names stand for them; statements, where one is a name alone."""

    def __init__(self, nodes: Mapping[str, Any]) -> None:
        self.nodes = nodes

    def visit_Expr(self, node: ast.Expr) -> Any:
        found = self.visit(node.value)
        return (found or ast.Pass()) if isinstance(found, list) else ast.Expr(found)

    def visit_Name(self, node: ast.Name) -> Any:
        return self.nodes.get(node.id, node)


class _Staging(ast.NodeTransformer):
    """Changes the source of a function: see the module."""

    def __init__(self, function: FunctionType) -> None:
        self.function = function
        self.own = function.__code__.co_varnames

    def error(self, node: ast.stmt | ast.expr, got: str, expected: str) -> NoReturn:
        """Raise TranslationError for the line of a node."""
        Scope(self.function).error(got, expected, node.lineno)

    def _check_no_call(self, node: ast.expr) -> None:
        """Refuse a call in what is written twice, and so would be called twice."""
        if any(isinstance(each, ast.Call) for each in ast.walk(node)):
            self.error(node, f"a call in {ast.unparse(node)}, which is read twice", "it before")

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id not in self.own:
            return node
        return ast.Subscript(ast.Name("_scope", ast.Load()), ast.Constant(node.id), node.ctx)

    def generic_visit(self, node: ast.AST) -> Any:
        text, known = BECOMES.get(type(node), ""), dict[str, Any]()
        simpler: ast.stmt | ast.expr | None = None
        match node:
            case ast.AugAssign(target, op, value):
                self._check_no_call(target)
                before = copy.deepcopy(target)
                before.ctx = ast.Load()
                simpler = ast.Assign([target], ast.BinOp(before, op, value))
            case ast.AnnAssign(target, _, value):
                simpler = ast.Assign([target], value) if value else ast.Pass()
            case ast.Compare(left, [_, _, *_] as ops, others):
                for between in others[:-1]:
                    self._check_no_call(between)
                lefts = [left, *copy.deepcopy(others)]
                sides = zip(lefts, ops, others, strict=False)
                tests: list[ast.expr] = [ast.Compare(a, [op], [b]) for a, op, b in sides]
                simpler = ast.BoolOp(ast.And(), tests)
            case ast.BoolOp(op, [*tests, whole]):
                ends = ast.Constant(isinstance(op, ast.Or))
                for test in reversed(tests):
                    ways = (ends, whole) if ends.value else (whole, ends)
                    whole = ast.IfExp(test, *ways)
                simpler = whole
            case ast.Compare(_, [op]):
                text = f"_scope.operate({_sign(ast.Compare(A, [op], [A]))}, _left, _comparators)"
            case ast.BinOp(_, op):
                text = f"_scope.operate({_sign(ast.BinOp(A, op, A))}, _left, _right)"
            case ast.UnaryOp(op):
                text = BECOMES[type(op)]
            case ast.Assign(targets):
                counts = [len(each.elts) for each in targets if isinstance(each, ast.Tuple)]
                if counts:
                    (known["COUNT"],) = counts
                    text = "_targets = _scope.unpacked(_value, COUNT)"
            case ast.Assert(test, told):
                known["WHY"] = told.value if isinstance(told, ast.Constant) else ast.unparse(test)
            case ast.For(orelse=[_, *_]) | ast.While(orelse=[_, *_]):
                self.error(node, "an `else` of a loop", "none")
            case ast.For(target):
                known["COUNT"] = len(target.elts) if isinstance(target, ast.Tuple) else 0
                known["NAMES"] = tuple(_stored(target))
            case ast.Call(keywords=[_, *_]):
                self.error(node, "an argument by keyword", "arguments by position")
            case ast.stmt() | ast.expr() if not isinstance(node, ITSELF) and not text:
                kind = "statement" if isinstance(node, ast.stmt) else "expression"
                line, *_ = ast.unparse(node).splitlines()
                self.error(node, f"the {kind} {line}", "one that is translated")
        if simpler is not None:
            return self.visit(ast.fix_missing_locations(ast.copy_location(simpler, node)))
        super().generic_visit(node)
        if not text:
            return node
        fields = {f"_{name}": value for name, value in ast.iter_fields(node)}
        fields |= {name: ast.Constant(value) for name, value in known.items()}
        tree = ast.parse(text)
        for each in ast.walk(tree):
            ast.copy_location(each, node)
        body = _Filled(fields).visit(tree).body
        return body if isinstance(node, ast.stmt) else body[0].value


A = ast.Name("a", ast.Load())


def _sign(node: ast.expr) -> str:
    """Return the operator between two `a`, as a text in quotes."""
    return repr(ast.unparse(node).strip("a "))


@functools.cache
def _staged(function: FunctionType) -> tuple[CodeType, frozenset[str]]:
    """Return a module with the function `staged` of a scope, and what names are assigned once."""
    node = _node(function)
    once = _assigned_once(node)
    body = _Staging(function).generic_visit(ast.Module(node.body, [])).body
    tree = _Filled({"_body": body}).visit(ast.parse("def staged(_scope):\n    _body"))
    path = function.__code__.co_filename
    return compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True), once


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


@functools.cache
def _codes(path: str) -> dict[int, CodeType]:
    """Return the functions of a file by line, as they would be loaded now."""

    def inside(code: CodeType) -> Iterator[CodeType]:
        for each in code.co_consts:
            if isinstance(each, CodeType):
                yield each
                yield from inside(each)

    whole = compile("".join(linecache.getlines(path)), path, "exec", dont_inherit=True)
    return {code.co_firstlineno: code for code in inside(whole)}


def _node(function: FunctionType) -> ast.FunctionDef:
    """Return the source of a function, which has to be what was loaded."""
    code = function.__code__
    now = _codes(code.co_filename).get(code.co_firstlineno)
    if now is None or code_text(now) != code_text(code):
        Scope(function).error(
            f"{function.__name__} is not in its file as it was loaded", "the file unchanged"
        )
    lines, first = inspect.getsourcelines(function)
    tree = ast.parse(textwrap.dedent("".join(lines)))
    return cast("ast.FunctionDef", ast.increment_lineno(tree, first - 1).body[0])
