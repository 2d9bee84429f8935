"""Share the graphs of a batch out to workers or groups: longest processing time first.

The cost of a graph is its vertices plus its levels, since a level takes at least one launch and
reads all weights however few rows it has. Graphs are assigned in order of falling cost, each to the
share with the least cost so far (Graham 1969).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from vertexrt.graph import GraphBatch
from vertexrt.ir.passes.specialise import MOST_SLOTS
from vertexrt.native.compiled import compiled

Array = np.ndarray[Any, Any]

LEVEL = 2.0  # vertices that a level of its own is worth, where the caller does not know


class Share(NamedTuple):
    """Some graphs of a batch.

    Attributes:
        batch: these graphs alone, in the order that they have in the whole batch.
        chosen: int64, their vertices in the whole batch; None for all.
        whole: the batch, where this is not all of it.
    """

    batch: GraphBatch
    chosen: npt.NDArray[np.int64] | None = None
    whole: GraphBatch | None = None

    @property
    def vertices(self) -> npt.NDArray[np.int64]:
        """Return their vertices in the whole batch."""
        return np.arange(self.batch.num_vertices) if self.chosen is None else self.chosen

    def numbers(self) -> tuple[Array, Array]:
        """Return, as int32, the numbers of their vertices, and of the first edge of each.

        They count in the whole batch, so that nothing that depends on them depends on shares.
        """
        whole = self.whole or self.batch
        first = whole.child_ptr[self.vertices]
        if whole.types is not None:  # a function may have a slot for which a vertex has no edge
            first = (first + MOST_SLOTS * self.vertices).astype(np.int32)
        return self.vertices.astype(np.int32), first


def share_out(batch: GraphBatch, parts: int, level: float = LEVEL) -> list[Share]:
    """Divide the graphs of a batch.

    Args:
        parts: how many shares, at most one a graph.
        level: vertices that a level of its own is worth.
    Returns: shares that together have every graph once.
    """
    parts = min(parts, batch.num_graphs)
    if parts == 1:
        return [Share(batch)]
    owner = assign_graphs(batch, parts, level)
    return [share_of(batch, owner, part) for part in range(parts)]


def assign_graphs(
    batch: GraphBatch, parts: int, level: float = LEVEL, levels: Array | None = None
) -> Array:
    """Return int32 [K], which share has each graph; all have one where there are enough.

    Args:
        level: vertices that a level of its own is worth.
        levels: [V], from 1, where the caller knows them.
    """
    if levels is None:
        levels = number_levels(batch.child_ptr, batch.child)
    costs = graph_costs(batch.graph_ptr, levels, level)
    return _assign(costs, np.argsort(-costs, kind="stable"), parts)


def share_of(batch: GraphBatch, owner: Array, part: int) -> Share:
    """Return one share of a batch, given which share has each graph."""
    graphs, vertices = _of_share(owner, part, batch.graph_ptr)
    return Share(batch.take(graphs), vertices, batch)


@compiled
def _of_share(owner: Array, part: int, graph_ptr: Array) -> tuple[Array, Array]:
    """Return the graphs of a share, int32, and their vertices, int64."""
    graphs, count = np.empty(len(owner), np.int32), 0
    vertices, at = np.empty(graph_ptr[len(owner)], np.int64), 0
    for g in range(len(owner)):
        if owner[g] != part:
            continue
        graphs[count] = g
        count += 1
        for v in range(graph_ptr[g], graph_ptr[g + 1]):
            vertices[at] = v
            at += 1
    return graphs[:count], vertices[:at]


def divide(share: Share, parts: int, level: float = LEVEL) -> list[Share]:
    """Divide a share as `share_out` does a batch; its vertices keep their numbers."""
    if share.chosen is None or parts == 1:
        return [share] if parts == 1 else share_out(share.batch, parts, level)
    inner = share_out(share.batch, parts, level)
    return [Share(each.batch, share.chosen[each.vertices], share.whole) for each in inner]


@compiled
def number_levels(child_ptr: Array, child: Array) -> Array:
    """Return [V] levels, from 1 for vertices without children, in one pass.

    They are exact where children have smaller numbers than their parents, as all readers of this
    package order them; otherwise they may come out too low, see `find_levels`.
    """
    level = np.zeros(len(child_ptr) - 1, np.int32)
    for v in range(len(level)):
        level[v] = 1
        for e in range(child_ptr[v], child_ptr[v + 1]):
            if child[e] >= 0:
                level[v] = max(level[v], level[child[e]] + 1)
    return level


@compiled
def graph_costs(graph_ptr: Array, levels: Array, level_cost: float) -> Array:
    """Return the cost of each graph: vertices + level_cost * levels.

    Args:
        levels: [V], from 1: see `number_levels`.
    """
    costs = np.zeros(len(graph_ptr) - 1, np.float64)
    for g in range(len(costs)):
        deepest = 0
        for v in range(graph_ptr[g], graph_ptr[g + 1]):
            deepest = max(deepest, levels[v])
        costs[g] = graph_ptr[g + 1] - graph_ptr[g] + level_cost * deepest
    return costs


@compiled
def _assign(costs: Array, order: Array, parts: int) -> Array:
    load = np.zeros(parts, np.float64)
    owner = np.empty(len(costs), np.int32)
    for g in order:
        best = 0
        for p in range(1, parts):
            if load[p] < load[best]:
                best = p
        owner[g] = best
        load[best] += costs[g]
    return owner
