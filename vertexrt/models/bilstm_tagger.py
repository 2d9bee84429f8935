"""A tagger that reads a sentence from both ends."""

from __future__ import annotations

import vertexrt as vrt
from vertexrt import nn


class Direction(vrt.VertexFunction):
    """An LSTM along a sentence; `before` is the word before in the direction of reading.

    Pulls `word`.
    """

    def __init__(self, vocab: int, embed: int, hidden: int, dropout: float) -> None:
        super().__init__(state={"h": hidden, "c": hidden})
        self.embedding = vrt.Parameter((vocab, embed), init=vrt.init.normal(0.1))
        self.cell = nn.LSTMCell(embed, hidden)
        self.dropout = dropout

    def forward(self) -> None:
        """Compute one word."""
        before = self.gather("before")
        word = vrt.dropout(vrt.embed(self.embedding, self.pull("word")), self.dropout)
        h, c = self.cell(word, (before.h, before.c))
        self.scatter(h=h, c=c)


class Tag(vrt.VertexFunction):
    """Classify a word by what was read before and after it. Pulls `label`."""

    def __init__(
        self, left: vrt.VertexFunction, right: vrt.VertexFunction, tags: int, dropout: float
    ) -> None:
        super().__init__(state={}, inputs={"left": left, "right": right})
        self.out = nn.Linear(left.state["h"] + right.state["h"], tags)
        self.dropout = dropout

    def forward(self) -> None:
        """Compute one word."""
        both = vrt.concat(self.gather("left").h, self.gather("right").h)
        logits = self.push("logits", self.out(vrt.dropout(both, self.dropout)))
        self.push("loss", vrt.cross_entropy(logits, self.pull("label")))


class BiLSTMTagger(vrt.Model):
    """A bidirectional LSTM tagger (Huang et al. 2015; the BiLSTM of VPPS and DyNet).

    Args:
        vocab: words; embed, hidden: elements; classes: tags; dropout: share of zeros.
    """

    def __init__(
        self, vocab: int, embed: int, hidden: int, classes: int, dropout: float = 0.0
    ) -> None:
        self.left = Direction(vocab, embed, hidden, dropout)
        self.right = Direction(vocab, embed, hidden, dropout)
        self.right.embedding = self.left.embedding
        self.tag = Tag(self.left, self.right, classes, dropout)
