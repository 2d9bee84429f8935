"""Rows of real pulls: arrays of the host, or of a caller's on a GPU."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from vertexrt.errors import PullError
from vertexrt.graph import Rows
from vertexrt.graph.device_rows import DeviceRows
from vertexrt.graph.pulls import held_table
from vertexrt.ir.program import Program, Pull

Array = np.ndarray[Any, Any]


def check_reals(program: Program, pull: Pull, value: Any, rows: int, dtype: npt.DTypeLike) -> Any:
    """Return the rows of a real pull, a flat array or `DeviceRows`. Raises: PullError."""
    table = held_table(value) if isinstance(value, Rows) else value
    if not len(table):  # of no vertices: any dtype and shape
        return no_rows(pull, dtype)
    if table.dtype.kind != "f" or table.shape[1:] != pull.shape:
        raise PullError.at(
            "pull",
            f"{pull.source!r} is {table.dtype} of shape {list(table.shape)}",
            f"{program.name} reads real numbers of shape {list(pull.shape)} per {whose(pull)}: "
            f"{[rows, *pull.shape]}",
            "convert or reshape the array, or declare pull(name, shape=..., dtype=...)",
        )
    if isinstance(table, DeviceRows):
        if table.dtype != dtype:
            got, expected = f"{pull.name!r} is {table.dtype}, on a GPU", f"{dtype}, the network's"
            raise PullError.at("pull", got, expected, "convert it there")
        return table
    return _flat(table, dtype)


def whose(pull: Pull, article: str = "") -> str:
    """Name whose a pull is."""
    if pull.of_edges:
        return "an edge" if article else "edge"
    return "a vertex" if article else "vertex"


@cache
def none_of(dtype: np.dtype[Any]) -> Array:
    """Return an empty array of reals."""
    return np.empty(0, dtype)


def no_rows(pull: Pull, dtype: npt.DTypeLike) -> Array:
    """Return the rows of a real pull that nothing reads."""
    return _zeros(pull.shape, np.dtype(dtype))


@cache
def _zeros(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    return _flat(np.zeros(max(1, math.prod(shape))), dtype)


def _flat(table: Array, dtype: npt.DTypeLike) -> Array:
    """Return the elements in a row, read-only as a batch's own are: compiled code is by type."""
    flat = np.ascontiguousarray(table, dtype).reshape(-1)
    flat.flags.writeable = False
    return flat
