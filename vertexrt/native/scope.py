"""A function while it is translated: an emitter of what values of Python are and do.

Every whole number is an i64, whatever array it came from, except that what comes from an array of
uint64 stays unsigned, a u64: it wraps, and is shifted and compared without a sign. Reals are float
or double, truths i1. An array is the address of its first element and its extents, in C order; a
tuple is its parts, and nothing at run time. What is known while a function is translated (a
constant, a dtype, a function) is `Static`.

A function has names, variables and numbers as Python has them, arrays as NumPy has them; it may
fail, and it returns something. Every variable has a place on the stack; LLVM puts what it can in
registers.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, NoReturn, TypeAlias, cast

import numpy as np

from vertexrt.errors import VertexrtError
from vertexrt.native.code import OF_REALS, OF_WHOLES, REALS, SIGNED, Code, Register, word

INT, WORD, TRUTH, SINGLE, DOUBLE = "i64", "u64", "i1", "float", "double"
NOTHING = "void"  # the type of None, which functions return that return nothing
DECLARED = {"int": INT, "float": DOUBLE, "bool": TRUTH}  # by the annotation of an argument

FAILURE = 8  # bytes from the memory that a call took, its first argument, to why it failed
EXIT = "exit"  # the block in which a function returns


class TranslationError(VertexrtError):
    """Report a loop that is written in more of Python than is translated."""


@dataclass(frozen=True, slots=True)
class ArrayType:
    """An array in C order: its dtype and how many axes it has."""

    dtype: np.dtype[Any]
    ndim: int


@dataclass(frozen=True, slots=True)
class TupleType:
    """A tuple; `record` is its class, where that has names for the parts."""

    parts: tuple[Type, ...]
    record: type | None = None


Type: TypeAlias = str | ArrayType | TupleType  # a str is that of a number, or NOTHING


@dataclass(frozen=True, slots=True)
class Array:
    """An array; `roots` are the numbers of the arrays given whose memory it may be."""

    type: ArrayType
    data: Register
    extents: tuple[Register, ...]
    roots: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Tuple:
    """Several values."""

    parts: tuple[Value, ...]
    record: type | None = None


@dataclass(frozen=True, slots=True)
class Static:
    """An object of Python that is known while a function is translated."""

    value: Any


@dataclass(slots=True)
class Variable:
    """Where a number or an array is that changes: `Scope.read` returns what it is now.

    Attributes:
        places: of its registers; roots: of the arrays that it may be.
    """

    type: Type
    places: list[Register]
    roots: frozenset[int] = frozenset()


Value: TypeAlias = Register | Array | Tuple | Static | Variable


def is_number(type: Type | None) -> bool:
    """Tell whether a type is that of numbers."""
    return isinstance(type, str) and type != NOTHING


def stored_as(dtype: np.dtype[Any]) -> str:
    """Return what an element of an array is in memory."""
    if dtype.kind == "f":
        return SINGLE if dtype.itemsize == 4 else DOUBLE
    return f"{'i' if dtype.kind == 'i' else 'u'}{8 * dtype.itemsize}"


def element_type(dtype: np.dtype[Any]) -> str:
    """Return what an element of an array is as a number."""
    if dtype.kind == "f":
        return stored_as(dtype)
    return TRUTH if dtype.kind == "b" else WORD if dtype == np.uint64 else INT


def type_of(value: Value) -> Type | None:
    """Return the type of a value; None for a known object that cannot be one."""
    if isinstance(value, Tuple):
        parts = tuple(type_of(part) for part in value.parts)
        return None if None in parts else TupleType(parts, value.record)  # type: ignore[arg-type]
    if not isinstance(value, Static):
        return value.type
    if value.value is None:
        return NOTHING
    kinds = {bool: TRUTH, np.bool_: TRUTH, np.uint64: WORD, np.float32: SINGLE, float: DOUBLE}
    kinds |= {int: INT, np.integer: INT}
    return next((type for kind, type in kinds.items() if isinstance(value.value, kind)), None)


def words(type: Type) -> list[str]:
    """Return the types of the registers that a value of a type takes, in LLVM's words."""
    if isinstance(type, ArrayType):
        return ["ptr", *["i64"] * type.ndim]
    if isinstance(type, TupleType):
        return [each for part in type.parts for each in words(part)]
    return [] if type == NOTHING else [word(type)]


