"""Tree-FC: one fully connected layer at every vertex of a complete binary tree."""

import vertexrt as vrt


class TreeFC(vrt.VertexFunction):
    """The synthetic benchmark of TensorFlow Fold and Cavs: h = relu(w [left, right] + b).

    (Looks et al., ICLR 2017; Cavs section 5.) Leaves start from an embedding. Pulls `word` (leaves)
    and `target` (root, one number); pushes `loss`, the squared error of a linear read-out.

    Args:
        vocab: leaf symbols; hidden: elements.
    """

    def __init__(self, vocab: int, hidden: int) -> None:
        super().__init__(arity=2, state={"h": hidden})
        self.embedding = vrt.Parameter((vocab, hidden), init=vrt.init.normal(0.1))
        self.w = vrt.Parameter((hidden, 2 * hidden))
        self.b = vrt.Parameter((hidden,), init=vrt.init.zeros)
        self.v = vrt.Parameter((1, hidden))

    def forward(self) -> None:
        """Compute one vertex."""
        left, right = self.gather(0), self.gather(1)
        word = vrt.embed(self.embedding, self.pull("word"))
        has_children = self.present(0)
        inner = vrt.relu(self.w @ vrt.concat(left.h, right.h) + self.b)
        h = word + has_children * inner
        self.scatter(h=h)
        target = self.pull("target", shape=(1,), dtype="float")
        output = self.push("output", self.v @ h)
        self.push("loss", self.present("target") * vrt.losses.squared_error(output, target))
