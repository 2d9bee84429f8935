"""Graphs of networkx, PyTorch Geometric and DGL as input graphs; none of them is imported here.

An edge goes from a child to its parent, as messages do in these libraries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

import numpy as np
import numpy.typing as npt

from vertexrt.data.collector import Collector
from vertexrt.data.columns import Examples, ReadOptions
from vertexrt.data.jsonl import add_record
from vertexrt.errors import DataError, PullError
from vertexrt.graph import InputGraph
from vertexrt.graph.networks import read_slots

if TYPE_CHECKING:
    import networkx

Edges = dict[tuple[str, str, str], npt.NDArray[Any]]
Pulls = Mapping[Any, dict[str, Any]]


def from_pyg(data: Any, pulls: Sequence[str] = (), edge_pulls: Sequence[str] = ()) -> InputGraph:
    """Make an input graph of a `Data` or `HeteroData` of PyTorch Geometric.

    Args:
        data: of a graph without cycles. A `HeteroData` makes a graph of vertex types, whose
            relations are the middle names of its edge types.
        pulls: names of attributes with a row for each node, such as "x" and "y"; of a `HeteroData`,
            each node type gives those that it has.
        edge_pulls: names of attributes with a row for each edge, such as "edge_attr", likewise.
    Raises: DataError, when it is no such object; PullError, when an attribute is missing or does
        not fit; GraphError, on a cycle.
    """
    if hasattr(data, "node_types") and hasattr(data, "edge_types"):
        sizes = {name: data[name].num_nodes for name in data.node_types}
        edges = {key: _array(data[key].edge_index).T for key in data.edge_types}
        read = {name: _stored(data[name], pulls) for name in data.node_types}
        of_edges = {key: _stored(data[key], edge_pulls) for key in data.edge_types}
        _check_pulls("from_pyg", pulls, read)
        _check_pulls("from_pyg", edge_pulls, of_edges)
        return InputGraph.from_types(sizes, edges, read, of_edges)
    if not hasattr(data, "edge_index") or not hasattr(data, "num_nodes"):
        raise _no_graph("from_pyg", data, "a Data or HeteroData")
    found, held = _stored(data, pulls), _stored(data, edge_pulls)
    _check_pulls("from_pyg", pulls, {"": found})
    _check_pulls("from_pyg", edge_pulls, {"": held})
    return InputGraph.from_edges(data.num_nodes, _array(data.edge_index).T, found, held)


def from_dgl(graph: Any, pulls: Sequence[str] = (), edge_pulls: Sequence[str] = ()) -> InputGraph:
    """Make an input graph of a `DGLGraph`.

    Args:
        graph: without cycles. One with several node or edge types makes a graph of vertex types.
        pulls: names of node data; each node type gives those that it has.
        edge_pulls: names of edge data, likewise.
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
    of_edges = {key: _stored(graph.edges[key].data, edge_pulls) for key in edges}
    _check_pulls("from_dgl", pulls, read)
    _check_pulls("from_dgl", edge_pulls, of_edges)
    if len(sizes) > 1 or len(edges) != 1:
        return InputGraph.from_types(sizes, edges, read, of_edges)
    ((name, size),) = sizes.items()
    ((key, pairs),) = edges.items()
    return InputGraph.from_edges(size, pairs, read[name], of_edges[key])


def from_networkx(
    graphs: Iterable[networkx.DiGraph[Any]],
    pulls: Sequence[str] = (),
    *,
    edge_pulls: Sequence[str] = (),
    types: str | None = None,
    relations: str = "relation",
    **options: Unpack[ReadOptions],
) -> Examples:
    """Make a batch of graphs of networkx whose nodes have words, numbers or types.

    Args:
        graphs: directed, without cycles.
        pulls: names of node attributes; a node without one pulls nothing.
        edge_pulls: names of edge attributes, likewise.
        types: the node attribute that names the vertex type; None for graphs without types, whose
            edges may name their `slot` as for `InputGraph.from_networkx`.
        relations: the edge attribute that names the relation, where there are types.
        options: how words become numbers, see `ReadOptions`.
    Raises: DataError, GraphError or PullError, when a graph does not fit; they name its number.
    """
    given: object = graphs
    if not isinstance(given, list | tuple | Iterator):
        raise _no_graph("from_networkx", given, "a list of DiGraph")
    collector = Collector("from_networkx", options, "graph")
    several = list(graphs)
    for number, dag in enumerate(several):
        if not hasattr(dag, "in_edges"):
            raise _no_graph(collector.place(number), dag, "a DiGraph")
    owners = _owners(several, types, pulls)
    for number, dag in enumerate(several):
        if types is None:
            _add_plain(collector, number, dag, (pulls, edge_pulls))
        else:
            names = _EdgeNames(types, relations, edge_pulls)
            edges = _typed_edges(dag, names, collector.place(number))
            add_record(collector, number, {**edges, "pulls": _typed_pulls(dag, types, owners)})
    return collector.examples()


