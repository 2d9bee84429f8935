"""Linear maps, lookups and layer normalisation."""

from __future__ import annotations

import math
from typing import Any

from vertexrt.api import init
from vertexrt.api.functional import embed, mean, sqrt, value_of
from vertexrt.api.parameter import Cell, Parameter
from vertexrt.checks import is_real, is_whole
from vertexrt.errors import TraceError
from vertexrt.ir.builder import MOST_INT, Value

Operand = Any  # Value | Parameter | float


def size_of(where: str, name: str, given: object) -> int:
    """Return a number of elements.

    Raises: TraceError, when it is no whole number above 0.
    """
    if not is_whole(given) or not 1 <= given <= MOST_INT:
        raise TraceError.at(
            where,
            f"{name} is {given!r:.60}",
            "a whole number above 0, of 32 bits",
            f"write {where}(..., {name}=64)",
        )
    return int(given)


def flag_of(where: str, name: str, given: object) -> bool:
    """Return an option that is on or off.

    Raises: TraceError, when it is neither True nor False.
    """
    if not isinstance(given, bool):
        raise TraceError.at(
            where, f"{name} is {given!r:.60}", "True or False", f"write {where}(..., {name}=True)"
        )
    return given


def uniform_in(size: int) -> init.Initializer:
    """Return what draws evenly from [-k, k), k = 1 / sqrt(size): PyTorch's default of these."""
    return init.uniform(1.0 / math.sqrt(size))


class Linear(Cell):
    """`weight @ x + bias`.

    Args:
        in_features, out_features: elements of x and of the result.
        bias: add one.
    Parameters: weight [out, in]; bias [out].
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        inside = size_of("Linear", "in_features", in_features)
        outside = size_of("Linear", "out_features", out_features)
        with_bias = flag_of("Linear", "bias", bias)
        self.weight = Parameter((outside, inside), uniform_in(inside))
        self.bias = Parameter((outside,), uniform_in(inside)) if with_bias else None

    def __call__(self, x: Operand) -> Value:
        """Return [out_features] of x [in_features]."""
        product: Value = self.weight @ x
        return product if self.bias is None else product + self.bias


class Embedding(Cell):
    """Rows of a table.

    Args:
        num_embeddings: rows; embedding_dim: elements of each.
    Parameters: weight [rows, elements].
    """

    def __init__(self, num_embeddings: int, embedding_dim: int) -> None:
        rows = size_of("Embedding", "num_embeddings", num_embeddings)
        self.weight = Parameter(
            (rows, size_of("Embedding", "embedding_dim", embedding_dim)), init.normal(1.0)
        )

    def __call__(self, index: Value) -> Value:
        """Return the row that an integer pull names; zeros where it is absent."""
        return embed(self.weight, index)


class LayerNorm(Cell):
    """`(x - mean) / sqrt(variance + eps) * weight + bias`, over the elements of a vector.

    Args:
        size: elements of x.
        eps: added to the variance.
    Parameters: weight, bias [size], ones and zeros at first.
    Source: Ba, Kiros and Hinton 2016.
    """

    def __init__(self, size: int, eps: float = 1e-5) -> None:
        n = size_of("LayerNorm", "size", size)
        self.weight, self.bias = Parameter((n,), init.constant(1.0)), Parameter((n,), init.zeros)
        if not is_real(eps) or eps <= 0.0:
            raise TraceError.at(
                "LayerNorm", f"eps is {eps!r:.60}", "a number above 0", "write eps=1e-5"
            )
        self.eps = eps

    def __call__(self, x: Operand) -> Value:
        """Return [size] of x [size]."""
        value = value_of(x)
        moved = value - mean(value, axis="elements")
        variance = mean(moved * moved, axis="elements")
        return moved / sqrt(variance + self.eps) * self.weight + self.bias
