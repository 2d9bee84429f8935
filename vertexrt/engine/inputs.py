"""Turn the pulled values of a batch into the arrays that kernels read, and check them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from vertexrt.engine.structure import read_structure
from vertexrt.errors import GraphError, PullError, nearest
from vertexrt.graph import GraphBatch, Pulled
from vertexrt.graph.batch import pulls_of
from vertexrt.graph.owned import INT32
from vertexrt.ir.ops import FIRST_OF_GRAPH
from vertexrt.ir.passes.specialise import MOST_SLOTS
from vertexrt.ir.program import Node, Program, Pull
from vertexrt.scheduler.kinds import NOT_BOUNDED, TOO_MANY_CHILDREN

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Reader:
    """What a program reads of each vertex.

    Attributes:
        program: with declared pulls; integers that index a table or a label have a bound.
        pulls: integers first, then real ones, each in the order of declaration.
        numbers: int64 [pulls] which declaration each is.
        is_used: [pulls] whether it reads them; used: int64, the places of those that it reads.
        bounds: int64 [pulls, functions] how many values each may take, -1 for any; largest: of
            these.
    """

    program: Program
    pulls: tuple[Pull, ...]
    numbers: Array
    is_used: tuple[bool, ...]
    used: Array
    bounds: Array
    largest: int


def make_reader(program: Program) -> Reader:
    """Find what a program reads of each vertex; a variant for inference reads no labels."""
    names = {n["name"] for n in program.nodes if n.op in ("pull", "has_pull")}
    numbers = sorted(range(len(program.pulls)), key=lambda k: program.pulls[k].dtype != "int")
    pulls = tuple(program.pulls[k] for k in numbers)
    limits = _limits(program, pulls)
    return Reader(
        program,
        pulls,
        np.array(numbers, np.int64),
        tuple(pull.name in names for pull in pulls),
        np.array([k for k, pull in enumerate(pulls) if pull.name in names], np.int64),
        limits,
        int(limits.max(initial=0)),
    )


def _limits(program: Program, pulls: Sequence[Pull]) -> Array:
    """Return int64 [pulls, functions] how many values each may take, -1 for any."""
    bounds = [index_bounds(program, function) for function in range(max(len(program.sites), 1))]
    limits = [[each.get(pull.name, (-1, ""))[0] for each in bounds] for pull in pulls]
    return np.array(limits, np.int64).reshape(len(pulls), len(bounds))


@dataclass(slots=True)
class Inputs:
    """The structure of a batch and its pulled values, absent ones marked by an index of -1.

    Attributes:
        child_ptr, child, functions: of `Structure`.
        index: int32 [pulls, V] integers, then rows of reals, as `Reader.pulls`.
        floats: one flat array a real pull, read-only.
        no_reals: an empty array of their dtype.
    """

    child_ptr: Array
    child: Array
    functions: Array
    index: Array
    floats: tuple[Array, ...]
    no_reals: Array

    @property
    def ints(self) -> Array:
        """A row of it for each integer pull."""
        return self.index[: len(self.index) - len(self.floats)]

    @property
    def float_index(self) -> Array:
        """A row of it for each real pull."""
        return self.index[len(self.index) - len(self.floats) :]


def read_inputs(reader: Reader, batch: GraphBatch, dtype: npt.DTypeLike) -> Inputs:
    """Read the structure of a batch, and the pulls that a program needs from it.

    Args:
        batch: values by name: int [V] (-1: absent), real [V, *shape], or `Pulled`.
        dtype: of real values.
    Raises: GraphError, as `read_structure` does; PullError, when a pull is missing, misshapen, or
        of the wrong kind; whether integers are in range is found when the vertices are read
        (`read_vertices`).
    """
    program = reader.program
    structure = read_structure(program, batch)
    index = np.empty((len(reader.pulls), batch.num_vertices), np.int32)
    floats: list[Array] = []
    given = _given(reader, batch)
    for k, pull in enumerate(reader.pulls):
        if not reader.is_used[k]:
            index[k] = -1
            if pull.dtype != "int":
                floats.append(_flat(np.zeros(max(1, math.prod(pull.shape))), dtype))
            continue
        value = given.get(pull.name)
        if value is None:
            raise PullError.at(
                "pull",
                f"{program.name} pulls {pull.name!r}, which the batch does not give",
                "it gives " + (", ".join(sorted(given)) or "nothing"),
                f"add the array to the graphs.{nearest(pull.name, list(given))}",
            )
        if pull.dtype == "int":  # a batch's own whole numbers are int32 [V]
            plain = type(value) is np.ndarray and value.dtype is INT32
            index[k] = value if plain else _integers(program, pull, value, batch)
        else:
            table, index[k] = _reals(program, pull, value, batch, dtype)
            floats.append(table)
    return Inputs(*structure, index, tuple(floats), _none_of(np.dtype(dtype)))


def refuse(reader: Reader, batch: GraphBatch, inputs: Inputs, found: int, vertex: int) -> NoReturn:
    """Raise the error for a vertex that `read_vertices` could not read."""
    program = reader.program
    if found == TOO_MANY_CHILDREN:
        children = batch.child[batch.child_ptr[vertex] : batch.child_ptr[vertex + 1]]
        count = int(np.flatnonzero(children >= 0)[-1]) + 1
        declared, action = _limit_of_children(program, count)
        raise GraphError.at(
            "gather", f"{vertex_name(batch, vertex)} has {count} children", declared, action
        )
    assert found == NOT_BOUNDED, found
    values = inputs.index[:, vertex]
    functions = inputs.functions
    bounds = index_bounds(program, int(functions[vertex]) if len(functions) else 0)
    names = {reader.pulls[k].name: int(values[k]) for k in reader.used}
    name = next(name for name, (bound, _) in bounds.items() if not -1 <= names[name] < bound)
    bound, what = bounds[name]
    raise PullError.at(
        "pull",
        f"{name!r} of {vertex_name(batch, vertex)} is {names[name]}",
        f"0 to {bound - 1}, the {what}, or -1 for none",
        "correct the data or declare more",
    )


def _limit_of_children(program: Program, count: int) -> tuple[str, str]:
    """Say what limits the children of a vertex, and what helps one that has more of them."""
    assert program.arity is not None
    declared = f"{program.name} declares slots 0..{program.arity - 1}"
    larger = f"declare arity={count}" if count <= MOST_SLOTS else ""
    if not program.find("gather_all"):
        ways = ["binarise the graph", larger, "read them by gather_all"]
    elif program.find("gather"):
        declared += ", which bound the children that gather_all reads too"
        ways = [larger + " and gather the slots as before" if larger else "", "binarise the graph"]
    else:
        declared += ", though it only reads gather_all"
        ways = ["leave arity out"]
    ways = [way for way in ways if way]
    return declared, ", ".join(ways[:-1]) + (", or " if len(ways) > 1 else "") + ways[-1]


def vertex_name(batch: GraphBatch, v: int) -> str:
    """Name a vertex of a batch as the user knows it: by its graph."""
    graph = int(np.searchsorted(batch.graph_ptr, v, side="right")) - 1
    return f"vertex {v - int(batch.graph_ptr[graph])} of graph {graph}"


def index_bounds(program: Program, function: int = 0) -> Mapping[str, tuple[int, str]]:
    """Find for each integer pull of a function how many values it may take, and what says so."""
    bounds: dict[str, tuple[int, str]] = {}
    for node in program.nodes:
        found = None if node.function != function else _bound(program, node)
        if found is not None:
            name, bound = found
            bounds[name] = min(bounds.get(name, bound), bound)
    return bounds


def _bound(program: Program, node: Node) -> tuple[str, tuple[int, str]] | None:
    """Return the integer pull that a node takes as an index, how many values it may take, of what.

    Returns: None for other nodes, and for an index that is computed.
    """
    sources = [program.nodes[i] for i in node.inputs]
    if node.op == "real" and node.has("bound"):
        index, bound = sources[0], (node["bound"], "elements")
    elif node.op == "embed":
        index, bound = sources[1], (sources[0].type.shape[0], f"rows of {_declared(sources[0])!r}")
    elif node.op == "nll":
        index, bound = sources[1], (sources[0].type.shape[0], "classes")
    else:
        return None
    return (index["name"], bound) if index.op == "pull" else None


def _declared(table: Node) -> str:
    """Return what a parameter is called that may have been divided."""
    name: str = table["name"]
    return name.partition("[")[0]


def _given(reader: Reader, batch: GraphBatch) -> Mapping[str, Any]:
    """Return the pulls of a batch, and the first vertex of each vertex's graph, if that is read."""
    given: Mapping[str, Any] = pulls_of(batch)
    if not any(pull.name == FIRST_OF_GRAPH for pull in reader.pulls):
        return given
    first = np.repeat(batch.graph_ptr[:-1], np.diff(batch.graph_ptr))
    return {**given, FIRST_OF_GRAPH: first.astype(np.int32)}


