"""Which rows of tables a step moves: those that are looked up in that table, for a gradient.

Issue 52: rows were those of every vertex that pulled a name, whatever table its type looks up in.
"""

from __future__ import annotations

import numpy as np
import pytest

import vertexrt as vrt
from tests.agreement import EVERYWHERE
from tests.declared import Declared
from tests.processes import ThreadCommunicator, together
from tests.runs import Way
from tests.strategies import one_typed
from vertexrt.parallel import ProcessGroup

LETTERS, WORDS, KINDS, ROLES = 5, 20_000, 4, 300


class Letter(Declared, state={"h": 2}, table=(LETTERS, 2)):
    def forward(self) -> None:
        self.scatter(h=vrt.embed(self.table, self.pull("id")))


class Word(Declared, state={"h": 2}, table=(WORDS, 2), edges=(KINDS, 2)):
    """Reads all vertices of a relation, whose edges look up in a table, and a word of its own."""

    def forward(self) -> None:
        each = self.gather_all("below").h * vrt.embed(self.edges, self.edge("of", relation="below"))
        h = vrt.sum(each) + vrt.embed(self.table, self.pull("id"))
        self.scatter(h=h)
        self.push("loss", vrt.sum(h * h))


class Line(Word, state={"h": 2}, table=(LETTERS, 2), edges=(ROLES, 2)):
    """The same above words."""


class Net(vrt.Model):
    """Three types pull `id`, and edges to two of them carry `of`: tables of different sizes."""

    def __init__(self) -> None:
        self.letter = Letter()
        self.word = Word(inputs={"below": self.letter})
        self.line = Line(inputs={"below": self.word})


TABLES = ("letter.table", "word.table", "word.edges", "line.table", "line.edges")


def pages(count: int) -> tuple[vrt.GraphBatch, dict[str, list[int]]]:
    """Return graphs, and the rows that they look up in each table."""
    rng, graphs = np.random.default_rng(count), []
    found: dict[str, set[int]] = {name: set() for name in TABLES}
    for _ in range(count):
        many = {"letter": 5, "word": 3, "line": 2}
        sizes = {"letter": LETTERS, "word": WORDS, "line": LETTERS}
        below, above = ("letter", "below", "word"), ("word", "below", "line")
        ids = {t: rng.integers(-1, sizes[t], n) for t, n in many.items()}
        edges = {below: rng.integers(-1, KINDS, 4), above: rng.integers(-1, ROLES, 3)}
        pairs = {below: [(0, 0), (1, 0), (2, 1), (4, 2)], above: [(0, 0), (1, 1), (2, 1)]}
        pulls = {t: {"id": own} for t, own in ids.items()}
        carried = {key: {"of": own} for key, own in edges.items()}
        graphs.append(vrt.InputGraph.from_types(many, pairs, pulls, edge_pulls=carried))
        own = [*(ids[t] for t in many), edges[below], edges[above]]
        names = ("letter.table", "word.table", "line.table", "word.edges", "line.edges")
        for name, rows in zip(names, own, strict=True):
            found[name] |= {*rows.tolist()} - {-1}
    return vrt.GraphBatch.from_graphs(graphs), {n: sorted(found[n]) for n in TABLES}


def moved(net: vrt.Network, batch: vrt.GraphBatch, **how: object) -> dict[str, list[int]]:
    """Return the rows that a step moves, by table; decay moves each that is updated."""
    before = {name: net.parameters[name] for name in TABLES}
    net.step(batch, vrt.SGD(0.01, weight_decay=0.5), **how)  # type: ignore[arg-type]
    net.sync()
    changed = {n: (net.parameters[n] != before[n]).any(axis=1) for n in TABLES}
    return {name: np.flatnonzero(rows).tolist() for name, rows in changed.items()}


@pytest.mark.parametrize("count", [1, 40])
@pytest.mark.parametrize("way", EVERYWHERE)
def test_a_step_moves_the_rows_of_each_types_own_table(way: Way, count: int) -> None:
    batch, rows = pages(count)
    assert moved(way.compile(Net()), batch) == rows


def test_processes_move_the_rows_of_each_types_own_table() -> None:
    batch, rows = pages(6)

    def work(communicator: ThreadCommunicator) -> dict[str, list[int]]:
        return moved(Way("cpu").compile(Net()), batch, group=ProcessGroup(communicator, 4))

    assert together(2, work) == [rows, rows]


class Related(Declared, state={"h": 2}, calls=(3, 2), owns=(20000, 2)):
    """Edges of two relations carry a number under one name, a row of a table for each."""

    def forward(self) -> None:
        h = self.pull("x", shape=(2,))
        for name, table in (("calls", self.calls), ("owns", self.owns)):
            kind = vrt.embed(table, self.edge("kind", relation=name))
            h = h + vrt.sum(self.gather_all(name).h * kind)
        self.scatter(h=h)
        self.push("loss", vrt.sum(h * h))


class RelatedNet(vrt.Model):
    def __init__(self) -> None:
        self.v = Related()


@pytest.mark.parametrize("way", EVERYWHERE)
def test_edges_look_up_in_the_table_of_their_relation(way: Way) -> None:
    calls, owns = ("v", "calls", "v"), ("v", "owns", "v")
    edges = {calls: [(0, 1)], owns: [(0, 2), (1, 2)]}
    carried = {calls: {"kind": [2]}, owns: {"kind": [19_999, 700]}}
    pulls = {"v": {"x": np.ones((3, 2))}}
    net = way.compile(RelatedNet())
    batch = one_typed({"v": 3}, edges, pulls, edge_pulls=carried)
    run = net.record(batch)
    rows = run.backward(sparse=True).rows
    found = {name: own.tolist() for name, (own, _) in rows.items()}
    assert found == {"v.calls": [2], "v.owns": [700, 19_999]}
