"""Graphs of PyTorch Geometric and of DGL as input graphs; neither library is imported.

An edge goes from a child to its parent, as messages do in these libraries.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from vertexrt.errors import DataError, PullError
from vertexrt.graph import InputGraph

Edges = dict[tuple[str, str, str], npt.NDArray[Any]]
Pulls = dict[str, dict[str, Any]]


def from_pyg(data: Any, pulls: Sequence[str] = ()) -> InputGraph:
    """Make an input graph of a `Data` or `HeteroData` of PyTorch Geometric.

    Args:
        data: of a graph without cycles. A `HeteroData` makes a graph of vertex types, whose
            relations are the middle names of its edge types.
        pulls: names of attributes with a row for each node, such as "x" and "y"; of a `HeteroData`,
            each node type gives those that it has.
    Raises: DataError, when it is no such object; PullError, when an attribute is missing or does
        not fit; GraphError, on a cycle.
    """
    if hasattr(data, "node_types") and hasattr(data, "edge_types"):
        sizes = {name: data[name].num_nodes for name in data.node_types}
        edges = {key: _array(data[key].edge_index).T for key in data.edge_types}
        read = {name: _stored(data[name], pulls) for name in data.node_types}
        _check_pulls("from_pyg", pulls, read)
        return InputGraph.from_types(sizes, edges, read)
    if not hasattr(data, "edge_index") or not hasattr(data, "num_nodes"):
        raise _no_graph("from_pyg", data, "a Data or HeteroData")
    found = _stored(data, pulls)
    _check_pulls("from_pyg", pulls, {"": found})
    return InputGraph.from_edges(data.num_nodes, _array(data.edge_index).T, found)


def from_dgl(graph: Any, pulls: Sequence[str] = ()) -> InputGraph:
    """Make an input graph of a `DGLGraph`.

    Args:
        graph: without cycles. One with several node or edge types makes a graph of vertex types.
        pulls: names of node data; each node type gives those that it has.
    Raises: as `from_pyg`.
    """
    if not hasattr(graph, "ntypes") or not hasattr(graph, "canonical_etypes"):
        raise _no_graph("from_dgl", graph, "a DGLGraph")
    sizes = {name: int(graph.num_nodes(name)) for name in graph.ntypes}
    edges: Edges = {}
    for key in graph.canonical_etypes:
        child, parent = graph.edges(etype=key)
        edges[key] = np.stack([_array(child), _array(parent)], axis=1)
    read = {name: _stored(graph.nodes[name].data, pulls) for name in graph.ntypes}
    _check_pulls("from_dgl", pulls, read)
    if len(sizes) > 1 or len(edges) > 1:
        return InputGraph.from_types(sizes, edges, read)
    (name,) = sizes
    pairs = next(iter(edges.values()), np.zeros((0, 2), np.int32))
    return InputGraph.from_edges(sizes[name], pairs, read[name])


def _stored(store: Any, pulls: Sequence[str]) -> dict[str, Any]:
    """Return the attributes that a store has."""
    return {name: _array(store[name]) for name in pulls if name in store}


def _array(tensor: Any) -> npt.NDArray[Any]:
    """Return a tensor as an array; of a tensor that is on a GPU, or has a gradient, a copy."""
    for step in ("detach", "cpu"):
        convert: Callable[[], Any] | None = getattr(tensor, step, None)
        tensor = tensor if convert is None else convert()
    return np.asarray(tensor)


def _check_pulls(where: str, pulls: Sequence[str], read: Pulls) -> None:
    for name in pulls:
        if not any(name in found for found in read.values()):
            expected = "a pull is an attribute of the nodes"
            raise PullError.at(where, f"no '{name}'", expected, "correct the name or leave it out")


def _no_graph(where: str, given: object, expected: str) -> DataError:
    return DataError.at(where, f"a {type(given).__name__}", f"expected {expected}", "convert it")
