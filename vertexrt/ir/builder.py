"""Build programs: `Builder` appends checked nodes, `Value` writes them with Python's operators.

Both the tracer of the vertex function and the vjp rules of the op table build IR with these, so a
rule reads as it stands in a textbook.
"""

from __future__ import annotations

import linecache
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from vertexrt.errors import TraceError, message
from vertexrt.ir.program import Domain, Node, Stage, Type, attributes

PACKAGE = str(Path(__file__).resolve().parents[1])


@runtime_checkable
class AsValue(Protocol):
    """Anything that can stand in an expression: a declared parameter, for one."""

    def as_value(self, builder: Builder) -> Value:
        """Return the node that reads this in the program under construction."""


Operand = Any  # Value | AsValue | float


def user_line() -> str:
    """Name the nearest line outside the package that is being executed: `file:line: text`."""
    frame: Any = sys._getframe(1)
    models = str(Path(PACKAGE) / "models")
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(PACKAGE) or name.startswith(models):
            text = linecache.getline(name, frame.f_lineno).strip()
            return f"{Path(name).name}:{frame.f_lineno}: {text}"
        frame = frame.f_back
    return ""


class Builder:
    """A program under construction.

    Args:
        nodes: nodes to go on from (autodiff appends to F).
    """

    def __init__(self, nodes: Sequence[Node] = ()) -> None:
        self.nodes: list[Node] = list(nodes)
        self.where: str | None = None  # set by passes: new nodes come from this user line
        self.stage: Stage = Stage.PATH

    def value(self, index: int) -> Value:
        """Return a handle on an existing node."""
        return Value(self, index)

    def emit(self, op: str, *operands: Operand, **attrs: Any) -> Value:
        """Append one node after checking arity and shapes against the op table.

        Raises: TraceError with the user's line, when shapes do not fit.
        """
        from vertexrt.ir.ops import OPS  # the table's vjp rules build IR with this class

        row = OPS[op]
        where = self.where if self.where is not None else user_line()
        values = [self.lift(x) for x in operands]
        if row.scalar is not None or op == "concat":
            values = self.to_common_domain(values)
        if row.arity >= 0 and len(values) != row.arity:
            raise AssertionError(f"{op} takes {row.arity} operands, got {len(values)}")
        types = [v.type for v in values]
        try:
            out = row.shape(types, attrs)
        except ShapeError as error:
            shown = ", ".join(str(t) for t in types)
            raise TraceError(
                message(op, f"operands are {shown}, at {where}", str(error), "change that line")
            ) from None
        node = Node(op, tuple(v.index for v in values), out, attributes(attrs), where, self.stage)
        self.nodes.append(node)
        return Value(self, len(self.nodes) - 1)

    def lift(self, x: Operand) -> Value:
        """Turn a number or a parameter into a value of this program."""
        if isinstance(x, Value):
            if x.builder is not self:
                raise TraceError(
                    message(
                        "trace",
                        "a value of another vertex function is used here",
                        "values made inside this forward()",
                        "pull the other function's push instead",
                    )
                )
            return x
        if isinstance(x, (int, float)):
            return self.const(float(x))
        if isinstance(x, AsValue):
            return x.as_value(self)
        raise TraceError(
            message(
                "trace",
                f"an operand is a {type(x).__name__} at {user_line()}",
                "a traced value, a vrt.Parameter or a number",
                "pull arrays by name; wrap constants in vrt.Parameter",
            )
        )

    def const(self, value: float, shape: tuple[int, ...] = ()) -> Value:
        """Append a constant, equal in every element."""
        return self.emit("const", value=float(value), shape=tuple(shape))

    def to_common_domain(self, values: list[Value]) -> list[Value]:
        """Copy vertex values to the edges where another operand is given per edge."""
        if not any(v.type.domain == Domain.EDGE for v in values):
            return values
        return [self.emit("to_edges", v) if v.type.domain == Domain.VERTEX else v for v in values]


class ShapeError(Exception):
    """What a shape rule expected; the builder adds the user's line."""


class Value:
    """A handle on one node: operators emit further nodes."""

    __slots__ = ("builder", "index")
    __array_ufunc__ = None  # NumPy must not take over `array * value`

    def __init__(self, builder: Builder, index: int) -> None:
        self.builder = builder
        self.index = index

    @property
    def node(self) -> Node:
        """The node behind this value."""
        return self.builder.nodes[self.index]

    @property
    def type(self) -> Type:
        """Shape, element kind and domain."""
        return self.node.type

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape per vertex."""
        return self.type.shape

    def __repr__(self) -> str:
        return f"Value(%{self.index} {self.type} = {self.node.op})"

    def __bool__(self) -> bool:
        raise TraceError(
            message(
                "trace",
                f"the truth of a traced value was asked for, at {user_line()}",
                "F is declared once, for all vertices, so it cannot branch on values",
                "use vrt.where, or pull a mask and multiply",
            )
        )

    def __add__(self, other: Operand) -> Value:
        if isinstance(other, (int, float)) and other == 0:
            return self  # sum(...) starts from 0
        return self.builder.emit("add", self, other)

    __radd__ = __add__

    def __sub__(self, other: Operand) -> Value:
        return self.builder.emit("sub", self, other)

    def __rsub__(self, other: Operand) -> Value:
        return self.builder.emit("sub", other, self)

    def __mul__(self, other: Operand) -> Value:
        return self.builder.emit("mul", self, other)

    def __rmul__(self, other: Operand) -> Value:
        return self.builder.emit("mul", other, self)

    def __truediv__(self, other: Operand) -> Value:
        return self.builder.emit("div", self, other)

    def __rtruediv__(self, other: Operand) -> Value:
        return self.builder.emit("div", other, self)

    def __neg__(self) -> Value:
        return self.builder.emit("neg", self)

    def __pow__(self, exponent: float) -> Value:
        if exponent == 2:
            return self.builder.emit("mul", self, self)
        raise TraceError(
            message(
                "pow",
                f"exponent is {exponent!r} at {user_line()}",
                "2",
                "write vrt.exp(k * vrt.log(x))",
            )
        )

    def __getitem__(self, key: slice | int) -> Value:
        if len(self.shape) != 1 or (isinstance(key, slice) and key.step not in (None, 1)):
            raise TraceError(
                message(
                    "slice",
                    f"{key} of a value of shape {self.shape}, at {user_line()}",
                    "a step-1 slice or an index of a vector",
                    "slice vectors only",
                )
            )
        length = self.shape[0]
        if isinstance(key, int):
            start = range(length)[key] if -length <= key < length else length
            return self.builder.emit("slice", self, start=start, shape=())
        start, stop, _ = key.indices(length)
        return self.builder.emit("slice", self, start=start, shape=(stop - start,))
