"""Exchange graphs with networkx, which is imported when a graph is converted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from vertexrt.errors import GraphError, PullError
from vertexrt.graph.pulls import Pulled, PullValue
from vertexrt.graph.types import VertexTypes

if TYPE_CHECKING:
    import networkx

IntArray = npt.NDArray[np.int32]

_WHERE = "from_networkx"


def read_networkx(
    dag: networkx.DiGraph[Any], pulls: Sequence[str]
) -> tuple[IntArray, IntArray, dict[str, PullValue]]:
    """Return child_ptr, child and pulls of a networkx graph with edges from child to parent.

    Raises: GraphError and PullError, as `InputGraph.from_networkx` says.
    """
    if not dag.is_directed():
        raise GraphError.at(
            _WHERE,
            "a graph without directions",
            "expected a DiGraph with edges from child to parent",
            "convert it",
        )
    number = {node: i for i, node in enumerate(dag.nodes)}
    lists = [_slots(dag, node, number) for node in dag.nodes]
    child_ptr = np.cumsum([0, *map(len, lists)], dtype=np.int32)
    child = np.array([c for slot_list in lists for c in slot_list], np.int32)
    return child_ptr, child, {name: _attribute(dag, name) for name in pulls}


def _slots(dag: networkx.DiGraph[Any], node: Any, number: Mapping[Any, int]) -> list[int]:
    """Return the children of a node by slot, then those whose edges name no slot."""
    slots: dict[int, int] = {}
    loose: list[int] = []
    slot: Any
    for child, _, slot in dag.in_edges(node, data="slot"):
        if slot is None:
            loose.append(number[child])
        elif slot in slots or not isinstance(slot, int) or slot < 0:
            raise GraphError.at(
                _WHERE,
                f"the edge {child!r} -> {node!r} has the slot {slot!r}",
                "expected whole numbers from 0, each once a parent",
                "correct the attribute or leave it out",
            )
        else:
            slots[slot] = number[child]
    return [slots.get(slot, -1) for slot in range(max(slots, default=-1) + 1)] + loose


def _attribute(dag: networkx.DiGraph[Any], name: str) -> PullValue:
    given = [value for _, value in dag.nodes(data=name)]
    present = [value for value in given if value is not None]
    if not present:
        raise PullError.at(
            _WHERE,
            f"no node has the attribute '{name}'",
            "a pull has a value at one node at least",
            "set it or leave it out of `pulls`",
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


def write_networkx(
    child_ptr: IntArray,
    child: IntArray,
    pulls: Mapping[str, PullValue],
    types: VertexTypes | None,
) -> networkx.MultiDiGraph[int]:
    """Return a MultiDiGraph with an edge for every filled slot; absent pulls leave no attribute."""
    import networkx

    graph: networkx.MultiDiGraph[int] = networkx.MultiDiGraph()
    graph.add_nodes_from(range(len(child_ptr) - 1))
    parent = np.repeat(np.arange(len(child_ptr) - 1), np.diff(child_ptr))
    slot = np.arange(len(child)) - child_ptr[parent]
    for e, (c, p, s) in enumerate(zip(child.tolist(), parent.tolist(), slot.tolist(), strict=True)):
        named = {} if types is None else {"relation": types.relations[types.of_edge[e]]}
        if c >= 0:
            graph.add_edge(c, p, slot=s, **named)
    if types is not None:
        for vertex in graph.nodes:
            graph.nodes[vertex]["type"] = types.names[types.of_vertex[vertex]]
    for name, pull in pulls.items():
        for vertex in graph.nodes:
            value = _value_at(pull, vertex)
            if value is not None:
                graph.nodes[vertex][name] = value
    return graph


def _value_at(pull: PullValue, vertex: int) -> Any:
    if isinstance(pull, Pulled):
        row = vertex if pull.index is None else int(pull.index[vertex])
        return None if row < 0 else _plain(pull.values[row])
    if pull.dtype == np.int32 and pull[vertex] == -1:
        return None
    return _plain(pull[vertex])


def _plain(value: Any) -> Any:
    return value.item() if np.ndim(value) == 0 else value
