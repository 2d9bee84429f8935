"""A function while it is translated: an emitter of what values of Python are and do.

It has names, variables and numbers as Python has them, arrays as NumPy has them; it may fail, and
it returns something. Every variable has a place on the stack; LLVM puts what it can in registers.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, NoReturn

import numpy as np

from vertexrt.errors import VertexrtError
from vertexrt.native.code import (
    OF_REALS,
    ORDERED,
    REALS,
    SIGNED,
    Code,
    Register,
    constant,
    int64,
    word,
)
from vertexrt.native.values import (
    DOUBLE,
    INT,
    NOTHING,
    SINGLE,
    TRUTH,
    WORD,
    Array,
    ArrayType,
    Static,
    Tuple,
    TupleType,
    Type,
    Value,
    arrays_in,
    count_arrays,
    element_type,
    held_in,
    is_number,
    registers,
    stored_as,
    type_of,
    words,
)

OF_WHOLES = {"+": "add", "-": "sub", "*": "mul", "<<": "shl", "&": "and", "|": "or", "^": "xor"}

CALL = Register("ptr", "%call")  # the memory that a call took, and why it failed
FAILURE = 8  # bytes from there to the second
EXIT = "exit"  # the block in which a function returns


class TranslationError(VertexrtError):
    """Report a loop that is written in more of Python than is translated."""


@dataclass(slots=True)
class Variable:
    """A variable: its type, its places, and the roots of its arrays."""

    type: Type
    places: list[Register]
    roots: list[frozenset[int]]


@dataclass(frozen=True, slots=True)
class Cut:
    """A slice of an axis: from `begin` to `end`, None for the ends of the axis."""

    begin: Register | None
    end: Register | None


class Scope(Code):
    """A function under translation.

    Attributes:
        names: variables, and values of names that are assigned once, before all that reads them.
        assigned_once: these names.
        given_back: what is returned; fails: it may end with a failure; allocates: it makes arrays.
        written: numbers of the arrays given that it writes to.
        messages: of failures, with their names in the module.
    """

    def __init__(self, function: Any, number: int = 0) -> None:
        super().__init__(f'"{function.__name__}.{number}"', [CALL], internal=True)
        self.function = function
        self.names: dict[str, Variable | Value] = {}
        self.assigned_once: frozenset[str] = frozenset()
        self.given_back: Variable | None = None
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

    def new_variable(self, type: Type, zero: bool = False) -> Variable:
        """Return a variable that has no value yet, or is zero at first."""
        places = [self.place(each, zero) for each in words(type)]
        return Variable(type, places, [frozenset()] * count_arrays(type))

    def give(self, variable: Variable, value: Value) -> None:
        """Give a variable a value of its type."""
        found = zip(variable.roots, arrays_in(value), strict=True)
        variable.roots = [before | array.roots for before, array in found]
        for register, place in zip(registers(value), variable.places, strict=True):
            self.store(register, place)

    def read(self, variable: Variable) -> Value:
        """Return the value of a variable."""
        kinds = zip(words(variable.type), variable.places, strict=True)
        held = [self.load(each, place) for each, place in kinds]
        return held_in(variable.type, iter(held), iter(variable.roots))

    def read_part(self, variable: Variable, at: int) -> Value:
        """Return a part of a variable that is a tuple."""
        assert isinstance(variable.type, TupleType)
        parts = variable.type.parts
        place = sum(len(words(part)) for part in parts[:at])
        root = sum(map(count_arrays, parts[:at]))
        places = variable.places[place : place + len(words(parts[at]))]
        roots = variable.roots[root : root + count_arrays(parts[at])]
        return self.read(Variable(parts[at], places, roots))

    def look_up(self, name: str) -> Value:
        """Return what a name stands for."""
        found = self.names.get(name)
        if isinstance(found, Variable):
            return self.read(found)
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
        if not isinstance(known, Variable):
            self.error(f"{name} is known while this is translated", "no other value for it")
        self.give(known, self.fit(value, known.type))

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

    def common_type(self, a: Value, b: Value) -> Type:
        """Return a type for either of two values."""
        kinds = type_of(a), type_of(b)
        if all(map(is_number, kinds)) and kinds[0] != kinds[1]:
            return common(*(each.type for each in self.numbers(a, b)))
        if kinds[0] is None:
            self.error("a value that is known only here, of a variable", "numbers or arrays")
        return kinds[0]

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
                return constant(value.value, like)
            if isinstance(type, str) and type != NOTHING:
                return constant(value.value, type)
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
            self.store(Register("ptr", name), self.at(CALL, FAILURE, "i8"))
            self.go_to(EXIT)
        self.fails = True

    def leave_on_failure(self) -> None:
        """Leave the function where what it called has failed."""
        failure = self.field("ptr", CALL, FAILURE)
        with self.when(self.op(TRUTH, f"icmp eq {failure}, null"), holds=False):
            self.go_to(EXIT)
        self.fails = True

    # Numbers as Python and NumPy have them.

    def operate(self, sign: str, a: Register, b: Register) -> Register | None:
        """Return the result of an operator; None for one that there is not."""
        if a.type == b.type == TRUTH and sign in "&|^":
            return self.integer(OF_WHOLES[sign], a, b)
        type = common(a.type, b.type)
        if sign == "/" and type not in REALS:
            type = DOUBLE
        a, b = self.convert(a, type), self.convert(b, type)
        if type in REALS:
            of = OF_REALS.get(sign)
            return None if of is None else self.op(type, f"{of} {a}, {b.name}")
        if sign in ("//", "%"):
            return self._floor(sign, a, b)
        if sign == ">>":
            return self.integer("lshr" if type == WORD else "ashr", a, b)
        return self.integer(OF_WHOLES[sign], a, b) if sign in OF_WHOLES else None

    def _floor(self, sign: str, a: Register, b: Register) -> Register:
        """Divide, and round down; by zero, the result is zero as NumPy's is."""
        type, zero = a.type, constant(0, a.type)
        if b.name == "0":
            return zero
        none = None if b.name.lstrip("-").isdecimal() else self.compare("eq", b, 0)
        by = b if none is None else self.select(none, constant(1, type), b)
        divide, rest = ("udiv", "urem") if type == WORD else ("sdiv", "srem")
        quotient, left = self.integer(divide, a, by), self.integer(rest, a, by)
        if type == INT:
            apart = self.compare("slt", self.integer("xor", left, by), 0)
            down = self.integer("and", apart, self.not_zero(left))
            quotient = self.integer("sub", quotient, self.convert(down, type))
            left = self.add(left, self.select(down, by, zero))
        found = quotient if sign == "//" else left
        return found if none is None else self.select(none, zero, found)

    def test(self, sign: str, a: Register, b: Register) -> Register:
        """Compare two numbers; with nan only `!=` holds."""
        if not (a.type == b.type == TRUTH and sign in ("==", "!=")):
            type = common(a.type, b.type)
            a, b = self.convert(a, type), self.convert(b, type)
        if a.type in REALS:
            return self.op(TRUTH, f"fcmp {ORDERED[sign]} {a}, {b.name}")
        test = SIGNED[sign]
        return self.compare(test.replace("s", "u", 1) if a.type == WORD else test, a, b)

    def extreme(self, sign: str, a: Register, b: Register) -> Register:
        """Return b where `b sign a` holds, else a, as `min` and `max` do."""
        if a.type != b.type:
            type = common(a.type, b.type)
            a, b = self.convert(a, type), self.convert(b, type)
        return self.select(self.test(sign, b, a), b, a)

    def multiply(self, factors: Iterable[Register]) -> Register:
        """Multiply extents."""
        return reduce(self.mul, factors, int64(1))

    # Arrays.

    def part(self, array: Array, index: list[Register | Cut]) -> Array:
        """Return the part of an array that is at some indices, and in one slice after them.

        Indices are within their axes; slices end where the axis does.
        """
        extents, first = list(array.extents), int64(0)
        for at in index:
            extent = extents.pop(0)
            inside = self.multiply(extents)
            if isinstance(at, Cut):
                begin, size = self._bounds(at, extent)
                extents.insert(0, size)
            else:
                begin = self._from_end(at, extent)
            first = self.add(first, self.mul(begin, inside) if begin.name != "0" else begin)
        dtype = array.type.dtype
        data = self.at(array.data, first, stored_as(dtype))
        return Array(ArrayType(dtype, len(extents)), data, tuple(extents), array.roots)

    def _from_end(self, bound: Register, extent: Register) -> Register:
        """Return a bound that may be a negative constant, which counts from the end."""
        return self.add(extent, bound) if bound.name.startswith("-") else bound

    def _bounds(self, cut: Cut, extent: Register) -> tuple[Register, Register]:
        """Return where a slice of an axis begins, and how long it is."""
        begin, size = int64(0), extent
        if cut.end is not None:
            size = self.least(self._from_end(cut.end, extent), extent)
        if cut.begin is not None:
            begin = self._from_end(cut.begin, extent)
            size = self.integer("sub", size, begin)
        return begin, size if size is extent else self.most(size, 0)

    def get(self, part: Array) -> Value:
        """Return an array, or the element that one without axes is."""
        return part if part.type.ndim else self.element(part, int64(0))

    def element(self, array: Array, at: Register) -> Register:
        """Read an element, counted over all axes."""
        dtype = array.type.dtype
        return self.convert(self.load(stored_as(dtype), array.data, at), element_type(dtype))

    def new(self, dtype: np.dtype[Any], extents: tuple[Register, ...], zero: bool = False) -> Array:
        """Return a new array in memory that is freed when the call ends, unless it is returned."""
        size = self.multiply((*extents, int64(dtype.itemsize)))
        data = self.call("ptr", "new", [CALL, size, constant(zero, TRUTH)])
        self.leave_on_failure()
        self.allocates = True
        return Array(ArrayType(dtype, len(extents)), data, extents)

    def write(self, to: Array, value: Register | Array) -> None:
        """Write a number to all elements of an array, or those of one of the same shape."""
        dtype, data = to.type.dtype, to.data

        def stored(number: Register) -> Register:
            return self.convert(self.convert(number, element_type(dtype)), stored_as(dtype))

        if isinstance(value, Array):
            with self.loop(0, self.multiply(to.extents)) as k:
                self.store(stored(self.element(value, k)), data, k)
            return
        number = stored(value)
        if not to.type.ndim:
            self.store(number, data)
            return
        with self.loop(0, self.multiply(to.extents)) as k:
            self.store(number, data, k)

    def viewed(self, array: Array, dtype: np.dtype[Any]) -> Array:
        """Return the same memory as an array of one axis of another dtype."""
        size, wide, narrow = array.extents[0], dtype.itemsize, array.type.dtype.itemsize
        if wide > narrow:
            size = self.integer("sdiv", size, wide // narrow)
        elif wide < narrow:
            size = self.mul(size, narrow // wide)
        return replace(array, type=ArrayType(dtype, 1), extents=(size,))

    def same_extents(self, a: Array, b: Array) -> Register | None:
        """Tell whether two arrays have the same shape; None, where that is known."""
        pairs = zip(a.extents, b.extents, strict=True)
        tests = [self.compare("eq", one, other) for one, other in pairs if one != other]
        return reduce(lambda x, y: self.integer("and", x, y), tests) if tests else None


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
