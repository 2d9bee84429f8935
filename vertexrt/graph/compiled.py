"""Compiled loops over vertices."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from vertexrt.native.compiled import compiled
from vertexrt.native.foreign import filled_here

IntArray = npt.NDArray[np.int32]


@compiled
def count_graphs(
    graph_ptr: IntArray, child_ptr: IntArray, graphs: npt.NDArray[np.int64]
) -> tuple[int, int]:
    """Return how many vertices and slots the graphs named have; none, if one is out of range."""
    vertices, slots = 0, 0
    for k in range(graphs.size):
        if graphs[k] < 0 or graphs[k] >= graph_ptr.size - 1:
            return 0, 0
        first, end = graph_ptr[graphs[k]], graph_ptr[graphs[k] + 1]
        vertices += end - first
        slots += child_ptr[end] - child_ptr[first]
    return vertices, slots


@compiled
def numbers_of(known: npt.NDArray[np.int64], chosen: npt.NDArray[np.int64]) -> Any:
    """Return some of the numbers that are known; none at all, if a place is out of range."""
    found = np.empty(chosen.size, np.int64)
    for k in range(chosen.size):
        if chosen[k] < 0 or chosen[k] >= known.size:
            return found[:0]
        found[k] = known[chosen[k]]
    return found


@compiled
def starts_of_graphs(
    graph_ptr: IntArray, edge_ptr: IntArray, graphs: npt.NDArray[np.int64]
) -> tuple[IntArray, IntArray]:
    """Return the first vertex and slot of each graph named, where they lie one after another."""
    vertices = np.zeros(graphs.size + 1, np.int32)
    slots = np.zeros(graphs.size + 1, np.int32)
    for k in range(graphs.size):
        g = graphs[k]
        vertices[k + 1] = vertices[k] + graph_ptr[g + 1] - graph_ptr[g]
        slots[k + 1] = slots[k] + edge_ptr[g + 1] - edge_ptr[g]
    return vertices, slots


@compiled
def take_graphs(
    whole: IntArray,
    graph_ptr: IntArray,
    child_ptr: IntArray,
    child: IntArray,
    columns: tuple[IntArray, ...],
    graphs: npt.NDArray[np.int64],
    size: tuple[int, int],
) -> None:
    """Copy the graphs named in `graphs`, one after another, and renumber their children.

    All of a graph is copied at once: the first elements of its arrays come from far away in memory,
    and this way several are waited for together.

    Args:
        whole: `unwritten`; gets graph_ptr, child_ptr, child and the columns, one after another.
        columns: [V] each, at least one; one that is empty is left out.
        size: vertices and slots, of `count_graphs`.
    """
    out = filled_here(whole)
    vertices, slots = size
    out_graph_ptr, rest = out[: graphs.size + 1], out[graphs.size + 1 :]
    out_child_ptr, rest = rest[: vertices + 1], rest[vertices + 1 :]
    out_child, rest = rest[:slots], rest[slots:]
    vertices, slots = 0, 0
    for k in range(graphs.size):
        first, end = graph_ptr[graphs[k]], graph_ptr[graphs[k] + 1]
        to = vertices
        out_graph_ptr[k] = to
        begin, stop = child_ptr[first], child_ptr[end]
        at = to
        for column in columns:
            if column.size:
                rest[at : at + end - first] = column[first:end]
                at += len(out_child_ptr) - 1
        move = slots - begin
        starts, given = out_child_ptr[to : to + end - first], child_ptr[first:end]
        for i in range(starts.size):
            starts[i] = given[i] + move
        here, there = out_child[slots : slots + stop - begin], child[begin:stop]
        move = to - first
        for i in range(here.size):
            here[i] = there[i] + move if there[i] >= 0 else -1
        vertices += end - first
        slots += stop - begin
    out_graph_ptr[graphs.size] = vertices
    out_child_ptr[vertices] = slots


@compiled
def take_column(
    out: IntArray, column: IntArray, graph_ptr: IntArray, graphs: npt.NDArray[np.int64]
) -> None:
    """Copy what the vertices of some graphs have, one graph after another.

    Args:
        out: of these vertices; column: [V] of all.
    """
    at = 0
    for k in range(len(graphs)):
        first, end = graph_ptr[graphs[k]], graph_ptr[graphs[k] + 1]
        out[at : at + end - first] = column[first:end]
        at += end - first


@compiled
def take_rows(
    whole: npt.NDArray[Any],
    rows: npt.NDArray[Any],
    graph_ptr: IntArray,
    graphs: npt.NDArray[np.int64],
) -> None:
    """Copy the rows of the vertices of `graphs`.

    Args:
        whole: `unwritten`, of the dtype of `rows`; gets them.
        rows: [V, *].
    """
    values = rows.reshape(-1)
    width = values.size // max(1, len(rows))
    out = filled_here(whole)
    to = 0
    for k in range(graphs.size):
        first, end = graph_ptr[graphs[k]] * width, graph_ptr[graphs[k] + 1] * width
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
