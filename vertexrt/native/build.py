"""Build machine code of a function: it is found in the cache, or translated and compiled."""

from __future__ import annotations

from types import FunctionType

import numpy as np

from vertexrt.config import config
from vertexrt.native.fingerprint import parts_of
from vertexrt.native.load import load_made
from vertexrt.native.module import Module
from vertexrt.native.values import Type
from vertexrt.native.wrapper import ENTRY, RUNTIME, imports, wrapper


def build(function: FunctionType, types: tuple[Type, ...]) -> int:
    """Return the address of a function for Python, for arguments of some types."""
    checked = f"checked: {config().check}"
    parts = ["host code", checked, *parts_of(function), *map(repr, types), np.__version__]
    return load_made(parts, lambda: _text(function, types), [ENTRY], imports())[ENTRY]


def _text(function: FunctionType, types: tuple[Type, ...]) -> str:
    """Translate a function, and all that it calls."""
    module = Module()
    made = module.translate(function, types)
    return "\n".join([RUNTIME, *module.texts, wrapper(made, list(types))])
