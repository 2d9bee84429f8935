"""Networks of papers, written as a reader would, against PyTorch in float64.

Each row has a network, which pushes a loss, and the same loss by PyTorch, vertex by vertex. Losses
and gradients of parameters agree to 1e-9 of the largest element, on every device and engine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pytest

import vertexrt as vrt
from tests.agreement import EVERYWHERE, ways
from tests.backend.test_cuda_kernels import Case, sources_of
from tests.runs import Way
from vertexrt import nn
from vertexrt.errors import DeviceError
from vertexrt.graph import GraphBatch, InputGraph
from vertexrt.kernels.cuda.compile import compile_cubin, load_nvrtc

torch: Any = pytest.importorskip("torch", reason="PyTorch is an optional extra")
F = torch.nn.functional
RNG = np.random.default_rng(5)

Tensors = Mapping[str, Any]


class SelectiveSSM(vrt.VertexFunction):
    """The cell of Mamba (Gu and Dao 2023): a state of d x n with steps that the input selects."""

    def __init__(self, d: int, n: int) -> None:
        super().__init__(arity=1, state={"s": d * n})
        self.d, self.n = d, n
        self.a, self.skip = vrt.Parameter((d, n)), vrt.Parameter(d)
        self.step, self.select = nn.Linear(d, d), nn.Linear(d, 2 * n)

    def forward(self) -> None:
        x = self.pull("x", self.d)
        step = nn.softplus(self.step(x))
        b, c = vrt.split(self.select(x), 2)
        s = vrt.reshape(self.gather(0).s, self.d, self.n)
        kept = vrt.exp(-vrt.outer(step, vrt.ones(self.n)) * vrt.exp(self.a))
        s = kept * s + vrt.outer(step * x, b)
        self.scatter(s=vrt.reshape(s, self.d * self.n))
        y = s @ c + self.skip * x
        self.push("loss", vrt.sum(y * y))


def selective_ssm(p: Tensors, x: Any) -> Any:
    s, loss = torch.zeros_like(p["a"]), 0.0
    for each in x:
        step = F.softplus(p["step.weight"] @ each + p["step.bias"])
        b, c = (p["select.weight"] @ each + p["select.bias"]).chunk(2)
        s = torch.exp(-step[:, None] * torch.exp(p["a"])) * s + torch.outer(step * each, b)
        loss = loss + ((s @ c + p["skip"] * each) ** 2).sum()
    return loss


class MLSTM(vrt.VertexFunction):
    """The xLSTM's cell with a matrix memory (Beck et al. 2024)."""

    def __init__(self, d: int) -> None:
        super().__init__(arity=1, state={"c": d * d, "n": d, "m": 1})
        self.d = d
        self.qkv, self.gates, self.out = nn.Linear(d, 3 * d), nn.Linear(d, 2), nn.Linear(d, d)

    def forward(self) -> None:
        d, before = self.d, self.gather(0)
        x = self.pull("x", d)
        q, k, v = vrt.split(self.qkv(x), 3)
        k = k * d**-0.5
        gates = self.gates(x)
        i, f = gates[0], -nn.softplus(-gates[1])
        m = vrt.maximum(f + before.m[0], i)
        i, f = vrt.exp(i - m), vrt.exp(f + before.m[0] - m)
        c = f * vrt.reshape(before.c, d, d) + i * vrt.outer(v, k)
        n = f * before.n + i * k
        h = nn.silu(self.out(x)) * (c @ q) / vrt.maximum(vrt.abs(vrt.dot(n, q)), 1.0)
        self.scatter(c=vrt.reshape(c, d * d), n=n, m=vrt.stack(m))
        self.push("loss", vrt.sum(h * h))


def mlstm(p: Tensors, x: Any) -> Any:
    d = x.shape[1]
    c, n, m = torch.zeros(d, d).double(), torch.zeros(d).double(), torch.zeros(()).double()
    loss = 0.0
    for each in x:
        q, k, v = (p["qkv.weight"] @ each + p["qkv.bias"]).chunk(3)
        k = k / d**0.5
        i, f = p["gates.weight"] @ each + p["gates.bias"]
        f = F.logsigmoid(f)
        new = torch.maximum(f + m, i)
        i, f, m = torch.exp(i - new), torch.exp(f + m - new), new
        c, n = f * c + i * torch.outer(v, k), f * n + i * k
        h = F.silu(p["out.weight"] @ each + p["out.bias"]) * (c @ q)
        loss = loss + ((h / torch.clamp((n @ q).abs(), min=1.0)) ** 2).sum()
    return loss


class OfPaper(NamedTuple):
    """A row: a network, a graph of so many vertices with their pulls, and the loss by PyTorch."""

    make: Callable[[], vrt.VertexFunction]
    graphs: Callable[[int], InputGraph]
    loss: Callable[[Tensors, Any], Any]


def chain(n: int, d: int) -> InputGraph:
    return vrt.InputGraph.chain(n, {"x": RNG.standard_normal((n, d))})


NETWORKS = {
    "selective ssm": OfPaper(lambda: SelectiveSSM(6, 4), lambda n: chain(n, 6), selective_ssm),
    "mlstm": OfPaper(lambda: MLSTM(5), lambda n: chain(n, 5), mlstm),
}


@pytest.mark.parametrize("way", [*ways(EVERYWHERE)])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_of_a_paper_is_that_of_pytorch(name: str, way: Way) -> None:
    make, graph, loss = NETWORKS[name]
    graphs = [graph(n) for n in (1, 3, 4)]
    net = way.compile(make())
    run = net.record(GraphBatch.from_graphs(graphs))
    p = {
        name: torch.tensor(np.array(value), dtype=torch.float64, requires_grad=True)
        for name, value in net.parameters.items()
    }
    total = sum(loss(p, torch.tensor(np.array(g.pulls["x"]))) for g in graphs)
    total.backward()
    np.testing.assert_allclose(run.outputs["loss"].sum(), total.item(), 1e-9)
    found = run.backward(scale=3.0).parameters  # of the mean over graphs
    for parameter, value in p.items():
        most = float(value.grad.abs().max())
        np.testing.assert_allclose(found[parameter], value.grad, 1e-9, 1e-9 * most)


@pytest.mark.parametrize("make", [lambda: SelectiveSSM(128, 16), lambda: MLSTM(64)])
def test_a_matrix_state_is_no_op_for_each_element(make: Callable[[], Any]) -> None:
    """Issue 56: unrolled, a state of 128 x 16 took a minute to compile."""
    assert len(make().trace().nodes) < 90


@pytest.mark.parametrize("name", NETWORKS)
def test_its_kernels_compile(name: str) -> None:
    try:
        load_nvrtc()
    except DeviceError as error:
        pytest.skip(str(error))
    function, graph, _ = NETWORKS[name]
    given = graph(4)
    children = [[*given.children(v)] for v in range(4)]
    sources = sources_of(Case(function(), children, dict(given.pulls)))
    assert compile_cubin("\n".join(sources), "sm_90a", {}).usage
