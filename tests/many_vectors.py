"""A function with many parameters, all of which one loop reads."""

from __future__ import annotations

import vertexrt as vrt
from vertexrt.graph import GraphBatch, InputGraph


class ManyVectors(vrt.VertexFunction):
    """A state of a tree and the sum of so many vectors; leaves are made outside the path."""

    def __init__(self, vectors: int) -> None:
        super().__init__(arity=2, state={"h": 4})
        self.each = [vrt.Parameter((4,)) for _ in range(vectors)]

    def forward(self) -> None:
        h = vrt.tanh(self.gather(0).h)
        for vector in self.each:
            h = h + vector
        self.scatter(h=h)
        self.push("loss", vrt.sum(h * h))


def two_chains() -> GraphBatch:
    """Return chains of two vertices and of three."""
    return GraphBatch.from_graphs([InputGraph.chain(2), InputGraph.chain(3)])
