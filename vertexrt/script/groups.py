"""The groups of processors of a GPU that share one schedule, and one arena."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from vertexrt.native.compiled import compiled

Array = np.ndarray[Any, Any]


class Groups(NamedTuple):
    """The groups that share a batch.

    Attributes:
        order: [rows] the user's vertices, ascending within a task.
        graph_ptr: of the batch; its graphs are shared out among the groups.
        number: how many there are.
    """

    order: Array
    graph_ptr: Array
    number: int


@compiled
def bounds_of(graph_ptr: Array, groups: int) -> Array:
    """Cut a batch between graphs, so that groups have about as many vertices: [groups + 1]."""
    bounds = np.empty(groups + 1, np.int64)
    at, vertices = 0, int(graph_ptr[-1])
    for g in range(groups + 1):
        wanted = vertices * g / groups
        while graph_ptr[at] < wanted:
            at += 1
        bounds[g] = graph_ptr[at]
    return bounds
