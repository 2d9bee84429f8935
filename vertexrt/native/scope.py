"""A function while it is translated: an emitter of what values of Python are and do.

Every whole number is an i64, whatever array it came from, except that what comes from an array of
uint64 stays unsigned, a u64: it wraps, and is shifted and compared without a sign. Reals are float
or double, truths i1: all these are registers. An array is the address of its first element and its
extents, in C order. A tuple is a tuple of Python, of values; and what is known while a function is
translated (a constant, a dtype, a function) is itself.

A function has names, variables and numbers as Python has them, arrays as NumPy has them; it may
fail, and it returns something. Every variable has a place on the stack; LLVM puts what it can in
registers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, NoReturn, TypeAlias, cast

import numpy as np

from vertexrt.config import config
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


# A str is the type of a number, or NOTHING; that of a tuple or record is one of types.
Type: TypeAlias = Any  # str | ArrayType | tuple of types


class KnownNumber(int):
    """A number that stays known while a function is translated, whatever name it gets."""


@dataclass(slots=True)
class Variable:
    """Where a number or an array is that changes: `Scope.read` returns what it is now.

    Attributes:
        places: of its registers; roots: of the arrays that it may be.
    """

    type: Type
    places: list[Register]
    roots: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Array:
    """An array, with what loops use of one of NumPy.

    Attributes:
        first: the address of its elements.
        roots: the numbers of the arrays given whose memory it may be.
    """

    dtype: np.dtype[Any]
    first: Register
    shape: tuple[Register, ...]
    roots: frozenset[int] = frozenset()

    @property
    def scope(self) -> Scope:
        """The function that it belongs to."""
        return cast("Scope", self.first.function())

    @property
    def ndim(self) -> int:
        """How many axes it has."""
        return len(self.shape)

    @property
    def type(self) -> ArrayType:
        """Its type."""
        return ArrayType(self.dtype, self.ndim)

    @property
    def size(self) -> Register:
        """How many elements it has."""
        return self.scope.multiply(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return self.dtype.itemsize

    @property
    def ctypes(self) -> Array:
        """What has its address, as `data`."""
        return self

    @property
    def data(self) -> Register:
        """Its address, as a number."""
        return self.scope.op(INT, f"ptrtoint {self.first} to i64")

    def __getitem__(self, key: Any) -> Register | Array:
        part = self.part(key)
        return part if part.ndim else part.element(0)

    def __setitem__(self, key: Any, value: Value) -> None:
        part = self.part(key)
        self.scope.written |= part.roots
        part.fill(value)

    def part(self, key: Any) -> Array:
        """Return the part that is at some indices, and in one slice after them.

        Indices are within their axes, which is checked under VERTEXRT_CHECK. A negative constant
        counts from the end.
        """
        code, keys = self.scope, key if isinstance(key, tuple) else (key,)
        extents, first = list(self.shape), code.const(0, INT)
        if len(keys) > self.ndim:
            code.error(f"{len(keys)} indices", f"at most {self.ndim}")
        if any(isinstance(each, slice) for each in keys[:-1]):
            code.error("a slice before an index", "one after all indices")
        for at in keys:
            extent = extents.pop(0)
            inside = code.multiply(extents)

            def bound(given: Value, end: Register = extent) -> Register:
                found = code.whole(given)
                return end + found if found.name.startswith("-") else found

            if isinstance(at, slice):
                if at.step is not None:
                    code.error("a slice with a step", "none")
                begin, size = code.const(0, INT), extent
                if at.stop is not None:
                    size = code.least(bound(at.stop), extent)
                if at.start is not None:
                    begin = bound(at.start)
                    size -= begin
                extents.insert(0, size if size is extent else code.most(size, 0))
            else:
                begin = bound(at)
                if config().check:
                    is_inside = code.convert(begin, WORD) < extent
                    code.fail_unless(is_inside, f"{code.where()}: an index is out of bounds")
            first += begin * inside if begin.name != "0" else begin
        return Array(self.dtype, self.first + first, tuple(extents), self.roots)

    def element(self, at: Register | int) -> Register:
        """Read an element, counted over all axes."""
        return self.scope.convert(self.first[at], element_type(self.dtype))

    def fill(self, value: Value) -> None:
        """Write a number to all elements, or those of an array of the same shape."""
        code, type = self.scope, element_type(self.dtype)

        def stored(number: Register) -> Register:
            return code.convert(code.convert(number, type), stored_as(self.dtype))

        if isinstance(value, Array):
            if value.ndim != self.ndim:
                code.error(f"an array of {value.ndim} axes", f"{self.ndim}")
            pairs = zip(self.shape, value.shape, strict=True)
            same = [one.equals(other) for one, other in pairs if one != other]
            if same:
                why = f"line {code.line_number()}: arrays of different shapes"
                code.fail_unless(reduce(Register.__and__, same), why)
        else:
            number = code.number(value, type)
            if number.type in REALS and type not in REALS:
                code.error("a real number in an array of whole ones", "a whole one")
            number = stored(number)
            if not self.ndim:
                self.first[0] = number
                return
        with code.loop(0, self.size) as k:
            self.first[k] = stored(value.element(k)) if isinstance(value, Array) else number

    def copy(self) -> Array:
        """Return a new array of the same elements."""
        made = self.scope.new(self.dtype, self.shape)
        made.fill(self)
        return made

    def reshape(self, *shape: Value) -> Array:
        """Return the same elements in another shape; -1 alone is for one axis of all."""
        extents = (self.size,) if shape == (-1,) else tuple(map(self.scope.whole, shape))
        return replace(self, shape=extents)

    def view(self, dtype: Any) -> Array:
        """Return the same memory as elements of another dtype."""
        if self.ndim != 1:
            self.scope.error(f"a view of an array of {self.ndim} axes", "of one axis")
        made, (size,) = np.dtype(dtype), self.shape
        if made.itemsize > self.itemsize:
            size //= made.itemsize // self.itemsize
        elif made.itemsize < self.itemsize:
            size *= self.itemsize // made.itemsize
        return Array(made, self.first.to(stored_as(made)), (size,), self.roots)


Value: TypeAlias = Any  # Register | Array | tuple of values | Variable | an object of Python


def is_number(type: Type) -> bool:
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


def mapped(made: Callable[..., Value], *given: Value) -> Value:
    """Return tuples like the first, of what is made of the leaves of all."""
    first = given[0]
    if not isinstance(first, tuple):
        return made(*given)
    parts = [mapped(made, *each) for each in zip(*given, strict=True)]
    return tuple_of(type(first), parts)


def tuple_of(record: Any, parts: Iterable[Value]) -> Value:
    """Return a tuple of a class, which may be a record."""
    return record._make(parts) if hasattr(record, "_fields") else tuple(parts)


def leaves(value: Value) -> list[Value]:
    """Return what tuples in tuples hold; the value, if it is none."""
    return [x for part in value for x in leaves(part)] if isinstance(value, tuple) else [value]


def type_of(value: Value) -> Type:
    """Return the type of a value; None, also as a part, of a known object that cannot be one."""
    if isinstance(value, tuple):
        return mapped(type_of, value)
    if isinstance(value, Register | Array | Variable):
        return value.type
    if value is None:
        return NOTHING
    kinds = {bool: TRUTH, np.bool_: TRUTH, np.uint64: WORD, np.float32: SINGLE, float: DOUBLE}
    kinds |= {int: INT, np.integer: INT}
    return next((type for kind, type in kinds.items() if isinstance(value, kind)), None)


def words(type: Type) -> list[str]:
    """Return the types of the registers that a value of a type takes, in LLVM's words."""
    found = []
    for each in leaves(type):
        if isinstance(each, ArrayType):
            found += ["ptr", *["i64"] * each.ndim]
        elif each != NOTHING:
            found.append(word(each))
    return found


