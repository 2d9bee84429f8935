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
from tests.agreement import EVERYWHERE
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


def selective_ssm(p: Tensors, x: Any, graph: InputGraph) -> Any:
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


def mlstm(p: Tensors, x: Any, graph: InputGraph) -> Any:
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


class RNTN(vrt.VertexFunction):
    """Recursive neural tensor network (Socher et al. 2013): a bilinear form for each element."""

    def __init__(self, d: int) -> None:
        super().__init__(arity=2, state={"h": d})
        self.d = d
        self.v, self.w = vrt.Parameter((d, 2 * d, 2 * d)), nn.Linear(2 * d, d)

    def forward(self) -> None:
        d, both = self.d, vrt.concat(self.gather(0).h, self.gather(1).h)
        forms = vrt.reshape(self.v.reshape(2 * d * d, 2 * d) @ both, d, 2 * d) @ both
        h = self.pull("x", d) + vrt.tanh(forms + self.w(both))
        self.scatter(h=h)
        self.push("loss", vrt.sum(h * h))


def rntn(p: Tensors, x: Any, graph: InputGraph) -> Any:
    states: list[Any] = []
    for v, each in enumerate(x):
        slots = (*graph.children(v), -1, -1)[:2]
        found = [states[c] if c >= 0 else 0.0 * each for c in slots]
        both = torch.cat(found)
        forms = torch.einsum("kij,i,j->k", p["v"], both, both)
        states.append(each + torch.tanh(forms + p["w.weight"] @ both + p["w.bias"]))
    return (torch.stack(states) ** 2).sum()


class RelationalGCN(vrt.VertexFunction):
    """R-GCN (Schlichtkrull et al. 2018): a matrix for each relation, which an integer names."""

    def __init__(self, d: int, relations: int) -> None:
        super().__init__(state={"h": d})
        self.d, self.w, self.own = d, vrt.Parameter((relations, d, d)), vrt.Parameter((d, d))

    def forward(self) -> None:
        kids = self.gather_all().h
        sent = vrt.sum(self.w[self.edge_index("kind")] @ kids)
        count = vrt.maximum(self.count_children(), 1.0)
        h = nn.gelu(sent / count + self.own @ self.pull("x", self.d))
        self.scatter(h=h)
        self.push("loss", vrt.sum(h * h))


def relational_gcn(p: Tensors, x: Any, graph: InputGraph) -> Any:
    states: list[Any] = []
    for v, each in enumerate(x):
        first, own = int(graph.child_ptr[v]), p["own"] @ each
        sent = [
            p["w"][int(graph.edge_pulls["kind"][first + k])] @ states[c]
            for k, c in enumerate(graph.children(v))
            if c >= 0
        ]
        states.append(F.gelu(sum(sent, 0.0 * own) / max(len(sent), 1) + own))
    return (torch.stack(states) ** 2).sum()


class TreeTransformer(vrt.VertexFunction):
    """A vertex attends to its children by heads, and a small network follows (Wang et al. 2019)."""

    def __init__(self, d: int) -> None:
        super().__init__(state={"h": d})
        self.d, self.attend, self.norm = d, nn.MultiHeadAttention(d, 2), nn.RMSNorm(d)
        self.mlp = nn.MLP(d, 2 * d, d, activation=nn.gelu)
        self.low, self.high = vrt.Parameter((d, 2)), vrt.Parameter((2, d))  # a product of rank 2

    def forward(self) -> None:
        x = self.pull("x", self.d)
        x = x + self.count_children() * self.attend(x, self.gather_all().h)
        h = x + self.mlp(self.norm(x)) + (self.low @ self.high) @ x
        self.scatter(h=h)
        self.push("loss", vrt.sum(vrt.cumsum(h) * vrt.sort(h)))


def tree_transformer(p: Tensors, x: Any, graph: InputGraph) -> Any:
    d, states, loss = x.shape[1], list[Any](), 0.0
    for v, each in enumerate(x):
        kids = [states[c] for c in graph.children(v) if c >= 0]
        if kids:
            keys = torch.stack(kids)[:, None]
            found, _ = F.multi_head_attention_forward(
                each[None, None], keys, keys, d, 2, p["attend.in_proj_weight"],
                p["attend.in_proj_bias"], None, None, False, 0.0,
                p["attend.out_proj.weight"], p["attend.out_proj.bias"], need_weights=False,
            )  # fmt: skip
            each = each + len(kids) * found[0, 0]
        inner = F.rms_norm(each, (d,), p["norm.weight"], 1e-5)
        inner = F.gelu(p["mlp.layers.0.weight"] @ inner + p["mlp.layers.0.bias"])
        inner = p["mlp.layers.1.weight"] @ inner + p["mlp.layers.1.bias"]
        states.append(each + inner + p["low"] @ p["high"] @ each)
        loss = loss + (states[-1].cumsum(0) * states[-1].sort().values).sum()
    return loss


class Convolution(vrt.VertexFunction):
    """Three vertices of a chain at a time, then the largest two elements, and a masked matrix."""

    MASK = np.tril(np.ones((4, 4)))

    def __init__(self, d: int) -> None:
        self.conv, self.w = nn.ChainConv(d, 4, 3), vrt.Parameter((4, 4))
        super().__init__(arity=1, state={"before": self.conv.window})
        self.d = d

    def forward(self) -> None:
        y, window = self.conv(self.pull("x", self.d), self.gather(0).before)
        self.scatter(before=window)
        y = (self.w * self.MASK) @ y + vrt.tanh(self.w) @ y
        self.push("loss", vrt.prod(vrt.top_k(y, 2)) + vrt.sum(y[::2]))