def registers(value: Value) -> list[Register]:
    """Return the registers that hold a value, of which `words` has the types."""
    if isinstance(value, Array):
        return [value.data, *value.extents]
    if isinstance(value, Tuple):
        return [each for part in value.parts for each in registers(part)]
    return [value] if isinstance(value, Register) else []


def arrays_in(value: Value) -> list[Array]:
    """Return the arrays of a value, in order."""
    if isinstance(value, Tuple):
        return [array for part in value.parts for array in arrays_in(part)]
    return [value] if isinstance(value, Array) else []


def held_in(type: Type, held: Iterator[Register], roots: Iterator[frozenset[int]]) -> Value:
    """Return the value that registers hold.

    Args:
        roots: of its arrays, in order.
    """
    if isinstance(type, ArrayType):
        data = next(held).to(stored_as(type.dtype))
        return Array(type, data, tuple(next(held) for _ in range(type.ndim)), next(roots))
    if isinstance(type, TupleType):
        return Tuple(tuple(held_in(part, held, roots) for part in type.parts), type.record)
    return Static(None) if type == NOTHING else replace(next(held), type=type)


class Scope(Code):
    """A function under translation.

    Attributes:
        names: variables, and values of names that are assigned once, before all that reads them.
        assigned_once: these names.
        given_back: what is returned; fails: it may end with a failure; allocates: it makes arrays.
        written: numbers of the arrays given that it writes to.
        memory: that the call took, and why it failed.
        messages: of failures, with their names in the module.
    """

    def __init__(self, function: Any, number: int = 0) -> None:
        super().__init__(f'"{function.__name__}.{number}"', "ptr*call", internal=True)
        self.function = function
        (self.memory,) = self.arguments
        self.names: dict[str, Value] = {}
        self.assigned_once: frozenset[str] = frozenset()
        self.given_back: Value = Static(None)
        self.fails = self.allocates = False
        self.written: set[int] = set()
        self.messages: dict[str, str] = {}
        self.at_line = function.__code__.co_firstlineno

    def error(self, got: str, expected: str) -> NoReturn:
        """Raise TranslationError for the line that is translated."""
        raise TranslationError.at(
            self.where(), got, expected, "see vertexrt/native for what is translated"
        )

    def where(self) -> str:
        """Name the line that is translated."""
        return f"{self.function.__code__.co_filename}:{self.at_line}"

    # Variables.

    def new_variable(self, type: Type, zero: bool = False) -> Value:
        """Return a variable that has no value yet, or is zero at first; of a tuple, its parts."""
        if isinstance(type, TupleType):
            parts = tuple(self.new_variable(part, zero) for part in type.parts)
            return Tuple(parts, type.record)
        return Variable(type, [self.place(each, zero) for each in words(type)])

    def give(self, to: Value, value: Value) -> None:
        """Give a variable a value of its type."""
        if isinstance(to, Tuple) and isinstance(value, Tuple):
            for each, part in zip(to.parts, value.parts, strict=True):
                self.give(each, part)
        elif isinstance(to, Variable):
            for register, place in zip(registers(value), to.places, strict=True):
                place[0] = register
            if isinstance(value, Array):
                to.roots |= value.roots

    def read(self, value: Value) -> Value:
        """Return a value without variables: what they are now."""
        if isinstance(value, Tuple):
            return Tuple(tuple(map(self.read, value.parts)), value.record)
        if not isinstance(value, Variable):
            return value
        return held_in(value.type, (place[0] for place in value.places), iter([value.roots]))

    def look_up(self, name: str) -> Value:
        """Return what a name stands for."""
        found = self.names.get(name)
        if found is not None:
            return self.read(found)
        for names in inspect.getclosurevars(self.function)[:3]:
            if name in names:
                return Static(names[name])
        self.error(f"the name {name} has no value here", "a variable that was assigned before")

    def assign(self, name: str, value: Value) -> None:
        """Give a name a value; its first decides its type."""
        if name in self.assigned_once:
            self.names[name] = value
            return
        known = self.names.get(name)
        if known is None:
            type = type_of(value)
            if type is None:
                self.error("a value that is known only here, of a variable", "numbers or arrays")
            known = self.names[name] = self.new_variable(type)
        if isinstance(known, Static):
            self.error(f"{name} is known while this is translated", "no other value for it")
        self.give(known, self.fit(value, cast("Type", type_of(known))))

    # Values as those of a type.

    def fit(self, value: Value, type: Type) -> Value:
        """Return a value as one of a type, which it has or may become without loss."""
        if isinstance(type, TupleType):
            if not isinstance(value, Tuple) or len(value.parts) != len(type.parts):
                self.error("a value of another type", f"a tuple of {len(type.parts)}")
            parts = zip(value.parts, type.parts, strict=True)
            return Tuple(tuple(self.fit(part, kind) for part, kind in parts), type.record)
        if isinstance(type, ArrayType):
            found = value.type if isinstance(value, Array) else None
            if found != type:
                self.error(f"a value of another type: {found}", f"{type}")
            return value
        if type == NOTHING:
            return value
        number = self.number(value, type)
        given = number.type
        if given != type and (type == TRUTH or (given in REALS and type != DOUBLE)):
            self.error(f"a value of type {word(given)}", f"one of type {word(type)}")
        return self.convert(number, type)

    def numbers(self, a: Value, b: Value) -> tuple[Register, Register]:
        """Return two values as numbers; a constant has the type of the other, if that is real."""
        one, other = (each.type if isinstance(each, Register) else "" for each in (a, b))
        return self.number(a, other), self.number(b, one)

    def number(self, value: Value, like: str = "") -> Register:
        """Return a value as a number; a constant takes the type of a real that it meets."""
        if isinstance(value, Register):
            return value
        if isinstance(value, Static):
            type = type_of(value)
            plain = isinstance(value.value, int | float) and not isinstance(value.value, bool)
            if like in REALS and plain:
                return self.const(value.value, like)
            if isinstance(type, str) and type != NOTHING:
                return self.const(value.value, type)
        self.error(f"a {describe(value)}", "a number")

    def whole(self, value: Value) -> Register:
        """Return a value as a whole number."""
        number = self.number(value)
        if number.type in REALS:
            self.error("a real number", "a whole one")
        return self.convert(number, INT)

    def truth(self, value: Value) -> Register:
        """Return whether a value is true."""
        return self.convert(self.number(value), TRUTH)

    def as_array(self, value: Value) -> Array:
        """Return a value as an array."""
        if isinstance(value, Array):
            return value
        self.error(f"a {describe(value)}", "an array")

    # Failures.

    def fail_unless(self, test: Register, why: str) -> None:
        """Leave the function, and all that called it, unless a test holds."""
        own = self.name.strip('"')
        name = self.messages.setdefault(why, f'@"{own}.why{len(self.messages)}"')
        with self.when(test, holds=False):
            self.store(Register("ptr", name), self.memory.to("i8") + FAILURE)
            self.go_to(EXIT)
        self.fails = True

    def leave_on_failure(self) -> None:
        """Leave the function where what it called has failed."""
        failure = self.field("ptr", self.memory, FAILURE)
        with self.when(failure.equals(Register("ptr", "null")), holds=False):
            self.go_to(EXIT)
        self.fails = True

    # Numbers as Python and NumPy have them.

    def operate(self, sign: str, a: Register, b: Register) -> Register | None:
        """Return the result of an operator or a comparison; None for one that there is not."""
        if not (a.type == b.type == TRUTH and sign in ("&", "|", "^", "==", "!=")):
            type = common(a.type, b.type)
            if sign == "/" and type not in REALS:
                type = DOUBLE
            a, b = self.convert(a, type), self.convert(b, type)
        if sign in ("//", "%") and a.type not in REALS:
            return self._floor(sign, a, b)
        known = SIGNED | (OF_REALS if a.type in REALS else OF_WHOLES)
        return self.apply(sign, a, b) if sign in known else None

    def _floor(self, sign: str, a: Register, b: Register) -> Register:
        """Divide, and round down; by zero, the result is zero as NumPy's is."""
        type, zero = a.type, self.const(0, a.type)
        if b.name == "0":
            return zero
        none = None if b.name.lstrip("-").isdecimal() else b.equals(0)
        by = b if none is None else self.select(none, self.const(1, type), b)
        quotient, left = a // by, a % by
        if type == INT:
            down = ((left ^ by) < 0) & left.differs(0)
            quotient -= self.convert(down, type)
            left += self.select(down, by, zero)
        found = quotient if sign == "//" else left
        return found if none is None else self.select(none, zero, found)

    def multiply(self, factors: Iterable[Register]) -> Register:
        """Multiply extents."""
        return reduce(Register.__mul__, factors, self.const(1, INT))

    # Arrays.

    def part(self, array: Array, index: list[Register | slice]) -> Array:
        """Return the part of an array that is at some indices, and in one slice after them.

        Indices are within their axes; slices of registers, or None, end where the axis does. A
        negative constant counts from the end.
        """
        extents, first = list(array.extents), self.const(0, INT)

        def from_end(bound: Register, extent: Register) -> Register:
            return extent + bound if bound.name.startswith("-") else bound

        for at in index:
            extent = extents.pop(0)
            inside = self.multiply(extents)
            if isinstance(at, slice):
                begin, size = self.const(0, INT), extent
                if at.stop is not None:
                    size = self.least(from_end(at.stop, extent), extent)
                if at.start is not None:
                    begin = from_end(at.start, extent)
                    size -= begin
                extents.insert(0, size if size is extent else self.most(size, 0))
            else:
                begin = from_end(at, extent)
            first += begin * inside if begin.name != "0" else begin
        kind = replace(array.type, ndim=len(extents))
        return Array(kind, array.data + first, tuple(extents), array.roots)

    def get(self, part: Array) -> Value:
        """Return an array, or the element that one without axes is."""
        return part if part.type.ndim else self.element(part, 0)

    def element(self, array: Array, at: Register | int) -> Register:
        """Read an element, counted over all axes."""
        return self.convert(array.data[at], element_type(array.type.dtype))

    def new(self, dtype: np.dtype[Any], extents: tuple[Register, ...], zero: bool = False) -> Array:
        """Return a new array in memory that is freed when the call ends, unless it is returned."""
        size = self.multiply((*extents, self.const(dtype.itemsize, INT)))
        given = [self.memory, size, self.const(zero, TRUTH)]
        data = self.call("ptr", "new", given, of=stored_as(dtype))
        self.leave_on_failure()
        self.allocates = True
        return Array(ArrayType(dtype, len(extents)), data, extents)

    def write(self, to: Array, value: Register | Array) -> None:
        """Write a number to all elements of an array, or those of one of the same shape."""
        dtype = to.type.dtype

        def stored(number: Register) -> Register:
            return self.convert(self.convert(number, element_type(dtype)), stored_as(dtype))

        number = value if isinstance(value, Array) else stored(value)
        if isinstance(number, Register) and not to.type.ndim:
            to.data[0] = number
            return
        with self.loop(0, self.multiply(to.extents)) as k:
            each = number if isinstance(number, Register) else stored(self.element(number, k))
            to.data[k] = each


def common(a: str, b: str) -> str:
    """Return the type that arithmetic of two numbers is done in."""
    if a in REALS or b in REALS:
        return SINGLE if a == b == SINGLE else DOUBLE
    return WORD if WORD in (a, b) else INT


def describe(value: Value) -> str:
    """Name a value for people."""
    if isinstance(value, Static):
        return type(value.value).__name__
    return "scalar" if isinstance(value, Register) else type(value).__name__.lower()
