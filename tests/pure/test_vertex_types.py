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
from vertexrt.errors import GraphError, PullError, TraceError
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
        assert np.isfinite(net(given)["loss"]).all()
        return
    with pytest.raises(GraphError) as caught:
        net(given)
    assert text in str(caught.value)


def test_a_relation_must_be_named() -> None:
    """A slip of the pen in a relation is an error; without edges it is given as an empty list."""
    graph = InputGraph.from_types(
        {"char": 1}, {("char", "befor", "char"): []}, {"char": {"letter": [1]}}
    )
    with pytest.raises(GraphError, match=r"reads the relation 'before'.*Nearest: 'befor'"):
        tagger()(GraphBatch.from_graphs([graph]), outputs=["loss"])


def test_one_function_refuses_types() -> None:
    class Plain(vrt.VertexFunction):
        def __init__(self) -> None:
            super().__init__(arity=1, state={"h": 2})

        def forward(self) -> None:
            self.scatter(h=self.gather(0).h + 1.0)
            self.push("h", self.gather(0).h)

    with pytest.raises(GraphError, match="Plain is one vertex function"):
        vrt.compile(Plain(), device="reference")(words({}))


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


def test_a_name_is_of_vertices_or_of_edges() -> None:
    def forward(f: Any) -> None:
        f.pull("x")
        f.edge("x", relation="over")

    with pytest.raises(TraceError, match=r"'x' of vertices and of edges, at .*a name of its own"):
        _model(a=Cell(forward)).trace()
    with pytest.raises(TraceError, match=r"\[edge\] name 3 at .*a string"):
        _model(a=Cell(lambda f: f.edge(3, relation="over"))).trace()
    with pytest.raises(TraceError, match="by gather and by gather_all"):
        _model(a=Cell(lambda f: (f.edge("x", relation="over"), f.gather("over")))).trace()


def _reads(*relations: tuple[bool, str]) -> vrt.Model:
    """Return a model whose function reads relations: all children of them, or one child."""

    def forward(f: Any) -> None:
        for every, name in relations:
            (f.gather_all if every else f.gather)(name)
        _writes(f)

    return _model(a=Cell(forward))


def _meets(combined: Callable[[Any, Any], Any]) -> vrt.Model:
    """Return a model whose function combines values per child of two relations."""

    def forward(f: Any) -> None:
        combined(f.gather_all("x"), f.gather_all("y"))
        _writes(f)

    return _model(a=Cell(forward))


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

    def other_shape(f: Any) -> None:
        f.edge("x", 2, relation="a")
        f.edge("x", 3, relation="b")

    with pytest.raises(
        TraceError, match=r"'x' of shape \[3\] at .*it was pulled before with shape"
    ):
        _model(a=Cell(other_shape)).trace()

    def number_and_index(f: Any) -> None:
        picked = vrt.ones(3)[f.edge("x", relation="a")]
        h = vrt.ones(2) * (vrt.sum(picked) + vrt.sum(f.edge("x", relation="b")))
        f.scatter(h=h)
        f.push("h", h)

    with pytest.raises(TraceError, match="a number in one relation and an index in another, at"):
        _model(a=Cell(number_and_index)).trace()


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: vrt.Model(), "0 vertex functions; 1 to 64"),
        (lambda: _model(a=Bare()), "Bare has no arity and no state"),
        (_twice, "one vertex function under two names"),
        (_unknown_source, "a reads 'x' of a Cell; vertex functions that are attributes"),
        (lambda: _reads((True, "x"), (True, 3)), "3 at"),
        (lambda: _meets(lambda x, y: x.h + y.h), "[add] values per child of two relations, at"),
        (lambda: _meets(lambda x, y: vrt.concat(x.h, y.h)), "others have other children"),
        (lambda: _meets(lambda x, y: vrt.where(x.h > 0, 0.5, y.h)), "reduce them first, each by"),
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
