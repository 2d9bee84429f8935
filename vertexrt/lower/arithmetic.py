"""NumPy's arithmetic of the scalar expressions: what interprets kernels computes with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from vertexrt.kernels.layout import Array
from vertexrt.lower.expressions import RandomFactor


class NumpyArithmetic:
    """NumPy's arithmetic as a target of translation."""

    def constant(self, value: float) -> Any:
        return value

    def binary(self, operator: str, left: Any, right: Any) -> Any:
        return {"+": np.add, "-": np.subtract, "*": np.multiply, "/": np.divide}[operator](
            left, right
        )

    def negative(self, value: Any) -> Any:
        return -value

    def compare(self, operator: str, left: Any, right: Any) -> Any:
        tests = {">=": np.greater_equal, ">": np.greater, "==": np.equal, "!=": np.not_equal}
        return tests[operator](left, right)

    def choose(self, test: Any, yes: Any, no: Any) -> Any:
        return np.where(test, yes, no)

    def call(self, name: str, arguments: Sequence[Any]) -> Any:
        (x,) = arguments
        if name == "sigmoid":
            e = np.exp(-np.abs(x))
            return np.where(x >= 0, 1.0, e) / (1.0 + e)
        return getattr(np, name)(x)


NUMBERS = NumpyArithmetic()


def draws(seed: int, wanted: RandomFactor, counter: int, j: Array) -> Array:
    """Return factors of dropout: see `kernels.cpu.arithmetic.draw`."""
    mask = 0xFFFFFFFF
    found = []
    for element in np.atleast_1d(j).tolist():
        h = seed ^ (counter * 0x9E3779B1 & mask)
        h = (h ^ h >> 16) * 0x85EBCA6B & mask
        h = h + wanted.key * 0xC2B2AE35 + element * 0x27D4EB2F & mask
        h = (h ^ h >> 16) * 0x85EBCA6B & mask
        h = (h ^ h >> 13) * 0xC2B2AE35 & mask
        found.append(h ^ h >> 16)
    threshold = min(int(wanted.p * 2**32), 2**32 - 1)
    return np.where(np.array(found) >= threshold, 1.0 / (1.0 - wanted.p), 0.0)
