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
    """Return the shape of a batch; graphs are counted once for all batches taken from one."""
    whole, graphs = source_of(batch)
    form = whole.form
    if form.counts is None:
        found, *_ = levels_of(whole)
        form.counts = count_graphs(found, *starts_of(whole), fields_of(whole).child)
    again = form.same_sizes and (whole is not batch or batch.num_graphs > 1)
    return measure(form.counts, graphs, again)


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
def count_graphs(found: Array, graph_ptr: Array, edge_ptr: Array, child: Array) -> Array:
    """Return of each graph the vertices, those with children, the edges, and the levels: [K, 4].

    Args:
        found: of `levels_of`; graph_ptr, edge_ptr: of `starts_of`.
    """
    counts = np.zeros((len(graph_ptr) - 1, 4), np.int32)
    for g, own in enumerate(counts):
        for each in found[graph_ptr[g] : graph_ptr[g + 1]]:
            own[0] += 1
            own[1] += int(each > 0)
            own[3] = max(own[3], (each & LEVELS) + 1)
        for each in child[edge_ptr[g] : edge_ptr[g + 1]]:
            own[2] += int(each >= 0)
    return counts


@compiled
def measure(counts: Array, graphs: Array, comes_again: bool) -> BatchShape:
    """Add up what `count_graphs` has found of the graphs of a batch, and round."""
    vertices, inner, edges, levels = 0, 0, 0, 0
    for g in graphs:
        vertices += counts[g, 0]
        inner += counts[g, 1]
        edges += counts[g, 2]
        levels = max(levels, counts[g, 3])
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
