"""Graphs that were taken from another batch: nothing is copied before it is looked at.

So who is handed a minibatch and needs a share of it, as a process of a group, copies these graphs
alone.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from vertexrt.graph.compiled import take_graphs, take_rows
from vertexrt.graph.device_rows import DeviceRows
from vertexrt.graph.owned import INT32, own, unwritten
from vertexrt.graph.pulls import (
    PullValue,
    Rows,
    held_index,
    held_table,
    in_order,
    rows_unchecked,
    take_pulls,
)
from vertexrt.graph.types import TypedOrigin, VertexTypes, find_origin, take_types

IntArray = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]

_NO_COLUMNS = (own(np.zeros(0, np.int32), INT32),)


class Taken(NamedTuple):
    """Which graphs of a batch another one has.

    Attributes:
        source: the batch that they are of, which was not taken from another. It stays alive: what
            processes that train together know of graphs must not depend on which of them has copied
            these.
        ids: int64 [n], their numbers there.
        size: how many vertices and slots they have.
    """

    source: Any
    ids: Int64
    size: tuple[int, int]


class BatchFields(NamedTuple):
    """What a batch holds."""

    graph_ptr: IntArray
    child_ptr: IntArray
    child: IntArray
    pulls: dict[str, PullValue]
    types: VertexTypes | None
    edge_pulls: dict[str, PullValue]


class PullColumn(NamedTuple):
    """A pull of whole numbers, or of rows of a table: what each vertex has, int32 [V]."""

    table: Any
    numbers: IntArray


class TakenParts(NamedTuple):
    """What is copied of a batch besides its structure, found once.

    Attributes:
        columns: int32 [V] each, of which the first `used` count; there is at least one. Types of
            vertices are the last.
        forms: of each pull its name; a table, where there is one; and the rows of the vertices,
            where they are not the next of the columns.
        edge_ptr: int32 [K+1], the first edge of each graph.
        origin: of types.
        same_sizes: all graphs have as many vertices, and as many slots.
        by_name: what each vertex has of a pull, where it is a whole number or a row of a table.
    """

    columns: tuple[IntArray, ...]
    used: int
    forms: tuple[tuple[str, npt.NDArray[Any] | None, npt.NDArray[Any] | None], ...]
    edge_ptr: IntArray
    origin: TypedOrigin | None
    same_sizes: bool
    by_name: dict[str, PullColumn]


def find_parts(batch: BatchFields) -> TakenParts:
    """Return what is copied of a batch."""
    columns: list[IntArray] = []
    forms: list[tuple[str, npt.NDArray[Any] | None, npt.NDArray[Any] | None]] = []
    by_name: dict[str, PullColumn] = {}
    for name, pull in batch.pulls.items():
        table, column = _table_and_column(pull)
        if column is not None and column.dtype == INT32:
            columns.append(column)
            forms.append((name, table, None))
            by_name[name] = PullColumn(table, column)
        else:
            forms.append((name, table, column if table is None else table))
    if batch.types is not None:
        columns.append(batch.types.of_vertex)
    edge_ptr = batch.child_ptr[batch.graph_ptr]
    origin = find_origin(batch.types, batch.child_ptr, batch.child)
    copied = tuple(columns) or _NO_COLUMNS
    same_sizes = all_equal(batch.graph_ptr) and all_equal(edge_ptr)
    return TakenParts(copied, len(columns), tuple(forms), edge_ptr, origin, same_sizes, by_name)


def all_equal(ptr: IntArray) -> bool:
    """Tell whether all graphs have as many of something, of which they begin at `ptr`."""
    sizes = np.diff(ptr)
    return bool((sizes == sizes[:1]).all())


def _table_and_column(pull: PullValue) -> tuple[Any, npt.NDArray[Any] | None]:
    """Return the table of a pull, and what each vertex has; None for none."""
    if not isinstance(pull, Rows):
        return None, pull
    table: Any = held_table(pull)
    index = held_index(pull)
    if index is None and isinstance(table, DeviceRows):
        index = in_order(len(table))  # rows on a GPU are not copied
    return table, index


def copy_graphs(batch: BatchFields, parts: TakenParts, taken: Taken) -> BatchFields:
    """Copy graphs of a batch, one after another: compiled; the structure and each pull once.

    Tables with an index map are shared, not copied: only the map is taken.
    """
    ids, (vertices, slots) = taken.ids, taken.size
    first, at = ids.size + 1, ids.size + 1 + vertices + 1
    end = at + slots
    whole = unwritten(end + parts.used * vertices, INT32)
    structure = batch.graph_ptr, batch.child_ptr, batch.child
    take_graphs(whole, *structure, parts.columns, ids, taken.size)
    graph_ptr, child_ptr, child = whole[:first], whole[first:at], whole[at:end]
    pulls: dict[str, PullValue] = {}
    for name, table, rows in parts.forms:
        if rows is None:
            column = whole[end : end + vertices]
            end += vertices
            pulls[name] = column if table is None else rows_unchecked(table, column)
            continue
        copied = unwritten(vertices * math.prod(rows.shape[1:]), rows.dtype)
        take_rows(copied, rows, batch.graph_ptr, ids)
        copied = copied.reshape(vertices, *rows.shape[1:])
        pulls[name] = copied if table is None else rows_unchecked(copied, None)
    types = take_types(batch.types, parts.origin, whole[end:], slots, parts.edge_ptr, ids)
    of_edges = take_pulls(batch.edge_pulls, parts.edge_ptr, ids)
    return BatchFields(graph_ptr, child_ptr, child, pulls, types, of_edges)