def _integers(program: Program, pull: Pull, value: Any, batch: GraphBatch) -> Array:
    given = value.values if isinstance(value, Pulled) else value
    if given.dtype.kind != "i" or given.ndim != 1:
        raise PullError.at(
            "pull",
            f"{pull.name!r} is {given.dtype} of shape {list(given.shape)}",
            f"{program.name} reads an integer per vertex: [{batch.num_vertices}]",
            "pass an integer array with -1 where a vertex has none",
        )
    if not isinstance(value, Pulled) or value.index is None:
        return np.asarray(given)
    if not given.size:
        return np.full(batch.num_vertices, -1, np.int32)
    return np.where(value.index >= 0, given[value.index], -1)


def _reals(
    program: Program, pull: Pull, value: Any, batch: GraphBatch, dtype: npt.DTypeLike
) -> tuple[Array, Array]:
    table = value.values if isinstance(value, Pulled) else value
    rows = value.index if isinstance(value, Pulled) else None
    if table.dtype.kind != "f" or table.shape[1:] != pull.shape:
        raise PullError.at(
            "pull",
            f"{pull.name!r} is {table.dtype} of shape {list(table.shape)}",
            f"{program.name} reads real numbers of shape {list(pull.shape)} per vertex: "
            f"{[batch.num_vertices, *pull.shape]}",
            "convert or reshape the array, or declare pull(name, shape=..., dtype=...)",
        )
    if rows is None:
        rows = np.arange(batch.num_vertices, dtype=np.int32)
    return _flat(table, dtype), rows


@cache
def _none_of(dtype: np.dtype[Any]) -> Array:
    return np.empty(0, dtype)


def _flat(table: Array, dtype: npt.DTypeLike) -> Array:
    """Return the elements in a row, read-only as a batch's own are: compiled code is by type."""
    flat = np.ascontiguousarray(table, dtype).reshape(-1)
    flat.flags.writeable = False
    return flat
