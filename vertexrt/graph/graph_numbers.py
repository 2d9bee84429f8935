"""Numbers of graphs of a batch: read, and refused where they do not fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from vertexrt.errors import GraphError
from vertexrt.graph.owned import MOST, read_array


def read_ids(graphs: npt.ArrayLike, num_graphs: int) -> npt.NDArray[np.int64]:
    """Return numbers of graphs; a copy, since they are read twice."""
    given = read_array(graphs)
    if isinstance(given, str) or not given.size or given.ndim != 1 or given.dtype.kind not in "iu":
        raise wrong_graphs(given, num_graphs)
    if given.size > MOST:
        raise too_large(given.size, 0, "take")
    return given.astype(np.int64)


def read_key(key: Any, num_graphs: int) -> npt.NDArray[np.int64]:
    """Return the numbers that an index stands for, as it would of an array of graphs.

    Args:
        key: a number, counted from the end if negative; a slice; numbers [n]; or booleans [K].
    Returns: numbers [n]; of a single number, an array without axes.
    Raises: GraphError, when it is none of these.
    """
    if isinstance(key, slice):
        try:
            return np.arange(num_graphs)[key]
        except (TypeError, ValueError) as error:  # numpy's answer
            raise wrong_graphs(str(key), num_graphs) from error
    given = read_array(key)
    if isinstance(given, str) or given.dtype.kind not in "iub":
        raise wrong_graphs(given, num_graphs)
    if given.dtype.kind != "b":
        return np.where(given < 0, given + num_graphs, given)
    if given.shape != (num_graphs,):
        shape = list(given.shape)
        raise wrong_graphs(f"booleans of shape {shape}, not [{num_graphs}]", num_graphs)
    return np.flatnonzero(given)


def wrong_graphs(ids: npt.NDArray[Any] | str, num_graphs: int) -> GraphError:
    """Return the error for numbers of which one is no graph, or what is wrong with them."""
    if isinstance(ids, str):
        got = ids
    elif not ids.size:
        got = "no graph"
    elif ids.ndim != 1:
        got = f"graph numbers with {ids.ndim} axes"
    elif ids.dtype.kind not in "iu":
        got = f"graph numbers of dtype {ids.dtype}"
    else:
        got = f"graph {ids[(ids < 0) | (ids >= num_graphs)][0]}"
    expected = f"the batch has the graphs 0..{num_graphs - 1}"
    return GraphError.at("take", got, expected, "give a row of their numbers")


def too_large(vertices: int, slots: int, where: str) -> GraphError:
    """Return the error for a batch that int32 cannot number."""
    got = f"{vertices} vertices with {slots} slots"
    return GraphError.at(where, got, f"at most {MOST - 1} of each", "split the batch")
