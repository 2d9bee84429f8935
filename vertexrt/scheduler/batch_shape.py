"""The numbers of a batch that decide what it costs to run, for cost models."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from vertexrt.graph import GraphBatch
from vertexrt.graph.batch import fields_of, source_of, starts_of
from vertexrt.native.compiled import compiled
from vertexrt.scheduler.balance import number_levels

Array = np.ndarray[Any, Any]

DIGITS = 3  # binary ones that stay: batches that are nearly alike are one class


class BatchShape(NamedTuple):
    """Numbers of a batch, each rounded down to three binary digits.

    Attributes:
        graphs, vertices: of the batch; inner: vertices with children; edges: to children.
        levels: of the deepest graph, by `number_levels`.
        comes_again: graphs have one size, so that other batches are like this one.
    """

    graphs: int
    vertices: int
    inner: int
    edges: int
    levels: int
    comes_again: bool = False


def shape_of(batch: GraphBatch) -> BatchShape:
    """Return the shape of a batch; levels are found once for all that are taken of one."""
    # What is known of graphs that others are taken from: whether they have one size, and levels.
    whole, graphs = source_of(batch)
    form = whole.form
    if form.level is None:
        form.same_sizes = not any(np.diff(each, 2).any() for each in starts_of(whole))
        form.level = number_levels(*fields_of(whole)[1:3])
    again = form.same_sizes and (whole is not batch or batch.num_graphs > 1)
    return measure(form.level, starts_of(whole)[0], graphs, fields_of(batch).child, again)


@compiled
def measure(
    level: Array, graph_ptr: Array, graphs: Array, child: Array, comes_again: bool
) -> BatchShape:
    """Count, and round.

    Args:
        level, graph_ptr: of what graphs are taken from; graphs: their numbers there.
        child: of the batch.
    """
    vertices, inner, edges, levels = 0, 0, 0, 0
    for g in graphs:
        for each in level[graph_ptr[g] : graph_ptr[g + 1]]:
            vertices += 1
            inner += each > 1
            levels = max(levels, each)
    for each in child:
        edges += each >= 0
    count, vertices = _rounded(len(graphs)), _rounded(vertices)
    inner, edges, levels = _rounded(inner), _rounded(edges), _rounded(levels)
    return count, vertices, inner, edges, levels, comes_again  # type: ignore[return-value]


@compiled
def _rounded(number: int) -> Any:
    """Return a number with its first binary digits alone."""
    shift = 0
    while number >> shift >= 1 << DIGITS:
        shift += 1
    return number >> shift << shift
