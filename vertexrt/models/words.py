"""Words that are looked up, and spelt: the lowest vertex types of many models."""

from __future__ import annotations

import vertexrt as vrt
from vertexrt import nn


class LookedUpWord(vrt.VertexFunction):
    """Look a word up. Pulls `word`.

    Args:
        vocab: words; embed: elements; init: of their vectors.
    """

    def __init__(self, vocab: int, embed: int, init: vrt.init.Initializer) -> None:
        super().__init__(state={"h": embed})
        self.weight = vrt.Parameter((vocab, embed), init)

    def forward(self) -> None:
        """Compute one word."""
        self.scatter(h=vrt.embed(self.weight, self.pull("word")))


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
        known = vrt.random.dropout(vrt.ones(1), self.dropout)[
            0
        ]  # of a whole word: its letters must do
        word = known * vrt.embed(self.weight, self.pull("word"))
        self.scatter(h=vrt.concat(word, self.gather("forth").h, self.gather("back").h))
