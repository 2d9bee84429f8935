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

from vertexrt.engine.inputs import Inputs, parents
from vertexrt.engine.variant import Variant
from vertexrt.graph import GraphBatch
from vertexrt.graph.batch import fields_of
from vertexrt.graph.digest import GraphDigests, digest_graphs
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
        digests: of the graphs, the same in all processes.
    """

    variant: Variant
    costs: npt.NDArray[np.float64]
    with_loss: Int64
    looked_up: Mapping[str, LookedUp]
    digests: GraphDigests


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
    graph_of = batch.graph_of
    if inputs.index.shape[1] > len(graph_of):  # edges come after the vertices
        graph_of = np.concatenate([graph_of, graph_of[parents(inputs.structure)]])
    losses = np.append(0, np.cumsum(has_loss))[batch.graph_ptr]
    graphs = batch.num_graphs
    return GraphFacts(
        variant,
        graph_costs(batch.graph_ptr, find_levels(batch.child_ptr, batch.child)[0], level),
        np.diff(losses),
        {name: _by_graph(inputs, variant.lookups[name], graph_of, graphs) for name in sparse},
        digest_graphs(fields_of(batch), np.zeros(2, np.uint64)),
    )


def _by_graph(inputs: Inputs, lookups: Int64, graph_of: Array, graphs: int) -> LookedUp:
    """List what each graph looks up of a table; graph_of: [columns], whose graph each is."""
    index, readers, rows, whose = inputs.index, inputs.readers, [], []
    for pull, function in lookups:
        at = np.flatnonzero((index[pull] >= 0) & (readers == function))
        rows.append(index[pull, at])
        whose.append(graph_of[at])
    graph = np.concatenate([graph_of[:0], *whose])
    order = np.argsort(graph, kind="stable")
    first = np.searchsorted(graph[order], np.arange(graphs + 1))
    return LookedUp(first, np.concatenate([index.reshape(-1)[:0], *rows])[order])


def new_marks(rows: int) -> Array:
    """Return a mark for each row of a table, all False, and one after them."""
    return np.zeros(rows + 1, np.bool_)


@compiled
def _look_up(marks: Array, index: Array, lookups: Array, functions: Array) -> Array:
    """List the rows that have no mark yet; without a branch: which are new cannot be predicted."""
    rows = np.empty(len(lookups) * index.shape[1] + 1, np.int64)
    count, last = 0, len(marks) - 1
    marks[last] = True  # of no row
    for pull, function in lookups:
        for v in range(index.shape[1]):
            is_row = (index[pull, v] >= 0) & (functions[v] == function)
            rows[count] = row = index[pull, v] if is_row else last
            count += int(not marks[row])
            marks[row] = True
    marks[last] = False
    for r in range(count):
        marks[rows[r]] = False
    return rows[:count]


def rows_looked_up(marks: Array, index: Array, lookups: Array, functions: Array) -> Int64:
    """Return the rows of a table that a minibatch looks up, rising.

    Args:
        marks: of the table, all False; left so.
        index: of `Inputs`, functions: its `readers`; lookups: of the table, of `Variant.lookups`.
    """
    rows = _look_up(marks, index, lookups, functions)
    rows.sort()
    return rows


def rows_of_graphs(marks: Array, looked_up: LookedUp, graphs: Int64) -> Int64:
    """Return the rows of a table that some graphs look up, rising; marks: as above."""
    first, rows = looked_up
    counts = first[graphs + 1] - first[graphs]
    at = np.arange(counts.sum()) + np.repeat(first[graphs] + counts - np.cumsum(counts), counts)
    every = np.zeros((1, 2), np.int64), np.zeros(len(at), np.int32)
    return rows_looked_up(marks, rows[at][None], *every)
