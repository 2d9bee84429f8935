"""Networks of several vertex types and relations, values of edges: judged by the oracle."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vertexrt as vrt
from tests import relation_models as related
from tests import typed_models as typed
from tests.agreement import ON_GPU, ON_HOST, Feature, agree, holds, rows
from tests.bodies import WithBody
from tests.declared import Declared
from tests.runs import Way
from tests.strategies import one_graph, one_typed
from vertexrt.errors import PullError, TraceError
from vertexrt.graph import GraphBatch, InputGraph
from vertexrt.ir.passes import specialise

N, KINDS = 4, 3


class Twins(Declared, state={"h": 2}, table=(3, 2), w=(2, 2)):
    """Tells which of its children are in which relation."""

    def forward(self) -> None:
        a, b = (vrt.sum(self.gather_all(name).h) for name in ("a", "b"))
        h = self.w @ vrt.embed(self.table, self.pull("word")) + vrt.tanh(a) - vrt.sigmoid(b)
        self.scatter(h=h)
        self.push("h", h)
        self.push("loss", vrt.sum(h))


def twins(*words: int) -> GraphBatch:
    """Return a graph with two equal vertices, and two with the same children otherwise."""
    edges = {("node", "a", "node"): [(0, 1), (0, 2)], ("node", "b", "node"): [(0, 2), (0, 1)]}
    edges["node", "a", "node"] += [(1, 3), (1, 4), (2, 4)]
    edges["node", "b", "node"] += [(2, 3)]
    pulls = {"node": {"word": np.array(words)}}
    return one_typed({"node": 5}, edges, pulls)


class Dropping(Declared, state={"h": 8}, table=(3, 8)):
    """Drops values per child, by the number of the edge among those of all relations."""

    def forward(self) -> None:
        h = vrt.embed(self.table, self.pull("word"))
        for name in ("a", "b"):
            h = h + vrt.sum(vrt.random.dropout(self.gather_all(name).h, 0.5))
        self.scatter(h=h)
        self.push("h", h)
        self.push("loss", vrt.losses.squared_error(h, 0.1))


class Link(vrt.VertexFunction):
    """Adds a vector to the state of the link before it; the first has none."""

    def __init__(self, before: Link | None) -> None:
        super().__init__(state={"h": 2}, inputs={} if before is None else {"before": before})
        self.b = vrt.Parameter((2,), init=vrt.init.normal(1.0))

    def forward(self) -> None:
        h = self.b + (self.gather("before").h if self.inputs else 0.0)
        self.scatter(h=h)
        self.push("h", h)


LINKS = [f"link{k}" for k in range(specialise.MOST_FUNCTIONS)]


def links() -> vrt.Model:
    """Return a network of 64 functions, of which the first is the last of the chain.

    It was an overflow where another read it: children were bits of a signed number.
    """
    made: list[Link] = []
    for _ in LINKS:
        made.append(Link(made[-1] if made else None))
    return model(**dict(reversed(list(zip(LINKS, made, strict=True)))))


def linked() -> GraphBatch:
    edges = {(a, "before", b): [(0, 0)] for a, b in itertools.pairwise(LINKS)}
    return one_typed(dict.fromkeys(LINKS, 1), edges)


class Looking(Declared, state={"h": 1}, of_calls=(3, 1), of_owns=(10, 1)):
    """Look up what the edges of two relations have under one name, in tables of two sizes."""

    def forward(self) -> None:
        h = self.pull("x", shape=(1,))
        for relation, table in (("calls", self.of_calls), ("owns", self.of_owns)):
            kind = self.edge_index("kind", relation=relation)
            h = h + vrt.sum(self.gather_all(relation).h + vrt.embed(table, kind))
        self.scatter(h=h)
        self.push("h", h)


def looked_up(*kinds: int) -> GraphBatch:
    calls, owns = ("v", "calls", "v"), ("v", "owns", "v")
    edges = {calls: [(0, 1)], owns: [(0, 2), (1, 2)]}
    values = {calls: {"kind": kinds[:1]}, owns: {"kind": kinds[1:]}}
    pulls = {"v": {"x": np.zeros((3, 1))}}
    return one_typed({"v": 3}, edges, pulls, values)


class Summed(Declared, state={"h": N}, kinds=(KINDS, N)):
    """Reads the kinds of all edges to its children."""

    def forward(self) -> None:
        of_edges = vrt.embed(self.kinds, self.edge_index("kind", relation="children"))
        h = vrt.sum(self.gather_all().h + of_edges, axis="children")
        self.scatter(h=h)
        self.push("h", h)


def model(**functions: vrt.VertexFunction) -> vrt.Model:
    """Make a network of functions by the names of their types."""
    made = vrt.Model()
    vars(made).update(functions)
    return made


def with_parts(whole: GraphBatch) -> list[GraphBatch]:
    """Return a batch, and one of some of its graphs in another order."""
    return [whole, whole.take([2, 0, 2])]


ALL = [
    Way("cpu", policy="agenda"),
    Way("cpu", policy="depth", threads=2),
    Way("cpu", engine="persistent", processors=2, threads=4),
    Way(engine="persistent", processors=2, threads=2),
    *ON_GPU,
]
FEATURES = {
    # A direction does not wait for the other: the last of four words has three letters, then four
    # words and their tags.
    "tagger": Feature(
        lambda: typed.CharTagger(tied=True),
        lambda: with_parts(typed.sentences()),
        ALL,
        says=("levels: 8",),
    ),
    "translator": Feature(  # with dropout
        typed.Translator,
        typed.translations,
        ALL,
        Way(),
        ("vertex type decode: reads before of decode, all over of encode",),
    ),
    # One vertex has more children than a tile has indices for in shared memory.
    "a tile of many children": Feature(typed.WideSum, lambda: typed.wide_sum(150), ON_GPU[1:2]),
    "circuit": Feature(
        related.Circuit,
        lambda: with_parts(related.circuits()),
        ALL,
        says=(
            "gate: reads clock of gate, all plain of wire or gate, all inverted of wire",
            r"gather_all\(\) field=wire.h relation=1 slot=1 : edge float\[5\]",
        ),
    ),
    "dropping": Feature(
        lambda: model(node=Dropping()), lambda: twins(0, 1, 2, 0, 1), ALL, judge=Way()
    ),
    "twins": Feature(lambda: model(node=Twins()), lambda: twins(1, -1, -1, -1, -1), ON_HOST[:2]),
    "64 functions": Feature(links, linked, [Way()]),
    "two tables": Feature(
        lambda: model(v=Looking()), lambda: [looked_up(0, 3, 4), looked_up(2, 7, 9)], ON_HOST
    ),
}


@pytest.mark.parametrize(("name", "way"), rows(FEATURES))
def test_every_way_agrees(name: str, way: Way) -> None:
    holds(FEATURES[name], way)


@pytest.mark.parametrize("planned", [False, True])
@pytest.mark.parametrize(("kinds", "bound"), [((3, 0, 0), "3; 0 to 2"), ((0, 0, 10), "10; 0 to 9")])
def test_a_number_is_bounded_by_the_table_of_its_own_relation(
    kinds: tuple[int, ...], bound: str, planned: bool
) -> None:
    """Issue 52."""
    net = Way().compile(model(v=Looking()))
    plan = net.plan(looked_up(0, 3, 4))
    for _ in range(2):
        given = looked_up(2, 7, 9)
        found = plan({"kind": given.edge_pulls["kind"]})
        np.testing.assert_array_equal(found["h"], net(given)["h"])
    wrong = looked_up(*kinds)
    with pytest.raises(PullError, match=rf"is {bound}, rows"):
        plan({"kind": wrong.edge_pulls["kind"]}) if planned else net(wrong)


class OfVertex(vrt.VertexFunction):
    def forward(self) -> None:
        self.scatter(h=self.push("h", vrt.ones(1) * self.pull("weight")))


class OfEdge(vrt.VertexFunction):
    def forward(self) -> None:
        h = self.gather("before").h * self.edge("weight", relation="before")
        self.scatter(h=self.push("h", h))


@pytest.mark.parametrize(
    ("traced", "text"),
    [
        (lambda f: f.edge("x", 4, relation=2), r"\[edge\] slot 2 at .*declares slots 0..1"),
        (lambda f: f.edge("x", 4, relation=None), r"\[edge\] slot None at .*pass the number"),
        (
            lambda f: [f.edge("x", n, relation=0) for n in (4, 3)],
            "it was pulled before with shape .4.",
        ),
        (lambda f: f.edge("x", relation="left"), "of a function that stands alone"),
        (lambda f: (f.edge("x", relation=0), f.pull("x")), "'x' of vertices and of edges"),
        (
            lambda _: model(first=OfVertex(state={"h": 1}), second=OfEdge(state={"h": 1})).trace(),
            "'weight' is of vertices in first, of edges in second",
        ),
    ],
)
def test_mistakes(traced: Any, text: str) -> None:
    with pytest.raises(TraceError, match=text):
        WithBody(traced).trace()


def test_an_edge_of_a_slot_has_bounds() -> None:
    """Each is named by its slot."""
    net = Way().compile(WithBody(lambda f: f.push("k", vrt.embed(f.w, f.edge("kind", relation=0)))))
    with pytest.raises(PullError, match="'kind' of the edge in '0' of vertex 1 of graph 0 is 4; 0"):
        net(one_graph([[], [0]], {}, {"kind": np.array([4])}))


def test_json_lines_carry_relations(tmp_path: Path) -> None:
    file = tmp_path / "circuits.jsonl"
    vrt.data.write_jsonl(file, related.circuits())
    agree(related.Circuit, vrt.data.read_jsonl(file, dtype="float64").batch, Way("cpu"))


def test_a_batch_without_edges_has_no_values_of_them() -> None:
    """What lay in memory before is not read in place of them."""
    net, count = vrt.compile(Summed(), device="reference"), 5
    leaf = InputGraph.from_children([[]], {}, {"kind": np.zeros(0, np.int32)})
    batch = GraphBatch.from_graphs([leaf] * count)
    for _ in range(4):
        before = [np.full((1, count), KINDS, np.int32) for _ in range(9)]
        del before
        assert not net(batch, outputs=["h"])["h"].any()
