"""Refuse structure that cannot be evaluated: bad offsets, children out of range, cycles."""

from typing import Any

import numpy as np
import numpy.typing as npt

from vertexrt.checks import is_whole
from vertexrt.errors import GraphError
from vertexrt.graph.compiled import children_first
from vertexrt.graph.owned import MOST, own_numbers, read_array

IntArray = npt.NDArray[np.int32]

NO_NUMBERS = np.zeros(0, np.int32)
_CYCLE_SHOWN = 8  # vertices of a cycle that an error names


def check_structure(
    graph_ptr: IntArray, child_ptr: IntArray, child: IntArray, where: str = "graph batch"
) -> None:
    """Check that every child lies in its parent's graph and that no vertex depends on itself.

    Args:
        graph_ptr: int32 [K+1], first vertex of each graph.
        child_ptr: int32 [V+1], first slot of each vertex.
        child: int32 [E], -1 in an empty slot.
        where: name for error messages; for K > 1 the number of the graph stands in its place.
    Raises: GraphError; vertices are named by the numbers that `child` uses.
    """
    _check_offsets("graph_ptr", graph_ptr, len(child_ptr) - 1, "vertices", where)
    _check_offsets("child_ptr", child_ptr, len(child), "slots", where)
    sizes = np.diff(graph_ptr)
    if not sizes.size or not sizes.all():
        empty = f"graph {int(np.argmin(sizes))} is empty" if sizes.size > 1 else "no vertices"
        raise GraphError.at(where, empty, "expected at least one vertex", "leave it out")
    parent = np.repeat(np.arange(len(child_ptr) - 1, dtype=np.int32), np.diff(child_ptr))
    first = np.repeat(graph_ptr[:-1], sizes)[parent]
    end = np.repeat(graph_ptr[1:], sizes)[parent]
    wrong = (child >= end) | ((child < first) & (child != -1))
    if wrong.any():
        slot = int(np.argmax(wrong))
        vertex = int(parent[slot])
        raise GraphError.at(
            _name(graph_ptr, vertex, where),
            f"vertex {vertex} has the child {int(child[slot])}",
            f"its graph has the vertices {int(first[slot])}..{int(end[slot]) - 1},"
            " and -1 is an empty slot",
            "correct the child",
        )
    # Most graphs number children before parents (or all after): then there can be no cycle.
    if (child < parent).all() or ((child > parent) | (child == -1)).all():
        return
    order, _ = children_first(child_ptr, child)
    if len(order) == len(child_ptr) - 1:
        return
    import networkx  # for an error alone

    stuck = ~np.isin(np.arange(len(child_ptr) - 1), order)
    between = stuck[parent] & stuck[child] & (child >= 0)
    edges = np.stack([parent, child], 1)[between].tolist()
    cycle = [vertex for vertex, _ in networkx.find_cycle(networkx.DiGraph(edges))]
    lowest = cycle.index(min(cycle))
    cycle = cycle[lowest:] + cycle[:lowest]
    names = [str(vertex) for vertex in cycle]
    if len(names) == 1:
        got = f"the vertex {names[0]} is its own child"
    else:
        shown = names if len(names) <= _CYCLE_SHOWN else [*names[:_CYCLE_SHOWN], "..."]
        got = (
            f"the vertices {' -> '.join([*shown, names[0]])} form a cycle of {len(names)},"
            " each with the next as its child"
        )
    raise GraphError.at(
        _name(graph_ptr, cycle[0], where),
        got,
        "children are evaluated before their parents",
        "remove an edge of the cycle, or unroll it: vrt.data.edges.rounds",
    )


def _check_offsets(name: str, offsets: IntArray, total: int, what: str, where: str) -> None:
    # Compared, not subtracted: a difference of int32 may wrap around.
    rising = (offsets[1:] >= offsets[:-1]).all()
    if offsets.size and offsets[0] == 0 and offsets[-1] == total and rising:
        return
    ends = f"{offsets[0]} ... {offsets[-1]}" if offsets.size else "nothing"
    raise GraphError.at(
        where,
        f"{name} holds {ends}",
        f"expected offsets that rise from 0 to the {total} {what}",
        "correct the offsets",
    )


def _name(graph_ptr: IntArray, vertex: int, where: str) -> str:
    if len(graph_ptr) == 2:
        return where
    return f"graph {int(np.searchsorted(graph_ptr, vertex, side='right')) - 1}"


def int32_array(values: Any, what: str, where: str) -> IntArray:
    """Return whole numbers as an int32 read-only array of one axis.

    Raises: GraphError, when they are not whole numbers in one row, or beyond 32 bits.
    """
    array = read_array(values)
    if isinstance(array, str):
        raise _misfit(where, f"{what} is {array}")
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise _misfit(where, f"{what} is {array.dtype} {shape_of(array)}")
    owned = own_numbers(array if array.size else NO_NUMBERS)
    if isinstance(owned, str):
        raise _misfit(where, f"{what} has {owned}")
    return owned


def pairs_of(given: Any, what: str, verb: str, expected: str, where: str) -> IntArray:
    """Return pairs (child, parent), int32 [E, 2]. Raises: GraphError, when they are none."""
    array = read_array(given)
    if isinstance(array, str) or (array.size and array.shape[1:] != (2,)):
        got = array if isinstance(array, str) else f"an array {shape_of(array)}"
        turned = not isinstance(array, str) and array.ndim == 2 and len(array) == 2
        action = "write edge_index.T: a row for each edge" if turned else "list the pairs"
        raise GraphError.at(where, f"{what} {verb} {got}", expected, action)
    return int32_array(array.reshape(-1), what, where).reshape(-1, 2)


def by_parent(parent: IntArray, count: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return the first slot of each vertex, and the edges in the order of their parents."""
    child_ptr = np.cumsum(np.append(0, np.bincount(parent, minlength=count)))
    return child_ptr, np.argsort(parent, kind="stable")


def _misfit(where: str, got: str) -> GraphError:
    return GraphError.at(where, got, "expected int32 [n]", "correct or convert it")


def count_of(given: object, what: str, where: str, most: int = MOST - 1) -> int:
    """Return a whole number from 0 to `most`. Raises: GraphError, when it is none."""
    if is_whole(given) and 0 <= given <= most:
        return int(given)
    expected = f"expected a whole number in 0..{most}"
    raise GraphError.at(where, f"{what} is {given!r:.60}", expected, "correct it")


def shape_of(array: Any) -> str:
    """Return the shape of an array as messages write it."""
    return "[" + ", ".join(map(str, array.shape)) + "]"
