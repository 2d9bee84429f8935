"""Scalar expressions of the tables, and the draws of dropout, in NumPy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vertexrt.ir.expressions import translate

Array = np.ndarray[Any, Any]

OPERATIONS = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.divide,
    ">=": np.greater_equal,
    ">": np.greater,
    "==": np.equal,
    "!=": np.not_equal,
}


def evaluate_arrays(expression: str, names: Mapping[str, Any]) -> Any:
    """Return the value of an expression over arrays and numbers, which broadcast."""
    with np.errstate(all="ignore"):
        return translate(expression, names, _ARRAYS)


def sigmoid(x: Array) -> Array:
    """Return 1 / (1 + e**-x) without overflow."""
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1.0, e) / (1.0 + e)


class _Arrays:
    """Arrays as a target of translation."""

    def constant(self, value: float) -> Any:
        return value

    def binary(self, operator: str, left: Any, right: Any) -> Any:
        return OPERATIONS[operator](left, right)

    compare = binary

    def negative(self, value: Any) -> Any:
        return -value

    def choose(self, test: Any, yes: Any, no: Any) -> Any:
        return np.where(test, yes, no)

    def call(self, name: str, arguments: Sequence[Any]) -> Any:
        (x,) = arguments
        return sigmoid(x) if name == "sigmoid" else getattr(np, name)(x)


_ARRAYS = _Arrays()


def draws(seed: int, key: int, p: float | None, counters: Array, elements: Array) -> Array:
    """Return factors of dropout, [counters, elements]: 0, or 1 / (1 - p); without p, uniform ones.

    Each is drawn from a hash of (seed, key, counter, element) to 32 bits, as compiled kernels draw
    them: counter-based random numbers (Salmon et al., SC 2011) with the finaliser of MurmurHash3.
    """
    u = np.uint32
    with np.errstate(over="ignore"):
        h = u(seed) ^ (counters.astype(u)[:, None] * u(0x9E3779B1))
        h = (h ^ (h >> u(16))) * u(0x85EBCA6B)
        h = h + u(key) * u(0xC2B2AE35) + elements.astype(u) * u(0x27D4EB2F)
        h = (h ^ (h >> u(16))) * u(0x85EBCA6B)
        h = (h ^ (h >> u(13))) * u(0xC2B2AE35)
        h = h ^ (h >> u(16))
    if p is None:  # 23 bits, in the middle of what they stand for: exact in float32
        return np.asarray(((h >> u(9)) + 0.5) * 2.0**-23)
    threshold = u(min(int(p * 2**32), 2**32 - 1))
    return np.where(h >= threshold, 1.0 / (1.0 - p), 0.0)
