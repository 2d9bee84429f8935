"""A tagger that reads a sentence from both ends, and the letters of each word."""

from __future__ import annotations

from typing import Any

import vertexrt as vrt
from vertexrt import nn
from vertexrt.models.bilstm_tagger import Tag


class Letters(vrt.VertexFunction):
    """An LSTM along the letters of a word, in one direction. Pulls `letter`."""

    def __init__(self, letters: int, embed: int, hidden: int) -> None:
        super().__init__(state={"h": hidden, "c": hidden})
        self.embedding = vrt.Parameter((letters, embed), init=vrt.init.normal(0.1))
        self.cell = nn.LSTMCell(embed, hidden)

    def forward(self) -> None:
        """Compute one letter."""
        before = self.gather("before")
        x = vrt.embed(self.embedding, self.pull("letter"))
        h, c = self.cell(x, (before.h, before.c))
        self.scatter(h=h, c=c)


class SpeltWord(vrt.VertexFunction):
    """What is known of a word: its vector, and its letters from both ends. Pulls `word`."""

    def __init__(self, vocab: int, embed: int, forth: Letters, back: Letters) -> None:
        size = embed + forth.state["h"] + back.state["h"]
        super().__init__(state={"x": size}, inputs={"forth": forth, "back": back})
        self.embedding = vrt.Parameter((vocab, embed), init=vrt.init.normal(0.1))

    def forward(self) -> None:
        """Compute one word."""
        word = vrt.embed(self.embedding, self.pull("word"))
        self.scatter(x=vrt.concat(word, self.gather("forth").h, self.gather("back").h))


class SpeltDirection(vrt.VertexFunction):
    """An LSTM along a sentence of spelt words."""

    def __init__(self, word: SpeltWord, hidden: int, dropout: float) -> None:
        super().__init__(state={"h": hidden, "c": hidden}, inputs={"word": word})
        self.cell = nn.LSTMCell(word.state["x"], hidden)
        self.dropout = dropout

    def forward(self) -> None:
        """Compute one word."""
        x, before = vrt.dropout(self.gather("word").x, self.dropout), self.gather("before")
        h, c = self.cell(x, (before.h, before.c))
        self.scatter(h=h, c=c)


class BiLSTMCharTagger(vrt.Model):
    """A bidirectional LSTM tagger over words and letters (Lample et al. 2016; VPPS and DyNet).

    Args:
        vocab, letters: words and letters; embed, embed_letter: elements of their vectors.
        hidden, spelling: elements of the LSTMs over words and over letters.
        tags: classes; dropout: share of zeros.
    """

    def __init__(
        self,
        counts: tuple[int, int, int],
        embed: int,
        hidden: int,
        embed_letter: int = 32,
        spelling: int = 32,
        dropout: float = 0.0,
    ) -> None:
        vocab, letters, tags = counts
        self.forth = Letters(letters, embed_letter, spelling)
        self.back = Letters(letters, embed_letter, spelling)
        self.word = SpeltWord(vocab, embed, self.forth, self.back)
        self.left = SpeltDirection(self.word, hidden, dropout)
        self.right = SpeltDirection(self.word, hidden, dropout)
        self.tag = Tag(self.left, self.right, tags, dropout)


def for_dataset(dataset: Any, **options: Any) -> BiLSTMCharTagger:
    """Build the model for a data set, with `vocabulary`, `letters` and `classes`."""
    counts = len(dataset.vocabulary), len(dataset.letters), dataset.classes
    return BiLSTMCharTagger(counts, **options)
