"""Graphs with vertex types, and with values of edges."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import vertexrt as vrt
from tests import typed_models as typed
from vertexrt.errors import GraphError, PullError
from vertexrt.graph import GraphBatch, InputGraph, Rows
from vertexrt.graph.batch import source_of
from vertexrt.ir.passes import specialise
from vertexrt.scheduler import balance
from vertexrt.scheduler.arrange import (
    ALL,
    ARRANGED,
    NOT_READ,
    OF_OTHER_TYPE,
    SECOND_CHILD,
    arrange,
)

WORD = ("word", "before", "word")


def test_vertices_lie_type_after_type() -> None:
    graph = InputGraph.from_types(
        {"a": 2, "b": 3},
        {("a", "x", "b"): [(1, 2), (0, 2)], ("b", "y", "a"): np.zeros((0, 2), int)},
        {"b": {"n": [4, 5, 6]}},
    )
    assert [graph.children(v) for v in range(5)] == [[], [], [], [], [1, 0]]
    assert graph.types is not None
    assert graph.types.names == ("a", "b")
    assert graph.types.relations == ("x", "y")
    assert graph.types.of_vertex.tolist() == [0, 0, 1, 1, 1]
    assert graph.types.of_edge.tolist() == [0, 0]
    assert np.asarray(graph.pulls["n"]).tolist() == [-1, -1, 4, 5, 6]


def test_reals_of_types_are_joined() -> None:
    graph = InputGraph.from_types(
        {"a": 2, "b": 1, "c": 2},
        {},
        {
            "a": {"x": np.ones((2, 3))},
            "c": {"x": Rows(np.full((4, 3), 2.0), np.array([3, -1], np.int32))},
        },
    )
    pull = graph.pulls["x"]
    assert isinstance(pull, Rows)
    assert pull.index is not None
    assert pull.index.tolist() == [0, 1, -1, 5, -1]
    assert pull.table[pull.index[[0, 3]]].tolist() == [[1.0] * 3, [2.0] * 3]


def test_values_of_edges_keep_their_edges() -> None:
    """Edges are sorted by their parents; what they carry goes with them, into batches and out."""
    given = np.array([[1, 2], [0, 1], [0, 2]])
    graph = InputGraph.from_edges(3, given, edge_pulls={"kind": [5, 6, 7], "x": [0.5, 1.5, 2.5]})
    assert [graph.children(v) for v in range(3)] == [[], [0], [1, 0]]
    assert np.asarray(graph.edge_pulls["kind"]).tolist() == [6, 5, 7]
    lists = InputGraph.from_children([[], [0]], edge_pulls={"kind": [4], "x": [3.5]})
    batch = GraphBatch.from_graphs([graph, lists])
    assert "of edges: kind int32 [4], x float64 [4]" in repr(batch)
    taken = pickle.loads(pickle.dumps(batch.take([1, 0, 1])))
    assert np.asarray(taken.edge_pulls["kind"]).tolist() == [4, 6, 5, 7, 4]
    assert np.asarray(taken.edge_pulls["x"]).tolist() == [3.5, 1.5, 0.5, 2.5, 3.5]
    again = GraphBatch.from_arrays(
        batch.graph_ptr, batch.child_ptr, batch.child, edge_pulls=batch.edge_pulls
    )
    assert np.asarray(again.edge_pulls["x"]).tolist() == [1.5, 0.5, 2.5, 3.5]
    twice = GraphBatch.concat([batch.take([1]), batch])
    assert np.asarray(twice.edge_pulls["kind"]).tolist() == [4, 6, 5, 7, 4]
    without = GraphBatch.from_graphs([InputGraph.from_children([[], [0]])])
    with pytest.raises(PullError, match=r"batch 1.*pull 'kind'"):
        GraphBatch.concat([without, batch])


def test_values_of_edges_of_types() -> None:
    """An edge that its key gives no value has none; tables are joined."""
    graph = InputGraph.from_types(
        {"a": 2, "b": 2},
        {("a", "x", "b"): [(1, 1), (0, 0)], ("b", "y", "b"): [(0, 1)]},
        {},
        {
            ("b", "y", "b"): {"w": [[1.0, 2.0]], "kind": [3]},
            ("a", "x", "b"): {"w": [[3.0, 4.0], [5.0, 6.0]]},
        },
    )
    assert [graph.children(v) for v in (2, 3)] == [[0], [1, 2]]
    assert np.asarray(graph.edge_pulls["kind"]).tolist() == [-1, -1, 3]
    pull = graph.edge_pulls["w"]
    assert isinstance(pull, Rows)
    assert pull.index is not None
    assert pull.table[pull.index].tolist() == [[5.0, 6.0], [3.0, 4.0], [1.0, 2.0]]


def test_names_of_types_are_joined_over_graphs() -> None:
    one = InputGraph.from_types({"a": 1, "b": 1}, {("a", "x", "b"): [(0, 0)]})
    two = InputGraph.from_types({"c": 1, "b": 2}, {("b", "y", "c"): [(1, 0)]})
    batch = GraphBatch.from_graphs([one, two])
    assert batch.types is not None
    assert batch.types.names == ("a", "b", "c")
    assert [batch.of_type(name).tolist() for name in "abc"] == [[0], [1, 3, 4], [2]]
    assert [batch.types.relations[r] for r in batch.types.of_edge] == ["x", "y"]
    taken = batch.take([1, 1])
    assert taken.types is not None
    assert taken.of_type("b").tolist() == [1, 2, 4, 5]
    assert [taken.types.relations[r] for r in taken.types.of_edge] == ["y", "y"]


@pytest.mark.parametrize("again", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies_keep_types(again: Callable[[Any], Any]) -> None:
    batch = typed.sentences()
    assert again(batch).of_type("tag").tolist() == batch.of_type("tag").tolist()
    assert again(typed.sentence([2], np.random.default_rng(0))).types.names[0] == "char"


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: InputGraph.from_types({}, {}), GraphError, "a dict of names"),
        (lambda: InputGraph.from_types({"word": -1}, {}), GraphError, "sizes['word'] is -1"),
        (lambda: InputGraph.from_types({"word": 2}, [(0, 1)]), GraphError, "edges is a list"),
        (lambda: InputGraph.from_types({"word": 2}, {"before": []}), GraphError, "name all three"),
        (
            lambda: InputGraph.from_types({"word": 2}, {("word", "x", "wrd"): []}),
            GraphError,
            "vertex type 'wrd'; the vertex types are word; name one of these. Nearest: 'word'",
        ),
        (
            lambda: InputGraph.from_types({"word": 2}, {WORD: [(0, 2)]}),
            GraphError,
            "has the parent 2; there are 2 vertices of type 'word'",
        ),
        (lambda: InputGraph.from_types({"word": 2}, {WORD: [0, 1]}), GraphError, "pairs"),
        (
            lambda: InputGraph.from_types({"word": 2}, {WORD: [(0, 1), (1, 0)]}),
            GraphError,
            "form a cycle",
        ),
        (
            lambda: InputGraph.from_types({"word": 2}, {}, {"word": {"n": [1, 2, 3]}}),
            PullError,
            "'n' of 'word' has [3]; expected [2, ...], one row a vertex",
        ),
        (
            lambda: InputGraph.from_types({"word": 2}, {}, {"w": {"n": [1, 2]}}),
            GraphError,
            "vertex type 'w'",
        ),
        (lambda: InputGraph.from_types({"word": 2}, {}, {"word": [1]}), PullError, "pulls is"),
        (
            lambda: InputGraph.from_types({"word": 2}, {WORD: []}, {}, {WORD: {"x": [1.0]}}),
            PullError,
            "has [1]; expected [0, ...], one row an edge",
        ),
        (
            lambda: InputGraph.from_types({"word": 2}, {}, {}, {WORD: {"x": []}}),
            GraphError,
            "edge_pulls name the edges ('word', 'before', 'word'); edges are given of none",
        ),
        (
            lambda: InputGraph.from_types({"word": 2}, {WORD: []}, {}, {WORD: [1]}),
            PullError,
            "edge_pulls is {('word', 'before', 'word'): [1]}; a dict of the keys of edges",
        ),
        (
            lambda: InputGraph.from_edges(2, [(0, 1)], edge_pulls={"x": [1.0, 2.0]}),
            PullError,
            "edge pull 'x' has [2]; expected [1, ...], one row an edge",
        ),
        (
            lambda: InputGraph.from_children([[], [0]], edge_pulls={"kind": [-2]}),
            PullError,
            "-1 where the edge has none",
        ),
        (
            lambda: InputGraph.from_types(
                {"a": 1, "b": 1}, {}, {"a": {"n": [1]}, "b": {"n": [1.0]}}
            ),
            PullError,
            "[type b] pull 'n' is float64 [N] with an index; in type a it is int32 [V]",
        ),
        (
            lambda: GraphBatch.from_graphs(
                [InputGraph.from_types({"a": 1}, {}), InputGraph.from_children([[]])]
            ),
            GraphError,
            "1 of 2 graphs have vertex types",
        ),
        (lambda: typed.sentences().of_type("tags"), GraphError, "Nearest: 'tag'"),
    ],
)
def test_graphs_that_are_refused(make: Callable[[], Any], error: type, text: str) -> None:
    with pytest.raises(error) as caught:
        make()
    assert text in str(caught.value)


def test_edges_of_typed_vertices_have_numbers_of_their_own() -> None:
    """Also with a slot for each relation of a function; and they do not depend on shares."""
    batch = typed.sentences()
    vertices, first = balance.divide(balance.Share(batch), 1)[0].numbers()
    assert (np.diff(first) >= specialise.MOST_SLOTS).all()
    assert (vertices == np.arange(batch.num_vertices)).all()
    for share in balance.divide(balance.Share(batch), 2):
        mine, numbers = share.numbers()
        assert (numbers == first[mine]).all()


def test_children_are_arranged_by_slot() -> None:
    """Vertex 3 has function 1, which reads relation 0 in slot 1 and 2 in slot 0; 4 reads all."""
    child_ptr = np.array([0, 0, 0, 0, 3, 6], np.int32)
    child = np.array([0, 1, 2, 0, 1, 3], np.int32)
    relations = np.array([0, 1, 2, 0, 0, 1], np.int32)
    functions = np.array([0, 0, 0, 1, 2], np.int32)
    slots = np.array([[NOT_READ] * 3, [1, NOT_READ, 0], [ALL, NOT_READ, NOT_READ]])
    allowed = np.zeros((3, 3, 3), np.bool_)
    allowed[:, :, 0] = True
    graph = child_ptr, child, functions, relations
    none = np.zeros(3, np.int64)
    found, _, _, ptr, out, _, _ = arrange(*graph, (slots, allowed, none), False, 1)
    assert found == ARRANGED
    assert ptr.tolist() == [0, 0, 0, 0, 2, 4]
    assert out.tolist() == [2, 0, 0, 1]
    assert arrange(*graph, (slots, ~allowed, none), False, 1)[:3] == (OF_OTHER_TYPE, 3, 0)
    slots[1, 1] = ALL
    rules = slots, allowed, np.array([0, 2, 0])
    found, _, _, ptr, out, edges, _ = arrange(*graph, rules, True, 1)
    assert found == ARRANGED
    assert ptr.tolist() == [0, 0, 0, 0, 3, 5]
    assert out.tolist() == [2, 0, 1, 0, 1]
    assert edges.tolist() == [2, 0, 1, 3, 4]
    slots[1, 1], slots[2, 0] = NOT_READ, 0
    assert arrange(*graph, (slots, allowed, none), False, 1)[:3] == (SECOND_CHILD, 4, 0)


def test_children_are_arranged_by_relation() -> None:
    """Vertex 2 reads relation 1 in a slot, then all children of 2, then those of 0."""
    child_ptr = np.array([0, 0, 0, 6, 8], np.int32)
    child = np.array([0, 1, 1, -1, 0, 1, 2, 0], np.int32)
    relations = np.array([0, 2, 1, 0, 0, 2, 0, 2], np.int32)
    functions = np.array([0, 0, 1, 2], np.int32)
    slots = np.array([[NOT_READ] * 3, [ALL + 1, 0, ALL], [ALL, NOT_READ, NOT_READ]])
    rules = slots, np.ones((3, 3, 3), np.bool_), np.array([0, 1, 0])
    graph = child_ptr, child, functions, relations
    found, _, _, ptr, out, edges, first_of = arrange(*graph, rules, True, 2)
    assert found == ARRANGED
    assert ptr.tolist() == [0, 0, 0, 5, 6]
    assert out.tolist() == [1, 1, 1, 0, 0, 2]
    assert edges.tolist() == [2, 1, 5, 0, 4, 6]
    assert first_of.tolist() == [0, 0, 0, 0, 1, 3, 5, 6, 6]


def test_graphs_of_a_pool_do_not_bring_it_along() -> None:
    graphs = [
        InputGraph.from_types({"a": 3}, {("a", "before", "a"): [(0, 1), (1, 2)]})
        for _ in range(500)
    ]
    pool = GraphBatch.from_graphs(graphs)
    taken = pool.take([7]).take([0])
    assert source_of(taken)[0] is pool
    assert len(pickle.dumps(taken)) < 3000
    assert len(pickle.dumps(pool[7])) < 3000


class Pulling(vrt.VertexFunction):
    """Pull a number, whole or real, under a name."""

    def __init__(self, name: str, dtype: str) -> None:
        super().__init__(state={})
        self.name, self.dtype = name, dtype

    def forward(self) -> None:
        whole = self.dtype == "int"
        x = self.pull_index(self.name) if whole else self.pull(self.name, shape=())
        self.push(f"own_{self.dtype}_{self.name}", x * 1.0)


class PullingBoth(vrt.Model):
    """Two types that pull under one name or two."""

    def __init__(self, name: str, dtype: str) -> None:
        self.a, self.b = Pulling("w", "int"), Pulling(name, dtype)


@pytest.mark.parametrize(("name", "dtype"), [("w", "int"), ("v", "int"), ("v", "float")])
@pytest.mark.parametrize(
    "nothing", [[], np.zeros(0, int), np.zeros((0, 3)), vrt.Rows(np.ones(4), np.zeros(0, int))]
)
def test_what_no_vertex_pulls_has_no_dtype(name: str, dtype: str, nothing: Any) -> None:
    """Of a type that a graph has no vertices of; before and after others, and alone (issue 52)."""

    def graph(count: int, given: Any) -> vrt.InputGraph:
        return vrt.InputGraph.from_types(
            {"a": 2, "b": count}, {}, {"a": {"w": [1, 2]}, "b": {name: given}}
        )

    net = vrt.compile(PullingBoth(name, dtype), device="reference")
    full, none = graph(1, np.array([3], dtype)), graph(0, nothing)
    for graphs in ([full, none], [none, full], [none], [none, none]):
        batch = vrt.GraphBatch.from_graphs(graphs)
        found = sum(value.sum() for value in net(batch).values())
        assert found == sum(3.0 + 3.0 * (each is full) for each in graphs)
