"""Arrays that know how far rounding may have moved them.

A `Bounded` holds numbers in float64 and, for each, a first-order bound on the absolute error that
a computation in a narrower type may have made on the way, in units of that type's rounding error:
a result computed in float32 is right if it lies within `error * eps(float32)`, times a small
constant for what the first order leaves out. The bound grows with the sum of absolute terms, so it
knows how deep sums are and where terms cancel. An error of 0 means that every engine has the same
bits: nothing has been rounded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Bounded:
    """Numbers and a bound on their errors, of one shape.

    Attributes:
        value: float64, any shape.
        error: float64, the same shape, in units of the rounding error.
    """

    value: Array
    error: Array

    def __add__(self, other: Bounded) -> Bounded:
        value = self.value + other.value
        return Bounded(value, self.error + other.error + np.abs(value))

    def __sub__(self, other: Bounded) -> Bounded:
        return self + -other

    def __neg__(self) -> Bounded:
        return Bounded(-self.value, self.error)

    def __mul__(self, other: Bounded) -> Bounded:
        value = self.value * other.value
        moved = np.abs(self.value) * other.error + np.abs(other.value) * self.error
        return Bounded(value, moved + np.abs(value))

    def __truediv__(self, other: Bounded) -> Bounded:
        value = self.value / other.value
        moved = (self.error + np.abs(value) * other.error) / np.abs(other.value)
        return Bounded(value, moved + np.abs(value))

    def __matmul__(self, other: Bounded) -> Bounded:
        """Multiply matrices; each sum of n terms adds sqrt(n) roundings of its absolute terms."""
        moved = self.error @ np.abs(other.value) + np.abs(self.value) @ other.error
        terms = np.abs(self.value) @ np.abs(other.value)
        deep = np.sqrt(self.value.shape[-1])
        return Bounded(self.value @ other.value, moved + (1.0 + deep) * terms)

    def __getitem__(self, key: Any) -> Bounded:
        return Bounded(self.value[key], self.error[key])

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of both arrays."""
        return self.value.shape

    @property
    def transposed(self) -> Bounded:
        """The matrix with rows and columns exchanged."""
        return Bounded(self.value.T, self.error.T)

    def reshape(self, *shape: int) -> Bounded:
        """Return the numbers in another shape."""
        return Bounded(self.value.reshape(shape), self.error.reshape(shape))

    def sum(self, axis: int | tuple[int, ...], keepdims: bool = False) -> Bounded:
        """Add up along an axis or several."""
        value = np.sum(self.value, axis, keepdims=keepdims)
        terms = np.sum(np.abs(self.value), axis, keepdims=keepdims)
        deep = np.sqrt(self.value.size / value.size) if value.size else 0.0
        rounded = terms * (deep if deep > 1.0 else 0.0)
        return Bounded(value, np.sum(self.error, axis, keepdims=keepdims) + rounded)

    def broadcast(self, shape: tuple[int, ...]) -> Bounded:
        """Repeat along axes of length 1."""
        return Bounded(np.broadcast_to(self.value, shape), np.broadcast_to(self.error, shape))

    def apply(self, function: Callable[[Array], Array], slope: Array, roundings: float) -> Bounded:
        """Apply a smooth function elementwise.

        Args:
            function: of the numbers.
            slope: its derivative there.
            roundings: how many units in the last place an implementation of it may be off.
        """
        value = function(self.value)
        return Bounded(value, np.abs(slope) * self.error + roundings * np.abs(value))


def exact(value: npt.ArrayLike) -> Bounded:
    """Return numbers that nothing has rounded."""
    array = np.asarray(value, np.float64)
    return Bounded(array, np.zeros_like(array))


def choose(mask: npt.NDArray[np.bool_], first: Bounded, second: Bounded) -> Bounded:
    """Take the first where the mask is true, else the second."""
    return Bounded(
        np.where(mask, first.value, second.value), np.where(mask, first.error, second.error)
    )


def join(parts: list[Bounded], axis: int) -> Bounded:
    """Concatenate along an axis."""
    return Bounded(
        np.concatenate([p.value for p in parts], axis),
        np.concatenate([p.error for p in parts], axis),
    )
