"""Build machine code of a function: it is found in the cache, or translated and compiled."""

from __future__ import annotations

from types import FunctionType

import numpy as np

from vertexrt.config import config
from vertexrt.native.fingerprint import parts_of
from vertexrt.native.load import load_made
from vertexrt.native.module import Module
from vertexrt.native.values import TupleType, Type
from vertexrt.native.wrapper import ENTRY, RUNTIME, imports, wrapper


def build(function: FunctionType, types: tuple[Type, ...]) -> int:
    """Return the address of a function for Python, for arguments of some types."""
    checked = f"checked: {config().check}"
    parts = ["host code", checked, *parts_of(function), *map(type_text, types), np.__version__]
    # To unroll loops makes them 3 % faster, and takes a quarter of the compiling.
    found = load_made(parts, lambda: _text(function, types), [ENTRY], imports(), unroll=False)
    return found[ENTRY]


def type_text(type: Type) -> str:
    """Write a type; of a record, what its fields are called too."""
    if not isinstance(type, TupleType):
        return repr(type)
    names = getattr(type.record, "_fields", ())
    return f"{type.record} {names} {[type_text(part) for part in type.parts]}"


def _text(function: FunctionType, types: tuple[Type, ...]) -> str:
    """Translate a function, and all that it calls."""
    module = Module()
    made = module.translate(function, types)
    return "\n".join([RUNTIME, *module.texts, wrapper(made, list(types))])
