"""Arrays: parts of them, new ones, and what is done element by element."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from vertexrt.native.arithmetic import choose, compare, convert, product
from vertexrt.native.text import FunctionText, whole
from vertexrt.native.values import (
    INT,
    TRUTH,
    Array,
    ArrayType,
    Scalar,
    element_type,
    literal,
    stored_as,
)


@dataclass(frozen=True, slots=True)
class Cut:
    """A slice of an axis: from `begin` to `end`, None for the ends of the axis."""

    begin: Scalar | None
    end: Scalar | None


def _from_end(text: FunctionText, bound: Scalar, extent: Scalar) -> Scalar:
    """Return a bound that may be a negative constant, which counts from the end."""
    if not bound.text.startswith("-"):
        return bound
    return text.number(INT, f"add nsw {extent}, {bound.text}")


def part(text: FunctionText, array: Array, index: list[Scalar | Cut]) -> Array:
    """Return the part of an array that is at some indices, and in one slice after them.

    Indices are within their axes; slices end where the axis does.
    """
    extents, first = list(array.extents), whole(0)
    for at in index:
        extent, inside = extents.pop(0), product(text, tuple(extents))
        if isinstance(at, Cut):
            begin, size = _bounds(text, at, extent)
            extents.insert(0, size)
        else:
            begin = _from_end(text, at, extent)
        step = product(text, (begin, inside)) if begin.text != "0" else begin
        first = step if first.text == "0" else text.number(INT, f"add nsw {first}, {step.text}")
    dtype, data = array.type.dtype, array.data
    if first.text != "0":
        data = text.made(f"getelementptr {stored_as(dtype)}, ptr {data}, {first}")
    return Array(ArrayType(dtype, len(extents)), data, tuple(extents), array.roots)


def _bounds(text: FunctionText, cut: Cut, extent: Scalar) -> tuple[Scalar, Scalar]:
    """Return where a slice of an axis begins, and how long it is."""
    begin, size = whole(0), extent
    if cut.end is not None:
        end = _from_end(text, cut.end, extent)
        size = choose(text, compare(text, "<", end, extent), end, extent)
    if cut.begin is not None:
        begin = _from_end(text, cut.begin, extent)
        size = text.number(INT, f"sub nsw {size}, {begin.text}")
    if size is not extent:
        size = choose(text, compare(text, ">", size, whole(0)), size, whole(0))
    return begin, size


def size_of(text: FunctionText, array: Array) -> Scalar:
    """Return how many elements an array has."""
    return product(text, array.extents)


def new(
    text: FunctionText, dtype: np.dtype[Any], extents: tuple[Scalar, ...], zero: str = "false"
) -> Array:
    """Return a new array in memory that is freed when the call ends, unless it is returned.

    Args:
        zero: `true` for an array of zeros.
    """
    size = product(text, (*extents, whole(dtype.itemsize)))
    data = text.made(f"call ptr @new(ptr %call, {size}, i1 {zero})")
    return Array(ArrayType(dtype, len(extents)), data, extents)


def fill(text: FunctionText, array: Array, value: Scalar) -> None:
    """Write a number to all elements."""
    value = convert(text, value, element_type(array.type.dtype))
    with text.count(whole(0), size_of(text, array), whole(1)) as k:
        text.store(value, array, k.index)


def copy(text: FunctionText, to: Array, values: Array) -> None:
    """Copy the elements of an array to one of the same shape."""
    type = element_type(to.type.dtype)
    with text.count(whole(0), size_of(text, to), whole(1)) as k:
        text.store(convert(text, text.load(values, k.index), type), to, k.index)


def reinterpreted(text: FunctionText, array: Array, dtype: np.dtype[Any]) -> Array:
    """Return the same memory as an array of one axis of another dtype."""
    size, wide, narrow = array.extents[0], dtype.itemsize, array.type.dtype.itemsize
    if wide > narrow:
        size = text.number(INT, f"sdiv {size}, {wide // narrow}")
    elif wide < narrow:
        size = text.number(INT, f"mul nsw {size}, {narrow // wide}")
    return Array(ArrayType(dtype, 1), array.data, (size,), array.roots)


def same_extents(text: FunctionText, a: Array, b: Array) -> Scalar:
    """Tell whether two arrays have the same shape."""
    found = literal(True, TRUTH)
    for mine, other in zip(a.extents, b.extents, strict=True):
        if mine.text != other.text:
            same = compare(text, "==", mine, other)
            found = same if found.text == "1" else text.number(TRUTH, f"and {found}, {same.text}")
    return found
