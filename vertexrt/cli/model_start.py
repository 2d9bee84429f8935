"""A network of yours, which `vertexrt new` has begun. It trains as it stands:

    vertexrt train FILE:MyNet --data DATA --task classification --lr 0.01
    vertexrt predict RUN --model FILE:MyNet --data DATA --out predictions.jsonl

RUN is the folder that training names. The data are expressions such as (true and (not false)): a
line of DATA is a tree, in which a vertex has its children, a word, and a label to learn.
"""

from __future__ import annotations

import vertexrt as vrt


class MyNet(vrt.VertexFunction):
    """A tree RNN: a vertex mixes its word with the sum of what its children found."""

    # Arguments with a default are options: --set hidden=64, or --hidden 64. Those without one come
    # from the data: `vocab` is the number of words of the pull "word", `classes` that of the labels
    # of the pull "label", `num_NAME` the number of words of a pull NAME of yours.
    # `--class-weights` gives `class_weights`, by which rare classes may count more.
    def __init__(
        self,
        vocab: int,
        classes: int,
        hidden: int = 32,
        dropout: float = 0.0,
        class_weights: tuple[float, ...] | None = None,
    ) -> None:
        super().__init__(state={"h": hidden})  # what a vertex hands to its parents
        self.dropout, self.class_weights = dropout, class_weights
        self.embedding = vrt.Parameter((vocab, hidden))
        self.word = vrt.nn.Linear(hidden, 2 * hidden)
        self.children = vrt.nn.Linear(hidden, 2 * hidden)
        self.classify = vrt.nn.Linear(hidden, classes)

    def forward(self) -> None:
        """Compute one vertex. Shapes are those of one vertex; there is no batch axis."""
        word = vrt.embed(self.embedding, self.pull("word"))  # pull: read what the data say
        below = vrt.sum(self.gather_all().h, axis="children")  # gather: read the children
        gate, new = vrt.split(self.word(word) + self.children(below), 2)
        h = vrt.sigmoid(gate) * vrt.tanh(new)
        self.scatter(h=h)  # scatter: show the state to the parents
        logits = self.classify(vrt.random.dropout(h, self.dropout))
        self.push("logits", logits)  # push: what `--task classification` judges, and
        label = self.pull("label")
        loss = vrt.losses.cross_entropy(logits, label, weights=self.class_weights)
        self.push("loss", loss)  # what training makes less
