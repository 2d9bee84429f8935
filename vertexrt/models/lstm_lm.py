"""An LSTM language model over chains: a sequence is a graph in which each word has one child."""

from __future__ import annotations

import vertexrt as vrt


class LSTMLanguageModel(vrt.VertexFunction):
    """Predict the next word (Hochreiter and Schmidhuber 1997; Zaremba et al. 2014).

    The child in slot 0 is the word before. Pulls `word` and `label` (the next word); pushes
    `logits` and `loss`, so that exp of the mean loss is the perplexity.

    Args:
        vocab: words; embed, hidden: elements.
        dropout: share of zeros in the embedding and in the input of the softmax.
    """

    def __init__(self, vocab: int, embed: int, hidden: int, dropout: float = 0.0) -> None:
        super().__init__(arity=1, state={"c": hidden, "h": hidden})
        self.dropout = dropout
        self.embedding = vrt.Parameter((vocab, embed), init=vrt.init.uniform(0.1))
        self.w = vrt.Parameter((4 * hidden, embed))  # i, f, o, u
        self.u = vrt.Parameter((4 * hidden, hidden))
        self.b = vrt.Parameter((4 * hidden,), init=vrt.init.zeros)
        self.v = vrt.Parameter((vocab, hidden))
        self.v_b = vrt.Parameter((vocab,), init=vrt.init.zeros)

    def forward(self) -> None:
        """Compute one word."""
        before = self.gather(0)
        word = vrt.dropout(vrt.embed(self.embedding, self.pull("word")), self.dropout)
        i, f, o, u = vrt.split(self.w @ word + self.b + self.u @ before.h, 4)
        c = vrt.sigmoid(i) * vrt.tanh(u) + vrt.sigmoid(f) * before.c
        h = vrt.sigmoid(o) * vrt.tanh(c)
        self.scatter(c=c, h=h)
        logits = self.push("logits", self.v @ vrt.dropout(h, self.dropout) + self.v_b)
        self.push("loss", vrt.cross_entropy(logits, self.pull("label")))
