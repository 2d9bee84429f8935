"""Graphs of PyTorch Geometric and DGL, by stand-ins that have the attributes their manuals name."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import networkx as nx
import numpy as np
import pytest

import vertexrt as vrt
from tests.messages import text_of
from vertexrt.errors import VertexrtError


class OnGpu:
    """A tensor of PyTorch that an array can be made of only after both calls."""

    def __init__(self, array: Any, steps: tuple[str, ...] = ("detach", "cpu")) -> None:
        self.array, self.steps = np.array(array), steps

    def detach(self) -> OnGpu:
        return OnGpu(self.array, self.steps[1:])

    def cpu(self) -> np.ndarray:
        assert self.steps == ("cpu",)
        return self.array

    def __array__(self) -> np.ndarray:
        raise TypeError("on a GPU")


class Store(dict[str, Any]):
    """A `Data`, or a store of a `HeteroData`: its attributes are its items."""

    def __init__(self, num_nodes: int | None = None, **items: Any) -> None:
        super().__init__(**items)
        vars(self).update(items, num_nodes=num_nodes)


class Hetero(dict[Any, Store]):
    """A `HeteroData`: stores by node type, and by (source, relation, target)."""

    @property
    def node_types(self) -> list[str]:
        return [key for key in self if isinstance(key, str)]

    @property
    def edge_types(self) -> list[tuple[str, str, str]]:
        return [key for key in self if isinstance(key, tuple)]


class DglEdges(dict[Any, Any]):
    """The edges of a `DGLGraph`: called for the ends, indexed for the data of a canonical type."""

    def __init__(self, edges: Mapping[tuple[str, str, str], tuple[Any, Any]]) -> None:
        super().__init__({key: SimpleNamespace(data={"w": WEIGHTS[key]}) for key in edges})
        self.given = edges

    def __call__(self, *, etype: tuple[str, str, str]) -> tuple[Any, Any]:
        return self.given[etype]


class Dgl:
    """A `DGLGraph`, which counts nodes by type and gives the edges of a canonical type."""

    def __init__(
        self,
        sizes: Mapping[str, int],
        edges: Mapping[tuple[str, str, str], tuple[Any, Any]],
        data: Mapping[str, dict[str, Any]],
    ) -> None:
        self.sizes = sizes
        self.ntypes, self.canonical_etypes = list(sizes), list(edges)
        self.nodes = {name: SimpleNamespace(data=data.get(name, {})) for name in sizes}
        self.edges = DglEdges(edges)

    def num_nodes(self, ntype: str) -> int:
        return self.sizes[ntype]


WEIGHTS = {
    ("gate", "drives", "net"): OnGpu([0.5, 1.5]),
    ("net", "feeds", "gate"): OnGpu([2.5]),
    ("_N", "_E", "_N"): OnGpu([0.5, 1.5]),
}
X, Y = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], [1, 0, 2]
EXPECTED = vrt.InputGraph.from_types(
    {"gate": 3, "net": 2},
    {("gate", "drives", "net"): [(2, 0), (0, 1)], ("net", "feeds", "gate"): [(1, 1)]},
    {"gate": {"x": X, "y": Y}, "net": {"y": [3, 4]}},
    {
        ("gate", "drives", "net"): {"w": [0.5, 1.5]},
        ("net", "feeds", "gate"): {"w": [2.5]},
    },
)


def named(graph: vrt.InputGraph) -> tuple[list[str], list[str]] | None:
    """Return the type of each vertex and the relation of each edge."""
    if graph.types is None:
        return None
    names, relations, of_vertex, of_edge = graph.types
    return [names[n] for n in of_vertex], [relations[n] for n in of_edge]


def is_expected(graph: vrt.InputGraph, expected: vrt.InputGraph = EXPECTED) -> bool:
    typed = named(graph) == named(expected)
    pulls = [{name: repr(pull) for name, pull in g.pulls.items()} for g in (graph, expected)]
    values = [g.pulls["y"] for g in (graph, expected)]
    same = np.array_equal(graph.child, expected.child) and np.array_equal(*values)  # type: ignore[arg-type]
    return (
        typed
        and same
        and pulls[0].keys() == pulls[1].keys()
        and weights(graph) == weights(expected)
    )


def weights(graph: vrt.InputGraph) -> list[float]:
    pull = graph.edge_pulls["w"]
    return (pull.table[pull.index] if isinstance(pull, vrt.Rows) else pull).tolist()  # type: ignore[return-value]


def test_data_of_pytorch_geometric() -> None:
    data = Store(
        3, edge_index=OnGpu([[2, 0], [1, 1]]), x=OnGpu(X), y=OnGpu(Y), edge_attr=OnGpu([1, 2])
    )
    graph = vrt.data.from_pyg(data, ["x", "y"])
    assert [graph.children(v) for v in range(3)] == [[], [2, 0], []]
    assert graph.pulls["x"].tolist() == X  # type: ignore[union-attr]
    assert graph.pulls["y"].tolist() == Y  # type: ignore[union-attr]
    assert not vrt.data.from_pyg(data).pulls
    again = vrt.data.from_pyg(data, edge_pulls=["edge_attr"])
    assert again.edge_pulls["edge_attr"].tolist() == [1, 2]  # type: ignore[union-attr]


def test_hetero_data_of_pytorch_geometric() -> None:
    data = Hetero(
        gate=Store(3, x=OnGpu(X), y=OnGpu(Y)),
        net=Store(2, y=OnGpu([3, 4])),
    )
    data["gate", "drives", "net"] = Store(edge_index=OnGpu([[2, 0], [0, 1]]), w=OnGpu([0.5, 1.5]))
    data["net", "feeds", "gate"] = Store(edge_index=OnGpu([[1], [1]]), w=OnGpu([2.5]))
    assert is_expected(vrt.data.from_pyg(data, ["x", "y"], ["w"]))


def test_graphs_of_dgl() -> None:
    edges = {
        ("gate", "drives", "net"): (OnGpu([2, 0]), OnGpu([0, 1])),
        ("net", "feeds", "gate"): (OnGpu([1]), OnGpu([1])),
    }
    data = {"gate": {"x": OnGpu(X), "y": OnGpu(Y)}, "net": {"y": OnGpu([3, 4])}}
    assert is_expected(
        vrt.data.from_dgl(Dgl({"gate": 3, "net": 2}, edges, data), ["x", "y"], ["w"])
    )
    plain = Dgl({"_N": 3}, {("_N", "_E", "_N"): ([2, 0], [1, 1])}, {"_N": {"y": Y}})
    expected = vrt.InputGraph.from_edges(3, [(2, 1), (0, 1)], {"y": Y}, {"w": [0.5, 1.5]})
    assert is_expected(vrt.data.from_dgl(plain, ["y"], ["w"]), expected)


@pytest.mark.parametrize("read", [vrt.data.from_pyg, vrt.data.from_dgl])
def test_what_is_no_such_graph(read: Any) -> None:
    assert "a int; expected a D" in text_of(VertexrtError, lambda: read(3))


def test_what_does_not_fit() -> None:
    both = Store(2, edge_index=np.array([[0, 1], [1, 0]]), y=[1, 2])
    assert "form a cycle" in text_of(VertexrtError, lambda: vrt.data.from_pyg(both))
    one = Store(2, edge_index=np.array([[0], [1]]), y=[1, 2, 3])
    assert "pull 'y' has [3]" in text_of(VertexrtError, lambda: vrt.data.from_pyg(one, ["y"]))


DAG = nx.DiGraph()
DAG.add_nodes_from([(0, {"word": "a", "kind": "leaf"}), (1, {"word": "b", "kind": "root"})])
DAG.add_edge(0, 1, weight=0.5, relation="below")
ONE_EDGE = {"edge_index": [[0], [1]], "edge_attr": [1.0]}
PYG = Store(2, y=[1, 2], **ONE_EDGE)
HETERO = Hetero({"a": Store(2, yy=[1, 2]), ("a", "below", "a"): Store(**ONE_EDGE)})
DGL = Dgl({"_N": 2}, {("_N", "_E", "_N"): ([0], [1])}, {"_N": {"yy": [1, 2]}})
NETWORKX = vrt.data.from_networkx


@pytest.mark.parametrize(
    ("read", "name", "have"),
    [
        (lambda: NETWORKX([DAG], ["wrod"]), "wrod", "kind, word"),
        (lambda: NETWORKX([DAG], ["wrod"], types="kind"), "wrod", "kind, word"),
        (lambda: NETWORKX([DAG], types="knd"), "knd", "kind, word"),
        (lambda: NETWORKX([DAG], edge_pulls=["wight"]), "wight", "relation, weight"),
        (lambda: NETWORKX([DAG], types="kind", relations="re"), "re", "relation, weight"),
        (lambda: vrt.data.from_pyg(PYG, ["yy"]), "yy", "edge_attr, edge_index, y"),
        (lambda: vrt.data.from_pyg(PYG, edge_pulls=["attr"]), "attr", "edge_attr, edge_index, y"),
        (lambda: vrt.data.from_pyg(HETERO, ["y"]), "y", "yy"),
        (lambda: vrt.data.from_pyg(HETERO, [], ["attr"]), "attr", "edge_attr, edge_index"),
        (lambda: vrt.data.from_dgl(DGL, ["y"]), "y", "yy"),
        (lambda: vrt.data.from_dgl(DGL, [], ["ww"]), "ww", "w"),
    ],
)
def test_a_misspelt_name_is_refused_with_those_that_there_are(
    read: Any, name: str, have: str
) -> None:
    """Graphs of networkx pulled -1 everywhere (issue 52)."""
    text = text_of(VertexrtError, read)
    assert f"no '{name}'; the data have {have}; correct the name or leave it out." in text


@pytest.mark.parametrize(
    "convert",
    [
        lambda x: x.bfloat16(),
        lambda x: x.to_sparse(),
        lambda x: x.to("meta"),
    ],
)
def test_tensors_that_are_no_arrays_are_refused_by_name(convert: Any) -> None:
    torch = pytest.importorskip("torch")
    x = convert(torch.ones(2, 3))
    data = {"_N": {"x": x}}
    plain = Dgl({"_N": 2}, {("_N", "_E", "_N"): ([0], [1])}, data)
    for read in (
        lambda: vrt.data.from_pyg(Store(2, x=x, **ONE_EDGE), ["x"]),
        lambda: vrt.data.from_pyg(Store(2, x=[1, 2], **{**ONE_EDGE, "edge_index": x}), ["x"]),
        lambda: vrt.data.from_dgl(plain, ["x"]),
    ):
        text = text_of(VertexrtError, read)
        assert "that is no array" in text
        assert "; expected a dense array of numbers; convert it, by x.float()" in text


def test_types_go_to_networkx() -> None:
    network = EXPECTED.to_networkx()
    assert [kind for _, kind in network.nodes(data="type")] == ["gate"] * 3 + ["net"] * 2
    assert sorted(network.edges(data="relation")) == [
        (0, 4, "drives"),
        (2, 3, "drives"),
        (4, 1, "feeds"),
    ]
    plain = vrt.InputGraph.chain(2).to_networkx()
    assert "type" not in plain.nodes[0]


def test_graphs_of_networkx_with_words() -> None:
    dags = [nx.DiGraph([("a", "c"), ("b", "c")]), nx.DiGraph([("x", "y")])]
    nx.set_node_attributes(dags[0], {"a": "good", "b": "film"}, "word")
    nx.set_node_attributes(dags[1], {"y": "film"}, "word")
    for dag in dags:
        nx.set_node_attributes(dag, {node: np.float32(0.5) for node in dag}, "x")
    found = vrt.data.from_networkx(dags, ["word", "x"])
    assert [graph.children(1) for graph in found.batch] == [[0, 2], [0]]  # nodes a, c, b
    word = found.batch.pulls["word"]
    assert found.vocabularies["word"].decode(word) == ["good", None, "film", None, "film"]  # type: ignore[arg-type]
    assert found.batch.pulls["x"].tolist() == [0.5] * 5  # type: ignore[union-attr]


def test_types_go_to_networkx_and_back() -> None:
    other = vrt.InputGraph.from_types({"net": 1}, {}, {"net": {"y": [5]}})
    networks = [EXPECTED.to_networkx(), other.to_networkx()]
    found = vrt.data.from_networkx(networks, ["x", "y"], edge_pulls=["w"], types="type")
    assert is_expected(found.batch[0])
    assert found.batch[1].pulls["y"].tolist() == [5]  # type: ignore[union-attr]
    del networks[0].nodes[3]["type"]
    text = text_of(VertexrtError, lambda: vrt.data.from_networkx(networks, types="type"))
    assert text.startswith("[from_networkx, graph 0] a node without 'type', or an edge without 're")


def test_edges_of_networkx_have_values() -> None:
    graph = vrt.InputGraph.from_children([[], [-1, 0], [1, 0]], None, {"w": [9, 0.5, 1.5, 2.5]})
    network = graph.to_networkx()
    again = vrt.InputGraph.from_networkx(network, edge_pulls=["w"]).edge_pulls["w"]
    made = vrt.data.from_networkx([network], edge_pulls=["w"]).batch.edge_pulls["w"]
    for pull in (again, made):
        assert isinstance(pull, vrt.Rows)
        assert pull.index is not None
        assert pull.index.tolist() == [-1, 0, 1, 2]  # the empty slot has none
        assert pull.table.tolist() == [0.5, 1.5, 2.5]
