"""A tagger that reads a sentence from both ends, and the letters of each word."""

from __future__ import annotations

import vertexrt as vrt
from vertexrt import nn
from vertexrt.models.bilstm_tagger import Direction, Tag


class Letters(vrt.VertexFunction):
    """An LSTM along the letters of a word, in one direction. Pulls `letter`."""

    def __init__(self, letters: int, hidden: int) -> None:
        super().__init__(state={"h": hidden, "c": hidden})
        self.embedding = vrt.Parameter((letters, hidden), init=vrt.init.normal(0.1))
        self.cell = nn.LSTMCell(hidden, hidden)

    def forward(self) -> None:
        """Compute one letter."""
        x, before = vrt.embed(self.embedding, self.pull("letter")), self.gather("before")
        h, c = self.cell(x, (before.h, before.c))
        self.scatter(h=h, c=c)


class SpeltWord(vrt.VertexFunction):
    """What is known of a word: its vector, and its letters from both ends. Pulls `word`."""

    def __init__(
        self, vocab: int, embed: int, forth: Letters, back: Letters, dropout: float
    ) -> None:
        size = embed + forth.state["h"] + back.state["h"]
        super().__init__(state={"h": size}, inputs={"forth": forth, "back": back})
        self.weight = vrt.Parameter((vocab, embed), init=vrt.init.normal(0.1))
        self.dropout = dropout

    def forward(self) -> None:
        """Compute one word."""
        known = vrt.dropout(vrt.ones(1), self.dropout)[0]  # of a whole word: its letters must do
        word = known * vrt.embed(self.weight, self.pull("word"))
        self.scatter(h=vrt.concat(word, self.gather("forth").h, self.gather("back").h))


class BiLSTMCharTagger(vrt.Model):
    """A bidirectional LSTM tagger over words and letters (Lample et al. 2016; VPPS and DyNet).

    Args:
        vocab, num_letter, classes: words, letters and tags; dropout: share of zeros.
        embed, hidden: elements of a word and of the LSTMs over words; spelling: over letters.
    """

    def __init__(
        self,
        vocab: int,
        num_letter: int,
        classes: int,
        embed: int,
        hidden: int,
        spelling: int = 32,
        dropout: float = 0.0,
    ) -> None:
        self.forth, self.back = Letters(num_letter, spelling), Letters(num_letter, spelling)
        self.word = SpeltWord(vocab, embed, self.forth, self.back, 0.5 * dropout)
        self.left, self.right = (Direction(self.word, hidden, dropout) for _ in range(2))
        self.tag = Tag(self.left, self.right, classes)