def convolution(p: Tensors, x: Any, graph: InputGraph) -> Any:
    weight = p["conv.weight"].reshape(4, 3, -1).transpose(1, 2)
    y = F.conv1d(F.pad(x.T, (2, 0)), weight, p["conv.bias"]).T
    w = p["w"].tril() + torch.tanh(p["w"])
    y = y @ w.T
    return y.topk(2, 1).values.prod(1).sum() + y[:, ::2].sum()


class OfPaper(NamedTuple):
    """A row: a network, a graph of so many vertices with their pulls, and the loss by PyTorch."""

    make: Callable[[], vrt.VertexFunction]
    graphs: Callable[[int], InputGraph]
    loss: Callable[[Tensors, Any, InputGraph], Any]


def chain(n: int, d: int) -> InputGraph:
    return vrt.InputGraph.chain(n, {"x": RNG.standard_normal((n, d))})


def dag(n: int, slots: int = 0) -> InputGraph:
    """A vertex has the vertices before it as children, at most `slots`; edges have kinds."""
    lists = [[*range(v)][-slots if slots else 0 :] for v in range(n)]
    pulls = {"x": 0.5 * RNG.standard_normal((n, 4))}
    kinds = {"kind": np.arange(sum(map(len, lists))) % 3} if not slots else {}
    return vrt.InputGraph.from_children(lists, pulls, kinds)


NETWORKS = {
    "selective ssm": OfPaper(lambda: SelectiveSSM(6, 4), lambda n: chain(n, 6), selective_ssm),
    "mlstm": OfPaper(lambda: MLSTM(5), lambda n: chain(n, 5), mlstm),
    "rntn": OfPaper(lambda: RNTN(4), lambda n: dag(n, 2), rntn),
    "r-gcn": OfPaper(lambda: RelationalGCN(4, 3), dag, relational_gcn),
    "tree transformer": OfPaper(lambda: TreeTransformer(4), dag, tree_transformer),
    "convolution": OfPaper(lambda: Convolution(5), lambda n: chain(n, 5), convolution),
}


@pytest.mark.parametrize("way", EVERYWHERE)
@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_of_a_paper_is_that_of_pytorch(name: str, way: Way) -> None:
    make, graph, loss = NETWORKS[name]
    graphs = [graph(n) for n in (1, 3, 4)]
    net = way.compile(make())
    net.parameters.update({n: make().MASK for n in net.parameters if "arrays" in n})
    run = net.record(GraphBatch.from_graphs(graphs))
    p = {
        name: torch.tensor(np.array(value), dtype=torch.float64, requires_grad=True)
        for name, value in net.parameters.items()
        if "arrays" not in name
    }
    total = sum(loss(p, torch.tensor(np.array(g.pulls["x"])), g) for g in graphs)
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
    pulls, edges = dict(given.pulls), dict(given.edge_pulls)
    sources = sources_of(Case(function(), children, pulls, edges=edges))
    assert compile_cubin("\n".join(sources), "sm_90a", {}).usage


class Zoned(vrt.VertexFunction):
    """Zoneout (Krueger et al. 2017) of ones, which were zeros."""

    def __init__(self) -> None:
        super().__init__(state={})

    def forward(self) -> None:
        self.push("h", nn.zoneout(vrt.ones(50), vrt.zeros(50), 0.25))


def test_zoneout_keeps_elements_in_training_and_takes_the_mean_else() -> None:
    net = vrt.compile(Zoned(), device="cpu")
    batch = GraphBatch.from_graphs([vrt.InputGraph.from_children([[]] * 20, {})])
    assert (net(batch)["h"] == 0.75).all()
    found = net.record(batch).outputs["h"]
    assert {*np.unique(found)} == {0.0, 1.0}
    assert 0.7 < found.mean() < 0.8


class Taking(vrt.VertexFunction):
    """Reads functions by their names in the model."""

    def __init__(self, source: str) -> None:
        super().__init__(state={"h": 2}, inputs={"below": source})

    def forward(self) -> None:
        h = self.pull("x", 2) + 2.0 * vrt.sum(self.gather_all("below").h)
        self.scatter(h=h)
        self.push("h", h)


class Both(vrt.Model):
    def __init__(self, *names: str) -> None:
        self.even, self.odd = map(Taking, names)


def test_functions_read_each_other_by_name() -> None:
    """Even vertices of a chain read odd ones, and the reverse."""
    edges = {("odd", "below", "even"): [(0, 1)], ("even", "below", "odd"): [(0, 0), (1, 1)]}
    x = {"even": {"x": np.ones((2, 2))}, "odd": {"x": np.ones((2, 2))}}
    graph = vrt.InputGraph.from_types({"even": 2, "odd": 2}, edges, x)
    h = vrt.compile(Both("odd", "even"), device="cpu")(GraphBatch.from_graphs([graph]))["h"]
    assert sorted(h[:, 0]) == [1.0, 3.0, 7.0, 15.0]
    with pytest.raises(vrt.errors.TraceError, match="inputs from 'old'; one of the vertex types"):
        vrt.compile(Both("old", "even"), device="cpu")
