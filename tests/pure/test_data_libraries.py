"""Graphs of other libraries, by stand-ins that have the attributes their manuals name.

A row has a call and the text of the graphs (`graphs_as_text.py`), or what is said of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import networkx as nx
import numpy as np
import pytest

import vertexrt as vrt
from tests.messages import refused, table
from tests.pure.graphs_as_text import as_text


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


class Items(dict[Any, Any]):
    """A dict with attributes: a `Data`, a store of a `HeteroData`, or a `HeteroData`."""

    def __init__(self, items: Mapping[Any, Any], **attributes: Any) -> None:
        super().__init__(items)
        vars(self).update(attributes)


class DglEdges(dict[Any, Any]):
    """The edges of a `DGLGraph`: called for the ends, indexed for the data of a canonical type."""

    def __call__(self, *, etype: Any) -> Any:
        return self[etype].ends


def store(num_nodes: int | None = None, **items: Any) -> Items:
    return Items(items, num_nodes=num_nodes, **items)


def hetero(stores: Mapping[Any, Items]) -> Items:
    nodes = [key for key in stores if isinstance(key, str)]
    edges = [key for key in stores if isinstance(key, tuple)]
    return Items(stores, node_types=nodes, edge_types=edges)


def dgl(sizes: Mapping[str, int], nodes: Mapping[str, Any], edges: Mapping[Any, Any]) -> Any:
    """Return a `DGLGraph`: data of nodes by type; of edges by canonical type, ends and data."""
    return SimpleNamespace(
        ntypes=list(sizes),
        canonical_etypes=list(edges),
        num_nodes=sizes.get,
        nodes={name: SimpleNamespace(data=nodes.get(name, {})) for name in sizes},
        edges=DglEdges(
            {key: SimpleNamespace(ends=ends, data=data) for key, (ends, data) in edges.items()}
        ),
    )


from_networkx, from_dgl, from_pyg = vrt.data.from_networkx, vrt.data.from_dgl, vrt.data.from_pyg
X, Y = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], [1, 0, 2]
ENDS, W = OnGpu([[2, 0], [1, 1]]), OnGpu([0.5, 1.5])
DRIVES, FEEDS, ONE = ("gate", "drives", "net"), ("net", "feeds", "gate"), ("_N", "_E", "_N")
HETERO = hetero(
    {
        "gate": store(3, x=OnGpu(X), y=OnGpu(Y)),
        "net": store(2, y=OnGpu([3, 4])),
        DRIVES: store(edge_index=OnGpu([[2, 0], [0, 1]]), w=W),
        FEEDS: store(edge_index=OnGpu([[1], [1]]), w=OnGpu([2.5])),
    }
)
DGL = dgl(
    {"gate": 3, "net": 2},
    {"gate": {"x": OnGpu(X), "y": OnGpu(Y)}, "net": {"y": OnGpu([3, 4])}},
    {
        DRIVES: ((OnGpu([2, 0]), OnGpu([0, 1])), {"w": W}),
        FEEDS: ((OnGpu([1]), OnGpu([1])), {"w": OnGpu([2.5])}),
    },
)
DGL_PLAIN = dgl({"_N": 3}, {"_N": {"y": Y}}, {ONE: (([2, 0], [1, 1]), {"w": W})})
WORDS = nx.DiGraph([("a", "c"), ("b", "c")], id="first")
nx.set_node_attributes(WORDS, {"a": "good", "b": "film"}, "word")
nx.set_node_attributes(WORDS, dict.fromkeys(WORDS, np.float32(0.5)), "x")
PARTS: nx.DiGraph[Any] = nx.DiGraph()
PARTS.add_nodes_from([(0, {"n": 3, "x": X[0]}), (1, {"x": X[1]}), (2, {"y": 1.5})])
PARTS.add_edges_from([(1, 2), (0, 2)])
UNTYPED = from_pyg(HETERO).to_networkx()
del UNTYPED.nodes[3]["type"]
EMPTY_SLOT = vrt.InputGraph.from_children([[], [-1, 0], [1, 0]], None, {"w": [9, 0.5, 1.5, 2.5]})
SLOTS = EMPTY_SLOT.to_networkx()
NET = vrt.InputGraph.from_types({"net": 1}, {}, {"net": {"y": [5]}})
NETWORKS = [from_pyg(HETERO, ["y"], ["w"]).to_networkx(), NET.to_networkx()]

# A call, and the text of its graphs.
CONVERTED = table(__file__, "CONVERTED", "\n")


@pytest.mark.parametrize("code", CONVERTED)
def test_graphs_of_other_libraries(code: str) -> None:
    found = eval(code)
    if isinstance(found, vrt.InputGraph):
        found = vrt.data.Examples(vrt.GraphBatch.from_graphs([found]), {})
    assert as_text(found) == CONVERTED[code]


EDGE: dict[str, Any] = {"edge_index": [[0], [1]], "edge_attr": [1.0]}
DATA = store(2, y=[1, 2], **EDGE)
HALF = hetero({"a": store(2, yy=[1, 2]), ("a", "below", "a"): store(**EDGE)})
DAG: nx.DiGraph[Any] = nx.DiGraph()
DAG.add_nodes_from([(0, {"word": "a", "kind": "leaf"}), (1, {"word": "b", "kind": "root"})])
DAG.add_edge(0, 1, weight=0.5, relation="below")
# A call, and its error. Misspelt names of networkx's pulled -1 everywhere (issue 52).
WRONG = table(__file__, "WRONG")


@pytest.mark.parametrize("code", WRONG)
def test_what_is_said_of_them(code: str) -> None:
    refused(lambda: eval(code), WRONG[code])


@pytest.mark.parametrize(
    "convert", [lambda x: x.bfloat16(), lambda x: x.to_sparse(), lambda x: x.to("meta")]
)
def test_tensors_that_are_no_arrays_are_refused_by_name(convert: Any) -> None:
    torch = pytest.importorskip("torch")
    x = convert(torch.ones(2, 3))
    plain = dgl({"_N": 2}, {"_N": {"x": x}}, {ONE: (([0], [1]), {})})
    for read in (
        lambda: from_pyg(store(2, x=x, **EDGE), ["x"]),
        lambda: from_pyg(store(2, edge_index=x)),
        lambda: from_dgl(plain, ["x"]),
    ):
        refused(
            read,
            "PullError: ... is a Tensor that is no array (...); expected a dense array of numbers; "
            "convert it, by x.float(), x.to_dense() or x.dequantize().",
        )