def _add_plain(
    collector: Collector,
    number: int,
    dag: networkx.DiGraph[Any],
    names: tuple[Sequence[str], Sequence[str]],
) -> None:
    """Add a graph without types, with what its nodes and its edges pull."""
    nodes: list[Mapping[str, Any]] = [given for _, given in dag.nodes(data=True)]
    edges = [slot.edge for each in read_slots(dag) for slot in each]
    pulls, edge_pulls = (
        {name: [_plain(given.get(name)) for given in several] for name in wanted}
        for wanted, several in zip(names, (nodes, edges), strict=True)
    )
    collector.add(number, InputGraph.from_networkx(dag), pulls, edge_pulls)


class _EdgeNames(NamedTuple):
    """Names of attributes: the type of a node, the relation of an edge, pulls of edges."""

    types: str
    relations: str
    pulls: Sequence[str]


Nodes = dict[Any, list[Any]]  # by vertex type


def _owners(
    graphs: Sequence[networkx.DiGraph[Any]], types: str | None, pulls: Sequence[str]
) -> dict[Any, list[str]]:
    """Return by type the pulls that a node of it has in one of the graphs."""
    found: dict[Any, list[str]] = {}
    for name in pulls if types is not None else ():
        has = {
            given[types]
            for dag in graphs
            for _, given in dag.nodes(data=True)
            if given.get(name) is not None and types in given
        }
        for owner in has:
            found.setdefault(owner, []).append(name)
    return found


def _members(dag: networkx.DiGraph[Any], types: str) -> Nodes:
    found: Nodes = {}
    for node, name in dag.nodes(data=types):
        found.setdefault(name, []).append(node)
    return found


def _typed_pulls(
    dag: networkx.DiGraph[Any], types: str, owners: Mapping[Any, Sequence[str]]
) -> dict[str, Any]:
    return {
        owner: {name: [_plain(dag.nodes[node].get(name)) for node in nodes] for name in names}
        for owner, nodes in _members(dag, types).items()
        if (names := owners.get(owner))
    }


def _typed_edges(dag: networkx.DiGraph[Any], names: _EdgeNames, where: str) -> dict[str, Any]:
    """Return types and relations of a graph as a record has them."""
    members = _members(dag, names.types)
    at = {node: (name, n) for name, nodes in members.items() for n, node in enumerate(nodes)}
    relations: dict[tuple[Any, Any, Any], dict[str, Any]] = {}
    for parent in dag.nodes:
        for child, _, edge in dag.in_edges(parent, data=True):
            key = at[child][0], edge.get(names.relations), at[parent][0]
            if None in key:
                got = f"a node without '{names.types}', or an edge without '{names.relations}'"
                raise DataError.at(where, got, "each has one", "set it")
            relation = relations.setdefault(key, _relation(key, names.pulls))
            relation["pairs"].append([at[child][1], at[parent][1]])
            for name in names.pulls:
                relation["edge_pulls"][name].append(_plain(edge.get(name)))
    sizes = {owner: len(nodes) for owner, nodes in members.items()}
    return {"types": sizes, "relations": list(relations.values())}


def _relation(key: tuple[Any, Any, Any], pulls: Sequence[str]) -> dict[str, Any]:
    named = dict(zip(("child", "relation", "parent"), key, strict=True))
    return {**named, "pairs": [], "edge_pulls": {name: [] for name in pulls}}


def _plain(value: Any) -> Any:
    """Return numbers of NumPy as those of Python."""
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


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
            expected = "a pull is an attribute of the nodes or edges"
            raise PullError.at(where, f"no '{name}'", expected, "correct the name or leave it out")


def _no_graph(where: str, given: object, expected: str) -> DataError:
    return DataError.at(where, f"a {type(given).__name__}", f"expected {expected}", "convert it")
