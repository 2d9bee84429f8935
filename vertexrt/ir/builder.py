"""Build programs: `Builder` appends nodes after checking them against the op table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from vertexrt.errors import TraceError
from vertexrt.ir.ops import OPS, Op, ShapeError, comparison
from vertexrt.ir.program import Domain, Node, Stage, attributes, related, relation_of
from vertexrt.ir.user_line import user_line
from vertexrt.ir.values import AsValue, Operand, Operators, Value

MOST_INT = 2**31 - 1  # of an integer pull
OVER_CHILDREN = ("segment_sum", "segment_max")
TAKE_INTEGERS = ("real", "embed", "embed_grad", "nll", "nll_grad", "dropout_by")


class Builder:
    """A program under construction.

    Args:
        nodes: nodes to go on from (autodiff appends to F).
    """

    def __init__(self, nodes: Sequence[Node] = ()) -> None:
        self.nodes: list[Node] = list(nodes)
        self.where: str | None = None  # set by passes: new nodes come from this user line
        self.stage: Stage = Stage.PATH
        self.function = 0  # of new nodes
        self.closed = False  # the trace is over: nothing may be appended

    def value(self, index: int) -> Value:
        """Return a handle on an existing node."""
        return Value(self, index)

    def emit(self, op: str, *operands: Operand, **attrs: Any) -> Value:
        """Append one node after checking arity and shapes against the op table.

        Raises: TraceError with the user's line, when shapes do not fit.
        """
        if self.closed:
            raise TraceError.at(
                "trace",
                f"{op} of a value that outlived its forward(), at {user_line()}",
                "values are used inside the forward() that made them",
                "move the expression into forward(), or push the value",
            )
        row = OPS[op]
        where = self.where if self.where is not None else user_line()
        values = self._as_taken(row, [self.lift(x) for x in operands])
        attrs |= self._of_one_relation(op, values)
        if row.scalar is not None or op == "concat":
            values = self.to_common_domain(values)
        assert row.arity in (-1, len(values)), f"{op} takes {row.arity} operands: {values}"
        types = [v.type for v in values]
        try:
            out = row.shape(types, attrs)
        except ShapeError as error:
            got = f"operands are {', '.join(map(str, types))}, at {where}"
            raise TraceError.at(row.name, got, str(error), "change that line") from None
        inputs = tuple(v.index for v in values)
        node = Node(op, inputs, out, attributes(attrs), where, self.stage, function=self.function)
        self.nodes.append(node)
        return Value(self, len(self.nodes) - 1)

    def _as_taken(self, row: Op, values: list[Value]) -> list[Value]:
        """Make integers real numbers, unless an op asks for an integer, or compares integers."""
        integers = [v.type.dtype == "int" for v in values]
        if row.name in TAKE_INTEGERS or (row.shape is comparison and all(integers)):
            return values
        return [
            self.emit("real", v) if integer else v
            for v, integer in zip(values, integers, strict=True)
        ]

    def relation_of(self, x: Value) -> int:
        """Return the relation whose children a value has a row for; 0 for other values."""
        return relation_of(self.nodes, x.index)

    def _of_one_relation(self, op: str, values: Sequence[Value]) -> dict[str, int]:
        """Return the attributes of a node that goes over children: whose they are.

        Raises: TraceError, when `forward` computes with children of two relations at once.
        """
        found = {self.relation_of(v) for v in values if v.type.domain == Domain.EDGE}
        if self.where is None and len(found) > 1:
            raise TraceError.at(
                op,
                f"values per child of two relations, at {user_line()}",
                "values per child of one relation: others have other children",
                "reduce them first, each by vrt.sum, vrt.max or vrt.mean",
            )
        return related(min(found, default=0)) if op in OVER_CHILDREN else {}

    def lift(self, x: Operand) -> Value:
        """Turn a number or a parameter into a value of this program."""
        if isinstance(x, Value):
            if x.builder is not self:
                raise TraceError.at(
                    "trace",
                    "a value of another vertex function is used here",
                    "values made inside this forward()",
                    "pull the other function's push instead",
                )
            return x
        if isinstance(x, AsValue):
            return x._as_value(self)
        return self.const(self.number(x))

    def number(self, x: Operand) -> float:
        """Return a number as Python has it: of Python, of NumPy, or an array without axes.

        Raises: TraceError for anything else, and for numbers that are not finite.
        """
        array = np.asarray(x) if isinstance(x, (int, float, np.generic, np.ndarray)) else None
        if array is None or array.ndim or array.dtype.kind not in "biuf":
            what = f" of shape {list(np.shape(x))}" if isinstance(x, np.ndarray) else ""
            raise TraceError.at(
                "trace",
                f"an operand is a {type(x).__name__}{what} at {user_line()}",
                "a traced value, a vrt.Parameter or a number",
                "pull an array by name; one that is equal for all vertices is a table of one "
                "row, vrt.Rows(array[None], zeros), which is not trained",
            )
        value = array.item()
        if not math.isfinite(value):
            raise TraceError.at(
                "trace",
                f"an operand is {value} at {user_line()}",
                "a finite number",
                "write a large one, such as -1e30, to leave something out of a softmax",
            )
        return value if isinstance(value, int) else float(value)

    def compare(self, op: str, x: Operand, y: Operand) -> Value:
        """Append a comparison; a whole number compared with an integer pull is an integer."""
        values = [self.lift(v) for v in (x, y)]
        for k, given in enumerate((x, y)):
            if not isinstance(given, Operators) and values[1 - k].type.dtype == "int":
                values[k] = self._whole(self.number(given))
        return self.emit(op, *values)

    def as_index(self, x: Value) -> Value:
        """Read a pull as an integer, the first time that it is used as an index or a label."""
        node = x.node
        if node.op in ("pull", "edge_pull") and node["auto"]:
            settled = replace(
                node,
                type=replace(node.type, dtype="int"),
                attrs=attributes({**dict(node.attrs), "dtype": "int", "auto": False}),
            )
            if any(x.index in n.inputs for n in self.nodes):
                raise TraceError.at(
                    "pull",
                    f"{node['name']!r} is used as a number and as an index, at {user_line()}",
                    "one of the two",
                    "pull two arrays, or write pull_index(name)",
                )
            self.nodes[x.index] = settled
        return x

    def look_up(self, table: Value, index: Value) -> Value:
        """Return a row of a parameter; where the index is computed or the table a part, a product.

        Raises: TraceError, when they are no matrix and index.
        """
        row, node = self.as_index(index), table.node
        part = node.op == "param" and node.has("start")
        if len(table.shape) == 2 and (is_computed(row) or (part and row.type.dtype == "int")):
            named = self.one_hot(row, table.shape[0])
            return self.emit("matmul", table, named, transpose=True)
        return self.emit("embed", table, row)

    def one_hot(self, index: Value, size: int) -> Value:
        """Return 1.0 at the element that an integer names, else 0.0; zeros where it names none.

        Raises: TraceError, when it is neither an integer pull nor computed, or no number.
        """
        found = self.as_index(index)
        if found.type.dtype == "int":
            found = self.emit("real", found, bound=size)
        elif not is_computed(found):
            raise TraceError.at(
                "index",
                f"an index that is {found!r} at {user_line()}",
                "an integer pull, or a number that is computed",
                "write pull_index(name), or vrt.argmax(x)",
            )
        return self.emit("equal", self.emit("arange", shape=(size,)), found)

    def _whole(self, number: float) -> Value:
        """Append an integer constant."""
        if number != int(number) or abs(number) > MOST_INT:
            raise TraceError.at(
                "compare",
                f"an integer pull and {number} at {user_line()}",
                "a whole number of 32 bits",
                "compare integers, or declare pull(name, dtype='float')",
            )
        return self.emit("const", value=int(number), shape=(), dtype="int")

    def const(self, value: float, shape: tuple[int, ...] = ()) -> Value:
        """Append a constant, equal in every element."""
        return self.emit("const", value=float(value), shape=tuple(shape))

    def to_common_domain(self, values: list[Value]) -> list[Value]:
        """Copy vertex values to the edges where another operand is given per edge."""
        if not any(v.type.domain == Domain.EDGE for v in values):
            return values
        (relation, *_) = (self.relation_of(v) for v in values if v.type.domain == Domain.EDGE)
        return [
            self.emit("to_edges", v, **related(relation))
            if v.type.domain == Domain.VERTEX and v.type.dtype == "float"
            else v
            for v in values
        ]


def is_computed(x: Value) -> bool:
    """Tell whether a value is a real number that is computed, not read."""
    return x.type.dtype == "float" and not x.shape and OPS[x.node.op].role != "leaf"
