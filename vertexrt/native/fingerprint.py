"""What a translated function is made from, as texts: its code, and all that it names.

The code of a function stands for its source. What a function names is followed: functions that are
translated with it, classes of records, constants; of a module, what is taken from it.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import inspect
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

from vertexrt.native.foreign import Foreign

PACKAGE = __name__.rpartition(".")[0]


def parts_of(function: FunctionType) -> list[str]:
    """Return what a function and those that it calls are made from."""
    reached = [function]
    texts = [_translator()]
    for each in reached:  # grows
        text, called = _described(each)
        texts.append(text)
        reached += [other for other in called if other not in reached]
    return texts


@functools.cache
def _translator() -> str:
    """Hash the sources of the translator."""
    found = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        found.update(path.read_bytes())
    return found.hexdigest()


@functools.cache
def _described(function: FunctionType) -> tuple[str, tuple[FunctionType, ...]]:
    """Return what a function is made from itself, and the functions that it names."""
    code = function.__code__
    called: list[FunctionType] = []
    names = sorted(code.co_names)
    parts = [function.__qualname__, code_text(code), str(sorted(function.__annotations__.items()))]
    parts.append(str([_text(value, names, called) for value in function.__defaults__ or ()]))
    outside, known, *_ = inspect.getclosurevars(function)
    values = {**outside, **known}
    parts += [f"{name}: {_text(values[name], names, called)}" for name in sorted(values)]
    return "\n".join(parts), tuple(called)


def code_text(code: CodeType) -> str:
    """Write all of a function's code that does not depend on where its file lies."""
    consts = [c if not isinstance(c, CodeType) else code_text(c) for c in code.co_consts]
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_argcount)
    return f"{code.co_code.hex()} {consts} {names}"


def _text(value: Any, names: list[str], called: list[FunctionType]) -> str:
    """Write what a name stands for; a function is added to those called."""
    value = getattr(value, "__wrapped__", value)
    if isinstance(value, FunctionType):
        called.append(value)
        return f"{value.__module__}.{value.__qualname__}"
    if isinstance(value, ModuleType):
        return _module_text(value, names, called)
    if isinstance(value, tuple):
        return str([_text(each, names, called) for each in value])
    if isinstance(value, enum.Enum | int | float | str | np.generic | np.dtype | Foreign):
        return f"{type(value).__name__} {value!r}"
    if isinstance(value, type) and hasattr(value, "_fields"):
        return f"{value.__qualname__} {value._fields} {value.__annotations__}"
    return f"{type(value).__name__} {getattr(value, '__name__', '')}"


def _module_text(module: ModuleType, names: list[str], called: list[FunctionType]) -> str:
    """Write what is taken from a module of this package; others are as their version is."""
    own = module.__name__.partition(".")[0] == PACKAGE.partition(".")[0]
    inside = [name for name in names if own and name in vars(module)]
    return str([module.__name__, *((n, _text(vars(module)[n], [], called)) for n in inside)])
