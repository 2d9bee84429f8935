"""Turn the pulled values of a batch into the arrays that kernels read, and check them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from vertexrt.engine.structure import Structure, edges_in_slot, read_structure
from vertexrt.errors import GraphError, PullError, nearest
from vertexrt.graph import GraphBatch
from vertexrt.graph.device_rows import DeviceRows
from vertexrt.graph.owned import INT32
from vertexrt.graph.pulls import in_order, parts_of
from vertexrt.ir.ops import FIRST_OF_GRAPH
from vertexrt.ir.passes.specialise import MOST_SLOTS
from vertexrt.ir.program import Program, Pull
from vertexrt.scheduler.kinds import NOT_BOUNDED, TOO_MANY_CHILDREN

Array = np.ndarray[Any, Any]
NO_EDGES = np.zeros(0, np.int32)


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
        reals: the places of real pulls; reads_integers: others are read.
        reads_edges: some are of edges.
        of_relations: bool [pulls, functions, relations + 1] of which relations' edges each function
            reads them, of those that it reads whole; the last is False, for other edges.
    """

    program: Program
    pulls: tuple[Pull, ...]
    numbers: Array
    is_used: tuple[bool, ...]
    used: Array
    bounds: Array
    largest: int
    reals: range
    reads_integers: bool
    reads_edges: bool
    of_relations: Array


def make_reader(program: Program) -> Reader:
    """Find what a program reads of each vertex; a variant for inference reads no labels."""
    names = {n["name"] for n in program.nodes if n.op in ("pull", "has_pull", "edge_pull")}
    numbers = sorted(range(len(program.pulls)), key=lambda k: program.pulls[k].dtype != "int")
    pulls = tuple(program.pulls[k] for k in numbers)
    integers = sum(pull.dtype == "int" for pull in pulls)
    is_used = tuple(pull.name in names for pull in pulls)
    limits = [index_bounds(program, function) for function in range(max(len(program.sites), 1))]
    bounds = [[each.get(pull.name, (-1, ""))[0] for each in limits] for pull in pulls]
    most = np.array(bounds, np.int64).reshape(len(pulls), len(limits))
    relations = np.zeros((*most.shape, program.relations + 1), np.bool_)
    for node in program.nodes:
        if node.op == "edge_pull":
            k = [pull.name for pull in pulls].index(node["name"])
            relations[k, node.function, node.relation] = True
    return Reader(
        program,
        pulls,
        np.array(numbers, np.int64),
        is_used,
        np.flatnonzero(is_used),
        most,
        int(most.max(initial=0)),
        range(integers, len(pulls)),
        any(is_used[:integers]),
        program.reads_edges,
        relations,
    )


@dataclass(slots=True)
class Inputs:
    """The structure of a batch and its pulled values, absent ones marked by an index of -1.

    Attributes:
        structure: the graphs.
        index: int32 [pulls, V] integers, then rows of reals, as `Reader.pulls`; where something
            of edges is pulled, [pulls, V + E], and -1 for what is of others.
        floats: one flat array a real pull, read-only.
        no_reals: an empty array of their dtype.
    """

    structure: Structure
    index: Array
    floats: tuple[Array, ...]
    no_reals: Array

    @property
    def readers(self) -> Array:
        """The function that each column of `index` is of."""
        columns, functions = self.index.shape[1], self.structure.functions
        if not len(functions):
            return np.zeros(columns, np.int32)
        if columns == len(functions):
            return functions
        return np.append(functions, functions[parents(self.structure)])

    @property
    def ints(self) -> Array:
        """A row of it for each integer pull."""
        return self.index[: len(self.index) - len(self.floats)]

    @property
    def lent(self) -> bool:
        """Tell whether a real pull is an array of a caller's on a GPU."""
        return any(isinstance(table, DeviceRows) for table in self.floats)


