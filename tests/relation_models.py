"""Networks whose functions read all children of several relations, and graphs for them."""

from __future__ import annotations

from typing import Any

import numpy as np

import vertexrt as vrt
from tests.declared import Declared
from vertexrt.graph import GraphBatch, InputGraph

N, WORDS, KINDS = 5, 6, 3
Key = tuple[str, str, str]


class Wire(Declared, state={"h": N}, table=(WORDS, N)):
    """An input of a circuit."""

    def forward(self) -> None:
        h = vrt.tanh(vrt.embed(self.table, self.pull("word")))
        self.scatter(h=h)
        self.push("loss", vrt.sum(h) * 0.1)


class Gate(vrt.VertexFunction):
    """A gate of any number of inputs, some of them inverted, and of one clock.

    Attention over the inputs as they are, a weighted sum of those that are inverted; edges of both
    relations have a weight, and those of the first a kind.
    """

    def __init__(self, wire: Wire) -> None:
        super().__init__(state={"h": N})
        self.inputs |= {"plain": (wire, self), "inverted": (wire, self)}
        self.q, self.b = vrt.Parameter((N,)), vrt.Parameter((N,))
        self.u, self.v, self.z = (vrt.Parameter((N, N)) for _ in range(3))
        self.kinds = vrt.Parameter((KINDS, N))

    def forward(self) -> None:
        plain, inverted = (self.gather_all(name).h for name in ("plain", "inverted"))
        bias, weight = (self.edge("weight", relation=name) for name in ("plain", "inverted"))
        key = plain + vrt.embed(self.kinds, self.edge("kind", relation="plain"))
        share = vrt.softmax(vrt.dot(vrt.tanh(self.q), key) * bias, axis="children")
        message = vrt.sum(share * (self.u @ vrt.log(1.5 + plain)))
        against = vrt.sum(vrt.tanh(self.v @ inverted) * weight)
        clock = self.z @ self.gather("clock").h
        h = vrt.tanh(message - against + 0.5 * vrt.max(inverted) + clock + self.b)
        self.scatter(h=h)
        self.push("h", h)
        self.push("loss", vrt.losses.squared_error(h, 0.2) + vrt.mean(weight))


class Circuit(vrt.Model):
    """Gates over wires, with two relations of any number of children."""

    def __init__(self) -> None:
        self.wire = Wire()
        self.gate = Gate(self.wire)


def circuits() -> GraphBatch:
    """Return three circuits; a gate may have no input, or inputs of one relation alone."""
    rng, graphs = np.random.default_rng(5), []
    for wires, gates in ((3, 6), (2, 1), (4, 5)):
        edges: dict[Key, Any] = {}
        values: dict[Key, Any] = {}
        for name in ("inverted", "plain"):
            for source, count in (("gate", gates), ("wire", wires)):
                pairs = [
                    (i, j)
                    for j in range(gates)
                    for i in range(j if source == "gate" else count)
                    if rng.random() < 0.4
                ]
                rng.shuffle(pairs)
                key = source, name, "gate"
                edges[key] = pairs
                values[key] = {"weight": rng.standard_normal(len(pairs))}
                if name == "plain":
                    values[key]["kind"] = rng.integers(-1, KINDS, len(pairs))
        edges["gate", "clock", "gate"] = [(j - 1, j) for j in range(2, gates)]
        pulls = {"wire": {"word": rng.integers(0, WORDS, wires)}}
        sizes = {"wire": wires, "gate": gates}
        graphs.append(InputGraph.from_types(sizes, edges, pulls, values))
    return GraphBatch.from_graphs(graphs)
