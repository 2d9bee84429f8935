"""A network that reads values of edges, and graphs for it."""

from __future__ import annotations

import numpy as np

import vertexrt as vrt
from tests.typed_models import WORDS, N
from vertexrt.graph import GraphBatch, InputGraph

KINDS, X = 4, 3  # of edges, and elements of what they carry


class Weighed(vrt.VertexFunction):
    """A vertex of a DAG: edges have a kind, a weight and a vector; beside them the state before."""

    def __init__(self) -> None:
        super().__init__(state={"h": N})
        self.table, self.w = vrt.Parameter((WORDS, N)), vrt.Parameter((N, N))
        self.z, self.u, self.e = (vrt.Parameter((N, n)) for n in (N, N, X))
        self.kinds = vrt.Parameter((KINDS, N))

    def forward(self) -> None:
        args, before = self.gather_all("args"), self.gather("before")
        kind = self.edge_index("kind", relation="args")
        weight, x = self.edge("weight", relation="args"), self.edge("x", X, relation="args")
        each = vrt.tanh(self.z @ args.h + self.e @ x + vrt.embed(self.kinds, kind)) * weight
        chosen = vrt.where(kind == 2, args.h, 0.0)
        own = self.w @ vrt.embed(self.table, self.pull("word"))
        h = vrt.tanh(own + vrt.sum(each) + vrt.sum(chosen) + self.u @ before.h)
        self.scatter(h=h)
        self.push("h", h)
        self.push("loss", vrt.losses.squared_error(h, 0.2) + vrt.sum(vrt.sum(x * weight)))


class WeighedDag(vrt.Model):
    """One type of vertex whose edges carry values."""

    def __init__(self) -> None:
        self.node = Weighed()


def weighed_graph(n: int, rng: np.random.Generator) -> InputGraph:
    """Draw a DAG of n vertices; edges come in any order, and some have no kind."""
    pairs = [(i, j) for j in range(n) for i in range(j) if rng.random() < 0.6]
    rng.shuffle(pairs)
    count = len(pairs)
    return InputGraph.from_types(
        {"node": n},
        {
            ("node", "before", "node"): [(i, i + 1) for i in range(n - 1) if i != 1],
            ("node", "args", "node"): pairs,
        },
        {"node": {"word": rng.integers(0, 3, n)}},
        {
            ("node", "args", "node"): {
                "kind": rng.integers(-1, KINDS, count),
                "weight": rng.standard_normal(count),
                "x": rng.standard_normal((count, X)),
            }
        },
    )


def weighed() -> GraphBatch:
    """Return three DAGs."""
    rng = np.random.default_rng(8)
    return GraphBatch.from_graphs([weighed_graph(n, rng) for n in (5, 1, 7)])
