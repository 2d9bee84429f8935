"""Networks of several vertex functions: what is refused, and how."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import vertexrt as vrt
from tests import typed_models as typed
from tests.declared import Declared
from tests.messages import refused, table
from vertexrt.graph import GraphBatch, InputGraph


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
    class Plain(Declared, arity=1, state={"h": 2}):
        def forward(self) -> None:
            self.scatter(h=self.gather(0).h + 1.0)
            self.push("h", self.gather(0).h)

    net = vrt.compile(Plain(), device="reference")
    refused(lambda: net(words({})), "GraphError: ...Plain is one vertex function...")


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
MODELS = table(__file__, "MODELS")


def number_and_index(f: Any) -> None:
    picked = vrt.ones(3)[f.edge("y", relation="a")]
    f.push("y", vrt.sum(picked) + vrt.sum(f.edge("y", relation="b")))


@pytest.mark.parametrize("code", MODELS)
def test_models_that_are_refused(code: str) -> None:
    refused(
        lambda: vrt.compile(eval(code), device="reference"),
        f"TraceError: ...{MODELS[code]}...",
    )
