"""Cells over chains, all vertices of which have the same pulls: levels that repeat each other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

import vertexrt as vrt
from tests.declared import Declared
from vertexrt.graph import GraphBatch, InputGraph

HIDDEN = 16


class LSTM(Declared, arity=1, state={"c": HIDDEN, "h": HIDDEN}, u=(4 * HIDDEN, HIDDEN)):
    """The recurrent part of an LSTM (Hochreiter and Schmidhuber 1997)."""

    def forward(self) -> None:
        before = self.gather(0)
        i, f, o, u = vrt.split(self.pull("x", (4 * HIDDEN,)) + self.u @ before.h, 4)
        c = vrt.sigmoid(f) * before.c + vrt.sigmoid(i) * vrt.tanh(u)
        h = self.push("h", vrt.sigmoid(o) * vrt.tanh(c))
        self.scatter(c=c, h=h)
        self.push("loss", vrt.sum(h * h))


class GRU(Declared, arity=1, state={"h": HIDDEN}, u=(3 * HIDDEN, HIDDEN), b=(3 * HIDDEN,)):
    """A GRU whose reset gate comes after the product and its bias, as cuDNN has it."""

    def forward(self) -> None:
        before = self.gather(0)
        x_r, x_z, x_n = vrt.split(self.pull("x", (4 * HIDDEN,))[: 3 * HIDDEN], 3)
        u_r, u_z, u_n = vrt.split(self.u @ before.h + self.b, 3)
        z = vrt.sigmoid(x_z + u_z)
        n = vrt.tanh(x_n + vrt.sigmoid(x_r + u_r) * u_n)
        h = self.push("h", (1.0 - z) * n + z * before.h)
        self.scatter(h=h)
        self.push("loss", vrt.sum(h * h))


CELLS = {"lstm": LSTM, "gru": GRU}


def chains(lengths: Sequence[int], seed: int = 0) -> GraphBatch:
    """Return chains of such lengths, with random inputs."""
    rng = np.random.default_rng(seed)
    return GraphBatch.from_graphs(
        [InputGraph.chain(n, {"x": rng.standard_normal((n, 4 * HIDDEN))}) for n in lengths]
    )
