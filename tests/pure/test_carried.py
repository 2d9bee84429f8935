"""A text cut in pieces whose state is carried gives what the text gives as one chain."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import vertexrt as vrt
from vertexrt import nn
from vertexrt.data import load

PIECES, STREAMS, HIDDEN = 4, 3, 5


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


@pytest.fixture
def text(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for split, count in (("train", 35), ("valid", 20), ("test", 20)):
        words = " ".join(f"w{n}" for n in rng.integers(0, 9, count))
        (tmp_path / f"{split}.txt").write_text(words + "\n")
    return tmp_path


def pieces_of(text: Path) -> list[vrt.GraphBatch]:
    """Return the minibatches of the training text, a piece of each stream in each."""
    cut = load(str(text), format="text", pieces=PIECES, streams=STREAMS)
    train = cut.splits["train"]
    return [train[k : k + STREAMS] for k in range(0, len(train), STREAMS)]


@pytest.mark.parametrize("whole_pushes", [True, False])
def test_pieces_are_one_text(text: Path, whole_pushes: bool) -> None:
    net = vrt.compile(GRUWords(11), device="reference", dtype="float64", seed=1)
    whole = load(str(text), format="text", pieces=12, streams=STREAMS).splits["train"]
    expected = states(whole, net(vrt.CarriedState(net).put(whole))["h"])

    carried, found = vrt.CarriedState(net), []
    for piece in pieces_of(text):
        batch = carried.put(piece)
        outputs = net(batch)
        ends = net(batch, vertices=carried.ends(batch))
        carried.keep(batch, outputs if whole_pushes else ends)
        state, carried = carried.state(), vrt.CarriedState(net)  # another one goes on
        carried.load_state(state)
        found.append(states(batch, outputs["h"]))
    for stream in range(STREAMS):
        parts = [piece[stream] for piece in found if stream < len(piece)]
        np.testing.assert_allclose(np.concatenate(parts), expected[stream], atol=1e-12)


def test_values_of_edges_are_kept() -> None:
    chain = vrt.InputGraph.from_children([[], [0]], {"word": [1, 2]}, {"weight": [0.5]})
    net = vrt.compile(GRUWords(11), device="reference")
    put = vrt.CarriedState(net).put(vrt.GraphBatch.from_graphs([chain]))
    assert np.asarray(put.edge_pulls["weight"]).tolist() == [0.5]


def states(batch: vrt.GraphBatch, pushed: np.ndarray) -> list[np.ndarray]:
    """Return what each graph pushed."""
    return np.split(pushed, batch.graph_ptr[1:-1])


def test_more_chains_than_before_are_refused(text: Path) -> None:
    first, second, *_ = pieces_of(text)
    carried = vrt.CarriedState(vrt.compile(GRUWords(11), device="reference", dtype="float64"))
    assert carried.shapes == {"h": (HIDDEN,)}
    carried.keep(first[:1], {"h": np.ones((first[:1].num_vertices, HIDDEN))})
    with pytest.raises(
        vrt.errors.VertexrtError, match="a minibatch of 3 graphs after one of fewer"
    ):
        carried.put(second)
    carried.restart()
    assert not np.asarray(carried.put(second).pulls["h"].table).any()


def test_what_is_no_state_is_refused(text: Path) -> None:
    first = pieces_of(text)[0]
    carried = vrt.CarriedState(vrt.compile(GRUWords(11), device="reference", dtype="float64"))
    carried.keep(first, {"h": np.ones((first.num_vertices, HIDDEN))})
    state = carried.state()
    for wrong in (
        {},
        {**state, "graphs": 1},
        {**state, "graphs": 1.0},
        {**state, "chains": state["chains"][:1]},
        {**state, "chains": state["chains"] * 1.0},
        {**state, "kept": {"c": state["kept"]["h"]}},
        {**state, "kept": {"h": state["kept"]["h"][:, :1]}},
    ):
        with pytest.raises(vrt.errors.CheckpointError, match=r"^\[carried state\] the state"):
            carried.load_state(wrong)
    assert carried.state()["graphs"] == STREAMS
    carried.restart()
    carried.load_state(carried.state())


class Low(vrt.VertexFunction):
    """Count the vertices of a chain."""

    def __init__(self) -> None:
        super().__init__(state={"n": 1})

    def forward(self) -> None:
        n = self.pull("n", shape=(1,)) + self.gather("before").n + 1.0
        self.scatter(n=n)
        self.push("n", n)


class Up(vrt.VertexFunction):
    """Count the same of another type, by tens."""

    def __init__(self) -> None:
        super().__init__(state={"m": 1})

    def forward(self) -> None:
        m = self.pull("m", shape=(1,)) + self.gather("before").m + 10.0
        self.scatter(m=m)
        self.push("m", m)


class Both(vrt.Model):
    """Two types of chains in each graph."""

    def __init__(self) -> None:
        self.low, self.up = Low(), Up()


def piece_of(*sizes: tuple[int, int]) -> vrt.GraphBatch:
    """Return a graph with a chain of each type for each pair of lengths."""
    return vrt.GraphBatch.from_graphs(
        [
            vrt.InputGraph.from_types(
                {"low": low, "up": up},
                {(t, "before", t): [(i - 1, i) for i in range(1, n)] for t, n in both},
            )
            for low, up in sizes
            for both in [(("low", low), ("up", up))]
        ]
    )


def test_chains_are_those_of_their_graph_where_some_have_no_vertices() -> None:
    """They were counted over all that have some; what has none waits (issue 52)."""
    net = vrt.compile(Both(), device="reference")
    carried, counted = vrt.CarriedState(net), np.zeros((3, 2))
    for sizes in ([(2, 2), (1, 3), (0, 1)], [(2, 0), (2, 2), (0, 1)], [(1, 0), (3, 0), (1, 1)]):
        batch = carried.put(piece_of(*sizes))
        pushed = net(batch)
        counted += sizes
        ends = carried.ends(batch)
        for column, (name, kind, each) in enumerate((("n", "low", 1), ("m", "up", 10))):
            mine = np.intersect1d(ends, batch.of_type(kind))
            there = np.array(sizes)[:, column] > 0
            assert pushed[name][mine].ravel().tolist() == list(counted[there, column] * each)
        carried.keep(batch, pushed)
