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


FACTOR = 0x5851F42D4C957F2D  # Knuth, MMIX: of a linear congruential generator
KEPT = 52  # bits: a float64 has no more


def mixed(total: Any, number: Any) -> Any:
    """Return a running hash, int64, that a number was added to."""
    return ((total ^ (total >> 29)) ^ number) * np.int64(FACTOR)


def below_limit(total: Any) -> int:
    """Return what a running hash comes to: below 2^KEPT."""
    return int((total >> 11) & ((1 << KEPT) - 1))


@compiled
def checksum(numbers: Array, start: int) -> int:
    """Return a checksum of int32 [n], that goes on from another; below 2^52.

    Four hashes are computed beside each other, since each product waits for the one before.
    """
    factor = np.int64(FACTOR)
    a, b, c, d = np.int64(start + 1), np.int64(2), np.int64(3), np.int64(4)
    whole = len(numbers) // 4 * 4
    for i in range(0, whole, 4):
        a = (a ^ numbers[i]) * factor
        b = (b ^ numbers[i + 1]) * factor
        c = (c ^ numbers[i + 2]) * factor
        d = (d ^ numbers[i + 3]) * factor
    for i in range(whole, len(numbers)):
        a = (a ^ numbers[i]) * factor
    for each in (b, c, d, np.int64(len(numbers))):
        a = mixed(a, each)
    return below_limit(a)


EIGHT = 8  # marks are read so many at once
FEW = 64  # lookups that are sorted faster than a table's marks are read


def new_marks(rows: int) -> Array:
    """Return a mark for each row of a table, all False, and at least one after them."""
    return np.zeros((rows // EIGHT + 1) * EIGHT, np.bool_)


@compiled
def mark_rows(marks: Array, index: Array, functions: Array, function: int) -> None:
    """Mark the rows that an index has; -1 marks the last place, so that nothing branches on it.

    Args:
        functions: of each place of the index, of which one counts.
    """
    last = len(marks) - 1
    for v in range(len(index)):
        marks[index[v] if (index[v] >= 0) & (functions[v] == function) else last] = True


@compiled
def mark_listed(marks: Array, first: Array, rows: Array, lists: Array) -> None:
    """Mark the rows of some lists; list k is `rows[first[k] : first[k + 1]]`."""
    for k in lists:
        for at in range(first[k], first[k + 1]):
            marks[rows[at]] = True


@compiled
def take_marked(marks: Array) -> Array:
    """Return the rows that are marked, rising, as int64, and clear the marks."""
    marks[len(marks) - 1] = False  # of no row
    words = marks.view(np.uint64)
    count = 0
    for v in range(len(marks)):
        count += int(marks[v])
    rows = np.empty(count + 1, np.int64)  # one place more, which rows without a mark are put in
    found = 0
    for w in range(len(words)):
        if words[w] == 0:
            continue
        for row in range(EIGHT * w, EIGHT * (w + 1)):
            rows[found] = row  # without a branch: which rows are marked cannot be predicted
            found += int(marks[row])
        words[w] = 0
    return rows[:count]


def list_rows(marks: Array, index: Array, lookups: Array, functions: Array) -> Array:
    """Return what `rows_looked_up` does, for few vertices: the marks are not gone through."""
    rows = np.empty(len(lookups) * index.shape[1], np.int64)
    count = 0
    for pull, function in lookups:
        for v in range(index.shape[1]):
            row = index[pull, v]
            if row < 0 or functions[v] != function or marks[row]:
                continue
            marks[row] = True
            at = count
            while at > 0 and rows[at - 1] > row:
                rows[at] = rows[at - 1]
                at -= 1
            rows[at] = row
            count += 1
    for r in range(count):
        marks[rows[r]] = False
    return rows[:count]


@compiled
def union_of(marks: Array, rows: Array) -> Array:
    """Return the rows that are listed, each once, rising; marks as of `rows_looked_up`."""
    for row in rows:
        marks[row] = True
    return take_marked(marks)


@compiled
def ranges_of(rows: Array, offset: int, width: int) -> tuple[Array, Array]:
    """Return flat ranges of rows of a table: first elements, int64, and widths, int32."""
    starts = np.empty(len(rows), np.int64)
    widths = np.empty(len(rows), np.int32)
    for k in range(len(rows)):
        starts[k] = offset + rows[k] * width
        widths[k] = width
    return starts, widths


@compiled
def rows_looked_up(marks: Array, index: Array, lookups: Array, functions: Array) -> Array:
    """Return the rows of a table that a minibatch looks up, rising, as int64.

    Args:
        marks: of the table, all False; left so.
        index: of `Inputs`, functions: its `readers`; lookups: of the table, of `Variant.lookups`.
    """
    if len(lookups) * index.shape[1] <= FEW:
        return list_rows(marks, index, lookups, functions)
    for pull, function in lookups:
        mark_rows(marks, index[pull], functions, function)
    return take_marked(marks)


@compiled
def ranges_looked_up(
    marks: Array, index: Array, lookups: Array, functions: Array, offset: int, width: int
) -> tuple[Array, Array]:
    """Return the same as flat ranges; see `ranges_of`."""
    return ranges_of(rows_looked_up(marks, index, lookups, functions), offset, width)
