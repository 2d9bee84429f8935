"""Products whose depth blocks share, several of them in one round of a persistent kernel.

Of 64 rows of a weight, a few rows of operands are tiles whose depth several blocks share; they
count themselves. Leaves and inner vertices are two launches, which run side by side.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vertexrt as vrt
from tests.agreement import by_oracle
from tests.declared import Declared
from tests.devices import on_gpus
from tests.runs import cotangents
from tests.shim_device import put_in_place
from tests.watched_device import leave_counts, mend, watch
from vertexrt.errors import DeviceError
from vertexrt.graph import GraphBatch, InputGraph

Array = np.ndarray[Any, Any]
N, PROCESSORS, LENGTHS = 64, 4, (7, 3, 5)


class Gated(Declared, state={"h": N}, arity=1, w=(2 * N, N), u=(2 * N, N)):
    """A step of a chain: tanh of one half times a sigmoid of the other."""

    def forward(self) -> None:
        total = self.w @ self.pull("x", shape=(N,)) + self.u @ self.gather(0).h
        a, b = vrt.split(total, 2)
        h = vrt.tanh(a) * vrt.sigmoid(b)
        self.scatter(h=h)
        self.push("h", h)


@on_gpus
def test_each_launch_of_a_round_counts_for_itself(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch, d, net = network(device, monkeypatch)
    wanted = wanted_of(net, batch)
    np.testing.assert_allclose(gradient_of(net, batch, d), wanted, rtol=0, atol=1e-5)


def network(device: str, monkeypatch: pytest.MonkeyPatch) -> tuple[GraphBatch, Array, vrt.Network]:
    """Return chains with x, gradients of their states, and a network on a device."""
    if device == "shim":
        put_in_place(monkeypatch, processors=PROCESSORS)
    rng = np.random.default_rng(3)
    rows = [rng.standard_normal((n, N)) for n in LENGTHS]
    batch = GraphBatch.from_graphs(
        InputGraph.from_children([[], *([k] for k in range(len(x) - 1))], {"x": x}) for x in rows
    )
    d = cotangents({"h": (sum(LENGTHS), N)})["h"]
    options = {"engine": "persistent", "processors": PROCESSORS, "seed": 2}
    return batch, d, vrt.compile(Gated(), device="cuda", **options)


def wanted_of(net: vrt.Network, batch: GraphBatch) -> Array:
    """Return the gradient of x by the oracle."""
    gradient: Array = by_oracle(Gated(), batch, dict(net.parameters))[0].pulled["x"]
    return gradient


def gradient_of(net: vrt.Network, batch: GraphBatch, d: Array) -> Array:
    """Return what a network finds."""
    found = net.record(batch, pulls=("x",))
    gradient: Array = found.backward({"h": d}).pulled["x"]
    return gradient


@on_gpus
def test_counts_that_a_launch_leaves_when_it_gives_up(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tile that was half added up then is no tile of the next launch."""
    batch, d, net = network(device, monkeypatch)
    wanted = wanted_of(net, batch)
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
