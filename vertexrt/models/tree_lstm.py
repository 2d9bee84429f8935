"""Tree-LSTM with a sentiment label at every vertex."""

from collections.abc import Sequence

import vertexrt as vrt


class TreeLSTM(vrt.VertexFunction):
    """Child-sum Tree-LSTM over `arity` children (Tai et al., ACL 2015; Cavs figure 4).

    Each child has a forget gate of its own; input, output and update come from the sum of the
    children's h. Pulls `word` (leaves) and `label`; pushes `logits` and `loss`.

    Args:
        vocab: words; embed, hidden: elements; classes: labels.
        arity: largest number of children.
        dropout: share of zeros in the classifier's input and in the embeddings.
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
        super().__init__(arity=arity, state={"c": hidden, "h": hidden})
        self.dropout, self.class_weights = dropout, class_weights
        self.embedding = vrt.Parameter((vocab, embed), init=vrt.init.normal(0.1))
        self.w = vrt.Parameter((4 * hidden, embed))  # i, f, o, u
        self.u_iou = vrt.Parameter((3 * hidden, hidden))
        self.u_f = vrt.Parameter((hidden, hidden))
        self.b = vrt.Parameter((4 * hidden,), init=vrt.init.zeros)
        self.v = vrt.Parameter((classes, hidden))

    def forward(self) -> None:
        """Compute one vertex."""
        children = [self.gather(k) for k in range(self.arity or 0)]
        word = vrt.embed(self.embedding, self.pull("word"))
        x_i, x_f, x_o, x_u = vrt.split(self.w @ vrt.random.dropout(word, self.dropout) + self.b, 4)
        h_sum = sum(child.h for child in children)
        u_i, u_o, u_u = vrt.split(self.u_iou @ h_sum, 3)
        c = vrt.sigmoid(x_i + u_i) * vrt.tanh(x_u + u_u)
        for child in children:
            c = c + vrt.sigmoid(x_f + self.u_f @ child.h) * child.c
        h = vrt.sigmoid(x_o + u_o) * vrt.tanh(c)
        self.scatter(c=c, h=h)
        logits = self.push("logits", self.v @ vrt.random.dropout(h, self.dropout))
        self.push(
            "loss", vrt.losses.cross_entropy(logits, self.pull("label"), weights=self.class_weights)
        )
