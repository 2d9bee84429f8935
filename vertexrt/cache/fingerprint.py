"""What a compiled function is made from, as a hash: its code, and all that it is compiled with.

numba compiles bytecode, and takes in globals as constants and the functions that are called. So a
fingerprint covers the bytecode and constants of a function, the values of the globals that it
names, and the same of every compiled function that it reaches. What numba calls while it compiles
(intrinsics, overloads) counts as the file it is in.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import sys
from collections.abc import Callable, Iterable
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType, NoneType
from typing import Any

import numpy as np
from numba.core import types
from numba.core.dispatcher import Dispatcher
from numba.core.extending import _Intrinsic

PACKAGE = "vertexrt"


def fingerprint(function: Any) -> str | None:
    """Hash what a compiled function is made from.

    Args:
        function: what `njit` returned.
    Returns: hexadecimal digits; None, when it uses a global of a kind that is not known here.
    """
    reached = [function]
    texts = []
    for each in reached:  # grows
        described = _describe_function(each)
        if described is None:
            return None
        text, called = described
        texts.append(text)
        reached += [other for other in called if other not in reached]
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()


@functools.cache
def _describe_function(function: Any) -> tuple[str, tuple[Any, ...]] | None:
    """Return what a function is made from itself, and the compiled functions that it names."""
    python = function.py_func
    code: CodeType = python.__code__
    called: list[Any] = []
    names = sorted(_names(code))
    parts = [python.__module__, python.__qualname__, _options(function), _describe_code(code)]
    parts.append(_describe(python.__defaults__, names, called))
    values = {name: python.__globals__[name] for name in names if name in python.__globals__}
    cells = zip(code.co_freevars, python.__closure__ or (), strict=True)
    values |= {name: cell.cell_contents for name, cell in cells}
    for name, value in values.items():
        parts += [name, _describe(value, names, called)]
    known = [part for part in parts if part is not None]
    return ("\n".join(known), tuple(called)) if len(known) == len(parts) else None


def _options(function: Any) -> str:
    options = function.targetoptions
    return ", ".join(f"{name}={_text(options[name])}" for name in sorted(options))


def _names(code: CodeType) -> set[str]:
    inner = [const for const in code.co_consts if isinstance(const, CodeType)]
    return {*code.co_names}.union(*(_names(each) for each in inner))


def _describe_code(code: CodeType) -> str:
    consts = [
        _describe_code(const) if isinstance(const, CodeType) else _text(const)
        for const in code.co_consts
    ]
    signature = (code.co_argcount, code.co_kwonlyargcount, code.co_flags)
    names = (code.co_names, code.co_varnames, code.co_freevars)
    return f"{code.co_code.hex()} {consts} {names} {signature}"


def _text(value: object) -> str:
    """Return the text of a constant; the order in which a set is walked differs by process."""
    if isinstance(value, (set, frozenset)):
        return "{" + ", ".join(sorted(map(_text, value))) + "}"
    return repr(value)


def _describe(value: object, names: Iterable[str], called: list[Any]) -> str | None:
    """Return a text for a global; None for a kind that is not known.

    Args:
        names: that the function uses, to look up in modules.
        called: gets compiled functions.
    """
    for kinds, describe in _DESCRIPTIONS:
        if isinstance(value, kinds):
            return describe(value, names, called)
    return None


def _dispatcher(value: Any, names: Iterable[str], called: list[Any]) -> str:
    called.append(value)
    return f"calls {value.py_func.__module__}.{value.py_func.__qualname__}"


def _module(value: Any, names: Iterable[str], called: list[Any]) -> str | None:
    if value.__name__.partition(".")[0] != PACKAGE:
        return str(value.__name__)  # a library: its version is part of the environment
    found = {name: getattr(value, name) for name in names if hasattr(value, name)}
    texts = [_describe(inside, names, called) for inside in found.values()]
    return None if None in texts else f"{value.__name__} {list(zip(found, texts, strict=True))}"


def _enumeration(value: Any, names: Iterable[str], called: list[Any]) -> str:
    return f"{value.__qualname__} {[(member.name, member.value) for member in value]}"


def _function(value: Any, names: Iterable[str], called: list[Any]) -> str:
    module = sys.modules[value.__module__]
    inside = value.__module__.partition(".")[0] == PACKAGE
    return f"{value.__module__}.{value.__qualname__} {file_hash(module) if inside else ''}"


def _class(value: Any, names: Iterable[str], called: list[Any]) -> str:
    """Name a class; of a named tuple also its fields, which compiled code knows by position."""
    return f"{value.__module__}.{value.__name__} {getattr(value, '_fields', '')}"


def _builtin(value: Any, names: Iterable[str], called: list[Any]) -> str:
    return f"{getattr(value, '__module__', '')}.{value.__name__}"


def _array(value: Any, names: Iterable[str], called: list[Any]) -> str:
    return f"{value.dtype} {value.shape} {hashlib.sha256(value.tobytes()).hexdigest()}"


def _sequence(value: Any, names: Iterable[str], called: list[Any]) -> str | None:
    each = [_describe(item, names, called) for item in value]
    return None if None in each else f"{type(value).__name__} {each}"


def _constant(value: Any, names: Iterable[str], called: list[Any]) -> str:
    return _text(value)


# The first kind that fits counts.
_CONSTANTS = (bool, int, float, complex, str, bytes, np.generic, np.dtype, types.Type, NoneType)
_DESCRIPTIONS: tuple[tuple[Any, Callable[[Any, Iterable[str], list[Any]], str | None]], ...] = (
    (Dispatcher, _dispatcher),
    (ModuleType, _module),
    (enum.EnumMeta, _enumeration),
    ((FunctionType, _Intrinsic), _function),
    (type, _class),
    ((BuiltinFunctionType, np.ufunc), _builtin),
    (np.ndarray, _array),
    ((tuple, list), _sequence),
    (_CONSTANTS, _constant),
)


@functools.cache
def file_hash(module: ModuleType) -> str:
    """Hash the source of a module."""
    path = module.__file__
    assert path is not None, module
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()
