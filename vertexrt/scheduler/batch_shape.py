"""The numbers of a batch that decide what it costs to run, for cost models."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from vertexrt.graph import GraphBatch
from vertexrt.graph.batch import fields_of, source_of, starts_of
from vertexrt.graph.digest import Levels
from vertexrt.native.compiled import compiled
from vertexrt.scheduler.compiled import LEVELS, find_levels

Array = np.ndarray[Any, Any]

DIGITS = 3  # binary ones that stay: batches that are nearly alike are one class


class BatchShape(NamedTuple):
    """Numbers of a batch, each rounded down to three binary digits.

    Attributes:
        graphs, vertices: of the batch; inner: vertices with children; edges: to children.
        levels: of the deepest graph.
        comes_again: graphs have one size, so that other batches are like this one.
    """

    graphs: int
    vertices: int
    inner: int
    edges: int
    levels: int
    comes_again: bool = False


def shape_of(batch: GraphBatch) -> BatchShape:
    """Return the shape of a batch; a microsecond, and one more for each thousand vertices."""
    found, _, graph_ptr, graphs = levels_of(batch)
    whole, _ = source_of(batch)
    again = whole.form.same_sizes and (whole is not batch or batch.num_graphs > 1)
    return measure(found, graph_ptr, graphs, fields_of(batch).child, again)


def levels_of(batch: GraphBatch) -> Levels:
    """Return what is found once for all batches that are taken from one."""
    form = batch.form
    if form.levels is None:
        whole, graphs = source_of(batch)
        if whole is batch:
            form.same_sizes = not any(np.diff(each, 2).any() for each in starts_of(batch))
            found, _, forest = find_levels(*fields_of(batch)[1:3])
            form.levels = found, forest, starts_of(batch)[0], graphs
        else:
            form.levels = (*levels_of(whole)[:3], graphs)
    return form.levels


@compiled
def measure(
    found: Array, graph_ptr: Array, graphs: Array, child: Array, comes_again: bool
) -> BatchShape:
    """Count, and round.

    Args:
        found, graph_ptr, graphs: of `levels_of`; child: of the batch.
    """
    vertices, inner, edges, levels = 0, 0, 0, 0
    for g in graphs:
        for each in found[graph_ptr[g] : graph_ptr[g + 1]]:
            vertices += 1
            inner += each > 0
            levels = max(levels, (each & LEVELS) + 1)
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
