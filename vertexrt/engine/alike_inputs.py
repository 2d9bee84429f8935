"""Read what a batch pulls whose graphs are known: they are not copied, only numbers are."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from vertexrt.engine.inputs import Inputs, Reader
from vertexrt.engine.layouts import is_within
from vertexrt.engine.real_rows import check_reals, no_rows
from vertexrt.graph import GraphBatch
from vertexrt.graph.alike import take_column
from vertexrt.graph.batch import graph_ptr_of, parts_of
from vertexrt.graph.taken import PullColumn, Taken
from vertexrt.ir.ops import FIRST_OF_GRAPH
from vertexrt.ir.program import Pull

NOT_READ = PullColumn(None, np.zeros(0, np.int32))


def read_alike(
    reader: Reader, batch: GraphBatch, like: Inputs, dtype: npt.DTypeLike
) -> Inputs | None:
    """Return what `read_inputs` does for a batch whose graphs are those of another.

    Args:
        batch: taken from the batch that the other one was taken from.
        like: inputs of the other one.
    Returns: None, where all of the batch has to be read: rows of numbers lie vertex by vertex, or
        something is of edges; or where a number is out of bounds.
    """
    taken = batch._taken
    columns = None if taken is None or like.edge_of is not None else _columns(reader, taken)
    if taken is None or columns is None:
        return None
    index = np.empty((len(columns), len(like.child_ptr) - 1), np.int32)
    for k, column in enumerate(columns):
        if column is NOT_READ:
            index[k] = -1
        else:
            take_column(index[k], column.numbers, graph_ptr_of(taken.source), taken.ids)
    if not is_within(index, reader.used, reader.bounds):
        return None
    floats = [_rows_of(reader, reader.pulls[k], columns[k], dtype) for k in reader.reals]
    return Inputs(*like.structure, index, tuple(floats), like.no_reals)


def _columns(reader: Reader, taken: Taken) -> list[PullColumn] | None:
    """Return what all vertices have of each pull, in the batch that graphs were taken from."""
    if reader.reads_edges:
        return None
    found = []
    for k, pull in enumerate(reader.pulls):
        column = _column_of(pull, taken) if reader.is_used[k] else NOT_READ
        if column is None:
            return None
        found.append(column)
    return found


def _rows_of(reader: Reader, pull: Pull, column: PullColumn, dtype: npt.DTypeLike) -> Any:
    """Return the rows of a real pull."""
    if column is NOT_READ or (column.table is not None and not len(column.table)):
        return no_rows(pull, dtype)
    return check_reals(reader.program, pull, column.table, len(column.numbers), dtype)


def _column_of(pull: Pull, taken: Taken) -> PullColumn | None:
    found = parts_of(taken.source).alike.columns.get(pull.source)
    if found is None or pull.of or pull.name == FIRST_OF_GRAPH:
        return None
    return found if (found.table is None) == (pull.dtype == "int") else None
