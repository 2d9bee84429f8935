"""Graphs of networkx, PyTorch Geometric and DGL as input graphs; none of them is imported here.

An edge goes from a child to its parent, as messages do in these libraries.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import numpy.typing as npt

from vertexrt.data.files import AnyPath, read_file
from vertexrt.data.records import Examples, ReadOptions, collect, wrong
from vertexrt.errors import DataError, PullError, nearest, one_line
from vertexrt.graph import InputGraph
from vertexrt.graph.networks import read_slots
from vertexrt.graph.owned import read_array

if TYPE_CHECKING:
    import networkx

_ONE = ("", "", "")  # the key of edges where nodes have no types


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
        nodes = {name: data[name] for name in data.node_types}
        edges = {key: data[key] for key in data.edge_types}
    elif hasattr(data, "edge_index") and hasattr(data, "num_nodes"):
        nodes, edges = {"": data}, {_ONE: data}
    else:
        raise _no_graph("from_pyg", data, "a Data or HeteroData")
    where, sizes = "from_pyg", {name: store.num_nodes for name, store in nodes.items()}
    ends = {key: _array(where, "edge_index", store.edge_index).T for key, store in edges.items()}
    of_nodes, of_edges = _stored(where, nodes, pulls), _stored(where, edges, edge_pulls)
    if _ONE in edges:
        return InputGraph.from_edges(sizes[""], ends[_ONE], of_nodes[""], of_edges[_ONE])
    return InputGraph.from_types(sizes, ends, of_nodes, of_edges)


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
    where, names, keys = "from_dgl", graph.ntypes, graph.canonical_etypes
    sizes = {name: int(graph.num_nodes(name)) for name in names}
    ends = {
        key: np.stack([_array(where, "edges", each) for each in graph.edges(etype=key)], axis=1)
        for key in keys
    }
    of_nodes = _stored(where, {name: graph.nodes[name].data for name in names}, pulls)
    of_edges = _stored(where, {key: graph.edges[key].data for key in keys}, edge_pulls)
    if len(names) > 1 or len(keys) != 1:
        return InputGraph.from_types(sizes, ends, of_nodes, of_edges)
    name, key = names[0], keys[0]
    return InputGraph.from_edges(sizes[name], ends[key], of_nodes[name], of_edges[key])


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
    several = list(graphs)
    for number, dag in enumerate(several):
        if not hasattr(dag, "in_edges"):
            raise _no_graph(f"from_networkx, graph {number}", dag, "a DiGraph")
    nodes = [given for dag in several for _, given in dag.nodes(data=True)]
    edges = [given for dag in several for *_, given in dag.edges(data=True)]
    named = ([], []) if types is None else ([types], [relations])
    _check_names("from_networkx", [*pulls, *named[0]], nodes)
    _check_names("from_networkx", [*edge_pulls, *named[1]], edges)

    def typed_record(dag: networkx.DiGraph[Any]) -> dict[str, Any]:
        given = dict(dag.nodes(data=True))
        members: dict[Any, list[Any]] = {}
        for node, attributes in given.items():
            members.setdefault(attributes.get(types), []).append(node)
        number = {node: at for several in members.values() for at, node in enumerate(several)}
        edges: dict[Any, list[tuple[Any, Any, Any]]] = {}
        for node in given:
            for edge in dag.in_edges(node, data=True):
                key = given[edge[0]].get(types), edge[2].get(relations), given[node].get(types)
                if None in key:
                    raise wrong(
                        f"a node without '{types}', or an edge without '{relations}'",
                        "each has one",
                        "set it",
                    )
                edges.setdefault(key, []).append(edge)
        return {
            "types": {owner: len(several) for owner, several in members.items()},
            "relations": [
                {
                    "child": source,
                    "relation": name,
                    "parent": owner,
                    "pairs": [[number[child], number[parent]] for child, parent, _ in several],
                    "edge_pulls": _attributes([edge for *_, edge in several], edge_pulls),
                }
                for (source, name, owner), several in edges.items()
            ],
            "pulls": {
                owner: _attributes([given[node] for node in several], pulls)
                for owner, several in members.items()
            },
            "id": dag.graph.get("id"),
        }

    def record(dag: networkx.DiGraph[Any]) -> dict[str, Any]:
        slots = read_slots(dag)
        return {
            "children": [[child for child, _ in each] for each in slots],
            "pulls": _attributes([given for _, given in dag.nodes(data=True)], pulls),
            "edge_pulls": _attributes([edge for each in slots for _, edge in each], edge_pulls),
            "id": dag.graph.get("id"),
        }

    make = record if types is None else typed_record
    return collect("from_networkx", enumerate(several), options, "graph", make)


def read_node_link(path: AnyPath, **options: Unpack[ReadOptions]) -> Examples:
    """Read graphs of networkx from JSON as `networkx.node_link_data` makes it: one, or a list.

    Attributes of nodes become pulls, those of edges edge pulls, all but `slot`, which numbers the
    child; where nodes have `type` and edges `relation`, graphs are typed by these. The id of a
    graph is its attribute `id`.

    Args:
        path: of a file in UTF-8; a name in .gz is decompressed.
        options: how words become numbers, see `ReadOptions`.
    Raises: DataError, GraphError or PullError, as `from_networkx`; DataError, when it is no JSON of
        that form.
    """
    import networkx  # as everywhere: when a graph is converted

    file, text = read_file(path)
    graphs: list[Any] = []
    try:
        found = json.loads(text)
        for each in found if isinstance(found, list) else [found]:
            ends = "edges" if "edges" in each else "links"  # of networkx before 3.4
            graphs.append(networkx.node_link_graph(each, directed=True, edges=ends))
    except (ValueError, TypeError, KeyError, RecursionError, networkx.NetworkXError) as error:
        raise DataError.at(
            file,
            f"graph {len(graphs)}: {one_line(str(error))}",
            "expected JSON of networkx.node_link_data, or a list of such objects",
            "write the file again",
        ) from error
    nodes, edges = (
        sorted({name for *_, given in each for name in given})
        for each in (
            [node for dag in graphs for node in dag.nodes(data=True)],
            [edge for dag in graphs for edge in dag.edges(data=True)],
        )
    )
    typed = "type" in nodes and "relation" in edges
    left_out = ("slot", "type", "relation") if typed else ("slot",)
    pulls, edge_pulls = ([n for n in names if n not in left_out] for names in (nodes, edges))
    types = "type" if typed else None
    return from_networkx(graphs, pulls, edge_pulls=edge_pulls, types=types, **options)


def _attributes(several: Sequence[Mapping[str, Any]], names: Sequence[str]) -> dict[str, list[Any]]:
    """Return attributes of nodes or edges by name, None where one has none, NumPy's as Python's."""
    values = {name: [given.get(name) for given in several] for name in names}
    arrays = np.ndarray | np.generic
    return {n: [x.tolist() if isinstance(x, arrays) else x for x in v] for n, v in values.items()}


def _stored(
    where: str, stores: Mapping[Any, Any], names: Sequence[str]
) -> dict[Any, dict[str, Any]]:
    """Return of some attributes those that each store has. Raises: PullError, if none has one."""
    if not names:  # then a store need not say what it has
        return {owner: {} for owner in stores}
    known = {
        owner: {*(store.keys() if callable(store.keys) else store.keys)}
        for owner, store in stores.items()
    }
    _check_names(where, names, known.values())
    return {
        owner: {name: _array(where, name, store[name]) for name in names if name in known[owner]}
        for owner, store in stores.items()
    }


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
        raise PullError.at(
            where,
            f"'{name}' is {one_line(found)}",
            "expected a dense array of numbers",
            "convert it, by x.float(), x.to_dense() or x.dequantize()",
        )
    return found


def _check_names(where: str, names: Sequence[str], several: Collection[Iterable[str]]) -> None:
    """Refuse a name that none of the data has, if there are any."""
    known = sorted({name for each in several for name in each})
    for name in names if several else ():
        if name not in known:
            raise PullError.at(
                where,
                f"no '{name}'",
                f"the data have {', '.join(known) or 'no attributes'}",
                f"correct the name or leave it out.{nearest(name, known)}",
            )


def _no_graph(where: str, given: object, expected: str) -> DataError:
    return DataError.at(where, f"a {type(given).__name__}", f"expected {expected}", "convert it")
