"""Turn the pulled values of a batch into the arrays that kernels read, and check them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from vertexrt.errors import GraphError, PullError, message, nearest
from vertexrt.graph import GraphBatch, Pulled
from vertexrt.ir.program import Program, Pull

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Inputs:
    """Pulled values, absent ones marked by an index of -1.

    Attributes:
        ints: one int32 [V] array an integer pull.
        floats: one flat array a real pull; float_index: int32 [V] rows of it.
        presence: for each pull in the order of declaration, an int32 [V] array, -1 if absent.
    """

    ints: tuple[Array, ...]
    floats: tuple[Array, ...]
    float_index: tuple[Array, ...]
    presence: tuple[Array, ...]


def read_inputs(program: Program, batch: GraphBatch, dtype: npt.DTypeLike) -> Inputs:
    """Read the pulls that a program needs from a batch.

    Args:
        program: with declared pulls; integers that index a table or a label have a bound.
        batch: values by name: int [V] (-1: absent), real [V, *shape], or `Pulled`.
        dtype: of real values.
    Raises: PullError, when one is missing, misshapen, of the wrong kind, or out of range;
        GraphError, when a vertex has more children than the function has slots.
    """
    _check_arity(program, batch)
    bounds = index_bounds(program)
    ints: list[Array] = []
    floats: list[Array] = []
    index: list[Array] = []
    presence: list[Array] = []
    used = {n["name"] for n in program.nodes if n.op in ("pull", "has_pull")}
    for pull in program.pulls:
        if pull.name not in used:  # the variant does not read it: labels in inference
            absent = np.full(batch.num_vertices, -1, np.int32)
            presence.append(absent)
            if pull.dtype == "int":
                ints.append(absent)
            else:
                floats.append(np.zeros(max(1, int(np.prod(pull.shape))), dtype))
                index.append(absent)
            continue
        if pull.name not in batch.pulls:
            raise PullError(
                message(
                    "pull",
                    f"{program.name} pulls {pull.name!r}, which the batch does not give",
                    "it gives " + (", ".join(sorted(batch.pulls)) or "nothing"),
                    f"add the array to the graphs.{nearest(pull.name, list(batch.pulls))}",
                )
            )
        value = batch.pulls[pull.name]
        if pull.dtype == "int":
            ints.append(_integers(program, pull, value, batch, bounds.get(pull.name)))
            presence.append(ints[-1])
        else:
            table, rows = _reals(program, pull, value, batch, dtype)
            floats.append(table)
            index.append(rows)
            presence.append(rows)
    return Inputs(tuple(ints), tuple(floats), tuple(index), tuple(presence))


def _check_arity(program: Program, batch: GraphBatch) -> None:
    """Refuse a vertex with a child beyond the last slot; empty slots there do no harm."""
    if program.arity is None or len(batch.child) == 0:
        return
    slots = np.diff(batch.child_ptr)
    if int(slots.max()) <= program.arity:
        return
    slot_of = np.arange(len(batch.child)) - np.repeat(batch.child_ptr[:-1], slots)
    beyond = np.flatnonzero((slot_of >= program.arity) & (batch.child >= 0))
    if len(beyond):
        v = int(np.searchsorted(batch.child_ptr, beyond[0], side="right")) - 1
        children = batch.child[batch.child_ptr[v] : batch.child_ptr[v + 1]]
        count = int(np.flatnonzero(children >= 0)[-1]) + 1
        declared = f"slots 0..{program.arity - 1}" if program.arity else "no slots"
        raise GraphError(
            message(
                "gather",
                f"{vertex_name(batch, v)} has {count} children",
                f"{program.name} declares {declared}",
                f"binarise the graph, declare arity={count}, or read them by gather_all",
            )
        )


def vertex_name(batch: GraphBatch, v: int) -> str:
    """Name a vertex of a batch as the user knows it: by its graph."""
    graph = int(np.searchsorted(batch.graph_ptr, v, side="right")) - 1
    return f"vertex {v - int(batch.graph_ptr[graph])} of graph {graph}"


def index_bounds(program: Program) -> Mapping[str, tuple[int, str]]:
    """Find for each integer pull how many values it may take, and what sets that bound."""
    bounds: dict[str, tuple[int, str]] = {}
    for node in program.nodes:
        if node.op not in ("embed", "nll"):
            continue
        table, index = (program.nodes[i] for i in node.inputs[:2])
        if index.op == "pull":
            what = f"rows of {table['name']!r}" if node.op == "embed" else "classes"
            bound = (table.type.shape[0], what)
            bounds[index["name"]] = min(bounds.get(index["name"], bound), bound)
    return bounds


def _integers(
    program: Program, pull: Pull, value: Any, batch: GraphBatch, bound: tuple[int, str] | None
) -> Array:
    if isinstance(value, Pulled):
        if value.index is None:
            value = value.values
        else:
            value = np.where(value.index >= 0, value.values[value.index], -1)
    if value.dtype.kind not in "iu" or value.ndim != 1 or len(value) != batch.num_vertices:
        raise PullError(
            message(
                "pull",
                f"{pull.name!r} is {value.dtype} of shape {list(value.shape)}",
                f"{program.name} reads an integer per vertex: [{batch.num_vertices}]",
                "pass an integer array with -1 where a vertex has none",
            )
        )
    out = np.ascontiguousarray(value, np.int32)
    if bound is not None and len(out) and (out.max() >= bound[0] or out.min() < -1):
        v = int(np.flatnonzero((out >= bound[0]) | (out < -1))[0])
        raise PullError(
            message(
                "pull",
                f"{pull.name!r} of {vertex_name(batch, v)} is {out[v]}",
                f"0 to {bound[0] - 1}, the {bound[1]}, or -1 for none",
                "correct the data or declare more",
            )
        )
    return out


def _reals(
    program: Program, pull: Pull, value: Any, batch: GraphBatch, dtype: npt.DTypeLike
) -> tuple[Array, Array]:
    table = value.values if isinstance(value, Pulled) else value
    rows = value.index if isinstance(value, Pulled) else None
    if (
        table.dtype.kind != "f"
        or table.shape[1:] != pull.shape
        or (rows is None and len(table) != batch.num_vertices)
    ):
        raise PullError(
            message(
                "pull",
                f"{pull.name!r} is {table.dtype} of shape {list(table.shape)}",
                f"{program.name} reads real numbers of shape {list(pull.shape)} per vertex: "
                f"{[batch.num_vertices, *pull.shape]}",
                "convert or reshape the array, or declare pull(name, shape=..., dtype=...)",
            )
        )
    if rows is None:
        rows = np.arange(batch.num_vertices, dtype=np.int32)
    return np.ascontiguousarray(table, dtype).reshape(-1), np.ascontiguousarray(rows, np.int32)
