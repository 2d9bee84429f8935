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
    """Return the shape of a batch; a microsecond, and one more for each thousand vertices."""
    # Whether graphs of what it was taken from have one size; else its own, if there are several.
    whole, _ = source_of(batch)
    form = whole.form
    if form.same_sizes is None:
        form.same_sizes = all(
            int(each[1]) * (len(each) - 1) == each[-1] and (np.diff(each) == each[1]).all()
            for each in starts_of(whole)
        )
    again = form.same_sizes and (whole is not batch or batch.num_graphs > 1)
    return measure(*fields_of(batch)[:3], again)


@compiled
def measure(graph_ptr: Array, child_ptr: Array, child: Array, comes_again: bool) -> BatchShape:
    """Count, and round."""
    vertices = len(child_ptr) - 1
    inner, edges, levels = 0, 0, 0
    for level in number_levels(child_ptr, child):
        levels = max(levels, level)
        inner += level > 1
    for each in child:
        edges += each >= 0
    graphs, vertices = _rounded(len(graph_ptr) - 1), _rounded(vertices)
    inner, edges, levels = _rounded(inner), _rounded(edges), _rounded(levels)
    found = graphs, vertices, inner, edges, levels, comes_again
    return found  # type: ignore[return-value]


@compiled
def _rounded(number: int) -> Any:
    """Return a number with its first binary digits alone."""
    shift = 0
    while number >> shift >= 1 << DIGITS:
        shift += 1
    return number >> shift << shift
