"""Exchange graphs with networkx, which is imported when a graph is converted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from vertexrt.errors import GraphError, PullError, nearest
from vertexrt.graph.digest import BatchFields
from vertexrt.graph.pulls import PullValue, Rows, parts_of

if TYPE_CHECKING:
    import networkx

IntArray = npt.NDArray[np.int32]

_WHERE = "from_networkx"
Slot = tuple[int, Mapping[str, Any]]  # its child, -1 for none, and the attributes of the edge


def read_networkx(
    dag: networkx.DiGraph[Any], pulls: Sequence[str], edge_pulls: Sequence[str]
) -> tuple[Any, ...]:
    """Return child lists, pulls and pulls of edges of a networkx graph, edges to their parents.

    Raises: GraphError and PullError, as `InputGraph.from_networkx` says.
    """
    slots = read_slots(dag)
    edges = [edge for each in slots for _, edge in each]
    nodes = [given for _, given in dag.nodes(data=True)]
    return (
        [[child for child, _ in each] for each in slots],
        {name: _attribute("node", name, nodes) for name in pulls},
        {name: _attribute("edge", name, edges) for name in edge_pulls},
    )


def read_slots(dag: networkx.DiGraph[Any]) -> list[list[Slot]]:
    """Return the slots of each node, whose edges may name theirs in the attribute `slot`.

    Raises: GraphError, on a graph without directions, or two edges in one slot.
    """
    if not hasattr(dag, "is_directed") or not dag.is_directed():
        several = isinstance(dag, (list, tuple))
        raise GraphError.at(
            _WHERE,
            f"a {type(dag).__name__}",
            "expected a DiGraph with edges from child to parent",
            "vrt.data.from_networkx takes a list of them"
            if several
            else "write networkx.DiGraph(edges), each (child, parent)",
        )
    number = {node: i for i, node in enumerate(dag.nodes)}
    found: list[list[Slot]] = []
    for node in dag.nodes:
        slots: dict[int, Slot] = {}
        loose: list[Slot] = []  # their edges name no slot
        for child, _, edge in dag.in_edges(node, data=True):
            slot = edge.get("slot")
            if slot is None:
                loose.append((number[child], edge))
            elif slot in slots or not isinstance(slot, int) or slot < 0:
                raise GraphError.at(
                    _WHERE,
                    f"the edge {child!r} -> {node!r} has the slot {slot!r}",
                    "expected whole numbers from 0, each once a parent",
                    "correct the attribute or leave it out",
                )
            else:
                slots[slot] = number[child], edge
        named = [slots.get(slot, (-1, {})) for slot in range(max(slots, default=-1) + 1)]
        found.append(named + loose)
    return found


def _attribute(of: str, name: str, several: Sequence[Mapping[str, Any]]) -> PullValue:
    """Return the values of an attribute of nodes or edges as a pull."""
    given = [each.get(name) for each in several]
    present = [value for value in given if value is not None]
    if not present:
        known = sorted({str(name) for each in several for name in each})
        raise PullError.at(
            _WHERE,
            f"no {of} has the attribute '{name}'",
            f"a pull has a value at one {of} at least; they have {', '.join(known) or 'none'}",
            f"correct the name, or leave it out of the pulls.{nearest(name, known)}",
        )
    try:
        values = np.array(present)
    except ValueError as error:
        raise PullError.at(
            _WHERE,
            f"the attribute '{name}' has values of different shapes",
            "expected one shape",
            "correct the attribute",
        ) from error
    if values.ndim == 1 and values.dtype.kind in "iu":
        return np.array([-1 if value is None else value for value in given])
    has = np.array([value is not None for value in given])
    return values if has.all() else Rows(values, np.where(has, np.cumsum(has) - 1, -1))


def write_networkx(fields: BatchFields) -> networkx.MultiDiGraph[int]:
    """Return a MultiDiGraph with an edge for every filled slot; absent pulls leave no attribute."""
    import networkx

    _, child_ptr, child, pulls, types, edge_pulls = fields
    network: networkx.MultiDiGraph[int] = networkx.MultiDiGraph()
    of_vertices, of_edges = (
        {name: values_of(pull) for name, pull in each.items()} for each in (pulls, edge_pulls)
    )
    if types is not None:
        of_vertices.setdefault("type", [types.names[number] for number in types.of_vertex])
        of_edges.setdefault("relation", [types.relations[number] for number in types.of_edge])
    for vertex in range(len(child_ptr) - 1):
        network.add_node(vertex, **_at(of_vertices, vertex))
    parents = np.repeat(np.arange(len(child_ptr) - 1), np.diff(child_ptr))
    for e, (at, parent) in enumerate(zip(child.tolist(), parents.tolist(), strict=True)):
        if at >= 0:
            slot = e - int(child_ptr[parent])
            network.add_edge(at, parent, **{**_at(of_edges, e), "slot": slot})
    return network


def _at(values: Mapping[str, Sequence[Any]], at: int) -> dict[str, Any]:
    return {name: each[at] for name, each in values.items() if each[at] is not None}


def values_of(pull: PullValue) -> list[Any]:
    """Return the value of each vertex or edge, None where it has none; vectors are arrays."""
    table, index = parts_of(pull)
    if index is not None:
        values = values_of(table)
        return [values[row] if row >= 0 else None for row in index.tolist()]
    if table.dtype == np.int32:
        return [None if number == -1 else number for number in table.tolist()]
    return table.tolist() if table.ndim == 1 else list(table)
