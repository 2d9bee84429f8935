"""Networks that read values of edges, over one relation or several; what they compute by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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


def weighed_states(values: Any, batch: GraphBatch) -> Any:
    """Compute the states of a `WeighedDag`, vertex by vertex: [V, N]."""
    assert batch.types is not None
    before, args = (batch.types.relations.index(name) for name in ("before", "args"))
    kinds, words = (np.asarray(x) for x in (batch.edge_pulls["kind"], batch.pulls["word"]))
    weight, x = (rows_of(batch.edge_pulls[name]) for name in ("weight", "x"))
    states = np.zeros((batch.num_vertices, N))
    for v in range(batch.num_vertices):  # children have lower numbers
        total = values["node.w"] @ values["node.table"][words[v]]
        for e in range(batch.child_ptr[v], batch.child_ptr[v + 1]):
            child = states[batch.child[e]]
            if batch.types.of_edge[e] == before:
                total = total + values["node.u"] @ child
                continue
            assert batch.types.of_edge[e] == args
            each = values["node.z"] @ child + values["node.e"] @ x[e]
            if kinds[e] >= 0:
                each = each + values["node.kinds"][kinds[e]]
            total = total + np.tanh(each) * weight[e] + child * (kinds[e] == 2)
        states[v] = np.tanh(total)
    return states


def rows_of(pull: Any) -> Any:
    """Return the values of a pull row by row."""
    rows = pull.table[np.maximum(pull.index, 0)]
    return np.where(pull.index.reshape(-1, *[1] * (rows.ndim - 1)) >= 0, rows, 0.0)


RELATIONS = ("calls", "owns")


class Message(vrt.VertexFunction):
    """What one relation brings to a vertex: a weight of its own, and values of its edges."""

    def __init__(self) -> None:
        super().__init__(state={"m": N})
        self.w = vrt.Parameter((N, N))

    def forward(self) -> None:
        from_, weight = self.gather_all("from"), self.edge("weight", relation="from")
        self.scatter(m=vrt.mean((self.w @ from_.h) * weight))


class Related(vrt.VertexFunction):
    """A vertex of a graph with several relations: its own word, and a message of each."""

    def __init__(self, messages: Sequence[Message]) -> None:
        named = dict(zip(RELATIONS, messages, strict=True))
        super().__init__(state={"h": N}, inputs=named)
        self.table, self.b = vrt.Parameter((WORDS, N)), vrt.Parameter(N)
        for message in messages:
            message.inputs["from"] = self

    def forward(self) -> None:
        h = vrt.embed(self.table, self.pull("word")) + self.b
        for name in RELATIONS:
            h = h + self.gather(name).m
        h = vrt.tanh(h)
        self.scatter(h=h)
        self.push("h", h)
        self.push("loss", vrt.losses.squared_error(h, 0.1))


class RelatedDag(vrt.Model):
    """A graph convolution over relations (Schlichtkrull et al. 2018), along a DAG."""

    def __init__(self) -> None:
        self.calls, self.owns = Message(), Message()
        self.node = Related((self.calls, self.owns))


def related() -> GraphBatch:
    """Return three graphs; a message of each relation for each vertex."""
    rng, graphs = np.random.default_rng(12), []
    for n in (6, 1, 4):
        edges: dict[tuple[str, str, str], Any] = {}
        weights: dict[tuple[str, str, str], Any] = {}
        for name in RELATIONS:
            pairs = [(i, j) for j in range(n) for i in range(j) if rng.random() < 0.5]
            edges["node", "from", name] = pairs
            edges[name, name, "node"] = [(i, i) for i in range(n)]
            weights["node", "from", name] = {"weight": rng.standard_normal(len(pairs))}
        sizes = dict.fromkeys((*RELATIONS, "node"), n)
        pulls = {"node": {"word": rng.integers(0, WORDS, n)}}
        graphs.append(InputGraph.from_types(sizes, edges, pulls, weights))
    return GraphBatch.from_graphs(graphs)


def related_states(values: Any, batch: GraphBatch) -> Any:
    """Compute the states of the nodes of a `RelatedDag`, vertex by vertex: [nodes, N]."""
    words, weight = np.asarray(batch.pulls["word"]), rows_of(batch.edge_pulls["weight"])
    types = batch.types
    assert types is not None
    states: dict[int, Any] = {}

    def state(v: int) -> Any:
        if v not in states:
            kind, edges = types.names[types.of_vertex[v]], range(*batch.child_ptr[v : v + 2])
            if kind == "node":
                total = values["node.table"][words[v]] + values["node.b"]
                states[v] = np.tanh(total + sum(state(batch.child[e]) for e in edges))
            else:
                each = [values[f"{kind}.w"] @ state(batch.child[e]) * weight[e] for e in edges]
                states[v] = np.mean(each, axis=0) if each else np.zeros(N)
        return states[v]

    return np.array([state(v) for v in batch.of_type("node")])
