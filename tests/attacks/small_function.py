"""A small vertex function, of which attacks evaluate batches."""

from __future__ import annotations

import vertexrt as vrt

WORDS, CLASSES, HIDDEN, MARK = 7, 3, 3, 2
SLOTS = (1.0, 0.5)  # weights of the two slots


class Small(vrt.VertexFunction):
    """Tree network: two slots of different weight, or the sum over any number of children.

    Args:
        dropped: share of `out` that training drops.
    """

    def __init__(self, slots: bool = True, dropped: float = 0.0) -> None:
        super().__init__(arity=len(SLOTS) if slots else None, state={"h": HIDDEN})
        self.dropped = dropped
        self.e = vrt.Parameter((WORDS, HIDDEN))
        self.a = vrt.Parameter((HIDDEN, HIDDEN))
        self.u = vrt.Parameter((HIDDEN, MARK))
        self.b = vrt.Parameter((HIDDEN,))
        self.v = vrt.Parameter((CLASSES, HIDDEN))

    def forward(self) -> None:
        if self.arity is None:
            below = vrt.sum(self.gather_all().h)
        else:
            below = sum(w * self.gather(k).h for k, w in enumerate(SLOTS))
        x = vrt.embed(self.e, self.pull("word")) + self.u @ self.pull("mark", shape=(MARK,))
        h = vrt.tanh(x + self.a @ below + self.pull("gain") * self.b)
        self.scatter(h=h)
        h = vrt.random.dropout(h, self.dropped) if self.dropped else h
        out = self.push("out", self.v @ h)
        self.push("loss", vrt.losses.cross_entropy(out, self.pull("label")))
