"""A directed acyclic graph whose edges have kinds and numbers: weights by relation, edge features.

Run: python examples/relations.py
Source: weights by relation as in Schlichtkrull et al. 2018, over children instead of neighbours.
"""

from __future__ import annotations

import numpy as np

import vertexrt as vrt
from vertexrt import nn

KINDS, HIDDEN = 3, 10


class RelationNet(vrt.VertexFunction):
    """A vertex reads all its children, each through the weights of the edge's kind.

    Edges pull `kind` and `weight`; leaves pull `number`; every vertex pulls `target`.
    """

    def __init__(self) -> None:
        super().__init__(state={"h": HIDDEN})
        self.number = nn.Linear(1, HIDDEN, bias=False)
        self.by_kind = [nn.Linear(HIDDEN, HIDDEN, bias=False) for _ in range(KINDS)]
        self.of_edge = vrt.Parameter((HIDDEN,), vrt.init.normal(0.1))
        self.out = nn.Linear(HIDDEN, 1)

    def forward(self) -> None:
        children, weight = self.gather_all().h, self.edge("weight")
        kind = self.edge_index("kind")
        message = weight * self.of_edge
        for number, linear in enumerate(self.by_kind):
            message = message + (kind == number) * (linear(children) * weight)
        h = self.number(self.pull("number", shape=1)) + vrt.sum(message)
        self.scatter(h=h)
        output = self.push("output", self.out(h))
        self.push(
            "loss", vrt.losses.squared_error(output, self.pull("target", shape=1, dtype="float"))
        )


def graph(rng: np.random.Generator, leaves: int = 3, inner: int = 4) -> vrt.InputGraph:
    """Draw edges to earlier vertices; a value is a sum of weighed children.

    An edge of kind 0 reads the value of its child, of kind 1 its negative, of kind 2 its half.
    """
    values = list(rng.uniform(-1.0, 1.0, leaves))
    children: list[list[int]] = [[] for _ in range(leaves)]
    kinds, weights = [], []
    for vertex in range(leaves, leaves + inner):
        read = rng.choice(vertex, int(rng.integers(1, 4)), replace=False)
        kind, weight = rng.integers(0, KINDS, len(read)), rng.uniform(0.2, 0.8, len(read))
        factor = np.array([1.0, -1.0, 0.5])[kind]
        values.append(float((weight * factor * np.array(values)[read]).sum()))
        children.append(read.tolist())
        kinds += kind.tolist()
        weights += weight.tolist()
    number = np.zeros((leaves + inner, 1))
    number[:leaves, 0] = values[:leaves]
    return vrt.InputGraph.from_children(
        children,
        {"number": number, "target": np.array(values)[:, None]},
        {"kind": np.array(kinds), "weight": np.array(weights)},
    )


def main(steps: int = 100) -> float:
    """Train on 80 graphs; return the last loss over the first."""
    rng = np.random.default_rng(0)
    batch = vrt.GraphBatch.from_graphs([graph(rng) for _ in range(80)])
    net, optimizer = vrt.compile(RelationNet(), seed=0), vrt.Adam(lr=0.01)
    losses = [net.step(batch, optimizer) for _ in range(steps)]
    print(f"loss of a graph: {losses[0]:.3f} at first, {losses[-1]:.4f} after {steps} steps")
    unseen = vrt.GraphBatch.from_graphs([graph(rng) for _ in range(80)])
    print(f"of graphs not seen before: {net(unseen)['loss'].sum() / len(unseen):.4f}")
    return losses[-1] / losses[0]


if __name__ == "__main__":
    main()
