"""Declare parameters of a vertex function."""

from __future__ import annotations

from typing import Any

from vertexrt.api.init import Initializer
from vertexrt.api.trace import current_builder
from vertexrt.errors import TraceError, message
from vertexrt.ir.builder import Builder, Value, user_line


class Parameter:
    """A trained array, shared by all vertices.

    Assign it to an attribute of a vertex function: the attribute's name is the parameter's.

    Args:
        shape: of the array; a matrix [M, N] multiplies vectors of N elements: `w @ x`.
        init: draws the first value (see `vertexrt.init`); by default Xavier uniform for matrices,
            zeros for vectors.
    Raises: TraceError, when the shape is not of positive integers.
    """

    __array_ufunc__ = None

    def __init__(self, shape: tuple[int, ...], init: Initializer | None = None) -> None:
        if not all(isinstance(n, int) and n > 0 for n in shape):
            raise TraceError(
                message(
                    "Parameter",
                    f"shape is {shape!r}",
                    "a tuple of positive integers",
                    "write (rows, columns), or (length,) for a vector",
                )
            )
        self.shape = tuple(shape)
        self.init = init
        self.name: str | None = None

    def as_value(self, builder: Builder) -> Value:
        """Return the node that reads this parameter."""
        if self.name is None:
            raise TraceError(
                message(
                    "trace",
                    f"a parameter of shape {self.shape} has no name at {user_line()}",
                    "parameters are attributes of the vertex function, set in __init__",
                    "write self.name = vrt.Parameter(...)",
                )
            )
        return builder.emit("param", name=self.name, shape=self.shape)

    def __repr__(self) -> str:
        return f"Parameter({self.name!r}, {self.shape})"

    def __matmul__(self, x: Any) -> Value:
        vector = current_builder().lift(x)
        if (
            len(vector.shape) > 1
        ):  # the IR takes several rows at once; for people that is no product
            raise TraceError(
                message(
                    "matmul",
                    f"a right operand of shape {list(vector.shape)} at {user_line()}",
                    f"a right operand of shape [{self.shape[-1]}]",
                    "multiply vectors only",
                )
            )
        return vector.builder.emit("matmul", self, vector, transpose=False)

    def __getitem__(self, key: slice | int) -> Value:
        return self.as_value(current_builder())[key]

    def __add__(self, other: Any) -> Value:
        return current_builder().emit("add", self, other)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Value:
        return current_builder().emit("sub", self, other)

    def __rsub__(self, other: Any) -> Value:
        return current_builder().emit("sub", other, self)

    def __mul__(self, other: Any) -> Value:
        return current_builder().emit("mul", self, other)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Value:
        return current_builder().emit("div", self, other)

    def __rtruediv__(self, other: Any) -> Value:
        return current_builder().emit("div", other, self)

    def __neg__(self) -> Value:
        return current_builder().emit("neg", self)
