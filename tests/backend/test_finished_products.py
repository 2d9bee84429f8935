"""Products of few rows that make what a group makes of each of their elements."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

import vertexrt as vrt
from tests.agreement import Feature, holds, rows
from tests.declared import Declared
from tests.many_vectors import ManyVectors, two_chains
from tests.runs import PLAIN, Way
from tests.strategies import one_chain
from vertexrt.engine.variant import Passes
from vertexrt.graph import GraphBatch, InputGraph

IN, HIDDEN = 12, 8


class OfVertices(
    Declared,
    arity=2,
    state={"h": HIDDEN},
    w=(HIDDEN, IN),
    u=(HIDDEN, HIDDEN),
    v=(HIDDEN, HIDDEN),
    b=(HIDDEN,),
):
    """Biases and nonlinearities of products, on the path and off it; a number of the row, too."""

    def forward(self) -> None:
        x = vrt.tanh(self.w @ self.pull("x", (IN,)) + self.b)
        below = self.gather(0).h + self.gather(1).h
        h = vrt.sigmoid(self.u @ below + self.b) * x + self.pull("scale") * x
        self.scatter(h=h)
        y = vrt.exp(-(self.v @ h)) * 0.5 + h
        self.push("loss", vrt.sum(y * y))


class OfEdges(Declared, state={"h": HIDDEN}, w=(HIDDEN, IN), u=(HIDDEN, HIDDEN), b=(HIDDEN,)):
    """Products of the states of any number of children, and what is made of their elements."""

    def forward(self) -> None:
        x = self.w @ self.pull("x", (IN,))
        below = vrt.tanh(self.u @ self.gather_all().h + self.b)
        h = vrt.tanh(x + vrt.sum(below, axis="children"))
        self.scatter(h=h)
        self.push("loss", vrt.sum(h * h))


class BesideStoredRows(Declared, arity=2, state={"h": 2}, w=(1, 2), u=(2, 1)):
    """On the way back a group finishes a product and stores gathered rows of another width."""

    def forward(self) -> None:
        below = self.gather(0).h
        y = vrt.tanh(self.w @ below)
        self.scatter(h=vrt.tanh(below + 0.5))
        self.push("below", below)
        self.push("loss", vrt.sum(self.u @ y) + vrt.sum(below))


class TwoProducts(
    Declared, arity=1, state={"h": 4}, w1=(64, 4), w2=(64, 64), w3=(4, 64), u1=(8, 4), u2=(4, 8)
):
    """w2 (w1 x), on the path (with a child) and beside it; and another product that needs w1 x.

    No launch may make both products.
    """

    def forward(self) -> None:
        first = self.w1 @ self.pull("x", shape=(4,))
        h = self.u2 @ (self.u1 @ self.gather(0).h) + self.pull("x", shape=(4,))
        self.scatter(h=h)
        self.push("y", self.w2 @ first)
        self.push("z", self.w3 @ first)
        self.push("h", h)
        self.push("loss", vrt.sum(h))


def chain(listed: bool) -> GraphBatch:
    """Return a chain; where every third vertex lacks its pull, the rows of a kind are a list."""
    index = np.arange(40, dtype=np.int32)
    if listed:
        index[::3] = -1
    return one_chain(40, {"x": vrt.Rows(np.random.default_rng(0).normal(size=(40, 4)), index)})


def batch_of(graphs: int) -> GraphBatch:
    """Return trees of several shapes, so that rows of stages are listed."""
    rng = np.random.default_rng(2)
    shapes = ([[], [], [0, 1]], [[], [0], [1], [], [2, 3]], [[]])
    found = []
    for k in range(graphs):
        shape = shapes[k % len(shapes)]
        x, scale = rng.standard_normal((len(shape), IN)), rng.uniform(0.5, 1.0, len(shape))
        found.append(InputGraph.from_children(shape, {"x": x, "scale": scale}))
    return GraphBatch.from_graphs(found)


def single(engine: str, processors: int | None) -> list[Way]:
    """Return a way in float32 on each device."""
    return [
        Way(device, "float32", engine=engine, processors=processors) for device in ("shim", "cuda")
    ]


WAYS = [*single("batched", None), *single("persistent", 1)]
FEATURES = {
    **{  # rows of each form, and of a library's product
        f"{make.__name__} in {graphs}": Feature(make, partial(batch_of, graphs), WAYS, PLAIN)
        for make in (OfVertices, OfEdges)
        for graphs in (1, 8, 150)
    },
    **{
        f"a product of a product, listed={listed}": Feature(
            TwoProducts,
            partial(chain, listed),
            [
                Way("shim", dtype, shuffle=1 + listed),
                Way("shim", dtype, engine="persistent", processors=2, shuffle=1 + listed),
            ],
        )
        for dtype, listed in (("float32", False), ("float64", True))
    },
    # Kernels take as many arguments as their steps have; a persistent one is refused in time.
    "a loop that reads many parameters": Feature(
        partial(ManyVectors, 100),
        two_chains,
        [Way(d, passes=Passes(streams=n)) for d in ("shim", "cuda") for n in (1, 2)],
    ),
    "rows that a group stores besides": Feature(
        BesideStoredRows, partial(batch_of, 8), single("persistent", 2), PLAIN
    ),
}


@pytest.mark.parametrize(("name", "way"), rows(FEATURES))
def test_elements_of_products(name: str, way: Way) -> None:
    holds(FEATURES[name], way)
