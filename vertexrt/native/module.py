"""Translate a function of Python, and those that it calls, to one module of LLVM.

A function is translated once for all calls with arguments of the same types. What it calls is
translated first, so that the type of a result is known; there is no recursion.
"""

from __future__ import annotations

import ast
import functools
import itertools
import linecache
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any, cast

from vertexrt.native.fingerprint import code_text
from vertexrt.native.scope import Scope
from vertexrt.native.statements import run
from vertexrt.native.text import FunctionText
from vertexrt.native.values import (
    DOUBLE,
    INT,
    TRUTH,
    Static,
    Tuple,
    Type,
    Value,
    arrays_in,
    count_arrays,
    held_in,
    registers,
    type_of,
    words,
)

DECLARED = {"int": INT, "float": DOUBLE, "bool": TRUTH}  # by the annotation of an argument


@dataclass(frozen=True, slots=True)
class Translated:
    """A function that was translated.

    Attributes:
        name: in the module; result: its type, None for no result.
        roots: of each array of the result, the numbers of the arrays given that it may be.
        written: the numbers of the arrays given that it writes to.
        fails: it may fail; keeps: it leaves new arrays.
    """

    name: str
    result: Type | None
    roots: list[frozenset[int]]
    written: frozenset[int]
    fails: bool
    keeps: bool


