"""A tagger that reads a sentence from both ends."""

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


class Direction(vrt.VertexFunction):
    """An LSTM along a sentence; `before` is the word before in the direction of reading."""

    def __init__(self, word: vrt.VertexFunction, hidden: int, dropout: float) -> None:
        super().__init__(state={"h": hidden, "c": hidden}, inputs={"word": word})
        self.cell, self.dropout = nn.LSTMCell(word.state["h"], hidden), dropout

    def forward(self) -> None:
        """Compute one word."""
        x, before = vrt.random.dropout(self.gather("word").h, self.dropout), self.gather("before")
        h, c = self.cell(x, (before.h, before.c))
        self.scatter(h=h, c=c)


class Tag(vrt.VertexFunction):
    """Classify a word by what was read before and after it. Pulls `label`."""

    def __init__(self, left: Direction, right: Direction, tags: int) -> None:
        super().__init__(state={}, inputs={"left": left, "right": right})
        self.out = nn.Linear(left.state["h"] + right.state["h"], tags)
        self.dropout = left.dropout

    def forward(self) -> None:
        """Compute one word."""
        both = vrt.concat(self.gather("left").h, self.gather("right").h)
        logits = self.push("logits", self.out(vrt.random.dropout(both, self.dropout)))
        self.push("loss", vrt.losses.cross_entropy(logits, self.pull("label")))


class BiLSTMTagger(vrt.Model):
    """A bidirectional LSTM tagger (Huang et al. 2015; the BiLSTM of VPPS and DyNet).

    Args:
        vocab: words; embed, hidden: elements; classes: tags; dropout: share of zeros.
    """

    def __init__(
        self, vocab: int, embed: int, hidden: int, classes: int, dropout: float = 0.0
    ) -> None:
        self.word = LookedUpWord(vocab, embed, vrt.init.normal(0.1))
        self.left = Direction(self.word, hidden, dropout)
        self.right = Direction(self.word, hidden, dropout)
        self.tag = Tag(self.left, self.right, classes)
