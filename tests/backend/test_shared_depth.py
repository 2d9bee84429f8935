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
from tests.watched_device import leave_counts, mend, watch
from vertexrt.errors import DeviceError
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
    batch, d, net = network(device, monkeypatch)
    wanted = gradient_by_hand(net, batch, d)
    np.testing.assert_allclose(gradient_of(net, batch, d), wanted, rtol=0, atol=1e-5)


def network(device: str, monkeypatch: pytest.MonkeyPatch) -> tuple[GraphBatch, Array, vrt.Network]:
    """Return chains with x, gradients of their states, and a network on a device."""
    require(device)
    if device == "shim":
        put_in_place(monkeypatch, processors=PROCESSORS)
    rng = np.random.default_rng(3)
    rows = [rng.standard_normal((n, N)) for n in LENGTHS]
    batch = GraphBatch.from_graphs(
        InputGraph.from_children([[], *([k] for k in range(len(x) - 1))], {"x": x}) for x in rows
    )
    d = rng.standard_normal((sum(LENGTHS), N))
    options = {"engine": "persistent", "processors": PROCESSORS, "seed": 2}
    return batch, d, vrt.compile(Gated(), device="cuda", **options)


def gradient_by_hand(net: vrt.Network, batch: GraphBatch, d: Array) -> Array:
    """Return the gradient of x in all chains."""
    w, u = (net.parameters[name].astype(np.float64) for name in "wu")
    ends = np.cumsum(LENGTHS)[:-1]
    parts = zip(np.split(batch.pulls["x"], ends), np.split(d, ends), strict=True)
    return np.concatenate([back_by_hand(w, u, x, part) for x, part in parts])


def gradient_of(net: vrt.Network, batch: GraphBatch, d: Array) -> Array:
    """Return what a network finds."""
    found = net.record(batch, pulls=("x",))
    gradient: Array = found.backward({"h": d}).pulled["x"]
    return gradient


@pytest.mark.parametrize("device", SHIM_AND_GPU)
def test_counts_that_a_launch_leaves_when_it_gives_up(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tile that was half added up then is no tile of the next launch."""
    batch, d, net = network(device, monkeypatch)
    wanted = gradient_by_hand(net, batch, d)
    gradient_of(net, batch, d)
    if device == "shim":
        net.executor.persistent_launch.patience = 5_000_000  # type: ignore[attr-defined]
    broken = watch(net)
    kept = net.record(batch, pulls=("x",))
    leave_counts(net, broken)
    with pytest.raises(DeviceError, match="waited at instruction"):
        kept.backward({"h": d})
    mend(broken)
    np.testing.assert_allclose(gradient_of(net, batch, d), wanted, rtol=0, atol=1e-5)
