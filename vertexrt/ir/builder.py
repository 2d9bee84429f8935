"""Build programs: traced values, whose operators emit nodes, and the `Builder` that appends these.

Operators work as in a textbook. A comparison emits 1.0 or 0.0 per element, so `==` is not identity
here: compare objects by `is`. Hashes are those of identity. A builder checks each node against the
op table, whose rows are records of here.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn, TypeGuard

import numpy as np

from vertexrt.errors import FieldError, TraceError
from vertexrt.instead import replacement
from vertexrt.ir.program import Domain, Node, Stage, Type, attributes, related, relation_of
from vertexrt.ir.user_line import refuse, user_line

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


Operand = Any  # Operators | float
MOST_POWER = 64  # whole exponents up to which a power is products; others are exp and log


def _refuse_function(library: str, name: str) -> NoReturn:
    short = {"numpy": "np"}.get(library, library)
    got, action = f"{short}.{name} of a traced value", f"write {replacement('x', name)}"
    refuse(library, got, "a function of vertexrt", action)


def refused(symbol: str, action: str) -> Callable[..., NoReturn]:
    """Make the method of an operator that F does not have."""

    def method(self: Operators, *others: object) -> NoReturn:
        refuse(symbol, f"{symbol} of a traced value", "an operation of vertexrt", action)

    return method


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


def _whole_power(b: Builder, x: Operand, exponent: int) -> Value:
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

    def _builder(self) -> Builder:
        """Return the program under construction."""
        raise NotImplementedError

    def _as_value(self, builder: Builder) -> Value:
        """Return the node that reads this in the program under construction."""
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
            refuse("pow", f"exponent is a {type(exponent).__name__}", "a number", action)
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
        if isinstance(self, Value) and isinstance(other, Operators | np.ndarray):
            found = self.builder.product_of_values(self, self.builder.lift(other))
            if found is not None:
                return found
        left, right = (list(getattr(x, "shape", ())) for x in (self, other))
        action = "write parameter @ x; vrt.sum(x * y) is the dot product of two vectors"
        if len(left) == 2:
            action = "multiply a vector first: m @ (w @ x)"
        elif len(right) == 2:
            action = "write w.T @ x"
        refuse(
            "matmul",
            f"shapes {left} and {right}",
            "one matrix: m [M, N] @ x [N], or x [M] @ m [M, N], which is computed",
            action,
        )

    def __rmatmul__(self, other: Operand) -> Value:
        refuse(
            "matmul",
            f"a left operand of type {type(other).__name__}",
            "a vrt.Parameter of shape [M, N] times a vector of shape [N]",
            "make the matrix a vrt.Parameter",
        )

    def __bool__(self) -> bool:
        refuse(
            "trace",
            "the truth of a traced value was asked for",
            "F is declared once, for all vertices, so it cannot branch on values",
            "use vrt.where, vrt.maximum or vrt.minimum, or multiply by a comparison; objects are "
            "compared by `is`",
        )

    def __iter__(self) -> NoReturn:
        refuse(
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
    __len__ = refused("len", "write x.shape[0]; self.count_children() counts children")
    __setitem__ = refused("x[k] = y", "values do not change; write vrt.concat or vrt.where")

    if not TYPE_CHECKING:  # which knows what values have

        def __getattr__(self, name: str) -> NoReturn:
            if name.startswith("_"):  # what Python and its libraries look for
                raise AttributeError(name)
            raise FieldError.at(
                "trace",
                f".{name} of a traced value at {user_line()}",
                "a function of vertexrt: values have a shape and no methods",
                f"write {replacement('x', name)}",
            )

    def __array__(self, *_: object, **__: object) -> NoReturn:
        refuse(
            "numpy",
            "a traced value is made an array",
            "a function of vertexrt: F is traced, there are no numbers yet",
            "write vrt.concat, vrt.sum and so on",
        )

    def __array_function__(self, function: Any, *_: object) -> NoReturn:
        """Refuse the functions of NumPy by name."""
        _refuse_function("numpy", function.__name__)

    @classmethod
    def __torch_function__(cls, function: Any, *_: object) -> NoReturn:
        """Refuse the functions and modules of PyTorch by name."""
        _refuse_function("torch", function.__name__)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        """Take the operators of NumPy's numbers, `np.float32(2) * x`; refuse all else."""
        apply = UFUNC_OPERATORS.get(ufunc.__name__)
        if apply is None or method != "__call__" or options:
            _refuse_function("numpy", ufunc.__name__)
        return apply(*(self._builder().operand(x) for x in inputs))


