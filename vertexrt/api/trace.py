"""Trace a vertex function: run its `forward` once and collect the program.

A trace is the program under construction. Its operands are values and parameters; cells, lists and
dicts hold the latter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import numpy as np

from vertexrt.api.init import Initializer, constant
from vertexrt.checks import is_whole, read_shape
from vertexrt.errors import TraceError
from vertexrt.ir.builder import Builder, Operators, Value, is_plain, refused
from vertexrt.ir.ops import OPS
from vertexrt.ir.passes.specialise import MOST_PULLS, MOST_SLOTS
from vertexrt.ir.program import Node, Program, Pull, attributes
from vertexrt.ir.user_line import refuse, user_line

active: ContextVar[Trace | None] = ContextVar("active", default=None)  # in each thread
CHILDREN = "children"  # the relation of `gather_all`, where it is not named
PULLS = ("pull", "edge_pull")  # ops of external values
ARRAYS = "arrays_in_forward"  # an attribute of functions: what stands for arrays of NumPy


def current_trace() -> Trace:
    """Return the program under construction.

    Raises: TraceError outside of a trace.
    """
    trace = active.get()
    if trace is None:
        raise TraceError.at(
            "trace",
            "an operation of vertexrt runs outside of forward()",
            "F is traced by vrt.compile, which calls forward() once",
            "move the expression into forward(); arrays are NumPy's to compute with",
        )
    return trace


def current_builder() -> Builder:
    """Return what makes the nodes of the vertex function that is being traced.

    Raises: TraceError outside of a trace.
    """
    return current_trace().builder


@dataclass(frozen=True, slots=True)
class NetworkNames:
    """What the parts of a network of several functions are called, by their identity.

    Attributes:
        types: of each function; states: before the names of its fields; functions whose vertices
            may be the same child have one state.
        parameters: of each parameter.
    """

    types: Mapping[int, str]
    states: Mapping[int, str]
    parameters: Mapping[int, str]


class Trace:
    """A program under construction, active while the `forward` of a function runs.

    Args:
        function: whose `forward` it is, by identity.
        name: of the program; in a network, of the function's states.
        arity: slots that it declares by number; they come first.
        names: of the network that the function is a part of; None, where it is alone and relations
            have no names.
    Attributes:
        pulled: external values by name; pushed: nodes of pushes by name.
        scattered: it has scattered.
        arrays: of NumPy, which forward() computes with.
        slots: name of a relation of one child -> its slot.
        every: names of the relations of which all children are read.
    """

    def __init__(
        self, function: object, name: str, arity: int | None, names: NetworkNames | None
    ) -> None:
        self.function, self.name, self.arity, self.names = function, name, arity, names
        self.builder = Builder(OPS)
        self.builder.array_as = self._constant
        self.pulled: dict[str, Value] = {}
        self.pushed: dict[str, int] = {}
        self.arrays: list[np.ndarray[Any, Any]] = []
        vars(function).pop(ARRAYS, None)  # of a trace before
        self.scattered = False
        self.slots: dict[str, int] = {}
        self.every: list[str] = []
        self._of_edges: dict[str, bool] = {}  # by name of what is pulled
        self._read: dict[tuple[str, int | str], Value] = {}  # by that name, and whose edges

    def _constant(self, array: np.ndarray[Any, Any]) -> Operators:
        """Return what is equal to an array: an attribute of the function that is not trained.

        Raises: TraceError for numbers that are not finite.
        """
        first = self.builder.number(array.flat[np.isfinite(array).argmin()])
        arrays: list[Parameter] = vars(self.function).setdefault(ARRAYS, [])
        for parameter, known in zip(arrays, self.arrays, strict=True):
            if known.shape == array.shape and (known == array).all():
                return parameter
        if array.ndim == 1 and (array == first).all():
            return self.builder.const(first, array.shape)
        kind = "" if self.names is None else f"{self.names.types[id(self.function)]}."
        found = Parameter(array.shape, constant(array), trainable=False)
        found.name = f"{kind}{ARRAYS}.{len(arrays)}"
        arrays.append(found)
        self.arrays.append(array.copy())
        return found

    @property
    def count(self) -> int:
        """Count the slots."""
        return (self.arity or 0) + len(self.slots)

    @property
    def relations(self) -> tuple[str, ...]:
        """Name the relation of each slot, in order, then those of which all children are read."""
        return (*map(str, range(self.arity or 0)), *self.slots, *self.every)

    def slot(self, name: str) -> int:
        """Return the slot of a relation of one child.

        Raises: TraceError, when the function stands alone, reads all children of this relation,
            or has no slot left.
        """
        self._check_named("gather", name)
        if name in self.every:
            _refuse_both_ways(name)
        if name not in self.slots and self.count == MOST_SLOTS:
            refuse(
                "gather",
                f"{name!r} is one relation more",
                f"at most {MOST_SLOTS}",
                "read many by gather_all",
            )
        return self.slots.setdefault(name, self.count)

    def read_all(self, name: object) -> int:
        """Return the number of a relation of which all children are read.

        Raises: TraceError, when the function stands alone and the relation has a name, or when it
            reads this relation by slot; and for what is no name.
        """
        if self.names is None and isinstance(name, str) and name == CHILDREN:
            return 0
        self._check_named("gather_all", name)
        if not isinstance(name, str):
            refuse(
                "gather_all",
                f"{name!r}",
                "the name of a relation",
                "read one child by gather(slot)",
            )
        if name in self.slots:
            _refuse_both_ways(name)
        if name not in self.every:
            self.every.append(name)
        return self.every.index(name)

    def _check_named(self, where: str, name: object) -> None:
        if self.names is None:
            raise TraceError.at(
                where,
                f"the relation {name!r} at {user_line()}, of a function that stands alone",
                "relations have names in a vrt.Model",
                "make the function an attribute of a vrt.Model, and compile that",
            )

    def read(
        self,
        op: str,
        name: object,
        shape: object,
        dtype: str | None,
        index: bool = False,
        **attrs: Any,
    ) -> Value:
        """Return an external value of the vertex, or of its edges in a relation; it is read once.

        Args:
            op: of PULLS; attrs: of its node, which say whose edges they are.
            dtype: "float" where it may not become an integer; index: it is one.
        Raises: TraceError, when the name was read before in another way, or too many are.
        """
        of_edges = op == "edge_pull" or "edge" in attrs
        what = "edge" if of_edges else "pull"
        if not isinstance(name, str):
            refuse(what, f"name {name!r}", "a string", "name an array of the batch")
        if dtype is not None and (not isinstance(dtype, str) or dtype != "float"):
            refuse(
                "pull",
                f"dtype {dtype!r} of {name!r}",
                "'float'",
                "leave dtype out; pull_index and edge_index read integers",
            )
        extents = read_shape(() if shape is None else shape)
        if extents is None:
            refuse(
                "pull",
                f"shape {shape!r} of {name!r}",
                "a tuple of positive integers",
                "pull reals by shape, and integers one by one",
            )
        if self._of_edges.setdefault(name, of_edges) != of_edges:
            refuse(
                what,
                f"{name!r} of vertices and of edges,",
                "a name of its own for each",
                "rename one",
            )
        before = next((v for (n, _), v in self._read.items() if n == name), None)
        if before is not None and shape is not None and extents != before.shape:
            refuse(
                what,
                f"{name!r} of shape {list(extents)}",
                f"it was pulled before with shape {list(before.shape)}",
                "pull it once, or use two names",
            )
        whose = attrs.get("of", attrs.get("relation", 0))
        if (name, whose) not in self._read:
            called = f"({name} of edge {whose})" if "of" in attrs else name
            if len(self.pulled) == MOST_PULLS and called not in self.pulled:
                refuse(
                    what,
                    f"{called!r} after {MOST_PULLS} others",
                    f"at most {MOST_PULLS} names",
                    "pull vectors instead of many numbers",
                )
            given = {"dtype": "int" if index else "float", "auto": not (index or dtype), **attrs}
            extents = extents if before is None else before.shape
            found = self.builder.emit(op, name=called, shape=extents, **given)
            self._read[name, whose] = self.pulled[called] = found
        return self._read[name, whose]

    def program(self, declared: Mapping[str, Parameter], state: Mapping[str, int]) -> Program:
        """Return the traced program.

        Args:
            declared: parameters by name; state: its fields and their elements.
        Raises: TraceError, when edges of two relations have numbers and indices of one name.
        """
        params = {name: p.shape for name, p in declared.items()}
        pulls: dict[str, Pull] = {}
        nodes: list[Node] = []
        for node in self.builder.nodes:
            if node.op in PULLS:
                attrs = {k: v for k, v in node.attrs if k != "auto"}
                attrs["dtype"] = node.type.dtype
                if node.op == "edge_pull" and node.relation and node.type.dtype == "int":
                    # Numbers of rows, maybe of another table than in other relations.
                    name = node["name"]
                    attrs |= {"name": f"({name} of edges {node.relation})", "edge": name}
                node = replace(node, attrs=attributes(attrs))
                name, kind = node["name"], node.type
                given = {key: node[key] for key in ("edge", "of") if node.has(key)}
                form = Pull(name, kind.shape, kind.dtype, node.op == "edge_pull", **given)
                pulls.setdefault(name, form)
                others = [p for p in pulls.values() if p.edges and p.source == form.source]
                if form.edges and any(pull.dtype != kind.dtype for pull in others):
                    raise TraceError.at(
                        "edge",
                        f"{form.source!r} is a number in one relation and an index in another, at "
                        f"{node.where}",
                        "one of the two",
                        "use two names, or write edge_index(name) in both",
                    )
            nodes.append(node)
        found, arity = tuple(pulls.values()), self.count or None
        frozen = frozenset(name for name, p in declared.items() if not p.trainable)
        return Program(self.name, tuple(nodes), params, state, arity, found, frozen=frozen)


def _refuse_both_ways(name: str) -> NoReturn:
    raise TraceError.at(
        "gather",
        f"{name!r} at {user_line()}, by gather and by gather_all",
        "one child of a relation, or all of them",
        "give the one child a relation of its own; for what its edge carries, gather it first",
    )


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

    def __matmul__(self, x: Any) -> Any:
        if _is_matrix(self) and _is_matrix(x):
            return _product(self, x)
        if isinstance(x, Value) and len(x.shape) == 2:  # a vertex's own
            return self._as_value(x.builder) @ x
        return self._times(x, False)

    def _times(self, x: Any, transpose: bool) -> Value:
        """Multiply a vector by the matrix, or by its transpose."""
        vector, axes = current_builder().lift(x), len(self.shape)
        if axes != 2 or len(vector.shape) > 1:  # the IR takes several rows at once; people do not
            actions = {
                1: "write w.T @ x; vrt.dot(x, y) multiplies two vectors",
                2: "multiply a vector first: w1 @ (w2 @ x)",
            }
            refuse(
                "matmul",
                f"shapes {list(self.shape)} and {list(vector.shape)}",
                "a parameter of shape [M, N] and a right operand of shape "
                f"[{self.shape[0 if transpose else -1]}]",
                actions.get(axes, "write w[k] @ x"),
            )
        return vector.builder.emit("matmul", self, vector, transpose=transpose)

    @property
    def T(self) -> Multiplier:
        """The transpose of a matrix, to multiply by: `w.T @ x`, [M, N] and [M] to [N]."""
        if len(self.shape) != 2:
            refuse(
                "Parameter",
                f"the transpose of {self!r}",
                "a matrix",
                "leave .T out: a vector has none",
            )
        what = f"the transpose of {self!r}"
        return Multiplier(what, self.shape[::-1], lambda x: self._times(x, True))

    def reshape(self, *shape: int) -> ParameterPart:
        """Return the same elements in another shape, to multiply by or to take parts of.

        Raises: TraceError, when it has other elements.
        """
        whole = all(is_whole(n) and n > 0 for n in shape)
        if not shape or not whole or math.prod(shape) != math.prod(self.shape):
            refuse(
                "reshape",
                f"{self!r} in the shape {shape!r}",
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
            refuse(
                "slice",
                f"{key!r} of {self!r}",
                f"some of {rows} rows: w[a:b], or w[k]",
                "write w[k][j] for an element, vrt.split(w @ x, n) for parts of a product",
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
            array = getattr(shape, "shape", None)
            raise TraceError.at(
                "Parameter",
                f"shape is {shape!r:.60}"
                if array is None
                else f"a {type(shape).__name__} in place of a shape",
                "a tuple of positive integers",
                "write (rows, columns), or (length,) for a vector"
                if array is None
                else f"write vrt.Parameter({tuple(array)}), and net.parameters[name] = array",
            )
        if init is not None and not callable(init):
            raise TraceError.at(
                "Parameter",
                f"init is a {type(init).__name__}",
                "a function of shape and generator, as those of vrt.init",
                f"write vrt.Parameter(({shape}, {init}))"
                if is_whole(init)
                else "write init=vrt.init.constant(value) for one number, "
                "init=lambda shape, random: array for an array",
            )
        self.parameter, self.start, self.shape = self, 0, extents
        self.init = init
        self.trainable = flag_of("Parameter", "trainable", trainable)
        self.name: str | None = None

    def _as_value(self, builder: Builder) -> Value:
        """Return the node that reads this parameter."""
        return builder.emit("param", name=self._name_in_program(), shape=self.shape)

    def _name_in_program(self) -> str:
        """Return what the program that is traced calls this parameter."""
        names = current_trace().names
        name = self.name if names is None else names.parameters.get(id(self), self.name)
        if name is None:
            refuse(
                "trace",
                f"a parameter of shape {self.shape} has no name",
                "parameters are attributes of the vertex function, set in __init__, with names "
                "that do not begin with _",
                "write self.name = vrt.Parameter(...)",
            )
        return name

    def __repr__(self) -> str:
        name = f"{self.name!r}, " if self.name else ""
        return f"Parameter({name}{self.shape})"


def flag_of(where: str, name: str, given: object) -> bool:
    """Return an option that is on or off.

    Raises: TraceError, when it is neither True nor False.
    """
    if not isinstance(given, bool):
        raise TraceError.at(
            where, f"{name} is {given!r:.60}", "True or False", f"write {where}(..., {name}=True)"
        )
    return given


class ParameterPart(Matrix):
    """Elements of a parameter, in place: `w[a:b]`, `w[k]`, `w.reshape(m, n)`."""

    def __init__(self, whole: Matrix, start: int, shape: tuple[int, ...]) -> None:
        self.parameter, self.start, self.shape = whole.parameter, whole.start + start, shape

    def _as_value(self, builder: Builder) -> Value:
        """Return the node that reads this part."""
        if self.shape == self.parameter.shape:
            return self.parameter._as_value(builder)
        if len(self.shape) > 2:
            refuse("Parameter", f"{self!r}", "a vector or a matrix", "write w[k]")
        rows, name = (1, *self.shape)[-2:], self.parameter._name_in_program()
        value = builder.emit("param", name=name, shape=rows, start=self.start)
        if rows == self.shape:
            return value
        return builder.emit("slice", value, start=0, shape=self.shape)

    def __repr__(self) -> str:
        return f"a part {list(self.shape)} of {self.parameter!r}"


class Multiplier(Operators):
    """What multiplies vectors, and is nothing else: `w.T`, and `w1 @ w2`.

    Args:
        what: for messages; multiply: a vector.
    """

    def __init__(self, what: str, shape: tuple[int, ...], multiply: Callable[[Any], Value]) -> None:
        self.what, self.shape, self.multiply = what, shape, multiply

    def _builder(self) -> Builder:
        return current_builder()

    def _as_value(self, builder: Builder) -> NoReturn:
        refuse("Parameter", self.what, "w.T @ x, or (v @ w) @ x, alone", "multiply a vector by it")

    def __matmul__(self, x: Any) -> Any:
        return _product(self, x) if _is_matrix(x) else self.multiply(x)


def _is_matrix(x: object) -> bool:
    return isinstance(x, Matrix | Multiplier) and len(x.shape) == 2


def _product(left: Any, right: Any) -> Multiplier:
    """Return the product of two matrices, to multiply by: one after the other."""
    if left.shape[1] != right.shape[0]:
        got = f"shapes {list(left.shape)} and {list(right.shape)}"
        refuse("matmul", got, "[M, N] and [N, K]", "turn one of them: w.T")
    shape = left.shape[0], right.shape[1]
    return Multiplier("a product of matrices", shape, lambda x: left @ (right @ x))


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
