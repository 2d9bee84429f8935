"""Networks whose functions read some fields of the layers below, and their graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import vertexrt as vrt
from tests.declared import Declared
from vertexrt.graph import GraphBatch, InputGraph

N, WORDS = 4, 9
Body = Callable[[Any], None]


class Fork(
    Declared,
    state={"c": N, "h": N, "mark": N},
    table=(WORDS, N),
    w=(4 * N, N),
    u=(4 * N, N),
    v=(N, N),
):
    """A word, and two vertices of its own kind: an LSTM over a DAG."""

    def forward(self) -> None:
        left, right = self.gather("left"), self.gather("right")
        x = self.w @ vrt.embed(self.table, self.pull("word")) + self.u @ (left.h + right.h)
        i, f, o, z = vrt.split(x, 4)
        c = vrt.sigmoid(f) * (left.c - right.c) + vrt.sigmoid(i) * vrt.tanh(z)
        h = vrt.sigmoid(o) * vrt.tanh(c)
        self.scatter(c=c, h=h, mark=self.v @ h)


class Reader(vrt.VertexFunction):
    """A chain over forks, which reads what its body says; or vertices that no other reads."""

    def __init__(self, below: Fork, body: Body, chain: bool) -> None:
        super().__init__(state={"h": N} if chain else {}, inputs={"below": below})
        self.u, self.body, self.chain = vrt.Parameter((N, N)), body, chain

    def forward(self) -> None:
        h = vrt.tanh(self.body(self) + (self.u @ self.gather("before").h if self.chain else 0.0))
        if self.chain:
            self.scatter(h=h)
        self.push("loss", vrt.losses.squared_error(h, 0.3))


class Forks(vrt.Model):
    """Forks, and who reads them."""

    def __init__(self, body: Body, chain: bool = True) -> None:
        self.fork = Fork()
        self.reader = Reader(self.fork, body, chain)


def one(f: Any) -> Any:
    return f.gather("below").h


def cell_too(f: Any) -> Any:
    return f.gather("below").h * f.gather("below").c


def every(f: Any) -> Any:
    return vrt.mean(f.gather_all("below").h)


def marks(f: Any) -> Any:
    return f.gather("below").mark


def marks_of_every(f: Any) -> Any:
    return vrt.mean(f.gather_all("below").mark)


def signs(f: Any) -> Any:
    return f.gather("below").h + vrt.stop_gradient(f.gather("below").mark)


def forks(whole: bool) -> GraphBatch:
    """Return DAGs: forks with several parents of both types, with none, and graphs of one type.

    Args:
        whole: a reader reads several forks.
    """
    rng, graphs = np.random.default_rng(4), []
    for count, readers in ((7, 5), (1, 1), (4, 0), (6, 12)):
        edges: dict[tuple[str, str, str], list[tuple[int, int]]] = {
            ("fork", "left", "fork"): [(int(rng.integers(v)), v) for v in range(1, count, 2)],
            ("fork", "right", "fork"): [(int(rng.integers(v)), v) for v in range(2, count)],
        }
        if readers:
            each = [(int(rng.integers(count)), r) for r in range(readers)]
            more = [(int(rng.integers(count)), r) for r in range(0, readers, 2)]
            edges["fork", "below", "reader"] = [*each, *more] if whole else each[:-1]
            edges["reader", "before", "reader"] = [(r, r + 1) for r in range(readers - 1)]
        counts = {"fork": count} | ({"reader": readers} if readers else {})
        pulls = {"fork": {"word": rng.integers(0, WORDS, count)}}
        graphs.append(InputGraph.from_types(counts, edges, pulls))
    return GraphBatch.from_graphs(graphs)
