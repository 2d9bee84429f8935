"""A function while it is translated: its names, its loops, how it fails and what it returns."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from vertexrt.errors import VertexrtError
from vertexrt.native import arithmetic
from vertexrt.native.text import FunctionText, Variable
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
    TupleType,
    Type,
    Value,
    literal,
    type_of,
)


class TranslationError(VertexrtError):
    """Report a loop that is written in more of Python than is translated."""


class Scope:
    """A function under translation.

    Attributes:
        text: of the function; name: in the module.
        names: variables, and values of names that are assigned once, before all that reads them.
        once: these names.
        loops: where `continue` and `break` go, innermost last.
        result: what is returned; fails: it may end with a failure; allocates: it makes arrays.
        written: numbers of the arrays given that it writes to.
    """

    def __init__(
        self, function: Any, call: Callable[[Scope, Any, Sequence[Value]], Value], name: str = ""
    ) -> None:
        self.function, self.call, self.name = function, call, name
        self.text = FunctionText()
        self.names: dict[str, Variable | Value] = {}
        self.once: frozenset[str] = frozenset()
        self.loops: list[tuple[str, str]] = []
        self.result: Variable | None = None
        self.fails = self.allocates = False
        self.written: set[int] = set()
        self.messages: dict[str, str] = {}  # text -> its name in the module
        self.line = function.__code__.co_firstlineno

    def error(self, got: str, expected: str) -> NoReturn:
        """Raise TranslationError for the line that is translated."""
        where = f"{self.function.__code__.co_filename}:{self.line}"
        raise TranslationError.at(
            where, got, expected, "see vertexrt/native for what is translated"
        )

    def look_up(self, name: str) -> Value:
        """Return what a name stands for."""
        found = self.names.get(name)
        if isinstance(found, Variable):
            return self.text.read(found)
        if found is not None:
            return found
        function = self.function
        cells = function.__code__.co_freevars, function.__closure__ or ()
        inside = {name: cell.cell_contents for name, cell in zip(*cells, strict=True)}
        for names in (inside, function.__globals__, vars(builtins)):
            if name in names:
                return Static(names[name])
        self.error(f"the name {name} has no value here", "a variable that was assigned before")

    def assign(self, name: str, value: Value) -> None:
        """Give a variable a value; its first decides its type."""
        if name in self.once:
            self.names[name] = value
            return
        known = self.names.get(name)
        if known is None:
            type = type_of(value)
            if type is None:
                self.error("a value that is known only here, of a variable", "numbers or arrays")
            known = self.names[name] = self.text.variable(type)
        if not isinstance(known, Variable):
            self.error(f"{name} is known while this is translated", "no other value for it")
        self.text.assign(known, self.fit(value, known.type))

    def fit(self, value: Value, type: Type) -> Value:
        """Return a value as one of a type, which it has or may become without loss."""
        if isinstance(type, TupleType):
            if not isinstance(value, Tuple) or len(value.parts) != len(type.parts):
                self.error("a value of another type", f"a tuple of {len(type.parts)}")
            parts = zip(value.parts, type.parts, strict=True)
            return Tuple(tuple(self.fit(part, kind) for part, kind in parts), type.record)
        if isinstance(type, ScalarType):
            return self._fit_number(self.number(value, type), type)
        found = value.type if isinstance(value, Array) else None
        if isinstance(type, ArrayType) and found != type:
            self.error(f"a value of another type: {found}", f"{type}")
        return value

    def _fit_number(self, number: Scalar, type: ScalarType) -> Scalar:
        given = number.type
        if given != type and (type is TRUTH or (given.real and type is not DOUBLE)):
            self.error(f"a value of type {given.name}", f"one of type {type.name}")
        return arithmetic.convert(self.text, number, type)

    def number(self, value: Value, like: ScalarType | None = None) -> Scalar:
        """Return a value as a number; a constant takes the type of a real that it meets."""
        if isinstance(value, Scalar):
            return value
        if isinstance(value, Static):
            type = type_of(value)
            plain = isinstance(value.value, int | float) and not isinstance(value.value, bool)
            if like is not None and like.real and plain:
                return literal(value.value, like)
            if isinstance(type, ScalarType):
                return literal(value.value, type)
        self.error(f"a {self.describe(value)}", "a number")

    def whole(self, value: Value) -> Scalar:
        """Return a value as a whole number."""
        number = self.number(value)
        if number.type.real:
            self.error("a real number", "a whole one")
        return arithmetic.convert(self.text, number, INT)

    def truth(self, value: Value) -> Scalar:
        """Return whether a value is true."""
        return arithmetic.convert(self.text, self.number(value), TRUTH)

    def array(self, value: Value) -> Array:
        """Return a value as an array."""
        if isinstance(value, Array):
            return value
        self.error(f"a {self.describe(value)}", "an array")

    def fail_unless(self, test: Scalar, why: str) -> None:
        """Leave the function, and all that called it, unless a test holds."""
        name = self.messages.setdefault(why, f"{self.name}.why{len(self.messages)}")
        good, bad = self.text.new_label(), self.text.new_label()
        self.text.line(f"br {test}, label %{good}, label %{bad}")
        self.text.begin(bad)
        at = self.text.made("getelementptr i8, ptr %call, i64 8")
        self.text.line(f'store ptr @"{name}", ptr {at}')
        self.text.go("exit", good)
        self.fails = True

    def leave_on_failure(self) -> None:
        """Leave the function where what it called has failed."""
        at = self.text.made("getelementptr i8, ptr %call, i64 8")
        failure = self.text.made(f"load ptr, ptr {at}")
        test = self.text.number(TRUTH, f"icmp eq ptr {failure}, null")
        good = self.text.new_label()
        self.text.branch(test, good, "exit")
        self.fails = True

    @staticmethod
    def describe(value: Value) -> str:
        """Name a value for people."""
        if isinstance(value, Static):
            return type(value.value).__name__
        return type(value).__name__.lower()