class NativeModule:
    """The functions of a module: call `translate` for one, and what it calls comes with it."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._made: dict[Any, Translated | None] = {}

    def translate(self, function: FunctionType, arguments: Sequence[Type | Static]) -> Translated:
        """Translate a function for arguments of some types, or that are known.

        Raises: TranslationError, for what is not translated.
        """
        key = (function, *arguments)
        if key not in self._made:
            self._made[key] = None  # while it is translated
            self._made[key] = self._translate(function, arguments)
        found = self._made[key]
        if found is None:
            Scope(function, self.call).error(f"{function.__name__} calls itself", "a loop")
        return found

    def _translate(self, function: FunctionType, arguments: Sequence[Type | Static]) -> Translated:
        name = f"{function.__name__}.{len(self._made)}"
        scope = Scope(function, self.call, name)
        mark = scope.text.made("load ptr, ptr %call")
        node = _node(function)
        scope.once = _assigned_once(node)
        given = _take_arguments(scope, node, arguments)
        run(scope, node.body)
        scope.text.open("exit")
        self._return(scope, mark)
        result = scope.result
        kinds = [] if result is None else words(result.type)
        title = f'define internal {struct(kinds)} @"{name}"({", ".join(["ptr %call", *given])})'
        named = [
            f'@"{each}" = private constant [{len(why.encode()) + 1} x i8] c"{_escaped(why)}\\00"'
            for why, each in scope.messages.items()
        ]
        self.texts += ["\n".join([*named, f"{title} nounwind {{", *scope.text.lines(), "}"])]
        return Translated(
            name=name,
            result=None if result is None else result.type,
            roots=[] if result is None else result.roots,
            written=frozenset(scope.written),
            fails=scope.fails,
            keeps=scope.allocates and result is not None and count_arrays(result.type) > 0,
        )

    def _return(self, scope: Scope, mark: str) -> None:
        """Return the result; what was taken since `mark` is freed, but for that."""
        text, result = scope.text, scope.result
        value = Static(None) if result is None else text.read(result)
        held, kept = registers(value), arrays_in(value)
        if scope.allocates:
            room = text.place(f"[{max(1, len(kept))} x ptr]")
            for k, array in enumerate(kept):
                at = text.made(f"getelementptr ptr, ptr {room}, i64 {k}")
                text.line(f"store ptr {array.data}, ptr {at}")
            given = f"ptr %call, ptr {mark}, ptr {room}, i64 {len(kept)}"
            text.line(f"call void @release({given})")
        if result is None or not held:
            text.line("ret void")
        elif len(held) == 1:
            text.line(f"ret {words(result.type)[0]} {held[0]}")
        else:
            kinds = words(result.type)
            whole = "undef"
            for k, (word, name) in enumerate(zip(kinds, held, strict=True)):
                whole = text.made(f"insertvalue {struct(kinds)} {whole}, {word} {name}, {k}")
            text.line(f"ret {struct(kinds)} {whole}")

    def call(self, scope: Scope, function: FunctionType, given: Sequence[Value]) -> Value:
        """Translate a call of a function."""
        given = self._bound(scope, function, given)
        types = [type_of(value) or cast("Static", value) for value in given]
        made = self.translate(function, types)
        names = called(scope.text, made, ["ptr %call", *_passed(given, types)])
        if made.fails:
            scope.leave_on_failure()
        scope.allocates |= made.keeps
        own = [array.roots for value in given for array in arrays_in(value)]
        scope.written |= _union(own, made.written)
        if made.result is None:
            return Static(None)
        return held_in(made.result, iter(names()), (_union(own, each) for each in made.roots))

    def _bound(self, scope: Scope, function: FunctionType, given: Sequence[Value]) -> list[Value]:
        """Return the arguments of a call, with defaults, as they are declared."""
        names = function.__code__.co_varnames[: function.__code__.co_argcount]
        defaults = function.__defaults__ or ()
        missing = len(names) - len(given)
        if not 0 <= missing <= len(defaults):
            scope.error(f"{len(given)} arguments of {function.__name__}", f"{len(names)}")
        every = [*given, *(Static(x) for x in defaults[len(defaults) - missing :])]
        found: list[Value] = []
        for name, value in zip(names, every, strict=True):
            declared = DECLARED.get(str(function.__annotations__.get(name)))
            if declared is not None:
                value = scope.fit(value, declared)
            elif isinstance(value, Static | Tuple):
                value = _at_run_time(scope, value)
            found.append(value)
        return found


def _assigned_once(node: ast.FunctionDef) -> frozenset[str]:
    """Return the names that have one value: arguments, and what the body itself assigns once."""
    arguments = {argument.arg for argument in node.args.args}
    stored = Counter([*arguments, *_stored(node)])
    assigned = [each for each in node.body if isinstance(each, ast.Assign)]
    first = arguments.union(*(_stored(each) for each in assigned))
    return frozenset(name for name in first if stored[name] == 1)


def _stored(node: ast.AST) -> list[str]:
    """Return the names that are assigned in some code, once for each time."""
    names = [each for each in ast.walk(node) if isinstance(each, ast.Name)]
    return [each.id for each in names if isinstance(each.ctx, ast.Store)]


def _take_arguments(
    scope: Scope, node: ast.FunctionDef, arguments: Sequence[Type | Static]
) -> list[str]:
    """Make arguments the first variables of a function; return them as its text has them."""
    given: list[str] = []
    roots = (frozenset([k]) for k in itertools.count())
    for argument, declared in zip(node.args.args, arguments, strict=True):
        if isinstance(declared, Static):
            scope.names[argument.arg] = declared
            continue
        names = [f"%a{len(given) + k}" for k in range(len(words(declared)))]
        given += [f"{word} {name}" for word, name in zip(words(declared), names, strict=True)]
        scope.assign(argument.arg, held_in(declared, iter(names), roots))
    return given


def _union(roots: Sequence[frozenset[int]], of: Iterable[int]) -> frozenset[int]:
    """Return the roots of several arrays, by their numbers."""
    return frozenset().union(*(roots[k] for k in of))


def _passed(given: Sequence[Value], types: Sequence[Type | Static]) -> list[str]:
    """Return arguments as the text of a call has them; what is known is not passed."""
    return [
        f"{word} {name}"
        for value, type in zip(given, types, strict=True)
        if not isinstance(type, Static)
        for word, name in zip(words(type), registers(value), strict=True)
    ]


def called(text: FunctionText, made: Translated, passed: Sequence[str]) -> Callable[[], list[str]]:
    """Call a translated function; return what takes the registers of its result, when it is there.

    Args:
        passed: the arguments, with their types.
    """
    kinds = [] if made.result is None else words(made.result)
    call = f'call {struct(kinds)} @"{made.name}"({", ".join(passed)})'
    if not kinds:
        text.line(call)
        return list
    found = text.made(call)
    if len(kinds) == 1:
        return lambda: [found]
    return lambda: [
        text.made(f"extractvalue {struct(kinds)} {found}, {k}") for k in range(len(kinds))
    ]


def _at_run_time(scope: Scope, value: Value) -> Value:
    """Return constants as numbers: a function is not translated again for each."""
    if isinstance(value, Tuple):
        return Tuple(tuple(_at_run_time(scope, part) for part in value.parts), value.record)
    if isinstance(value, Static) and isinstance(value.value, tuple):
        return Tuple(tuple(_at_run_time(scope, Static(each)) for each in value.value))
    number = type_of(value)
    if isinstance(value, Static) and number is not None and value.value is not None:
        return scope.number(value)
    return value


def struct(kinds: Sequence[str]) -> str:
    """Return the type of several registers as a result, in LLVM's words."""
    if not kinds:
        return "void"
    return kinds[0] if len(kinds) == 1 else f"{{{', '.join(kinds)}}}"


def _escaped(text: str) -> str:
    return "".join(
        chr(b) if 32 <= b < 127 and b not in b'"\\' else f"\\{b:02X}" for b in text.encode()
    )


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
        Scope(function, NativeModule().call).error(
            f"{function.__name__} is not in its file as it was loaded", "the file unchanged"
        )
    return nodes[line]
