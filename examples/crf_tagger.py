"""A conditional random field over a chain: the loss is of whole sequences of tags.

Run: python examples/crf_tagger.py
Source: Lafferty, McCallum and Pereira 2001; the forward algorithm runs along the chain.
"""

from __future__ import annotations

import numpy as np

import vertexrt as vrt
from vertexrt import nn

WORDS, TAGS, HIDDEN = 12, 3, 8


class CRF(vrt.VertexFunction):
    """A GRU scores tags; `alpha` is the log-sum of the scores of all paths to each tag.

    Pulls `word`, `tag`, `tag_before` (absent at the first word) and `last` (1.0 at the last word).
    """

    def __init__(self) -> None:
        super().__init__(arity=1, state={"h": HIDDEN, "alpha": TAGS})
        self.embedding = nn.Embedding(WORDS, HIDDEN)
        self.cell, self.out = nn.GRUCell(HIDDEN, HIDDEN), nn.Linear(HIDDEN, TAGS)
        self.into = [vrt.Parameter((TAGS,), vrt.init.normal(0.1)) for _ in range(TAGS)]

    def forward(self) -> None:
        before = self.gather(0)
        h = self.cell(self.embedding(self.pull("word")), before.h)
        score = self.out(h)
        tag, tag_before = self.pull_index("tag"), self.pull_index("tag_before")
        paths = [vrt.logsumexp(before.alpha + row) for row in self.into]
        alpha = score + self.present(0) * vrt.stack(*paths)
        self.scatter(h=h, alpha=alpha)
        moves = vrt.stack(*((row * 1.0)[tag_before] for row in self.into))
        of_tags = score[tag] + self.present(0) * moves[tag]
        last = self.pull("last")
        self.push("score", score)
        self.push("loss", last * vrt.logsumexp(alpha) - of_tags)


def sentence(rng: np.random.Generator) -> vrt.InputGraph:
    """Draw words; a tag is the word's remainder, plus one where the tag before was 2."""
    words = rng.integers(0, WORDS, int(rng.integers(3, 9)))
    tags: list[int] = []
    for word in words:
        tags.append(int(word + (tags[-1:] == [2])) % TAGS)
    last = np.zeros(len(words))
    last[-1] = 1.0
    pulls = {"word": words, "tag": np.array(tags), "tag_before": np.array([-1, *tags[:-1]])}
    return vrt.InputGraph.chain(len(words), {**pulls, "last": last})


def best(score: np.ndarray, moves: np.ndarray) -> list[int]:
    """Return the most probable tags (Viterbi 1967), given scores [V, TAGS] and moves [to, from]."""
    total, back = score[0], []
    for each in score[1:]:
        ways = total + moves
        back.append(ways.argmax(axis=1))
        total = each + ways.max(axis=1)
    tags = [int(total.argmax())]
    for each in reversed(back):
        tags.append(int(each[tags[-1]]))
    return tags[::-1]


def main(steps: int = 60) -> float:
    """Train on 50 sentences; return the last loss over the first."""
    rng = np.random.default_rng(0)
    batch = vrt.GraphBatch.from_graphs([sentence(rng) for _ in range(50)])
    net, optimizer = vrt.compile(CRF(), seed=0), vrt.Adam(lr=0.03)
    losses = [net.step(batch, optimizer) for _ in range(steps)]
    print(f"-log p(tags): {losses[0]:.3f} at first, {losses[-1]:.3f} after {steps} steps")
    unseen = vrt.GraphBatch.from_graphs([sentence(rng) for _ in range(200)])
    score, moves = (
        net(unseen)["score"],
        np.array([net.parameters[f"into.{k}"] for k in range(TAGS)]),
    )
    starts = zip(unseen.graph_ptr[:-1], unseen.graph_ptr[1:], strict=True)
    right = [best(score[a:b], moves) == unseen.pulls["tag"][a:b].tolist() for a, b in starts]
    print(f"sentences not seen before of which all tags are right: {np.mean(right):.1%}")
    return losses[-1] / losses[0]


if __name__ == "__main__":
    main()
