"""Build programs: `Builder` appends checked nodes, `Value` writes them with Python's operators.

Both the tracer of the vertex function and the vjp rules of the op table build IR with these, so a
rule reads as it stands in a textbook.
"""

from __future__ import annotations

import linecache
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from vertexrt.errors import TraceError, message
from vertexrt.ir.operators import Operators
from vertexrt.ir.program import Domain, Node, Stage, Type, attributes

MOST_INT = 2**31 - 1  # of an integer pull
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
        self.closed = False  # the trace is over: nothing may be appended

    def value(self, index: int) -> Value:
        """Return a handle on an existing node."""
        return Value(self, index)

    def emit(self, op: str, *operands: Operand, **attrs: Any) -> Value:
        """Append one node after checking arity and shapes against the op table.

        Raises: TraceError with the user's line, when shapes do not fit.
        """
        from vertexrt.ir.ops import OPS  # the table's vjp rules build IR with this class

        if self.closed:
            raise TraceError(
                message(
                    "trace",
                    f"{op} of a value that outlived its forward(), at {user_line()}",
                    "values are used inside the forward() that made them",
                    "move the expression into forward(), or push the value",
                )
            )
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
        if isinstance(x, AsValue):
            return x.as_value(self)
        return self.const(self.number(x))

    def number(self, x: Operand) -> float:
        """Return a number as Python has it: of Python, of NumPy, or an array without axes.

        Raises: TraceError for anything else, and for numbers that are not finite.
        """
        array = np.asarray(x) if isinstance(x, (int, float, np.generic, np.ndarray)) else None
        if array is None or array.ndim or array.dtype.kind not in "biuf":
            what = f" of shape {list(np.shape(x))}" if isinstance(x, np.ndarray) else ""
            raise TraceError(
                message(
                    "trace",
                    f"an operand is a {type(x).__name__}{what} at {user_line()}",
                    "a traced value, a vrt.Parameter or a number",
                    "pull an array by name; one that is equal for all vertices is a table of one "
                    "row, vrt.Pulled(array[None], zeros), which is not trained",
                )
            )
        value = array.item()
        if not math.isfinite(value):
            raise TraceError(
                message(
                    "trace",
                    f"an operand is {value} at {user_line()}",
                    "a finite number",
                    "write a large one, such as -1e30, to leave something out of a softmax",
                )
            )
        return value if isinstance(value, int) else float(value)

    def compare(self, op: str, x: Operand, y: Operand) -> Value:
        """Append a comparison; a whole number beside an integer pull is an integer.

        Raises: TraceError, when one operand is an integer pull and the other is real.
        """
        values = [self.lift(v) for v in (x, y)]
        for k, given in enumerate((x, y)):
            if not isinstance(given, Operators) and values[1 - k].type.dtype == "int":
                values[k] = self._whole(self.number(given))
        return self.emit(op, *values)

    def _whole(self, number: float) -> Value:
        """Append an integer constant."""
        if number != int(number) or abs(number) > MOST_INT:
            raise TraceError(
                message(
                    "compare",
                    f"an integer pull and {number} at {user_line()}",
                    "a whole number of 32 bits",
                    "compare integers, or declare pull(name, dtype='float')",
                )
            )
        return self.emit("const", value=int(number), shape=(), dtype="int")

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


class Value(Operators):
    """A handle on one node: operators emit further nodes."""

    __slots__ = ("builder", "index")

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

    def _builder(self) -> Builder:
        return self.builder

    def __repr__(self) -> str:
        return f"Value({self.node.op}: {self.type})"

    def __add__(self, other: Operand) -> Value:
        if isinstance(other, (int, float)) and other == 0:
            return self  # sum(...) starts from 0
        return self.builder.emit("add", self, other)

    __radd__ = __add__

    def __getitem__(self, key: slice | int) -> Value:
        given = (key.start, key.stop, key.step) if isinstance(key, slice) else (key,)
        bounds = [b for b in given if b is not None or not isinstance(key, slice)]
        plain = all(isinstance(b, (int, np.integer)) for b in bounds)
        if len(self.shape) != 1 or not plain or given[2:] not in ((), (None,), (1,)):
            raise TraceError(
                message(
                    "slice",
                    f"{key!r} of a value of shape {self.shape}, at {user_line()}",
                    "a step-1 slice or an index of a vector",
                    "slice vectors only",
                )
            )
        length = self.shape[0]
        if not isinstance(key, slice):
            start = range(length)[key] if -length <= key < length else length
            return self.builder.emit("slice", self, start=start, shape=())
        start, stop, _ = key.indices(length)
        return self.builder.emit("slice", self, start=start, shape=(stop - start,))
