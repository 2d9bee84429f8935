"""Graphs with vertex types, and networks of several functions: what is refused, and how."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import vertexrt as vrt
from tests import typed_models as typed
from vertexrt.errors import GraphError, PullError, TraceError
from vertexrt.graph import GraphBatch, InputGraph, Pulled
from vertexrt.ir.passes import specialise
from vertexrt.ir.pretty import format_program
from vertexrt.scheduler import balance
from vertexrt.scheduler.arrange import ALL, ARRANGED, NOT_READ, OF_OTHER_TYPE, SECOND_CHILD, arrange

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
            "c": {"x": Pulled(np.full((4, 3), 2.0), np.array([3, -1], np.int32))},
        },
    )
    pull = graph.pulls["x"]
    assert isinstance(pull, Pulled)
    assert pull.index is not None
    assert pull.index.tolist() == [0, 1, -1, 5, -1]
    assert pull.values[pull.index[[0, 3]]].tolist() == [[1.0] * 3, [2.0] * 3]


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
    assert isinstance(pull, Pulled)
    assert pull.index is not None
    assert pull.values[pull.index].tolist() == [[5.0, 6.0], [3.0, 4.0], [1.0, 2.0]]


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
            "'n' of 'word' has 3 values; an array with a row for each of 2 vertices",
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
            "has 1 values; an array with a row for each of 0 edges",
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
            "one dtype and shape for each name",
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


def tagger() -> vrt.Network:
    return vrt.compile(typed.CharTagger(), device="reference")


def words(extra: dict[tuple[str, str, str], Any], **sizes: int) -> GraphBatch:
    """Return a sentence of two words of one letter each; `extra` replaces edges."""
    both = [(0, 0), (1, 1)]
    edges: dict[tuple[str, str, str], Any] = {
        ("char", "before", "char"): [],
        ("char", "spelling", "left"): both,
        ("char", "spelling", "right"): both,
        ("left", "left", "tag"): both,
        ("right", "right", "tag"): both,
    }
    counts = dict.fromkeys(("char", "left", "right", "tag"), 2) | sizes
    pulls = {"char": {"letter": [1, 2]}, "tag": {"label": [0, 1]}}
    return GraphBatch.from_graphs([InputGraph.from_types(counts, edges | extra, pulls)])


@pytest.mark.parametrize(
    ("batch", "text"),
    [
        (
            lambda: GraphBatch.from_graphs([InputGraph.from_children([[]])]),
            "the batch has no vertex types; CharTagger has the types char, left, right, tag",
        ),
        (
            lambda: words({}, tog=1),
            "vertices of type 'tog'; CharTagger has the types char, left, right, tag; rename the "
            "type, or leave its vertices out. Nearest: 'tag'",
        ),
        (
            lambda: words({("left", "spelling", "tag"): [(0, 1)], ("right", "left", "tag"): []}),
            None,
        ),
        (
            lambda: words({("right", "left", "tag"): [(0, 1)]}),
            "tag 1 of graph 0 has a child of type right in 'left'; a child of type left",
        ),
        (
            lambda: words({("char", "spelling", "left"): [(0, 1), (1, 1)]}),
            "left 1 of graph 0 has two children in the relation 'spelling'; one, since left reads "
            "it by gather('spelling')",
        ),
        (
            lambda: words({}).take([0]).take([0]),
            None,
        ),
    ],
)
def test_batches_that_a_network_refuses(batch: Callable[[], GraphBatch], text: str | None) -> None:
    net, given = tagger(), batch()
    if text is None:
        assert np.isfinite(net.forward(given)["loss"]).all()
        return
    with pytest.raises(GraphError) as caught:
        net.forward(given)
    assert text in str(caught.value)


def test_a_relation_must_be_named() -> None:
    """A slip of the pen in a relation is an error; without edges it is given as an empty list."""
    graph = InputGraph.from_types(
        {"char": 1}, {("char", "befor", "char"): []}, {"char": {"letter": [1]}}
    )
    with pytest.raises(GraphError, match=r"reads the relation 'before'.*Nearest: 'befor'"):
        tagger().forward(GraphBatch.from_graphs([graph]), outputs=["loss"])


def test_one_function_refuses_types() -> None:
    class Plain(vrt.VertexFunction):
        def __init__(self) -> None:
            super().__init__(arity=1, state={"h": 2})

        def forward(self) -> None:
            self.scatter(h=self.gather(0).h + 1.0)
            self.push("h", self.gather(0).h)

    with pytest.raises(GraphError, match="Plain is one vertex function"):
        vrt.compile(Plain(), device="reference").forward(words({}))


class Cell(vrt.VertexFunction):
    """A function whose forward a test gives."""

    def __init__(self, body: Callable[[Any], None], **options: Any) -> None:
        super().__init__(**{"state": {"h": 2}, **options})
        self.body = body

    def forward(self) -> None:
        self.body(self)


def _writes(f: Any, *, name: str = "loss", shape: int = 0) -> None:
    value = f.pull("x", shape=2)
    f.scatter(h=value)
    f.push(name, value if shape else vrt.sum(value))


def _model(**functions: vrt.VertexFunction) -> vrt.Model:
    model = vrt.Model()
    vars(model).update(functions)
    return model


def _twice() -> vrt.Model:
    cell = Cell(_writes)
    return _model(a=cell, b=cell)


def _unknown_source() -> vrt.Model:
    return _model(a=Cell(lambda f: (f.gather("x"), _writes(f)), inputs={"x": Cell(_writes)}))


class Bare(vrt.VertexFunction):
    """A function whose __init__ does not call that of its class."""

    def __init__(self) -> None:
        self.w = vrt.Parameter(2)


def test_values_of_edges_that_do_not_fit() -> None:
    net = vrt.compile(typed.WeighedDag(), device="reference")
    good = typed.weighed_graph(5, np.random.default_rng(1))
    kinds = np.asarray(good.edge_pulls["kind"])
    args = np.flatnonzero(kinds >= 0)

    def given(**values: Any) -> GraphBatch:
        graph = replace(good, edge_pulls={**good.edge_pulls, **values})
        return GraphBatch.from_graphs([graph])

    net.forward(given())
    wrong = kinds.copy()
    wrong[args[0]] = typed.KINDS
    for values, text in (
        ({"kind": wrong}, r"'kind' of an edge of vertex \d of graph 0 is 4; 0 to 3, rows of the"),
        ({"weight": kinds}, "reads real numbers of shape \\[\\] per edge"),
        ({"kind": kinds * 1.0}, "WeighedDag reads an integer per edge"),
    ):
        with pytest.raises(PullError, match=text):
            net.forward(given(**values))
    with pytest.raises(PullError, match="WeighedDag pulls 'kind' of edges, which the batch does"):
        net.forward(GraphBatch.from_graphs([replace(good, edge_pulls={})]))


def test_a_name_is_of_vertices_or_of_edges() -> None:
    def forward(f: Any) -> None:
        f.pull("x")
        f.edge("x", relation="over")

    with pytest.raises(TraceError, match=r"'x' of vertices and of edges, at .*a name of its own"):
        _model(a=Cell(forward)).trace()
    with pytest.raises(TraceError, match=r"\[edge\] name 3 at .*a string"):
        _model(a=Cell(lambda f: f.edge(3, relation="over"))).trace()
    with pytest.raises(TraceError, match="by gather and by gather_all"):
        _model(a=Cell(lambda f: (f.gather("over"), f.edge("x", relation="over")))).trace()


def _reads(*relations: tuple[bool, str]) -> vrt.Model:
    """Return a model whose function reads relations: all children of them, or one child."""

    def forward(f: Any) -> None:
        for every, name in relations:
            (f.gather_all if every else f.gather)(name)
        _writes(f)

    return _model(a=Cell(forward))


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: vrt.Model(), "0 vertex functions; 1 to 64"),
        (lambda: _model(a=Bare()), "Bare has no arity and no state"),
        (_twice, "one vertex function under two names"),
        (_unknown_source, "a reads 'x' of a Cell; vertex functions that are attributes"),
        (lambda: _reads((True, "x"), (True, "y")), "'y' at"),
        (lambda: _reads((True, "x"), (True, "y")), "beside 'x'; all children of one relation"),
        (lambda: _reads((True, "x"), (False, "x")), "by gather and by gather_all; one child of"),
        (lambda: _reads((False, "x"), (True, "x")), "by gather and by gather_all; one child of"),
        (
            lambda: _model(
                a=Cell(lambda f: _writes(f, name="x")),
                b=Cell(lambda f: _writes(f, name="x", shape=1)),
            ),
            "push 'x' is () in a, (2,) in b; one shape for each name",
        ),
        (
            lambda: _model(a=Cell(_writes, inputs={"x": ()})),
            "'x' is (); a vertex function, or several that declare the same state",
        ),
        (
            lambda: _model(a=Cell(_writes), b=Cell(lambda f: f.scatter(h=f.pull("x", shape=2)))),
            None,
        ),
        (
            lambda: _model(b=Cell(lambda f: f.scatter(h=f.pull("x", shape=2)))),
            "pushes anything",
        ),
        (
            lambda: Cell(lambda f: (f.gather("x"), _writes(f))),
            "of a function that stands alone; relations have names in a vrt.Model",
        ),
    ],
)
def test_models_that_are_refused(make: Callable[[], Any], text: str | None) -> None:
    if text is None:
        vrt.compile(make(), device="reference")
        return
    with pytest.raises(TraceError) as caught:
        vrt.compile(make(), device="reference")
    assert text in str(caught.value)


def test_inputs_that_are_not_gathered_are_refused() -> None:
    cell = Cell(_writes)
    with pytest.raises(TraceError, match=r"b names \['x'\] in inputs and does not gather them"):
        vrt.compile(_model(a=cell, b=Cell(_writes, inputs={"x": cell})), device="reference")


def test_a_network_prints_its_types() -> None:
    text = format_program(typed.UpDown().trace())
    assert "UpDown: 3 vertex types" in text
    assert "vertex type phrase: reads 0 of leaf or phrase, 1 of leaf or phrase" in text
    assert "vertex type leaf: reads no vertices" in text
    assert "reads all over of chain" in format_program(typed.Summarised().trace())


def test_edges_of_typed_vertices_have_numbers_of_their_own() -> None:
    """Also with a slot for each relation of a function; and they do not depend on shares."""
    batch = typed.sentences()
    vertices, first = balance.share_out(batch, 1)[0].numbers()
    assert (np.diff(first) >= specialise.MOST_SLOTS).all()
    assert (vertices == np.arange(batch.num_vertices)).all()
    for share in balance.share_out(batch, 2):
        mine, numbers = share.numbers()
        assert (numbers == first[mine]).all()


def test_children_are_arranged_by_slot() -> None:
    """Vertex 3 has function 1, which reads relation 0 in slot 1 and 2 in slot 0; 4 reads all."""
    child_ptr = np.array([0, 0, 0, 0, 3, 6], np.int32)
    child = np.array([0, 1, 2, 0, 1, 3], np.int32)
    relations = np.array([0, 1, 2, 0, 0, 1], np.int32)
    functions = np.array([0, 0, 0, 1, 2], np.int32)
    slots = np.array([[NOT_READ] * 3, [1, NOT_READ, 0], [ALL, NOT_READ, NOT_READ]])
    allowed = np.full((3, 3), 1)
    given = child_ptr, child, functions, relations
    none = np.zeros(3, np.int64)
    found, _, _, ptr, out, _ = arrange(*given, (slots, allowed, none), False)
    assert found == ARRANGED
    assert ptr.tolist() == [0, 0, 0, 0, 2, 4]
    assert out.tolist() == [2, 0, 0, 1]
    assert arrange(*given, (slots, allowed * 2, none), False)[:3] == (OF_OTHER_TYPE, 3, 0)
    slots[1, 1] = ALL
    rules = slots, allowed, np.array([0, 2, 0])
    found, _, _, ptr, out, edges = arrange(*given, rules, True)
    assert found == ARRANGED
    assert ptr.tolist() == [0, 0, 0, 0, 3, 5]
    assert out.tolist() == [2, 0, 1, 0, 1]
    assert edges.tolist() == [2, 0, 1, 3, 4]
    slots[1, 1], slots[2, 0] = NOT_READ, 0
    assert arrange(*given, (slots, allowed, none), False)[:3] == (SECOND_CHILD, 4, 0)
