"""Share the graphs of a batch out to workers or groups: longest processing time first.

The cost of a graph is its vertices plus its levels, since a level takes at least one launch and
reads all weights however few rows it has. Graphs are assigned in order of falling cost, each to the
share with the least cost so far (Graham 1969).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from vertexrt.graph import GraphBatch
from vertexrt.graph.batch import starts_of, take_unread
from vertexrt.ir.passes.specialise import MOST_SLOTS
from vertexrt.native.compiled import compiled
from vertexrt.scheduler.compiled import LEVELS, find_levels

Array = np.ndarray[Any, Any]

LEVEL = 2.0  # vertices that a level of its own is worth, where the caller does not know


class Share(NamedTuple):
    """Some graphs of a batch.

    Attributes:
        batch: these graphs alone, in the order that they have in the whole batch.
        moved: int32 [2, graphs], by how much the numbers of their vertices, and of their edges, are
            larger there; None where it is the whole.
    """

    batch: GraphBatch
    moved: npt.NDArray[np.int32] | None = None

    @property
    def vertices(self) -> npt.NDArray[np.int64]:
        """Return their vertices in the whole batch, rising."""
        own = np.arange(self.batch.num_vertices)
        if self.moved is not None:
            own += np.repeat(self.moved[0], self.batch.sizes())
        return own

    def edges(self, edges: Array) -> Array:
        """Return the numbers that some of their edges have in the whole batch."""
        if self.moved is None:
            return edges
        first = self.batch.child_ptr[self.batch.graph_ptr]
        graph = np.searchsorted(first, edges, side="right") - 1
        whole: Array = edges + self.moved[1][graph]
        return whole

    def numbers(self) -> tuple[Array, Array]:
        """Return, as int32, the numbers of their vertices, and of the first edge of each.

        They count in the whole batch, so that nothing that depends on them depends on shares.
        """
        vertices, first = self.vertices.astype(np.int32), self.batch.child_ptr[:-1]
        if self.moved is not None:
            first = first + np.repeat(self.moved[1], self.batch.sizes())
        if self.batch.types is not None:  # a function may have a slot without an edge of a vertex
            first = first + MOST_SLOTS * vertices
        return vertices, first


def divide(share: Share, parts: int, level: float = LEVEL) -> list[Share]:
    """Divide the graphs of a share; its vertices keep their numbers.

    Args:
        share: of a batch, or `Share(batch)`: all of it.
        parts: how many shares, at most one a graph.
        level: vertices that a level of its own is worth.
    Returns: shares that together have every graph once.
    """
    batch = share.batch
    if min(parts, batch.num_graphs) == 1:
        return [share]
    levels, *_ = find_levels(batch.child_ptr, batch.child)
    owner = assign_graphs(graph_costs(batch.graph_ptr, levels, level), parts)
    return shares_of(share, owner, range(min(parts, batch.num_graphs)))


def shares_of(share: Share, owner: npt.NDArray[np.int32], parts: Iterable[int]) -> list[Share]:
    """Return some of the parts of a share, given which has each graph."""
    starts, found = starts_of(share.batch), []
    for part in parts:
        graphs, moved = _of_share(owner, part, *starts)
        if share.moved is not None:
            moved = moved + share.moved[:, graphs]
        found.append(Share(take_unread(share.batch, graphs), moved))
    return found


@compiled
def _of_share(owner: Array, part: int, graph_ptr: Array, edge_ptr: Array) -> tuple[Array, Array]:
    """Return the graphs of a share, and `Share.moved`."""
    count = 0
    for g in range(len(owner)):
        count += int(owner[g] == part)
    graphs, moved = np.empty(count, np.int64), np.empty((2, count), np.int32)
    k, vertices, edges = 0, 0, 0
    for g in range(len(owner)):
        if owner[g] == part:
            graphs[k] = g
            moved[0, k], moved[1, k] = graph_ptr[g] - vertices, edge_ptr[g] - edges
            vertices += graph_ptr[g + 1] - graph_ptr[g]
            edges += edge_ptr[g + 1] - edge_ptr[g]
            k += 1
    return graphs, moved


@compiled
def graph_costs(graph_ptr: Array, levels: Array, level_cost: float) -> Array:
    """Return the cost of each graph: vertices + level_cost * levels.

    Args:
        levels: [V] of `find_levels`.
    """
    costs = np.zeros(len(graph_ptr) - 1, np.float64)
    for g in range(len(costs)):
        deepest = 0
        for v in range(graph_ptr[g], graph_ptr[g + 1]):
            deepest = max(deepest, (levels[v] & LEVELS) + 1)
        costs[g] = graph_ptr[g + 1] - graph_ptr[g] + level_cost * deepest
    return costs


def assign_graphs(costs: Array, parts: int) -> Array:
    """Return int32 [K], which share has each graph; all shares have one where there are enough.

    Args:
        costs: float64 [K], above 0.
    """
    owner: Array = assign_in_order(costs, np.argsort(-costs, kind="stable"), parts)
    return owner


@compiled
def assign_in_order(costs: Array, order: Array, parts: int) -> Array:
    """Give each graph to the share with the least cost so far, of these the first."""
    owner, load = np.empty(len(costs), np.int32), np.zeros(parts, np.float64)
    for g in order:
        least = 0
        for part in range(1, parts):
            if load[part] < load[least]:
                least = part
        owner[g] = least
        load[least] += costs[g]
    return owner
