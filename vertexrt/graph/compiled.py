"""Compiled loops over vertices."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from vertexrt.native.compiled import compiled
from vertexrt.native.foreign import filled_here

IntArray = npt.NDArray[np.int32]


@compiled
def start_graphs(
    whole: IntArray,
    graph_ptr: IntArray,
    edge_ptr: IntArray,
    known: npt.NDArray[np.int64],
    graphs: npt.NDArray[np.int64],
) -> tuple[int, int]:
    """Find where some graphs begin that lie one after another.

    Args:
        whole: int32 [2 (n + 1)], `unwritten`; gets the first vertex of each, then the first slot.
        graph_ptr, edge_ptr: of all graphs.
        known: the numbers of graphs of which these are some; empty, where they are of all.
        graphs: int64 [n], their numbers there; is overwritten with those of all graphs.
    Returns: how many vertices and slots they have; none, if a number is out of range.
    """
    out, count = filled_here(whole), graphs.size
    most = known.size if known.size else graph_ptr.size - 1
    for k in range(count):
        if graphs[k] < 0 or graphs[k] >= most:
            return 0, 0
    vertices, slots = 0, 0
    for k in range(count):
        if known.size:
            graphs[k] = known[graphs[k]]
        g = graphs[k]
        out[k], out[count + 1 + k] = vertices, slots
        vertices += int(graph_ptr[g + 1] - graph_ptr[g])
        slots += int(edge_ptr[g + 1] - edge_ptr[g])
    out[count], out[2 * count + 1] = vertices, slots
    return vertices, slots


@compiled
def take_children(
    whole: IntArray,
    graph_ptr: IntArray,
    child_ptr: IntArray,
    child: IntArray,
    graphs: npt.NDArray[np.int64],
    vertices: int,
) -> None:
    """Copy the children of the graphs named, one graph after another, and renumber them.

    Args:
        whole: `unwritten`; gets child_ptr and child, one after the other.
        vertices: how many these graphs have.
    """
    out = filled_here(whole)
    out_ptr, out_child = out[: vertices + 1], out[vertices + 1 :]
    to, slots = 0, 0
    for k in range(graphs.size):
        first, end = graph_ptr[graphs[k]], graph_ptr[graphs[k] + 1]
        begin, stop = child_ptr[first], child_ptr[end]
        move = slots - begin
        starts, given = out_ptr[to : to + end - first], child_ptr[first:end]
        for i in range(starts.size):
            starts[i] = given[i] + move
        here, there = out_child[slots : slots + stop - begin], child[begin:stop]
        move = to - first
        for i in range(here.size):
            here[i] = there[i] + move if there[i] >= 0 else -1
        to += end - first
        slots += stop - begin
    out_ptr[vertices] = slots


@compiled
def take_rows(
    whole: npt.NDArray[Any],
    rows: npt.NDArray[Any],
    ptr: IntArray,
    graphs: npt.NDArray[np.int64],
) -> None:
    """Copy the rows of some graphs, one graph after another.

    Args:
        whole: `unwritten`, of the dtype of `rows`; gets them.
        rows: [V, *] or [E, *]; ptr: the first of each graph.
    """
    values = rows.reshape(-1)
    width = values.size // max(1, len(rows))
    out = filled_here(whole)
    to = 0
    for k in range(graphs.size):
        first, end = ptr[graphs[k]] * width, ptr[graphs[k] + 1] * width
        out[to : to + end - first] = values[first:end]
        to += end - first


def list_parents(child_ptr: IntArray, child: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """Return the CSR of parents by vertex, and how many children each vertex has."""
    count = child_ptr.size - 1
    children = np.zeros(count, np.int32)
    ptr = np.zeros(count + 1, np.int32)
    for c in child:
        if c >= 0:
            ptr[c + 1] += 1
    for v in range(count):
        ptr[v + 1] += ptr[v]
    fill = ptr[:-1].copy()
    parent = np.empty(ptr[count], np.int32)
    for v in range(count):
        for e in range(child_ptr[v], child_ptr[v + 1]):
            c = child[e]
            if c >= 0:
                children[v] += 1
                parent[fill[c]] = v
                fill[c] += 1
    return ptr, parent, children


@compiled
def children_first(child_ptr: IntArray, child: IntArray) -> tuple[IntArray, IntArray]:
    """Order the vertices so that children come before parents (Kahn's algorithm).

    Returns: the order, without vertices in a cycle or above one; [V] the longest distance of each
        vertex in it from a leaf.
    """
    ptr, parent, waits = list_parents(child_ptr, child)
    level = np.zeros(waits.size, np.int32)
    order = np.empty(waits.size, np.int32)
    ready = 0
    for v in range(waits.size):
        if waits[v] == 0:
            order[ready] = v
            ready += 1
    done = 0
    while done < ready:
        v = order[done]
        done += 1
        for p in range(ptr[v], ptr[v + 1]):
            u = parent[p]
            level[u] = level[v] + 1  # the last child to come has the highest level
            waits[u] -= 1
            if waits[u] == 0:
                order[ready] = u
                ready += 1
    return order[:ready], level
