"""Parameters of a vertex function, and the cells, lists and dicts that hold them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from vertexrt.api.init import Initializer
from vertexrt.api.trace import current_builder, current_trace
from vertexrt.checks import is_whole, read_shape
from vertexrt.errors import TraceError
from vertexrt.ir.builder import Builder, Operators, Value, is_plain, refused
from vertexrt.ir.user_line import user_line


class Matrix(Operators):
    """What a parameter and a part of one have in common: products, rows, other shapes.

    Attributes:
        parameter: whose elements it has, from `start` on, in an array of `shape`.
    """

    parameter: Parameter
    start: int
    shape: tuple[int, ...]

    def _builder(self) -> Builder:
        return current_builder()

    # `self.b += x` would set the attribute to a value.
    __iadd__ = __isub__ = __imul__ = __itruediv__ = refused(
        "in-place arithmetic", "write b = self.b + x; an optimizer changes parameters"
    )

    def __matmul__(self, x: Any) -> Value:
        return self._times(x, False)

    def _times(self, x: Any, transpose: bool) -> Value:
        """Multiply a vector by the matrix, or by its transpose."""
        vector = current_builder().lift(x)
        if len(vector.shape) > 1:  # the IR takes rows at once; for people that is no product
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

    def reshape(self, *shape: int) -> ParameterPart:
        """Return the same elements in another shape, to multiply by or to take parts of.

        Raises: TraceError, when it has other elements.
        """
        whole = all(is_whole(n) and n > 0 for n in shape)
        if not shape or not whole or math.prod(shape) != math.prod(self.shape):
            raise TraceError.at(
                "reshape",
                f"{self!r} in the shape {shape!r} at {user_line()}",
                f"positive numbers whose product is {math.prod(self.shape)}",
                "write w.reshape(rows, columns)",
            )
        return ParameterPart(self, 0, shape)

    def __getitem__(self, key: slice | int | Value) -> Any:
        """Return rows: `w[a:b]`, `w[k]`, or the row that an integer names, as `vrt.embed` does."""
        b = current_builder()
        if len(self.shape) < 2:
            return b.lift(self)[key]
        if isinstance(key, Value):
            return b.look_up(b.lift(self), key)
        rows, *rest = self.shape
        inside = is_plain(key) and (isinstance(key, slice) or -rows <= key < rows)
        found = range(rows)[key] if inside else range(0)
        each = math.prod(rest)
        if isinstance(found, int):
            return ParameterPart(self, found * each, tuple(rest))
        if not found:
            raise TraceError.at(
                "slice",
                f"{key!r} of {self!r} at {user_line()}",
                f"some of {rows} rows: w[a:b], or w[k]",
                "write vrt.split(w @ x, n) for parts of a product",
            )
        return ParameterPart(self, found.start * each, (len(found), *rest))


class Parameter(Matrix):
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
        self.parameter, self.start, self.shape = self, 0, extents
        given: object = trainable
        if not isinstance(given, bool):
            raise TraceError.at(
                "Parameter", f"trainable is {given!r:.60}", "True or False", "write trainable=False"
            )
        self.init = init
        self.trainable = trainable
        self.name: str | None = None

    def _as_value(self, builder: Builder) -> Value:
        """Return the node that reads this parameter."""
        return builder.emit("param", name=self._name_in_program(), shape=self.shape)

    def _name_in_program(self) -> str:
        """Return what the program that is traced calls this parameter."""
        names = current_trace().names
        name = self.name if names is None else names.parameters.get(id(self), self.name)
        if name is None:
            raise TraceError.at(
                "trace",
                f"a parameter of shape {self.shape} has no name at {user_line()}",
                "parameters are attributes of the vertex function, set in __init__, with names "
                "that do not begin with _",
                "write self.name = vrt.Parameter(...)",
            )
        return name

    def __repr__(self) -> str:
        name = f"{self.name!r}, " if self.name else ""
        return f"Parameter({name}{self.shape})"


class ParameterPart(Matrix):
    """Elements of a parameter, in place: `w[a:b]`, `w[k]`, `w.reshape(m, n)`."""

    def __init__(self, whole: Matrix, start: int, shape: tuple[int, ...]) -> None:
        self.parameter, self.start, self.shape = whole.parameter, whole.start + start, shape

    def _as_value(self, builder: Builder) -> Value:
        """Return the node that reads this part."""
        if self.shape == self.parameter.shape:
            return self.parameter._as_value(builder)
        if len(self.shape) > 2:
            raise TraceError.at(
                "Parameter", f"{self!r} at {user_line()}", "a vector or a matrix", "write w[k]"
            )
        rows, name = (1, *self.shape)[-2:], self.parameter._name_in_program()
        value = builder.emit("param", name=name, shape=rows, start=self.start)
        if rows == self.shape:
            return value
        return builder.emit("slice", value, start=0, shape=self.shape)

    def __repr__(self) -> str:
        return f"a part {list(self.shape)} of {self.parameter!r}"


@dataclass(frozen=True, slots=True)
class Transposed:
    """The transpose of a parameter: `w.T`. It multiplies vectors, and is nothing else."""

    parameter: Matrix

    def __matmul__(self, x: Any) -> Value:
        return self.parameter._times(x, True)


class Cell:
    """An object that holds parameters and is called on values: a part to build functions with.

    Its attributes may be parameters, other cells, and lists and dicts of them. Set as an attribute
    of a vertex function, its parameters are named after it: `cell.weight`.
    """


def parts_of(owner: object) -> Iterator[tuple[str, object]]:
    """Yield what attributes hold, by name; of cells `cell.weight`, in lists `layers.0`.

    Attributes whose names begin with _ are left out.
    """
    stack = [("", owner)]
    while stack:
        name, value = stack.pop()
        inside: Iterable[tuple[object, object]]
        if not name or isinstance(value, Cell):
            inside = [(key, x) for key, x in vars(value).items() if not key.startswith("_")]
        elif isinstance(value, (list, tuple)):
            inside = enumerate(value)
        elif isinstance(value, dict):
            inside = value.items()
        else:
            yield name, value
            continue
        prefix = f"{name}." if name else ""
        stack += [(f"{prefix}{key}", x) for key, x in reversed([*inside])]


def parameters_of(owner: object) -> Iterator[tuple[str, Parameter]]:
    """Yield the parameters of an owner by name, one as often as it is found."""
    for name, part in parts_of(owner):
        if isinstance(part, Parameter):
            yield name, part
