"""Translate a sentence: a decoder that attends over the states of an encoder."""

import vertexrt as vrt
from vertexrt import nn


class Encoder(vrt.VertexFunction):
    """A GRU along the source. Pulls `word`. Hands up its key for the attention, computed once."""

    def __init__(self, vocab: int, embed: int, hidden: int) -> None:
        super().__init__(state={"h": hidden, "key": hidden})
        self.embedding = vrt.Parameter((vocab, embed), init=vrt.init.normal(0.1))
        self.cell, self.key = nn.GRUCell(embed, hidden), vrt.Parameter((hidden, hidden))

    def forward(self) -> None:
        """Compute one word of the source."""
        h = self.cell(vrt.embed(self.embedding, self.pull("word")), self.gather("before").h)
        self.scatter(h=h, key=self.key @ h)


class Decoder(vrt.VertexFunction):
    """A GRU along the target, which begins with the last state of the encoder.

    Pulls `said`, the word before, and `label`, the word to be said.
    """

    def __init__(self, encoder: Encoder, vocab: int, embed: int) -> None:
        hidden = encoder.state["h"]
        super().__init__(state={"h": hidden}, inputs={"start": encoder, "source": encoder})
        self.embedding = vrt.Parameter((vocab, embed), init=vrt.init.normal(0.1))
        self.query = vrt.Parameter((hidden, hidden))
        self.score = vrt.Parameter((hidden,), init=vrt.init.normal(0.1))
        self.cell = nn.GRUCell(embed + hidden, hidden)
        self.out = nn.Linear(2 * hidden, vocab)

    def forward(self) -> None:
        """Compute one word of the target."""
        before = self.gather("before").h + self.gather("start").h
        source = self.gather_all("source")
        match = vrt.tanh(source.key + self.query @ before)
        share = vrt.softmax(vrt.sum(self.score * match, axis="elements"), axis="children")
        context, said = vrt.sum(share * source.h), vrt.embed(self.embedding, self.pull("said"))
        h = self.cell(vrt.concat(said, context), before)
        self.scatter(h=h)
        logits = self.push("logits", self.out(vrt.concat(h, context)))
        self.push("loss", vrt.losses.cross_entropy(logits, self.pull("label")))


class Seq2Seq(vrt.Model):
    """Sequence to sequence with additive attention (Bahdanau, Cho and Bengio, ICLR 2015).

    Args:
        vocab, num_said: words of the source and of the target; embed, hidden: elements.
    """

    def __init__(self, vocab: int, num_said: int, embed: int, hidden: int) -> None:
        self.encoder = Encoder(vocab, embed, hidden)
        self.decoder = Decoder(self.encoder, num_said, embed)
