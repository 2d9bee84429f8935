"""Child-sum Tree-LSTM with a sentiment label at every vertex, over any number of children."""

from collections.abc import Sequence

import vertexrt as vrt
from vertexrt import nn


class ChildSumTreeLSTM(vrt.VertexFunction):
    """Child-sum Tree-LSTM (Tai et al., ACL 2015, section 3.1), the one of its dependency trees.

    A vertex may have any number of children, and a word of its own as well. Pulls `word` and
    `label`; pushes `logits` and `loss`.

    Args:
        vocab: words; embed, hidden: elements; classes: labels.
        dropout: share of zeros in the words and in the classifier's input.
        class_weights: of the loss.
    """

    def __init__(
        self,
        vocab: int,
        embed: int,
        hidden: int,
        classes: int,
        dropout: float = 0.0,
        class_weights: Sequence[float] | None = None,
    ) -> None:
        super().__init__(state={"h": hidden, "c": hidden})
        self.embedding = vrt.Parameter((vocab, embed), init=vrt.init.normal(0.1))
        self.cell = nn.ChildSumTreeLSTMCell(embed, hidden)
        self.out = nn.Linear(hidden, classes)
        self.dropout, self.class_weights = dropout, class_weights

    def forward(self) -> None:
        """Compute one vertex."""
        word = vrt.random.dropout(vrt.embed(self.embedding, self.pull("word")), self.dropout)
        h, c = self.cell(word, self.gather_all())
        self.scatter(h=h, c=c)
        logits = self.push("logits", self.out(vrt.random.dropout(h, self.dropout)))
        self.push(
            "loss", vrt.losses.cross_entropy(logits, self.pull("label"), weights=self.class_weights)
        )