def read_inputs(
    reader: Reader,
    batch: GraphBatch,
    dtype: npt.DTypeLike,
    tables: bool = True,
    structure: Structure | None = None,
) -> Inputs:
    """Read the structure of a batch, and the pulls that a program needs from it.

    Args:
        batch: values by name: int [V] (-1: absent), real [V, *shape], or `Rows`.
        dtype: of real values.
        tables: read these; else they are arrays without elements.
        structure: of the batch, where it is known: its graphs are not copied then, numbers are.
    Raises: GraphError, as `read_structure` does; PullError, when a pull is missing, misshapen, or
        of the wrong kind; whether integers are in range is found when the vertices are read
        (`read_vertices`).
    """
    program = reader.program
    structure = structure or read_structure(program, batch)
    count = len(structure.child_ptr) - 1
    edges, edge_of = NO_EDGES, structure.edge_of  # of the batch those that are read
    if reader.reads_edges:
        edges = np.arange(batch.num_edges, dtype=INT32) if edge_of is None else edge_of
    index = np.empty((len(reader.pulls), count + len(edges)), np.int32)
    if reader.reads_edges:
        index[:] = -1
    held: Any = batch.pulls
    floats: list[Any] = []
    none: Array = np.empty(0, dtype)
    for k, pull in enumerate(reader.pulls):
        integer = pull.dtype == "int"
        plain = reader.is_used[k] and integer and not pull.of_edges
        if plain and held.copy_numbers(pull.name, index[k, :count]):
            continue
        table: Any = NO_EDGES
        own: Any = NO_EDGES  # what each vertex (or edge) has of it: of a real one, which row
        if reader.is_used[k]:
            table, own = _given(program, pull, batch)
        if not integer:
            floats.append(_reals(pull, table, dtype) if tables else none)
        if own is None:
            own = table if integer else in_order(len(table))
        elif integer and len(table):
            own = np.where(own >= 0, table[own], -1)
        if pull.of and len(own):
            edge = edges_in_slot(program, pull, structure)
            own = np.where(edge >= 0, own[np.maximum(edge, 0)], -1)
        if pull.edges and reader.reads_edges:
            index[k, count:] = _of_edges(reader, k, batch, structure, own, edges)
        else:
            index[k, :count] = own if len(own) else -1
    return Inputs(structure, index, tuple(floats), none)


def read_table(reader: Reader, k: int, batch: GraphBatch, dtype: npt.DTypeLike) -> Any:
    """Return the rows that a batch gives for a real pull: a flat array, or `DeviceRows`.

    Raises: PullError, when it is missing, misshapen, or of the wrong kind.
    """
    pull = reader.pulls[k]
    table = _given(reader.program, pull, batch)[0] if reader.is_used[k] else NO_EDGES
    return _reals(pull, table, dtype)


def _reals(pull: Pull, table: Any, dtype: npt.DTypeLike) -> Any:
    if not len(table):  # of no vertices: any dtype and shape
        return no_rows(pull.shape, np.dtype(dtype))
    if not isinstance(table, DeviceRows):
        return _flat(table, dtype)
    if table.dtype != dtype:
        got, expected = f"{pull.name!r} is {table.dtype}, on a GPU", f"{dtype}, the network's"
        raise PullError.at("pull", got, expected, "convert it there")
    return table


def _given(program: Program, pull: Pull, batch: GraphBatch) -> tuple[Any, Any]:
    """Return what a batch gives for a pull, and which of it each has; None for one each."""
    if pull.name == FIRST_OF_GRAPH:
        return np.repeat(batch.graph_ptr[:-1], np.diff(batch.graph_ptr)).astype(np.int32), None
    what, each, given, rows = "", "a vertex", batch.pulls, batch.num_vertices
    if pull.of_edges:
        what, each, given, rows = " of edges", "an edge", batch.edge_pulls, batch.num_edges
    value = given.get(pull.source)
    if value is None:
        raise PullError.at(
            "pull",
            f"{program.name} pulls {pull.source!r}{what}, which the batch does not give",
            "it gives " + (", ".join(sorted(given)) or "nothing"),
            "add the array to the graphs, or compute what does without it, by "
            f"net(batch, outputs=[...]).{nearest(pull.source, given)}",
        )
    table, index = parts_of(value)
    kind, per = "i" if pull.dtype == "int" else "f", each.split()[1]
    if not len(table) and (index is not None or kind == "f"):  # nobody pulls anything
        return table, index
    if table.dtype.kind != kind or table.shape[1:] != pull.shape:
        expected, action = (
            (f"an integer per {per}", f"pass an integer array with -1 where {each} has none")
            if kind == "i"
            else (
                f"real numbers of shape {list(pull.shape)} per {per}",
                "convert or reshape the array, or declare pull(name, shape=..., dtype=...)",
            )
        )
        raise PullError.at(
            "pull",
            f"{pull.source!r} is {table.dtype} of shape {list(table.shape)}",
            f"{program.name} reads {expected}: {[rows, *pull.shape]}",
            action,
        )
    return table, index


