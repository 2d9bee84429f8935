"""Traced values: Python's operators on them and on parameters emit one node, or say what to write.

Both the tracer of the vertex function and the vjp rules of the op table build IR with these, so a
rule reads as it stands in a textbook. A comparison emits 1.0 or 0.0 per element, so `==` is not
identity here: compare objects by `is`. Hashes are those of identity.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeGuard, runtime_checkable

import numpy as np

from vertexrt.errors import FieldError, TraceError
from vertexrt.ir.program import Node, Type
from vertexrt.ir.user_line import user_line

# What NumPy calls when one of its numbers stands to the left of a traced value.
UFUNC_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "divide": operator.truediv,
    "true_divide": operator.truediv,
    "matmul": operator.matmul,
    "equal": operator.eq,
    "not_equal": operator.ne,
    "less": operator.lt,
    "less_equal": operator.le,
    "greater": operator.gt,
    "greater_equal": operator.ge,
    "floor_divide": operator.floordiv,
    "remainder": operator.mod,
}


class Construction(Protocol):
    """A program under construction, as values and the op table see it: see `Builder`."""

    nodes: list[Node]

    def emit(self, op: str, *operands: Operand, **attrs: Any) -> Value:
        """Append one node."""

    def compare(self, op: str, x: Operand, y: Operand) -> Value:
        """Append a comparison."""

    def const(self, value: float, shape: tuple[int, ...] = ()) -> Value:
        """Append a constant."""

    def number(self, x: Operand) -> float:
        """Return a number as Python has it."""

    def relation_of(self, x: Value) -> int:
        """Return the relation whose children a value has a row for."""

    def as_index(self, x: Value) -> Value:
        """Read a pull as an integer."""

    def one_hot(self, index: Value, size: int) -> Value:
        """Append a vector that is 1.0 where an integer says; a pull is bounded."""


@runtime_checkable
class AsValue(Protocol):
    """Anything that can stand in an expression: a declared parameter, for one."""

    def _as_value(self, builder: Construction) -> Value:
        """Return the node that reads this in the program under construction."""


Operand = Any  # Value | AsValue | float
MOST_POWER = 64  # whole exponents up to which a power is products; others are exp and log


def _refuse(where: str, got: str, expected: str, action: str) -> NoReturn:
    raise TraceError.at(where, f"{got} at {user_line()}", expected, action)


def refused(symbol: str, action: str) -> Callable[..., NoReturn]:
    """Make the method of an operator that F does not have."""

    def refuse(self: Operators, *others: object) -> NoReturn:
        _refuse(symbol, f"{symbol} of a traced value", "an operation of vertexrt", action)

    return refuse


Method = Callable[["Operators", Operand], "Value"]


def _operator(op: str) -> tuple[Method, Method]:
    """Make the methods of an operator that is an op, and of the operand to its right."""
    return (
        lambda self, other: self._builder().emit(op, self, other),
        lambda self, other: self._builder().emit(op, other, self),
    )


def _comparison(op: str, mirrored: bool = False) -> Method:
    """Make the method of a comparison: 1.0 where it holds, else 0.0; its derivative is zero."""
    if mirrored:
        return lambda self, other: self._builder().compare(op, other, self)
    return lambda self, other: self._builder().compare(op, self, other)


def _whole_power(b: Construction, x: Operand, exponent: int) -> Value:
    """Multiply x by itself, as often as the bits of the exponent say."""
    if exponent < 2:
        return b.emit("add", b.emit("mul", x, float(exponent)), 1.0 - exponent)
    half = _whole_power(b, x, exponent // 2) if exponent > 3 else x
    square = b.emit("mul", half, half)
    return b.emit("mul", square, x) if exponent % 2 else square


class Operators:
    """What a traced value and a parameter have in common."""

    __slots__ = ()
    __hash__ = object.__hash__

    def _builder(self) -> Construction:
        """Return the program under construction."""
        raise NotImplementedError

    __add__, __radd__ = _operator("add")
    __sub__, __rsub__ = _operator("sub")
    __mul__, __rmul__ = _operator("mul")
    __truediv__, __rtruediv__ = _operator("div")

    def __floordiv__(self, other: Operand) -> Value:
        return self._builder().emit("floor", self / other)

    def __rfloordiv__(self, other: Operand) -> Value:
        return self._builder().emit("floor", other / self)

    def __mod__(self, other: Operand) -> Value:
        return self._builder().emit("sub", self, (self // other) * other)

    def __rmod__(self, other: Operand) -> Value:
        return self._builder().emit("sub", other, (other // self) * self)

    def __neg__(self) -> Value:
        return self._builder().emit("neg", self)

    def __pow__(self, exponent: Operand) -> Value:
        """Return the power of a number that is known: whole ones of any base, others of x > 0."""
        if not isinstance(exponent, (int, float, np.integer, np.floating)):
            action = "write vrt.exp(y * vrt.log(x))"
            _refuse("pow", f"exponent is a {type(exponent).__name__}", "a number", action)
        number, b = self._builder().number(exponent), self._builder()
        if number == int(number) and abs(number) <= MOST_POWER:
            found = _whole_power(b, self, abs(int(number)))
            return found if number >= 0 else b.emit("div", 1.0, found)
        if number == 0.5:
            return b.emit("sqrt", self)
        return b.emit("exp", b.emit("mul", float(number), b.emit("log", self)))

    __eq__ = _comparison("equal")  # type: ignore[assignment]
    __ne__ = _comparison("not_equal")  # type: ignore[assignment]
    __gt__ = _comparison("greater")
    __ge__ = _comparison("greater_equal")
    __lt__ = _comparison("greater", mirrored=True)
    __le__ = _comparison("greater_equal", mirrored=True)

    # What would otherwise be Python's TypeError, or a wrong meaning.

    def __matmul__(self, other: Operand) -> Value:
        _refuse(
            "matmul",
            f"a left operand that is a traced value ({self!r})",
            "a vrt.Parameter of shape [M, N] times a vector of shape [N]",
            "write parameter @ x; vrt.sum(x * y) is the dot product of two vectors",
        )

    def __rmatmul__(self, other: Operand) -> Value:
        _refuse(
            "matmul",
            f"a left operand of type {type(other).__name__}",
            "a vrt.Parameter of shape [M, N] times a vector of shape [N]",
            "make the matrix a vrt.Parameter",
        )

    def __bool__(self) -> bool:
        _refuse(
            "trace",
            "the truth of a traced value was asked for",
            "F is declared once, for all vertices, so it cannot branch on values",
            "use vrt.where, vrt.maximum or vrt.minimum, or multiply by a comparison; objects are "
            "compared by `is`",
        )

    def __iter__(self) -> NoReturn:
        _refuse(
            "trace",
            "a traced value is iterated over",
            "an operation on the whole value",
            "write x[k] for an element, vrt.split for parts, vrt.sum or vrt.max to reduce",
        )

    def __abs__(self) -> Value:
        return self._builder().emit("abs", self)

    __rpow__ = refused("pow", "write vrt.exp(x * math.log(base))")
    __and__ = __rand__ = refused("&", "multiply the masks: (x > 0) * (y > 0)")
    __or__ = __ror__ = refused("|", "write vrt.maximum(x > 0, y > 0)")
    __invert__ = refused("~", "write 1.0 - mask")
    __round__ = refused("round", "write vrt.floor(x + 0.5)")
    __divmod__ = __rdivmod__ = refused("divmod", "write x // y and x % y")
    __format__ = refused("format", "write repr(x): F is traced, there is no number yet")
    __float__ = refused("float", "use the value itself, and vrt.exp for math.exp")
    __int__ = __index__ = refused("int", "F is traced: there is no number yet")
    __len__ = refused("len", "write x.shape[0]")
    __setitem__ = refused("x[k] = y", "values do not change; write vrt.concat or vrt.where")

    if not TYPE_CHECKING:  # which knows what values have

        def __getattr__(self, name: str) -> NoReturn:
            if name.startswith("_"):  # what Python and its libraries look for
                raise AttributeError(name)
            raise FieldError.at(
                "trace",
                f".{name} of a traced value at {user_line()}",
                "a function of vertexrt: values have a shape and no methods",
                "write vrt.sum(x), vrt.concat(x, y) and so on",
            )

    def __array__(self, *_: object, **__: object) -> NoReturn:
        _refuse(
            "numpy",
            "a traced value is made an array",
            "a function of vertexrt: F is traced, there are no numbers yet",
            "write vrt.concat, vrt.sum and so on",
        )

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        """Take the operators of NumPy's numbers, `np.float32(2) * x`; refuse all else."""
        apply = UFUNC_OPERATORS.get(ufunc.__name__)
        if apply is None or method != "__call__" or options:
            _refuse(
                "numpy",
                f"np.{ufunc.__name__} of a traced value",
                "a function of vertexrt",
                "write vrt.exp, vrt.tanh, vrt.maximum and so on",
            )
        plain = [x if isinstance(x, Operators) else self._builder().number(x) for x in inputs]
        return apply(*plain)


