"""A text cut in pieces whose state is carried gives what the text gives as one chain."""

from __future__ import annotations

import numpy as np
import pytest

import vertexrt as vrt
from tests.messages import refused
from vertexrt import nn

HIDDEN, LENGTHS = 5, (12, 12, 7)  # words of each chain
WORDS = np.random.default_rng(0).integers(0, 9, (len(LENGTHS), max(LENGTHS)))


class GRUWords(vrt.VertexFunction):
    """A GRU of one type, whose first word pulls a state."""

    def __init__(self, vocab: int) -> None:
        super().__init__(arity=1, state={"h": HIDDEN})
        self.embedding, self.cell = vrt.Parameter((vocab, HIDDEN)), nn.GRUCell(HIDDEN, HIDDEN)

    def forward(self) -> None:
        """Compute one word."""
        before = self.gather(0).h + self.pull("h", shape=(HIDDEN,))
        h = self.cell(vrt.embed(self.embedding, self.pull("word")), before)
        self.scatter(h=h)
        self.push("h", h)


def piece(first: int, end: int) -> vrt.GraphBatch:
    """Return words of each chain that has some there."""
    words = [row[first : min(end, length)] for row, length in zip(WORDS, LENGTHS, strict=True)]
    chains = [vrt.InputGraph.chain(len(each), {"word": each}) for each in words if len(each)]
    return vrt.GraphBatch.from_graphs(chains)


def network() -> vrt.Network:
    return vrt.compile(GRUWords(11), device="reference", dtype="float64", seed=1)


@pytest.mark.parametrize("whole_pushes", [True, False])
def test_pieces_are_one_text(whole_pushes: bool) -> None:
    net, whole = network(), piece(0, 12)
    expected = states(whole, net(vrt.CarriedState(net).put(whole))["h"])

    carried, found = vrt.CarriedState(net), []
    for first in (0, 4, 8):
        batch = carried.put(piece(first, first + 4))
        outputs = net(batch)
        ends = net(batch, vertices=carried.ends(batch))
        carried.keep(batch, outputs if whole_pushes else ends)
        state, carried = carried.state(), vrt.CarriedState(net)  # another one goes on
        carried.load_state(state)
        found.append(states(batch, outputs["h"]))
    for stream, want in enumerate(expected):
        parts = [each[stream] for each in found if stream < len(each)]
        np.testing.assert_allclose(np.concatenate(parts), want, atol=1e-12)


def test_values_of_edges_are_kept() -> None:
    chain = vrt.InputGraph.from_children([[], [0]], {"word": [1, 2]}, {"weight": [0.5]})
    put = vrt.CarriedState(network()).put(vrt.GraphBatch.from_graphs([chain]))
    assert np.asarray(put.edge_pulls["weight"]).tolist() == [0.5]


def states(batch: vrt.GraphBatch, pushed: np.ndarray) -> list[np.ndarray]:
    """Return what each graph pushed."""
    return np.split(pushed, batch.graph_ptr[1:-1])


def test_more_chains_than_before_are_refused() -> None:
    first, second = piece(0, 4), piece(4, 8)
    carried = vrt.CarriedState(network())
    assert carried.shapes == {"h": (HIDDEN,)}
    carried.keep(first[:1], {"h": np.ones((first[:1].num_vertices, HIDDEN))})
    refused(lambda: carried.put(second), "...a minibatch of 3 graphs after one of fewer...")
    carried.restart()
    assert not np.asarray(carried.put(second).pulls["h"].table).any()


def test_what_is_no_state_is_refused() -> None:
    first, carried = piece(0, 4), vrt.CarriedState(network())
    carried.keep(first, {"h": np.ones((first.num_vertices, HIDDEN))})
    state = carried.state()
    for wrong in (
        {"graphs": 1},
        {"graphs": 1.0},
        {"chains": state["chains"][:1]},
        {"chains": state["chains"] * 1.0},
        {"kept": {"c": state["kept"]["h"]}},
        {"kept": {"h": state["kept"]["h"][:, :1]}},
    ):
        refused(
            lambda wrong=wrong: carried.load_state(state | wrong),
            "CheckpointError: [carried state] the state...",
        )
    refused(lambda: carried.load_state({}), "CheckpointError: [carried state] the state...")
    assert carried.state()["graphs"] == len(LENGTHS)
    carried.restart()
    carried.load_state(carried.state())


class Count(vrt.VertexFunction):
    """Count the vertices of a chain."""

    def __init__(self, name: str, by: float) -> None:
        super().__init__(state={name: 1})
        self.name, self.by = name, by

    def forward(self) -> None:
        before = getattr(self.gather("before"), self.name)
        count = self.pull(self.name, shape=(1,)) + before + self.by
        self.scatter(**{self.name: count})
        self.push(self.name, count)


class Both(vrt.Model):
    """Two types of chains in each graph, of which one is counted by tens."""

    def __init__(self) -> None:
        self.low, self.up = Count("n", 1.0), Count("m", 10.0)


def piece_of(*sizes: tuple[int, int]) -> vrt.GraphBatch:
    """Return a graph with a chain of each type for each pair of lengths."""
    made = []
    for low, up in sizes:
        types = {"low": low, "up": up}
        edges = {
            (t, "before", t): [(i - 1, i) for i in range(1, size)] for t, size in types.items()
        }
        made.append(vrt.InputGraph.from_types(types, edges))
    return vrt.GraphBatch.from_graphs(made)


def test_chains_are_those_of_their_graph_where_some_have_no_vertices() -> None:
    """They were counted over all that have some; what has none waits (issue 52)."""
    net = vrt.compile(Both(), device="reference")
    carried, counted = vrt.CarriedState(net), np.zeros((3, 2))
    for sizes in ([(2, 2), (1, 3), (0, 1)], [(2, 0), (2, 2), (0, 1)], [(1, 1), (3, 0), (1, 1)]):
        batch = carried.put(piece_of(*sizes))
        pushed = net(batch)
        counted += sizes
        ends = carried.ends(batch)
        for column, (name, kind, each) in enumerate((("n", "low", 1), ("m", "up", 10))):
            mine = np.intersect1d(ends, batch.of_type(kind))
            there = np.array(sizes)[:, column] > 0
            assert pushed[name][mine].ravel().tolist() == list(counted[there, column] * each)
        carried.keep(batch, pushed)