class Value(Operators):
    """A handle on one node: operators emit further nodes."""

    __slots__ = ("builder", "index")

    def __init__(self, builder: Builder, index: int) -> None:
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

    def _builder(self) -> Builder:
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
        length = self.shape[0] if len(self.shape) == 1 else 0
        if length and isinstance(key, slice) and is_whole_slice(key):
            return self.builder.every(self, range(*key.indices(length)))
        if len(self.shape) != 1 or not is_plain(key):
            refuse(
                "slice",
                f"{key!r} of a value of shape {list(self.shape)}",
                "a slice, a number or an integer pull, of a vector",
                "write x[a:b:step] or x[k] of a vector; vrt.stack(x[0], x[3]) picks elements",
            )
        assert not isinstance(key, slice), key
        if not -length <= key < length:
            got, expected = f"element {key} of {length}", f"0 to {length - 1}, or from the end"
            refuse("slice", got, expected, "correct the number, or the size of the vector")
        return self.builder.emit("slice", self, start=range(length)[key], shape=())


def is_plain(key: object) -> TypeGuard[slice | int]:
    """Tell whether what is in brackets is an index, or a slice without a step."""
    if isinstance(key, slice):
        return key.step in (None, 1) and is_whole_slice(key)
    return isinstance(key, (int, np.integer))


def is_whole_slice(key: slice) -> bool:
    """Tell whether the bounds of a slice are whole numbers, and its step is positive."""
    given = (key.start, key.stop, key.step)
    whole = all(b is None or isinstance(b, (int, np.integer)) for b in given)
    return whole and (key.step is None or key.step > 0)


# The op table.

Types = Sequence[Type]
Attrs = dict[str, Any]
ShapeRule = Callable[[Types, Attrs], Type]
Vjp = Callable[["Site", Value], Sequence[Value | None]]


class ShapeError(Exception):
    """What a shape rule expected; the builder adds the user's line."""


@dataclass(frozen=True, slots=True)
class Site:
    """Where a vjp rule is applied: the node, its operands and its output as values."""

    b: Builder
    node: Node
    x: tuple[Value, ...]
    out: Value


@dataclass(frozen=True, slots=True)
class Op:
    """One row of the table."""

    name: str
    arity: int  # -1: any number
    role: str
    shape: ShapeRule
    scalar: str | None = None
    vjp: Vjp | None = None

    @property
    def compares(self) -> bool:
        """Whether it makes truths of two numbers, integers as well."""
        return self.name in ("greater_equal", "equal", "greater", "not_equal")

    @property
    def draws(self) -> bool:
        """Whether random numbers are drawn."""
        return self.scalar is not None and "draw" in self.scalar


MOST_INT = 2**31 - 1  # of an integer pull
# What users call ops; that of `logsumexp` alone does not look at shapes before.
PUBLIC_NAMES = {"reduce_sum": "sum", "reduce_max": "max"}
PUBLIC_NAMES |= dict.fromkeys(("nll", "logsumexp"), "cross_entropy")
OVER_CHILDREN = ("segment_sum", "segment_max")
TAKE_INTEGERS = ("real", "embed", "embed_grad", "nll", "nll_grad", "dropout_by")


