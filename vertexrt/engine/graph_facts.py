"""What steps of several processes know of graphs, found once for a data set.

A process computes its share of a minibatch, and reads these graphs alone. But all processes share
the minibatch out alike, know all rows of tables that it looks up, and notice when they do not have
the same. These facts are of graphs, not of minibatches: so they are found once for all graphs of
the batch that minibatches are taken from.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from vertexrt.engine.checksum import below_limit, mixed
from vertexrt.engine.edge_rows import parents
from vertexrt.engine.inputs import Inputs
from vertexrt.engine.sparse_rows import mark_listed, take_marked
from vertexrt.engine.variant import Variant
from vertexrt.graph import GraphBatch
from vertexrt.ir.ops import FIRST_OF_GRAPH
from vertexrt.native.compiled import compiled
from vertexrt.scheduler.balance import graph_costs
from vertexrt.scheduler.compiled import find_levels

Array = np.ndarray[Any, Any]
Int64 = npt.NDArray[np.int64]


class LookedUp(NamedTuple):
    """The rows of a table that each graph looks up, which may have one several times.

    Attributes:
        first: int64 [K + 1], where those of each graph begin.
        rows: int32.
    """

    first: Int64
    rows: npt.NDArray[np.int32]


class GraphFacts(NamedTuple):
    """Facts of K graphs; see the module.

    Attributes:
        variant: that has the kinds of their vertices.
        costs: float64 [K], see `graph_costs`.
        with_loss: int64 [K], how many vertices have a loss.
        looked_up: by sparse parameter.
        structure, pulled: int64 [K], checksums of children, and of integers that are pulled; they
            depend on nothing but the graph.
    """

    variant: Variant
    costs: npt.NDArray[np.float64]
    with_loss: Int64
    looked_up: Mapping[str, LookedUp]
    structure: Int64
    pulled: Int64


def find_facts(
    variant: Variant,
    batch: GraphBatch,
    inputs: Inputs,
    has_loss: Array,
    sparse: Iterable[str],
    level: float,
) -> GraphFacts:
    """Find the facts of the graphs of a batch.

    Args:
        inputs: that were read of it, without tables; has_loss: [V].
        sparse: parameters that are only looked up in.
        level: vertices that a level of its own is worth.
    """
    graph_ptr, child_ptr, child = batch.graph_ptr, batch.child_ptr, batch.child
    graph_of = batch.graph_of
    if inputs.index.shape[1] > len(graph_of):  # edges come after the vertices
        graph_of = np.concatenate([graph_of, graph_of[parents(inputs.structure)]])
    losses = np.append(0, np.cumsum(has_loss))[graph_ptr]
    read, lookups, readers = (inputs.child_ptr, inputs.child), variant.lookups, inputs.readers
    graphs = batch.num_graphs
    pulls = enumerate(variant.reader.pulls)  # where a graph begins depends on where it lies
    whole = [k for k, pull in pulls if pull.dtype == "int" and pull.name != FIRST_OF_GRAPH]
    return GraphFacts(
        variant,
        graph_costs(graph_ptr, find_levels(child_ptr, child) + 1, level),
        np.diff(losses),
        {
            name: LookedUp(*rows_by_graph(inputs.index, lookups[name], readers, graph_of, graphs))
            for name in sparse
        },
        sum_structure(graph_ptr, *read),
        sum_pulls(inputs.index[whole], graph_of, graphs),
    )


def rows_of_graphs(marks: Array, looked_up: LookedUp, graphs: Int64) -> Int64:
    """Return the rows of a table that some graphs look up, rising.

    Args:
        marks: of the table, all False; left so.
    """
    mark_listed(marks, looked_up.first, looked_up.rows, graphs)
    return take_marked(marks)


@compiled
def rows_by_graph(
    index: Array, lookups: Array, functions: Array, graph_of: Array, graphs: int
) -> tuple[Array, Array]:
    """Return `LookedUp`.

    Args:
        index, lookups, functions: of `rows_looked_up`.
        graph_of: [columns], whose graph each is.
    """
    first = np.zeros(graphs + 1, np.int64)
    for pull, function in lookups:
        for c in range(len(graph_of)):
            if index[pull, c] >= 0 and functions[c] == function:
                first[graph_of[c] + 1] += 1
    for g in range(graphs):
        first[g + 1] += first[g]
    at = first.copy()
    rows = np.empty(first[graphs], np.int32)
    for pull, function in lookups:
        for c in range(len(graph_of)):
            if index[pull, c] >= 0 and functions[c] == function:
                g = graph_of[c]
                rows[at[g]] = index[pull, c]
                at[g] += 1
    return first, rows


@compiled
def sum_structure(graph_ptr: Array, child_ptr: Array, child: Array) -> Array:
    """Return a checksum of the children of each graph, wherever it lies: int64 [K], below 2^52."""
    found = np.empty(len(graph_ptr) - 1, np.int64)
    for g in range(len(found)):
        first = graph_ptr[g]
        a = np.int64(1)
        for v in range(first, graph_ptr[g + 1]):
            a = mixed(a, np.int64(child_ptr[v + 1] - child_ptr[v]))
            for e in range(child_ptr[v], child_ptr[v + 1]):
                a = mixed(a, np.int64(child[e] - first if child[e] >= 0 else -1))
        found[g] = below_limit(a)
    return found


@compiled
def sum_of(sums: Array, graphs: Array) -> int:
    """Return a checksum of those of some graphs, below 2^52."""
    a = np.int64(1)
    for g in graphs:
        a = mixed(a, sums[g])
    return below_limit(a)


@compiled
def sum_pulls(index: Array, graph_of: Array, graphs: int) -> Array:
    """Return a checksum of what the vertices of each graph pull: int64 [K], below 2^52."""
    found = np.full(graphs, 1, np.int64)
    for k in range(len(index)):
        for c in range(len(graph_of)):
            found[graph_of[c]] = mixed(found[graph_of[c]], index[k, c])
    for g in range(graphs):
        found[g] = below_limit(found[g])
    return found
