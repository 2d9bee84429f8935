"""Products whose depth blocks share, several of them in one round of a persistent kernel.

Of 64 rows of a weight, a few rows of operands are tiles whose depth several blocks share; they
count themselves. Leaves and inner vertices are two launches, which run side by side.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vertexrt as vrt
from tests.devices import SHIM_AND_GPU, require
from tests.shim_device import put_in_place
from vertexrt.graph import GraphBatch, InputGraph

Array = np.ndarray[Any, Any]
N, PROCESSORS, LENGTHS = 64, 4, (7, 3, 5)


class Gated(vrt.VertexFunction):
    """A step of a chain: tanh of one half times a sigmoid of the other."""

    def __init__(self) -> None:
        super().__init__(state={"h": N}, arity=1)
        self.w, self.u = vrt.Parameter((2 * N, N)), vrt.Parameter((2 * N, N))

    def forward(self) -> None:
        total = self.w @ self.pull("x", shape=(N,)) + self.u @ self.gather(0).h
        a, b = vrt.split(total, 2)
        h = vrt.tanh(a) * vrt.sigmoid(b)
        self.scatter(h=h)
        self.push("h", h)


def back_by_hand(w: Array, u: Array, x: Array, d: Array) -> Array:
    """Return the gradient of x [T, N] along one chain, given that of its states."""
    h, seen = np.zeros(N), []
    for row in x:
        a, b = np.split(w @ row + u @ h, 2)
        t, s = np.tanh(a), 1 / (1 + np.exp(-b))
        h = t * s
        seen.append((t, s))
    found, later = np.zeros_like(x), np.zeros(N)
    for k in reversed(range(len(x))):
        (t, s), dh = seen[k], d[k] + later
        total = np.concatenate([dh * s * (1 - t * t), dh * t * s * (1 - s)])
        found[k], later = total @ w, total @ u
    return found


@pytest.mark.parametrize("device", SHIM_AND_GPU)
def test_each_launch_of_a_round_counts_for_itself(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    require(device)
    if device == "shim":
        put_in_place(monkeypatch, processors=PROCESSORS)
    rng = np.random.default_rng(3)
    rows = [rng.standard_normal((n, N)) for n in LENGTHS]
    batch = GraphBatch.from_graphs(
        InputGraph.from_children([[], *([k] for k in range(len(x) - 1))], {"x": x}) for x in rows
    )
    net = vrt.compile(Gated(), device="cuda", engine="persistent", processors=PROCESSORS, seed=2)
    d = rng.standard_normal((sum(LENGTHS), N))
    found = net.forward(batch, train=True, pulls=("x",))
    gradient = net.backward({"h": d}, of=found).pulled["x"]
    w, u = (net.parameters[name].astype(np.float64) for name in "wu")
    parts = zip(rows, np.split(d, np.cumsum(LENGTHS)[:-1]), strict=True)
    wanted = np.concatenate([back_by_hand(w, u, x, part) for x, part in parts])
    np.testing.assert_allclose(gradient, wanted, rtol=0, atol=1e-5)
