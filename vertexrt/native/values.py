"""What a translated function computes with: types, and values in registers of LLVM.

Every whole number is an i64, whatever array it came from, except that what comes from an array of
uint64 stays unsigned: it wraps, and is shifted and compared without a sign. Reals are float or
double, truths i1. An array is the address of its first element and its extents, in C order; a
tuple is its parts, and nothing at run time. What is known while a function is translated (a
constant, a dtype, a function) is `Static`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np


@dataclass(frozen=True, slots=True)
class ScalarType:
    """A number: its type in LLVM's words."""

    name: str
    unsigned: bool = False

    @property
    def real(self) -> bool:
        """Tell whether it is a real number."""
        return self.name in ("float", "double")


INT, WORD, TRUTH = ScalarType("i64"), ScalarType("i64", True), ScalarType("i1")
SINGLE, DOUBLE = ScalarType("float"), ScalarType("double")


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


@dataclass(frozen=True, slots=True)
class Nothing:
    """The type of None, which functions return that return nothing."""


Type: TypeAlias = ScalarType | ArrayType | TupleType | Nothing


@dataclass(frozen=True, slots=True)
class Scalar:
    """A register or a literal."""

    type: ScalarType
    text: str

    def __str__(self) -> str:
        return f"{self.type.name} {self.text}"


@dataclass(frozen=True, slots=True)
class Array:
    """An array; `roots` are the numbers of the arrays given whose memory it may be."""

    type: ArrayType
    data: str
    extents: tuple[Scalar, ...]
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


Value: TypeAlias = Scalar | Array | Tuple | Static

SCALARS = {"b": TRUTH, "i": INT, "u": INT}


def element_type(dtype: np.dtype[Any]) -> ScalarType:
    """Return what an element of an array is as a number."""
    if dtype.kind == "f":
        return SINGLE if dtype.itemsize == 4 else DOUBLE
    return WORD if dtype == np.uint64 else SCALARS[dtype.kind]


def stored_as(dtype: np.dtype[Any]) -> str:
    """Return what an element of an array is in memory, in LLVM's words."""
    scalar = element_type(dtype)
    return scalar.name if scalar.real else f"i{8 * dtype.itemsize}"


def literal(value: Any, type: ScalarType) -> Scalar:
    """Return a constant as a number."""
    if not type.real:
        return Scalar(type, str(int(value)))
    number = float(value)
    if type is SINGLE:
        number = struct.unpack("f", struct.pack("f", number))[0]
    return Scalar(type, f"0x{struct.unpack('<Q', struct.pack('<d', number))[0]:016X}")


def type_of_constant(value: Any) -> Type | None:
    """Return the type that a known object has as a value; None where it can be none."""
    kinds = {bool: TRUTH, np.bool_: TRUTH, np.uint64: WORD, np.float32: SINGLE, float: DOUBLE}
    for kind, type in kinds.items():
        if isinstance(value, kind):
            return type
    if isinstance(value, int | np.integer):
        return INT
    return Nothing() if value is None else None


def type_of(value: Value) -> Type | None:
    """Return the type of a value; None for a known object that cannot be one."""
    if isinstance(value, Static):
        return type_of_constant(value.value)
    if isinstance(value, Tuple):
        parts = tuple(type_of(part) for part in value.parts)
        return None if None in parts else TupleType(parts, value.record)  # type: ignore[arg-type]
    return value.type


def words(type: Type) -> list[str]:
    """Return the registers that a value of a type takes, in LLVM's words."""
    if isinstance(type, ArrayType):
        return ["ptr", *["i64"] * type.ndim]
    if isinstance(type, TupleType):
        return [word for part in type.parts for word in words(part)]
    return [type.name] if isinstance(type, ScalarType) else []


def registers(value: Value) -> list[str]:
    """Return the registers that hold a value, as `words` has their types."""
    if isinstance(value, Array):
        return [value.data, *(extent.text for extent in value.extents)]
    if isinstance(value, Tuple):
        return [text for part in value.parts for text in registers(part)]
    return [value.text] if isinstance(value, Scalar) else []


def arrays_in(value: Value) -> list[Array]:
    """Return the arrays of a value, in order."""
    if isinstance(value, Tuple):
        return [array for part in value.parts for array in arrays_in(part)]
    return [value] if isinstance(value, Array) else []


def held_in(type: Type, names: Iterator[str], roots: Iterator[frozenset[int]]) -> Value:
    """Return the value that registers hold.

    Args:
        names: the registers; roots: of its arrays, in order.
    """
    if isinstance(type, ArrayType):
        data, mine = next(names), next(roots)
        return Array(type, data, tuple(Scalar(INT, next(names)) for _ in range(type.ndim)), mine)
    if isinstance(type, TupleType):
        parts = tuple(held_in(part, names, roots) for part in type.parts)
        return Tuple(parts, type.record)
    return Scalar(type, next(names)) if isinstance(type, ScalarType) else Static(None)


def count_arrays(type: Type) -> int:
    """Count the arrays of a type."""
    return words(type).count("ptr")
