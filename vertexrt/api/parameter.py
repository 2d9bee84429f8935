"""Declare parameters of a vertex function."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vertexrt.api.declaration import read_shape
from vertexrt.api.init import Initializer
from vertexrt.api.trace import current_builder, name_in_network
from vertexrt.errors import TraceError
from vertexrt.ir.builder import Builder
from vertexrt.ir.user_line import user_line
from vertexrt.ir.values import Construction, Operators, Value


class Parameter(Operators):
    """An array shared by all vertices, trained unless it is frozen.

    Assign it to an attribute of a vertex function: the attribute's name is the parameter's.

    Args:
        shape: of the array; a matrix [M, N] multiplies vectors of N elements: `w @ x`. A number is
            the length of a vector.
        init: draws the first value (see `vertexrt.init`); by default Xavier uniform for matrices,
            zeros for vectors.
        trainable: False for a frozen parameter or a constant: it has no gradient, what only that
            gradient needs is not computed, and no optimizer changes it. It is set and stored as
            others are. This is fixed when the network is compiled; an optimizer's `groups` freeze
            for a while.
    Raises: TraceError, when the shape is not of positive integers, `init` is no function, or
        `trainable` is not True or False.
    """

    def __init__(
        self,
        shape: tuple[int, ...] | int,
        init: Initializer | None = None,
        *,
        trainable: bool = True,
    ) -> None:
        extents = read_shape(shape)
        if extents is None:
            raise TraceError.at(
                "Parameter",
                f"shape is {shape!r}",
                "a tuple of positive integers",
                "write (rows, columns), or (length,) for a vector",
            )
        if init is not None and not callable(init):
            raise TraceError.at(
                "Parameter",
                f"init is a {type(init).__name__}",
                "a function of shape and generator, as those of vrt.init",
                "write init=vrt.init.constant(value) for one number; set an array by "
                "net.parameters[name] = array",
            )
        self.shape = extents
        given: object = trainable
        if not isinstance(given, bool):
            got = f"trainable is {given!r:.60}"
            raise TraceError.at("Parameter", got, "True or False", "write trainable=False")
        self.init = init
        self.trainable = trainable
        self.name: str | None = None

    def _builder(self) -> Builder:
        return current_builder()

    def as_value(self, builder: Construction) -> Value:
        """Return the node that reads this parameter."""
        name = name_in_network(self) or self.name
        if name is None:
            raise TraceError.at(
                "trace",
                f"a parameter of shape {self.shape} has no name at {user_line()}",
                "parameters are attributes of the vertex function, set in __init__, with names "
                "that do not begin with _",
                "write self.name = vrt.Parameter(...)",
            )
        return builder.emit("param", name=name, shape=self.shape)

    def __repr__(self) -> str:
        name = f"{self.name!r}, " if self.name else ""
        return f"Parameter({name}{self.shape})"

    def __matmul__(self, x: Any) -> Value:
        return self._times(x, False)

    def _times(self, x: Any, transpose: bool) -> Value:
        """Multiply a vector by the matrix, or by its transpose."""
        vector = current_builder().lift(x)
        if (
            len(vector.shape) > 1
        ):  # the IR takes several rows at once; for people that is no product
            raise TraceError.at(
                "matmul",
                f"a right operand of shape {list(vector.shape)} at {user_line()}",
                f"a right operand of shape [{self.shape[0 if transpose else -1]}]",
                "multiply vectors only",
            )
        return vector.builder.emit("matmul", self, vector, transpose=transpose)

    @property
    def T(self) -> Transposed:
        """The transpose of a matrix, to multiply by: `w.T @ x`, [M, N] and [M] to [N]."""
        if len(self.shape) != 2:
            raise TraceError.at(
                "Parameter",
                f"the transpose of {self!r}",
                "a matrix",
                "leave .T out: a vector has none",
            )
        return Transposed(self)

    def __getitem__(self, key: slice | int) -> Value:
        return self.as_value(current_builder())[key]


@dataclass(frozen=True, slots=True)
class Transposed:
    """The transpose of a parameter: `w.T`. It multiplies vectors, and is nothing else."""

    parameter: Parameter

    def __matmul__(self, x: Any) -> Value:
        return self.parameter._times(x, True)