def _of_edges(
    reader: Reader, k: int, batch: GraphBatch, structure: Structure, values: Array, edges: Array
) -> Array:
    """Return what edges have of a pull, -1 in empty slots and where their parent does not pull it.

    Args:
        values: of the batch's edges, none for -1; edges: which of them are read.
    Raises: PullError for a number that is out of bounds.
    """
    program, parent = reader.program, parents(structure)
    own = np.full(len(edges), -1, np.int32)
    if len(values):
        own = np.where(structure.child >= 0, values[edges], -1)
        if program.sites:
            # Each edge's relation, of those that its parent reads whole; the last of others.
            of, number = structure.functions[parent], np.arange(len(parent))
            slots = np.array([site.slots for site in program.sites])[of]
            relation = np.where(number - structure.child_ptr[parent] >= slots, 0, -1)
            if len(structure.first_of):
                vertices = len(structure.child_ptr) - 1
                first = structure.first_of[:-1].reshape(vertices, -1)[parent]
                relation = (first <= number[:, None]).sum(axis=1) - 1
            own[~reader.of_relations[k][of, relation]] = -1
    functions = structure.functions[parent] if len(structure.functions) else 0
    bounds = np.broadcast_to(reader.bounds[k][functions], own.shape)
    for edge in np.flatnonzero((bounds >= 0) & (own >= bounds)):
        raise PullError.at(
            "pull",
            f"{reader.pulls[k].source!r} of an edge of {vertex_name(batch, int(parent[edge]))} is "
            f"{own[edge]}",
            f"0 to {bounds[edge] - 1}, rows of the table, or -1 for none",
            "correct the data or declare more",
        )
    return own


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
    functions = inputs.structure.functions
    bounds = index_bounds(program, int(functions[vertex]) if len(functions) else 0)
    values = ((reader.pulls[k], int(inputs.index[k, vertex])) for k in reader.used)
    bounded = ((pull, value, *bounds[pull.name]) for pull, value in values if pull.name in bounds)
    pull, value, bound, what = next(each for each in bounded if not -1 <= each[1] < each[2])
    edge = f" of the edge in {pull.of!r}" if pull.of else ""
    raise PullError.at(
        "pull",
        f"{pull.source!r}{edge} of {vertex_name(batch, vertex)} is {value}",
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
        sources = [program.nodes[i] for i in node.inputs]
        if node.function != function:
            continue
        if node.op == "real" and node.has("bound"):
            index, bound = sources[0], (node["bound"], "elements")
        elif node.op == "embed":
            table = sources[0]["name"].partition("[")[0]  # as called, though it may be divided
            index, bound = sources[1], (sources[0].type.shape[0], f"rows of {table!r}")
        elif node.op == "nll":
            index, bound = sources[1], (sources[0].type.shape[0], "classes")
        else:
            continue
        if index.op in ("pull", "edge_pull"):  # not one that is computed
            bounds[index["name"]] = min(bounds.get(index["name"], bound), bound)
    return bounds


def parents(structure: Structure) -> Array:
    """Return the parent of each edge."""
    return np.repeat(np.arange(len(structure.child_ptr) - 1), np.diff(structure.child_ptr))


@cache
def no_rows(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Return the rows of a real pull that nothing reads."""
    return _flat(np.zeros(max(1, math.prod(shape))), dtype)


def _flat(table: Array, dtype: npt.DTypeLike) -> Array:
    """Return the elements in a row, read-only as a batch's own are: compiled code is by type."""
    flat = np.ascontiguousarray(table, dtype).reshape(-1)
    flat.flags.writeable = False
    return flat
