"""`compiled`: a function of Python that is translated, compiled and kept at its first call.

    @compiled
    def total(values: Array) -> float:
        found = 0.0
        for value in values:
            found += value
        return found

What it calls needs no decorator. Arguments that are annotated as int, float or bool are numbers;
others have the types of what they are called with: arrays in C order by dtype and axes, tuples by
their parts. The first call with other types translates and compiles anew. With VERTEXRT_PLAIN=1 all
functions run as the Python that they are written in.

The lock of the interpreter is released while the function runs.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Mapping
from types import FunctionType, NoneType
from typing import Any, TypeVar, cast

import numpy as np

from vertexrt.cache import notes
from vertexrt.config import config
from vertexrt.native.scope import (
    DECLARED,
    DOUBLE,
    INT,
    NOTHING,
    TRUTH,
    ArrayType,
    Type,
    tuple_of,
)

Function = TypeVar("Function", bound=Callable[..., Any])

OF_VALUES: tuple[tuple[Any, Type], ...] = (
    ((bool, np.bool_), TRUTH),
    ((int, np.integer), INT),
    ((float, np.floating), DOUBLE),
    (NoneType, NOTHING),
)
_asked: set[tuple[FunctionType, tuple[Type, ...]]] = set()
_made: dict[tuple[FunctionType, tuple[Type, ...]], Callable[..., Any]] = {}
# NumPy warns where numbers overflow; machine code does not, and hashes wrap on purpose.
_quiet = np.errstate(all="ignore")
FASTCALL = 0x80  # how Python passes arguments: an array of objects, and how many


class _Method(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


def compiled(function: Function) -> Function:
    """Compile a function at its first call, or find it in the cache."""
    python = cast("FunctionType", function)
    run: Callable[..., Any] = python  # is chosen at the first call

    def choose(*given: Any) -> Any:
        nonlocal run
        run = _quiet(python) if config().plain else _compiled(python, choose, given)
        return run(*given)

    run = choose
    record: Any = python.__globals__.get(str(python.__annotations__.get("return")))

    def call(*given: Any) -> Any:
        return run(*given)

    def call_for_record(*given: Any) -> Any:
        return record(*run(*given))

    found = call_for_record if hasattr(record, "_fields") else call
    return cast("Function", functools.wraps(function)(found))


def compile_ahead(function: Any, *given: Any) -> None:
    """Compile a function for arguments of the types that these have; it is not called."""
    if not config().plain:
        _code(function.__wrapped__, types_of(function.__wrapped__, given))


def compiled_for(function: Any) -> list[tuple[Type, ...]]:
    """Return the types of arguments that a function was compiled for in this process."""
    return [types for made, types in _asked if made is function.__wrapped__]


def types_of(function: FunctionType, given: tuple[Any, ...]) -> tuple[Type, ...]:
    """Return the types of the arguments of a call.

    Raises: TypeError, for what a compiled function does not take.
    """
    code = function.__code__
    names = code.co_varnames[: code.co_argcount]
    if len(given) != len(names):
        text = f"{function.__name__}() takes {len(names)} arguments, not {len(given)}"
        raise TypeError(text)
    hints, known = function.__annotations__, function.__globals__
    return tuple(
        _type_of(each, str(hints.get(name, "")), known, f"{function.__name__}(): {name}")
        for name, each in zip(names, given, strict=True)
    )


def _type_of(given: Any, hint: str, known: Mapping[str, Any], where: str) -> Type:
    """Return the type of an argument, or part of one.

    Args:
        hint: its annotation; known: what names stand for there; where: it is, for an error.
    """
    if hint in DECLARED:
        return DECLARED[hint]
    if isinstance(given, np.ndarray):
        dtype = given.dtype
        numbers = dtype.kind in "biuf" and dtype.isnative and dtype.itemsize <= 8
        if not numbers or dtype == np.float16:
            raise TypeError(f"{where} is an array of dtype {dtype}; not of numbers")
        if not (given.flags.c_contiguous and given.flags.aligned):
            raise TypeError(f"{where} is an array that is not in C order")
        return ArrayType(dtype, given.ndim)
    if isinstance(given, tuple):
        declared = known.get(hint)
        record: Any = declared if hasattr(declared, "_fields") else type(given)
        hints = record.__annotations__ if hasattr(record, "_fields") else {}
        names = [*hints, *(str(k) for k in range(len(hints), len(given)))]
        parts = [
            _type_of(part, str(hints.get(name, "")), known, f"{where}[{k}]")
            for k, (name, part) in enumerate(zip(names, given, strict=True))
        ]
        return tuple_of(record, parts)
    for kinds, type_ in OF_VALUES:
        if isinstance(given, kinds):
            return type_
    raise TypeError(f"{where} is a {type(given).__name__}; not a number, an array or a tuple")


def _compiled(
    function: FunctionType, other: Callable[..., Any], given: tuple[Any, ...]
) -> Callable[..., Any]:
    """Return a function for arguments like these; it calls `other` with those of other types."""
    types = types_of(function, given)
    if (function, types) not in _made:
        _made[function, types] = _builtin(function, _code(function, types), other)
    return _made[function, types]


def _code(function: FunctionType, types: tuple[Type, ...]) -> dict[str, int]:
    """Return machine code for arguments of some types: the address of its function."""
    from vertexrt.native.wrapper import build  # which loads LLVM

    _asked.add((function, types))
    with notes.compiling("host code"):
        return build(function, types)


def _builtin(function: FunctionType, code: dict[str, int], other: Callable[..., Any]) -> Any:
    """Return machine code as a function of Python, for the rest of the process."""
    (address,) = code.values()
    method = _Method(function.__name__.encode(), address, FASTCALL, None)
    make = ctypes.pythonapi.PyCFunction_NewEx
    make.restype = ctypes.py_object
    make.argtypes = [ctypes.c_void_p, ctypes.py_object, ctypes.py_object]
    found = make(ctypes.addressof(method), other, function.__module__)
    keep = ctypes.pythonapi.Py_IncRef
    keep.argtypes = [ctypes.py_object]
    for each in (method, found, code):  # Python reads the record until the function is gone
        keep(each)
    return found
