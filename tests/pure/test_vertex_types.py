"""Networks of several vertex functions: what is refused, and how."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import vertexrt as vrt
from tests import edge_models as by_edges
from tests import typed_models as typed
from tests.messages import refused
from vertexrt.errors import PullError
from vertexrt.graph import GraphBatch, InputGraph
from vertexrt.ir.pretty import format_program


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


def single(relation: str) -> GraphBatch:
    """Return a letter alone, with no edges of a relation."""
    edges: dict[tuple[str, str, str], Any] = {("char", relation, "char"): []}
    graph = InputGraph.from_types({"char": 1}, edges, {"char": {"letter": [1]}})
    return GraphBatch.from_graphs([graph])


# Batches that a tagger of words by their letters refuses, and parts of what it says.
BATCHES = {
    "GraphBatch.from_graphs([InputGraph.from_children([[]])])": (
        "the batch has no vertex types; CharTagger has the types char, left, right, tag"
    ),
    "words({}, tog=1)": (
        "vertices of type 'tog'; CharTagger has the types char, left, right, tag; rename the type, "
        "or leave its vertices out. Nearest: 'tag'"
    ),
    "words({('right', 'left', 'tag'): [(0, 1)]})": (
        "tag 1 of graph 0 has a child of type right in 'left'; a child of type left"
    ),
    "words({('char', 'spelling', 'left'): [(0, 1), (1, 1)]})": (
        "left 1 of graph 0 has two children in the relation 'spelling'; one, since left reads it "
        "by gather('spelling')"
    ),
    # Without edges a relation is given as an empty list.
    "single('befor')": "reads the relation 'before'...Nearest: 'befor'",
}


@pytest.mark.parametrize("code", BATCHES)
def test_batches_that_a_network_refuses(code: str) -> None:
    refused(
        lambda: tagger()(eval(code), outputs=["loss"]),
        f"GraphError: ...{BATCHES[code]}...",
    )


def test_one_function_refuses_types() -> None:
    class Plain(vrt.VertexFunction):
        def __init__(self) -> None:
            super().__init__(arity=1, state={"h": 2})

        def forward(self) -> None:
            self.scatter(h=self.gather(0).h + 1.0)
            self.push("h", self.gather(0).h)

    net = vrt.compile(Plain(), device="reference")
    refused(lambda: net(words({})), "GraphError: ...Plain is one vertex function...")


def test_batches_that_a_network_takes() -> None:
    others = {("left", "spelling", "tag"): [(0, 1)], ("right", "left", "tag"): []}
    for batch in (words(others), words({}).take([0]).take([0])):
        assert np.isfinite(tagger()(batch)["loss"]).all()


class Cell(vrt.VertexFunction):
    """A function whose forward a test gives."""

    def __init__(self, body: Callable[[Any], None], **options: Any) -> None:
        super().__init__(**{"state": {"h": 2}, **options})
        self.body = body

    def forward(self) -> None:
        self.body(self)


def _writes(f: Any, name: str = "loss", shape: int = 0) -> None:
    value = f.pull("x", shape=2)
    f.scatter(h=value)
    f.push(name, value if shape else vrt.sum(value))


def _model(**functions: vrt.VertexFunction) -> vrt.Model:
    model = vrt.Model()
    vars(model).update(functions)
    return model


class Bare(vrt.VertexFunction):
    """A function whose __init__ does not call that of its class."""

    def __init__(self) -> None:
        self.w = vrt.Parameter(2)


def test_values_of_edges_that_do_not_fit() -> None:
    net = vrt.compile(by_edges.WeighedDag(), device="reference")
    good = by_edges.weighed_graph(5, np.random.default_rng(1))
    kinds = np.asarray(good.edge_pulls["kind"])
    args = np.flatnonzero(kinds >= 0)

    def given(**values: Any) -> GraphBatch:
        graph = replace(good, edge_pulls={**good.edge_pulls, **values})
        return GraphBatch.from_graphs([graph])

    net(given())
    wrong = kinds.copy()
    wrong[args[0]] = by_edges.KINDS
    for values, text in (
        ({"kind": wrong}, r"'kind' of an edge of vertex \d of graph 0 is 4; 0 to 3, rows of the"),
        ({"weight": kinds}, "reads real numbers of shape \\[\\] per edge"),
        ({"kind": kinds * 1.0}, "WeighedDag reads an integer per edge"),
    ):
        with pytest.raises(PullError, match=text):
            net(given(**values))
    with pytest.raises(PullError, match="WeighedDag pulls 'kind' of edges, which the batch does"):
        net(GraphBatch.from_graphs([replace(good, edge_pulls={})]))


def of(body: Callable[[Any], object], **options: Any) -> vrt.Model:
    """Return a model of a function that does something and then writes."""

    def forward(f: Any) -> None:
        body(f)
        _writes(f)

    return _model(a=Cell(forward, **options))


def test_a_value_of_edges_is_of_several_relations() -> None:
    """In one shape and dtype, each time read once."""

    def forward(f: Any) -> None:
        first, second = (f.edge("w", 2, relation=name) for name in ("a", "b"))
        assert f.edge("w", relation="b").index == second.index != first.index
        f.push("w", vrt.sum(first) - vrt.sum(second))
        _writes(f)

    traced = _model(a=Cell(forward)).trace()
    assert [pull.name for pull in traced.pulls if pull.edges] == ["w"]
    assert traced.relations == 2


CELL = Cell(_writes)
# Models, and parts of what is said of them.
MODELS = {
    "vrt.Model()": "0 vertex functions; 1 to 64",
    "_model(a=Bare())": "Bare has no arity and no state",
    "_model(a=CELL, b=CELL)": "one vertex function under two names",
    "_model(b=Cell(lambda f: f.scatter(h=f.pull('x', shape=2))))": "pushes anything",
    "_model(a=Cell(lambda f: _writes(f, name='x')), b=Cell(lambda f: _writes(f, 'x', 1)))": (
        "push 'x' is () in a, (2,) in b; one shape for each name"
    ),
    # inputs
    "of(lambda f: f.gather('x'), inputs={'x': Cell(_writes)})": (
        "a reads 'x' of a Cell; vertex functions that are attributes"
    ),
    "of(lambda f: None, inputs={'x': ()})": (
        "'x' is (); a vertex function, or several that declare the same state"
    ),
    "_model(a=CELL, b=Cell(_writes, inputs={'x': CELL}))": (
        "b names ['x'] in inputs and does not gather them"
    ),
    "Cell(lambda f: (f.gather('x'), _writes(f)))": (
        "of a function that stands alone; relations have names in a vrt.Model"
    ),
    # relations
    "of(lambda f: (f.gather_all('x'), f.gather_all(3)))": "3 at",
    "of(lambda f: (f.gather_all('x'), f.gather('x')))": "by gather and by gather_all; one child of",
    "of(lambda f: (f.gather('x'), f.gather_all('x')))": "by gather and by gather_all; one child of",
    "of(lambda f: (f.edge('x', relation='o'), f.gather('o')))": "by gather and by gather_all",
    "of(lambda f: f.gather_all('x').h + f.gather_all('y').h)": (
        "[add] values per child of two relations, at"
    ),
    "of(lambda f: vrt.concat(f.gather_all('x').h, f.gather_all('y').h))": (
        "others have other children"
    ),
    "of(lambda f: vrt.where(f.gather_all('x').h > 0, 0.5, f.gather_all('y').h))": (
        "reduce them first, each by"
    ),
    # values of edges
    "of(lambda f: (f.pull('y'), f.edge('y', relation='o')))": (
        "'y' of vertices and of edges, at ...a name of its own"
    ),
    "of(lambda f: f.edge(3, relation='over'))": "[edge] name 3 at ",
    "of(lambda f: [f.edge('y', k, relation='ab'[k - 2]) for k in (2, 3)])": (
        "'y' of shape [3] at ...it was pulled before with shape"
    ),
    "of(number_and_index)": "a number in one relation and an index in another, at",
}


def number_and_index(f: Any) -> None:
    picked = vrt.ones(3)[f.edge("y", relation="a")]
    f.push("y", vrt.sum(picked) + vrt.sum(f.edge("y", relation="b")))


@pytest.mark.parametrize("code", MODELS)
def test_models_that_are_refused(code: str) -> None:
    refused(
        lambda: vrt.compile(eval(code), device="reference"),
        f"TraceError: ...{MODELS[code]}...",
    )


def test_a_type_need_not_push() -> None:
    silent = Cell(lambda f: f.scatter(h=f.pull("x", shape=2)))
    vrt.compile(_model(a=Cell(_writes), b=silent), device="reference")


def test_a_network_prints_its_types() -> None:
    text = format_program(typed.UpDown().trace())
    assert "UpDown: 3 vertex types" in text
    assert "vertex type phrase: reads 0 of leaf or phrase, 1 of leaf or phrase" in text
    assert "vertex type leaf: reads no vertices" in text
    assert "all over of encode" in format_program(typed.Translator().trace())
