"""A product of a product, nothing between: on a GPU no launch may make both."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

import vertexrt as vrt
from tests.declared import Declared
from tests.devices import shim
from vertexrt.engine.variant import CompileOptions, Passes

N = 40


class TwoProducts(
    Declared, arity=1, state={"h": 4}, w1=(64, 4), w2=(64, 64), w3=(4, 64), u1=(8, 4), u2=(4, 8)
):
    """w2 (w1 x), on the path (with a child) and beside it; and another product that needs w1 x."""

    def forward(self) -> None:
        first = self.w1 @ self.pull("x", shape=(4,))
        h = self.u2 @ (self.u1 @ self.gather(0).h) + self.pull("x", shape=(4,))
        self.scatter(h=h)
        self.push("y", self.w2 @ first)
        self.push("z", self.w3 @ first)
        self.push("h", h)
        self.push("loss", vrt.sum(h))


def batch(listed: bool) -> vrt.GraphBatch:
    """Return a chain; where every third vertex lacks its pull, the rows of a kind are a list."""
    index = np.arange(N, dtype=np.int32)
    if listed:
        index[::3] = -1
    x = np.random.default_rng(0).normal(size=(N, 4))
    pulls = {"x": vrt.Rows(x, index)}
    return vrt.GraphBatch.from_graphs([vrt.InputGraph.chain(N, pulls)])


def by_hand(net: vrt.Network, pulled: vrt.Rows) -> dict[str, np.ndarray]:
    """Compute the pushes vertex by vertex in float64."""
    p = {name: np.asarray(value, np.float64) for name, value in net.parameters.items()}
    x = np.where(pulled.index[:, None] >= 0, pulled.table[pulled.index], 0.0)
    h = [x[0]]
    for _, row in pairwise(x):
        h.append(p["u2"] @ (p["u1"] @ h[-1]) + row)
    first = x @ p["w1"].T
    return {"y": first @ p["w2"].T, "z": first @ p["w3"].T, "h": np.array(h)}


def network(dtype: str, engine: str, seed: int) -> vrt.Network:
    """Compile for the shim, whose threads run in an order drawn from a seed."""
    from tests.shim_device import ShimDevice
    from vertexrt.api.network import Network
    from vertexrt.kernels.cuda.compile_for_gpu import compile_on

    shim = ShimDevice(seed=seed)
    size = 2 if engine == "persistent" else None
    options = CompileOptions(np.dtype(dtype), "frontier", Passes(), "float32", engine, 1, size)
    net = Network(compile_on(shim, TwoProducts().trace(), options), 1, "mean_graphs")
    rng = np.random.default_rng(7)
    net.parameters.update({n: rng.uniform(-0.3, 0.3, v.shape) for n, v in net.parameters.items()})
    return net


@shim
@pytest.mark.parametrize("engine", ["batched", "persistent"])
@pytest.mark.parametrize(
    ("dtype", "listed", "seed"), [("float32", False, 1), ("float32", True, 2), ("float64", True, 0)]
)
def test_a_product_of_a_product(dtype: str, listed: bool, seed: int, engine: str) -> None:
    net, graphs = network(dtype, engine, seed), batch(listed)
    got, want = net.record(graphs).outputs, by_hand(net, graphs.pulls["x"])
    for name, exact in want.items():
        np.testing.assert_allclose(got[name], exact, atol=2e-6, rtol=0, err_msg=name)
