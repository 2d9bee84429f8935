"""Graphs of networkx, PyTorch Geometric and DGL as input graphs; none of them is imported here.

An edge goes from a child to its parent, as messages do in these libraries.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import numpy.typing as npt

from vertexrt.data.columns import Examples, ReadOptions
from vertexrt.data.records import Collector
from vertexrt.errors import DataError, PullError, nearest, one_line
from vertexrt.graph import InputGraph
from vertexrt.graph.networks import read_slots
from vertexrt.graph.owned import read_array

if TYPE_CHECKING:
    import networkx

Edges = dict[tuple[str, str, str], npt.NDArray[Any]]


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
        edges = {key: _ends(data[key]) for key in data.edge_types}
        read = _stored("from_pyg", {name: data[name] for name in data.node_types}, pulls)
        of_edges = _stored("from_pyg", {key: data[key] for key in edges}, edge_pulls)
        return InputGraph.from_types(sizes, edges, read, of_edges)
    if not hasattr(data, "edge_index") or not hasattr(data, "num_nodes"):
        raise _no_graph("from_pyg", data, "a Data or HeteroData")
    found, held = (_stored("from_pyg", {"": data}, names)[""] for names in (pulls, edge_pulls))
    return InputGraph.from_edges(data.num_nodes, _ends(data), found, held)


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
        ends = (_array("from_dgl", "edges", each) for each in (child, parent))
        edges[key] = np.stack(list(ends), axis=1)
    read = _stored("from_dgl", {name: graph.nodes[name].data for name in graph.ntypes}, pulls)
    of_edges = _stored("from_dgl", {key: graph.edges[key].data for key in edges}, edge_pulls)
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
    nodes = [given for dag in several for _, given in dag.nodes(data=True)]
    edges = [given for dag in several for *_, given in dag.edges(data=True)]
    named = ([], []) if types is None else ([types], [relations])
    _check_names("from_networkx", [*pulls, *named[0]], nodes)
    _check_names("from_networkx", [*edge_pulls, *named[1]], edges)
    if types is None:
        for number, dag in enumerate(several):
            slots = read_slots(dag)
            record = {
                "children": [[child for child, _ in each] for each in slots],
                "pulls": _attributes([given for _, given in dag.nodes(data=True)], pulls),
                "edge_pulls": _attributes([edge for each in slots for _, edge in each], edge_pulls),
            }
            collector.add(number, record)
        return collector.examples()
    owned: dict[Any, list[str]] = {}  # by type, the pulls that one of its nodes has
    for name in pulls:
        has = (given for given in nodes if types in given and given.get(name) is not None)
        for owner in {given[types] for given in has}:
            owned.setdefault(owner, []).append(name)
    for number, dag in enumerate(several):
        where = collector.place(number)
        collector.add(number, _typed_record(dag, types, relations, edge_pulls, owned, where))
    return collector.examples()


def _typed_record(
    dag: networkx.DiGraph[Any],
    types: str,
    relation: str,
    edge_pulls: Sequence[str],
    owned: Mapping[Any, Sequence[str]],
    where: str,
) -> dict[str, Any]:
    """Return a graph with types as a record has it.

    Args:
        types, relation: the attributes that name the type of a node, and the relation of an edge.
        owned: by type, the pulls that it has.
    """
    members: dict[Any, list[Mapping[str, Any]]] = {}  # by type, the attributes of its nodes
    at: dict[Any, tuple[Any, int]] = {}
    for node, given in dag.nodes(data=True):
        several = members.setdefault(given.get(types), [])
        at[node] = given.get(types), len(several)
        several.append(given)
    edges: dict[tuple[Any, Any, Any], list[tuple[list[int], Mapping[str, Any]]]] = {}
    for parent in dag.nodes:
        for child, _, edge in dag.in_edges(parent, data=True):
            key = at[child][0], edge.get(relation), at[parent][0]
            if None in key:
                got = f"a node without '{types}', or an edge without '{relation}'"
                raise DataError.at(where, got, "each has one", "set it")
            edges.setdefault(key, []).append(([at[child][1], at[parent][1]], edge))
    return {
        "types": {owner: len(several) for owner, several in members.items()},
        "relations": [
            {
                **dict(zip(("child", "relation", "parent"), key, strict=True)),
                "pairs": [pair for pair, _ in several],
                "edge_pulls": _attributes([edge for _, edge in several], edge_pulls),
            }
            for key, several in edges.items()
        ],
        "pulls": {
            owner: _attributes(several, owned.get(owner, ())) for owner, several in members.items()
        },
    }


def _attributes(several: Sequence[Mapping[str, Any]], names: Sequence[str]) -> dict[str, list[Any]]:
    """Return the attributes of nodes or edges by name, None where one has none."""
    return {name: [_plain(given.get(name)) for given in several] for name in names}


def _plain(value: Any) -> Any:
    """Return numbers of NumPy as those of Python."""
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def _stored(
    where: str, stores: Mapping[Any, Any], names: Sequence[str]
) -> dict[Any, dict[str, Any]]:
    """Return of some attributes those that each store has. Raises: PullError, if none has one."""
    if not names:
        return {owner: {} for owner in stores}
    held = {
        owner: store.keys() if callable(store.keys) else store.keys
        for owner, store in stores.items()
    }
    _check_names(where, names, held.values())
    return {
        owner: {name: _array(where, name, stores[owner][name]) for name in names if name in known}
        for owner, known in held.items()
    }


def _ends(data: Any) -> npt.NDArray[Any]:
    """Return the ends of edges of PyTorch Geometric, [E, 2]."""
    return _array("from_pyg", "edge_index", data.edge_index).T


def _array(where: str, name: str, tensor: Any) -> npt.NDArray[Any]:
    """Return a tensor as an array; of a tensor that is on a GPU, or has a gradient, a copy.

    Raises: PullError, when it is sparse, quantised, on `meta`, or of a dtype that NumPy has not.
    """
    try:
        for step in ("detach", "cpu"):
            convert: Callable[[], Any] | None = getattr(tensor, step, None)
            tensor = tensor if convert is None else convert()
        found = read_array(tensor)
    except RuntimeError as error:  # of a tensor on `meta`
        found = f"a {type(tensor).__name__} that is no array ({error})"
    if isinstance(found, str):
        action = "convert it, by x.float(), x.to_dense() or x.dequantize()"
        raise PullError.at(
            where, f"'{name}' is {one_line(found)}", "expected a dense array of numbers", action
        )
    return found


def _check_names(where: str, names: Sequence[str], several: Collection[Iterable[str]]) -> None:
    """Refuse a name that none of the data has, if there are any."""
    known = sorted({name for each in several for name in each})
    for name in names if several else ():
        if name not in known:
            expected = f"the data have {', '.join(known) or 'no attributes'}"
            action = f"correct the name or leave it out.{nearest(name, known)}"
            raise PullError.at(where, f"no '{name}'", expected, action)


def _no_graph(where: str, given: object, expected: str) -> DataError:
    return DataError.at(where, f"a {type(given).__name__}", f"expected {expected}", "convert it")