class Value(Operators):
    """A handle on one node: operators emit further nodes."""

    __slots__ = ("builder", "index")

    def __init__(self, builder: Construction, index: int) -> None:
        self.builder = builder
        self.index = index

    @property
    def node(self) -> Node:
        """The node that makes this value."""
        return self.builder.nodes[self.index]

    @property
    def type(self) -> Type:
        """Shape, element kind and domain."""
        return self.node.type

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape per vertex."""
        return self.type.shape

    def _builder(self) -> Construction:
        return self.builder

    def __repr__(self) -> str:
        return f"Value({self.node.op}: {self.type})"

    def __add__(self, other: Operand) -> Value:
        if isinstance(other, (int, float)) and other == 0:
            return self  # sum(...) starts from 0
        return self.builder.emit("add", self, other)

    __radd__ = __add__

    def __getitem__(self, key: slice | int | Value) -> Value:
        if len(self.shape) == 1 and isinstance(key, Value):
            index = self.builder.as_index(key)
            if index.type.dtype == "int":  # a number like one that is computed, without bounds
                index = self.builder.emit("real", index)
            named = self.builder.one_hot(index, self.shape[0])
            return self.builder.emit("reduce_sum", self.builder.emit("where", named, self, 0.0))
        if len(self.shape) != 1 or not is_plain(key):
            raise TraceError.at(
                "slice",
                f"{key!r} of a value of shape {self.shape}, at {user_line()}",
                "a step-1 slice, a number or an integer pull, of a vector",
                "slice vectors only",
            )
        length = self.shape[0]
        if not isinstance(key, slice):
            start = range(length)[key] if -length <= key < length else length
            return self.builder.emit("slice", self, start=start, shape=())
        start, stop, _ = key.indices(length)
        return self.builder.emit("slice", self, start=start, shape=(stop - start,))


def is_plain(key: object) -> TypeGuard[slice | int]:
    """Tell whether what is in brackets is an index, or a slice without a step."""
    if not isinstance(key, slice):
        return isinstance(key, (int, np.integer))
    given = (key.start, key.stop, key.step)
    whole = all(b is None or isinstance(b, (int, np.integer)) for b in given)
    return whole and key.step in (None, 1)
