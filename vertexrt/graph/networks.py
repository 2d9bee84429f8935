"""Exchange graphs with networkx, which is imported when a graph is converted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from vertexrt.errors import GraphError, PullError
from vertexrt.graph.pulls import Pulled, PullValue
from vertexrt.graph.types import VertexTypes

if TYPE_CHECKING:
    import networkx

IntArray = npt.NDArray[np.int32]

_WHERE = "from_networkx"


class Slot(NamedTuple):
    """A slot of a vertex: its child, -1 for none, and the attributes of the edge."""

    child: int
    edge: Mapping[str, Any]


class NetworkParts(NamedTuple):
    """The fields of an input graph."""

    child_ptr: IntArray
    child: IntArray
    pulls: Mapping[str, PullValue]
    types: VertexTypes | None
    edge_pulls: Mapping[str, PullValue]


def read_networkx(
    dag: networkx.DiGraph[Any], pulls: Sequence[str], edge_pulls: Sequence[str]
) -> NetworkParts:
    """Return the fields of a networkx graph with edges from child to parent.

    Raises: GraphError and PullError, as `InputGraph.from_networkx` says.
    """
    slots = read_slots(dag)
    edges = [slot.edge for each in slots for slot in each]
    child = [slot.child for each in slots for slot in each]
    return NetworkParts(
        np.cumsum([0, *map(len, slots)], dtype=np.int32),
        np.array(child, np.int32),
        {name: _attribute("node", name, [x for _, x in dag.nodes(data=name)]) for name in pulls},
        None,
        {name: _attribute("edge", name, [edge.get(name) for edge in edges]) for name in edge_pulls},
    )


def read_slots(dag: networkx.DiGraph[Any]) -> list[list[Slot]]:
    """Return the slots of each node, whose edges may name theirs in the attribute `slot`.

    Raises: GraphError, on a graph without directions, or two edges in one slot.
    """
    if not dag.is_directed():
        raise GraphError.at(
            _WHERE,
            "a graph without directions",
            "expected a DiGraph with edges from child to parent",
            "convert it",
        )
    number = {node: i for i, node in enumerate(dag.nodes)}
    return [_slots(dag, node, number) for node in dag.nodes]


def _slots(dag: networkx.DiGraph[Any], node: Any, number: Mapping[Any, int]) -> list[Slot]:
    """Return the children of a node by slot, then those whose edges name no slot."""
    slots: dict[int, Slot] = {}
    loose: list[Slot] = []
    for child, _, edge in dag.in_edges(node, data=True):
        slot = edge.get("slot")
        if slot is None:
            loose.append(Slot(number[child], edge))
        elif slot in slots or not isinstance(slot, int) or slot < 0:
            raise GraphError.at(
                _WHERE,
                f"the edge {child!r} -> {node!r} has the slot {slot!r}",
                "expected whole numbers from 0, each once a parent",
                "correct the attribute or leave it out",
            )
        else:
            slots[slot] = Slot(number[child], edge)
    empty = Slot(-1, {})
    return [slots.get(slot, empty) for slot in range(max(slots, default=-1) + 1)] + loose


def _attribute(of: str, name: str, given: list[Any]) -> PullValue:
    present = [value for value in given if value is not None]
    if not present:
        raise PullError.at(
            _WHERE,
            f"no {of} has the attribute '{name}'",
            f"a pull has a value at one {of} at least",
            "set it or leave it out of the pulls",
        )
    values = _array(name, present)
    has = np.array([value is not None for value in given])
    if values.ndim == 1 and values.dtype.kind in "iu":
        return _with_absent(values, has)
    if has.all():
        return values
    return Pulled(values, np.where(has, np.cumsum(has) - 1, -1).astype(np.int32))


def _with_absent(values: npt.NDArray[Any], has: npt.NDArray[np.bool_]) -> npt.NDArray[Any]:
    """Return whole numbers by vertex, -1 where there is none."""
    whole = np.full(len(has), -1, values.dtype if values.dtype.kind == "i" else np.int64)
    whole[has] = values
    return whole


def _array(name: str, values: list[Any]) -> npt.NDArray[Any]:
    try:
        return np.array(values)
    except ValueError as error:
        raise PullError.at(
            _WHERE,
            f"the attribute '{name}' has values of different shapes",
            "expected one shape",
            "correct the attribute",
        ) from error


def write_networkx(graph: NetworkParts) -> networkx.MultiDiGraph[int]:
    """Return a MultiDiGraph with an edge for every filled slot; absent pulls leave no attribute."""
    import networkx

    network: networkx.MultiDiGraph[int] = networkx.MultiDiGraph()
    vertices, types = len(graph.child_ptr) - 1, graph.types
    for vertex in range(vertices):
        named = {} if types is None else {"type": types.names[types.of_vertex[vertex]]}
        network.add_node(vertex, **{**named, **_values_at(graph.pulls, vertex)})
    parent = np.repeat(np.arange(vertices), np.diff(graph.child_ptr))
    slot = np.arange(len(graph.child)) - graph.child_ptr[parent]
    for e, ends in enumerate(zip(graph.child.tolist(), parent.tolist(), strict=True)):
        named = {} if types is None else {"relation": types.relations[types.of_edge[e]]}
        if ends[0] >= 0:
            values = {**named, **_values_at(graph.edge_pulls, e), "slot": int(slot[e])}
            network.add_edge(*ends, **values)
    return network


def _values_at(pulls: Mapping[str, PullValue], at: int) -> dict[str, Any]:
    found = {name: _value_at(pull, at) for name, pull in pulls.items()}
    return {name: value for name, value in found.items() if value is not None}


def _value_at(pull: PullValue, vertex: int) -> Any:
    if isinstance(pull, Pulled):
        row = vertex if pull.index is None else int(pull.index[vertex])
        return None if row < 0 else _plain(pull.values[row])
    if pull.dtype == np.int32 and pull[vertex] == -1:
        return None
    return _plain(pull[vertex])


def _plain(value: Any) -> Any:
    return value.item() if np.ndim(value) == 0 else value