class Builder:
    """A program under construction.

    Args:
        ops: the op table.
        nodes: nodes to go on from (autodiff appends to F).
    """

    def __init__(self, ops: Mapping[str, Op], nodes: Sequence[Node] = ()) -> None:
        self.ops = ops
        self.nodes: list[Node] = list(nodes)
        self.where: str | None = None  # set by passes: new nodes come from this user line
        self.stage: Stage = Stage.PATH
        self.function = 0  # of new nodes
        self.array_as: Callable[[Any], Operators] | None = None  # what stands for arrays of NumPy
        self.closed = False  # the trace is over: nothing may be appended

    def value(self, index: int) -> Value:
        """Return a handle on an existing node."""
        return Value(self, index)

    def emit(self, op: str, *operands: Operand, **attrs: Any) -> Value:
        """Append one node after checking arity and shapes against the op table.

        Raises: TraceError with the user's line, when shapes do not fit.
        """
        if self.closed:
            refuse(
                "trace",
                f"{op} of a value that outlived its forward()",
                "values are used inside the forward() that made them",
                "move the expression into forward(), or push the value",
            )
        row = self.ops[op]
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
            name = PUBLIC_NAMES.get(row.name, row.name)
            raise TraceError.at(name, got, str(error), "change that line") from None
        inputs = tuple(v.index for v in values)
        node = Node(op, inputs, out, attributes(attrs), where, self.stage, function=self.function)
        self.nodes.append(node)
        return Value(self, len(self.nodes) - 1)

    def _as_taken(self, row: Op, values: list[Value]) -> list[Value]:
        """Make integers real numbers, unless an op asks for an integer, or compares integers."""
        integers = [v.type.dtype == "int" for v in values]
        if row.name in TAKE_INTEGERS or (row.compares and all(integers)):
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
            refuse(
                op,
                "values per child of two relations,",
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
        found = self.operand(x)
        if isinstance(found, Value):
            return found
        return found._as_value(self) if isinstance(found, Operators) else self.const(found)

    def operand(self, x: Operand) -> Operators | float:
        """Return what operators take: a traced value, a number, or what stands for an array."""
        if isinstance(x, Operators):
            return x
        real = isinstance(x, np.ndarray) and x.ndim > 0 < x.size and x.dtype.kind in "biuf"
        return self.array_as(x) if real and self.array_as else self.number(x)

    def number(self, x: Operand) -> float:
        """Return a number as Python has it: of Python, of NumPy, or an array without axes.

        Raises: TraceError for anything else, and for numbers that are not finite.
        """
        array = np.asarray(x) if isinstance(x, (int, float, np.generic, np.ndarray)) else None
        if array is None or array.ndim or array.dtype.kind not in "biuf":
            shape = getattr(x, "shape", None)
            what = "" if shape is None else f" of shape {list(shape)}"
            action = "pass what forward() has read or computed"
            if isinstance(x, (list, tuple)) and any(isinstance(each, Operators) for each in x):
                action = "join them by vrt.concat(x, y), vrt.stack(a, b), or add them: x + y"
            elif shape is not None or isinstance(x, (list, tuple)):
                action = (
                    "a constant is an array of NumPy, of real numbers: x * np.asarray(y); what "
                    "differs by vertex is pulled: self.pull(name, shape)"
                )
            refuse(
                "trace",
                f"an operand is a {type(x).__name__}{what}",
                "a traced value, a vrt.Parameter or a number",
                action,
            )
        value = array.item()
        if not math.isfinite(value):
            refuse(
                "trace",
                f"an operand is {value}",
                "a finite number",
                "write a large one, such as -1e30, to leave something out of a softmax",
            )
        return value if isinstance(value, int) else float(value)

    def product_of_values(self, x: Value, y: Value) -> Value | None:
        """Return a matrix that is computed times a vector, or a vector times it; None for others.

        Each vertex has its own matrix, so it is no product of all rows by one.
        """
        left = len(x.shape) == 2
        matrix, vector = (x, y) if left else (y, x)
        if len(matrix.shape) != 2 or len(vector.shape) != 1:
            return None
        rows, columns = matrix.shape
        size, each, apart = (rows, 1, columns) if left else (columns, columns, 1)
        if size * vector.type.size != matrix.type.size:
            return None
        whole = self.emit("repeat", vector, shape=matrix.shape, each=each)
        return self.emit("sum_repeated", matrix * whole, shape=(size,), each=apart)

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
                refuse(
                    "pull",
                    f"{node['name']!r} is used as a number and as an index",
                    "one of the two",
                    "pull two arrays, or write pull_index(name)",
                )
            self.nodes[x.index] = settled
        return x

    def look_up(self, table: Value, index: Value) -> Value:
        """Return a row of a parameter; where the index is computed or the table a part, a product.

        Raises: TraceError, when they are no matrix and index.
        """
        if index.node.op == "const":
            refuse("embed", "an index that is a plain number", "an integer pull", "write w[k]")
        row, node = self.as_index(index), table.node
        part = node.op == "param" and node.has("start")
        if len(table.shape) == 3 and (part or is_computed(row)):
            refuse(
                "embed",
                f"a matrix of a value of shape {list(table.shape)} by {index.node.op}",
                "one of a whole parameter, by an integer pull",
                "write sum((index == k) * (w[k] @ x) for k in range(w.shape[0]))",
            )
        if len(table.shape) == 2 and (is_computed(row) or (part and row.type.dtype == "int")):
            named = self.one_hot(row, table.shape[0])
            return self.emit("matmul", table, named, transpose=True)
        return self.emit("embed", table, row)

    def every(self, x: Value, chosen: range) -> Value:
        """Return some elements of a vector: a slice, or a sum of rows of which others are zeros."""
        start, count, step = chosen.start, len(chosen), chosen.step
        if step == 1 or count < 2:
            return self.emit("slice", x, start=start, shape=(count,))
        size = count * step  # of whole rows
        end = min(x.type.size - start, size)
        parts = [self.emit("slice", x, start=start, shape=(end,))]
        if end < size:
            parts.append(self.const(0.0, (size - end,)))
        inside = self.emit("concat", *parts, shape=(size,))
        first = self.emit("equal", self.emit("arange", shape=(step,)), 0.0)
        mask = self.emit("repeat", first, shape=inside.shape, each=1)
        kept = self.emit("where", mask, inside, 0.0)
        return self.emit("sum_repeated", kept, shape=(count,), each=step)

    def one_hot(self, index: Value, size: int) -> Value:
        """Return 1.0 at the element that an integer names, else 0.0; zeros where it names none.

        Raises: TraceError, when it is neither an integer pull nor computed, or no number.
        """
        found = self.as_index(index)
        if found.type.dtype == "int":
            found = self.emit("real", found, bound=size)
        elif not is_computed(found):
            refuse(
                "index",
                f"an index that is {found!r}",
                "an integer pull, or a number that is computed",
                "write pull_index(name), or vrt.argmax(x)",
            )
        return self.emit("equal", self.emit("arange", shape=(size,)), found)

    def _whole(self, number: float) -> Value:
        """Append an integer constant."""
        if number != int(number) or abs(number) > MOST_INT:
            refuse(
                "compare",
                f"an integer pull and {number}",
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
    return x.type.dtype == "float" and not x.shape and x.builder.ops[x.node.op].role != "leaf"
