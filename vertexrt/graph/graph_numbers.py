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


def wrong_graphs(ids: npt.NDArray[Any] | str, num_graphs: int) -> GraphError:
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
    got = f"{vertices} vertices with {slots} slots"
    return GraphError.at(where, got, f"at most {MOST - 1} of each", "split the batch")
