"""What a translated function computes with: types, and values in registers of LLVM.

Every whole number is an i64, whatever array it came from, except that what comes from an array of
uint64 stays unsigned, a u64: it wraps, and is shifted and compared without a sign. Reals are float
or double, truths i1. An array is the address of its first element and its extents, in C order; a
tuple is its parts, and nothing at run time. What is known while a function is translated (a
constant, a dtype, a function) is `Static`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from vertexrt.native.code import Register, word

INT, WORD, TRUTH, SINGLE, DOUBLE = "i64", "u64", "i1", "float", "double"
NOTHING = "void"  # the type of None, which functions return that return nothing


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


Value: TypeAlias = Register | Array | Tuple | Static


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
        return Array(type, next(held), tuple(next(held) for _ in range(type.ndim)), next(roots))
    if isinstance(type, TupleType):
        return Tuple(tuple(held_in(part, held, roots) for part in type.parts), type.record)
    return Static(None) if type == NOTHING else Register(type, next(held).name)


def count_arrays(type: Type) -> int:
    """Count the arrays of a type."""
    return words(type).count("ptr")
