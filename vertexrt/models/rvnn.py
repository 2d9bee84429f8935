"""A recursive neural network: one layer composes the vectors of two phrases."""

from collections.abc import Sequence

import vertexrt as vrt
from vertexrt import nn


class RvNN(vrt.VertexFunction):
    """h = tanh(W [left, right] + b), of words their vectors (Socher et al., ICML 2011).

    Pulls `word` (leaves) and `label`; pushes `logits` and `loss`. Over a tree it is RvNN; over a
    pyramid, in which neighbours share a child, it is the time-delay network TD-RNN of VPPS
    (Khorasani et al., MICRO 2018; Waibel et al. 1989).

    Args:
        vocab: words; hidden: elements; classes: labels.
        dropout: share of zeros in the words and in the classifier's input.
        class_weights: of the loss.
    """

    def __init__(
        self,
        vocab: int,
        hidden: int,
        classes: int,
        dropout: float = 0.0,
        class_weights: Sequence[float] | None = None,
    ) -> None:
        super().__init__(arity=2, state={"h": hidden})
        self.embedding = vrt.Parameter((vocab, hidden), init=vrt.init.normal(0.1))
        self.compose = nn.Linear(2 * hidden, hidden)
        self.out = nn.Linear(hidden, classes)
        self.dropout, self.class_weights = dropout, class_weights

    def forward(self) -> None:
        """Compute one vertex."""
        both = vrt.concat(self.gather(0).h, self.gather(1).h)
        word = vrt.random.dropout(vrt.embed(self.embedding, self.pull("word")), self.dropout)
        h = word + self.present(0) * vrt.tanh(self.compose(both))
        self.scatter(h=h)
        logits = self.push("logits", self.out(vrt.random.dropout(h, self.dropout)))
        self.push(
            "loss", vrt.losses.cross_entropy(logits, self.pull("label"), weights=self.class_weights)
        )
