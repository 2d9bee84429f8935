"""N-ary Tree-LSTM with a sentiment label at every vertex: each slot has weights of its own."""

from collections.abc import Sequence

import vertexrt as vrt
from vertexrt import nn


class NaryTreeLSTM(vrt.VertexFunction):
    """N-ary Tree-LSTM (Tai et al., ACL 2015, section 3.2), the one of its constituency trees.

    Pulls `word` (leaves) and `label`; pushes `logits` and `loss`.

    Args:
        vocab: words; embed, hidden: elements; classes: labels.
        arity: slots; dropout: share of zeros in the words and in the classifier's input.
        class_weights: of the loss.
    """

    def __init__(
        self,
        vocab: int,
        embed: int,
        hidden: int,
        classes: int,
        arity: int = 2,
        dropout: float = 0.0,
        class_weights: Sequence[float] | None = None,
    ) -> None:
        super().__init__(arity=arity, state={"h": hidden, "c": hidden})
        self.embedding = vrt.Parameter((vocab, embed), init=vrt.init.normal(0.1))
        self.cell = nn.NaryTreeLSTMCell(embed, hidden, arity)
        self.out = nn.Linear(hidden, classes)
        self.dropout, self.class_weights = dropout, class_weights

    def forward(self) -> None:
        """Compute one vertex."""
        children = [self.gather(k) for k in range(self.arity or 0)]
        word = vrt.random.dropout(vrt.embed(self.embedding, self.pull("word")), self.dropout)
        h, c = self.cell(word, [(child.h, child.c) for child in children])
        self.scatter(h=h, c=c)
        logits = self.push("logits", self.out(vrt.random.dropout(h, self.dropout)))
        self.push(
            "loss", vrt.losses.cross_entropy(logits, self.pull("label"), weights=self.class_weights)
        )