def registers(value: Value) -> list[Register]:
    """Return the registers that hold a value, of which `words` has the types."""
    found = []
    for each in leaves(value):
        if isinstance(each, Array):
            found += [each.first, *each.shape]
        elif isinstance(each, Register):
            found.append(each)
    return found


def arrays_in(value: Value) -> list[Array]:
    """Return the arrays of a value, in order."""
    return [each for each in leaves(value) if isinstance(each, Array)]


def held_in(type: Type, held: Iterator[Register], roots: Iterator[frozenset[int]]) -> Value:
    """Return the value that registers hold.

    Args:
        roots: of its arrays, in order.
    """

    def made(type: Type) -> Value:
        if isinstance(type, ArrayType):
            first = next(held).to(stored_as(type.dtype))
            shape = tuple(next(held) for _ in range(type.ndim))
            return Array(type.dtype, first, shape, next(roots))
        return None if type == NOTHING else replace(next(held), type=type)

    return mapped(made, type)


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
        self.given_back: Value = None
        self.fails = self.allocates = False
        self.written: set[int] = set()
        self.messages: dict[str, str] = {}

    def error(self, got: str, expected: str, line: int = 0) -> NoReturn:
        """Raise TranslationError for the line that is translated."""
        raise TranslationError.at(
            self.where(line), got, expected, "see vertexrt/native for what is translated"
        )

    def where(self, line: int = 0) -> str:
        """Name the line that is translated."""
        return f"{self.function.__code__.co_filename}:{line or self.line_number()}"

    def line_number(self) -> int:
        """Return the line that is translated, which runs now."""
        code, frame = self.function.__code__, sys._getframe()
        while frame.f_back and frame.f_code.co_filename != code.co_filename:
            frame = frame.f_back
        return frame.f_lineno if frame.f_back else int(code.co_firstlineno)

    # Variables.

    def new_variable(self, type: Type, zero: bool = False) -> Value:
        """Return a variable that has no value yet, or is zero at first; of a tuple, its parts."""
        return mapped(lambda each: Variable(each, [self.place(w, zero) for w in words(each)]), type)

    def give(self, to: Value, value: Value) -> None:
        """Give a variable a value of its type."""
        for variable, each in zip(leaves(to), leaves(value), strict=True):
            for register, place in zip(registers(each), variable.places, strict=True):
                place[0] = register
            if isinstance(each, Array):
                variable.roots |= each.roots

    def read(self, value: Value) -> Value:
        """Return a value without variables: what they are now."""

        def now(x: Value) -> Value:
            if not isinstance(x, Variable):
                return x
            return held_in(x.type, (place[0] for place in x.places), iter([x.roots]))

        return mapped(now, value)

    def __getitem__(self, name: str) -> Value:
        if name not in self.names:
            self.error(f"the name {name} has no value here", "a variable that was assigned before")
        return self.read(self.names[name])

    def __setitem__(self, name: str, value: Value) -> None:
        """Give a name a value; its first decides its type."""
        if name in self.assigned_once or isinstance(value, KnownNumber):
            self.names[name] = value
        elif name != "_":  # which is given up
            if name not in self.names:
                self.names[name] = self.new_variable(self.type_in_memory(value))
            known = self.names[name]
            if not isinstance(known, Variable | tuple):
                self.error(f"{name} is known while this is translated", "no other value for it")
            self.give(known, self.fit(value, type_of(known)))

    def type_in_memory(self, value: Value) -> Type:
        """Return the type of a value that a variable can have."""
        type = type_of(value)
        if None in leaves(type):
            self.error("a value that is known only here, of a variable", "numbers or arrays")
        return type

    # Values as those of a type.

    def fit(self, value: Value, type: Type) -> Value:
        """Return a value as one of a type, which it has or may become without loss."""
        if isinstance(type, tuple):
            if not isinstance(value, tuple) or len(value) != len(type):
                self.error("a value of another type", f"a tuple of {len(type)}")
            return tuple_of(type.__class__, map(self.fit, value, type))
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
        type = type_of(value)
        if not isinstance(type, str) or type == NOTHING:
            self.error(f"a {describe(value)}", "a number")
        plain = isinstance(value, int | float) and not isinstance(value, bool)
        return self.const(value, like if like in REALS and plain else type)

    def whole(self, value: Value) -> Register:
        """Return a value as a whole number."""
        number = self.number(value)
        if number.type in REALS:
            self.error("a real number", "a whole one")
        return self.convert(number, INT)

    def truth(self, value: Value) -> Register:
        """Return whether a value is true."""
        return self.convert(self.number(value), TRUTH)

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

    def arithmetic(self, sign: str, a: Register, b: Register) -> Register:
        """Return the result of an operator or a comparison."""
        if not (a.type == b.type == TRUTH and sign in ("&", "|", "^", "==", "!=")):
            type = common(a.type, b.type)
            if sign == "/" and type not in REALS:
                type = DOUBLE
            a, b = self.convert(a, type), self.convert(b, type)
        if sign in ("//", "%") and a.type not in REALS:
            return self._floor(sign, a, b)
        if sign not in SIGNED | (OF_REALS if a.type in REALS else OF_WHOLES):
            self.error(f"the operator {sign} of such numbers", "one that is translated")
        return self.apply(sign, a, b)

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

    def new(self, dtype: np.dtype[Any], shape: tuple[Register, ...], zero: bool = False) -> Array:
        """Return a new array in memory that is freed when the call ends, unless it is returned."""
        size = self.multiply((*shape, self.const(dtype.itemsize, INT)))
        given = [self.memory, size, self.const(zero, TRUTH)]
        first = self.call("ptr", "new", given, of=stored_as(dtype))
        self.leave_on_failure()
        self.allocates = True
        return Array(dtype, first, shape)


def common(a: str, b: str) -> str:
    """Return the type that arithmetic of two numbers is done in."""
    if a in REALS or b in REALS:
        return SINGLE if a == b == SINGLE else DOUBLE
    return WORD if WORD in (a, b) else INT


def describe(value: Value) -> str:
    """Name a value for people."""
    return "scalar" if isinstance(value, Register) else type(value).__name__.lower()
