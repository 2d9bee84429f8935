"""Decoding: greedy, beam search and draws, of sequences and trees, against NumPy in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vertexrt as vrt
from tests.declared import Declared
from tests.lstm_chains import ON_CPU, WAYS
from tests.runs import Way
from vertexrt.errors import GraphError, UsageError

WORDS, SLOTS, HIDDEN, LENGTH = 9, 3, 8, 12
SEQUENCE = [0, 1, 1, 1, 1, 1, 1, 1, 1]  # children of each word: the first one ends
TREE = [0, 2, 0, 1, 3, 0, 2, 0, 0]


class Step(
    Declared,
    state={},
    word=(WORDS, HIDDEN),
    slot=(SLOTS, HIDDEN),
    inner=(HIDDEN, HIDDEN),
    out=(WORDS, HIDDEN),
):
    """One word; the state that its parent, or the word before, has left is pulled."""

    def forward(self) -> None:
        """Compute one vertex."""
        given = vrt.embed(self.word, self.pull("word")) + vrt.embed(self.slot, self.pull("slot"))
        h = self.push("h", vrt.tanh(given + self.inner @ self.pull("h", shape=(HIDDEN,))))
        self.push("logits", self.out @ h)


def step(p: dict[str, Any], todo: Any) -> tuple[Any, Any]:
    """Return the state and the log probabilities of a vertex that is to be made."""
    h, word, slot, _ = todo
    h = np.tanh(p["word"][word] + p["slot"][slot] + p["inner"] @ h)
    logits = p["out"] @ h
    return h, logits - np.log(np.exp(logits).sum())


def by_hand(
    p: dict[str, Any], first: Any, children: list[int], beams: int, penalty: float
) -> list[Any]:
    """Search; a hypothesis is words, parents, score and vertices to be made, depth first."""
    live: list[Any] = [([], [], 0.0, [first])]
    done: list[Any] = []
    for _ in range(LENGTH):
        grown = []
        for words, parents, score, (now, *rest) in live:
            h, scores = step(p, now)
            for word, count in enumerate(children):
                todo = [(h, word, slot, len(words)) for slot in range(count)] + rest
                after = [*words, word], [*parents, now[3]], score + scores[word], todo
                grown.append(after)
        grown.sort(key=lambda one: -one[2])
        best = grown[: beams - len(done)]
        done += [one for one in best if not one[3]]
        live = [one for one in best if one[3]]
    both = (
        sorted(
            ((w, above, s / len(w) ** penalty, len(todo)) for w, above, s, todo in each),
            key=lambda one: -one[2],
        )
        for each in (done, live)
    )
    return [one for each in both for one in each]


def made(way: Way, count: int = 3) -> tuple[Any, Any, Any]:
    """Return a network, first steps with other words and states, and its parameters."""
    net = way.compile(Step())
    rng = np.random.default_rng(5)
    graphs = [
        vrt.InputGraph.chain(
            1, {"word": [int(k)], "slot": [0], "h": rng.normal(size=(1, HIDDEN)).astype("f")}
        )
        for k in rng.integers(0, WORDS, count)
    ]
    p = {name: np.asarray(value, np.float64) for name, value in net.parameters.items()}
    return net, vrt.GraphBatch.from_graphs(graphs), p


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("children", [SEQUENCE, TREE], ids=["sequence", "tree"])
@pytest.mark.parametrize("beams", [1, 4])
def test_searches_are_those_by_hand(way: Way, children: list[int], beams: int) -> None:
    net, batch, p = made(way)
    kind = {"end": 0} if children is SEQUENCE else {"children": children}
    decoder = vrt.Decoder(net, batch, num_beams=beams)
    found = decoder(max_length=LENGTH, length_penalty=0.6, **kind)
    pulls = batch.pulls
    for k, several in enumerate(found):
        first = pulls["h"][k], pulls["word"][k], 0, -1
        wanted = by_hand(p, first, children, beams, 0.6)
        for one, (words, parents, score, missing) in zip(several, wanted, strict=True):
            assert (list(one.words), list(one.parents)) == (words, parents)
            assert np.isclose(one.score, score, atol=1e-4)
            assert one.missing == missing
    assert any(not one.missing for each in found for one in each)


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"), [(0.7, 0, 1.0), (1.5, 4, 1.0), (1.0, 0, 0.8), (2.0, 5, 0.7)]
)
def test_words_are_drawn_by_their_probabilities(
    temperature: float, top_k: int, top_p: float
) -> None:
    count = 20_000
    net, batch, p = made(ON_CPU, 1)
    many = vrt.Decoder(net, batch.take(np.zeros(count, int)))
    options: dict[str, Any] = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    found = many(max_length=1, seed=6, **options)
    assert found == many(max_length=1, seed=6, **options)
    assert found != many(max_length=1, seed=7, **options)
    _, scores = step(p, (batch.pulls["h"][0], batch.pulls["word"][0], 0, -1))
    order = np.argsort(-scores)
    share = np.exp(scores[order] / temperature)
    share[top_k or WORDS :] = 0.0
    share /= share.sum()
    keep = int(np.searchsorted(np.cumsum(share), top_p)) + 1  # the fewest that reach it
    share[keep:] = 0.0
    wanted = np.zeros(WORDS)
    wanted[order] = share / share.sum()
    words = np.array([one.words[0] for (one,) in found])
    counts = np.bincount(words, minlength=WORDS)
    assert (counts[wanted == 0.0] == 0).all()
    assert np.abs(counts / count - wanted).max() < 4 * np.sqrt(0.25 / count)
    assert np.allclose([one.score for (one,) in found], scores[words], atol=1e-4)


def test_mistakes_are_named() -> None:
    net, batch, _ = made(WAYS[0])
    for options, text in (
        ({"max_length": 0}, "max_length must be a whole number, 1 or more"),
        ({"end": WORDS}, "end must be a word, 0 to 8"),
        ({"children": [1]}, r"children must be whole numbers \[9\]"),
        ({"top_p": 0.0}, "top_p must be a number above 0"),
        ({"temperature": -1.0}, "temperature must be 0, or above it without beams"),
    ):
        with pytest.raises(UsageError, match=text):
            vrt.Decoder(net, batch)(**{"max_length": 3, **options})  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="num_beams must be a whole number"):
        vrt.Decoder(net, batch, num_beams=0)
    absent = batch.with_pulls({"word": [1, -1, 2]})
    with pytest.raises(GraphError, match="graph 1 has 0 vertices that pull 'word'; 1 in each"):
        vrt.Decoder(net, absent)
