"""`Module.loss`: forward and backward in one launch, as `module(batch)` and differences say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import vertexrt as vrt  # noqa: E402
import vertexrt.torch as vt  # noqa: E402
from tests.devices import SHIM_AND_GPU  # noqa: E402
from tests.torch.test_gpu import ENGINES, assert_near, modules  # noqa: E402
from tests.torch.test_module import SIZE, Node, drawn, module, trees  # noqa: E402
from vertexrt.errors import UsageError  # noqa: E402
from vertexrt.models.tree_lstm import TreeLSTM  # noqa: E402

COUNTS = {"mean_graphs": "num_graphs", "mean_vertices": "num_vertices", "sum": ""}


def by_pushes(
    mine: Any, batch: vrt.GraphBatch, reduction: str = "mean_graphs", **pulls: Any
) -> Any:
    """Return the loss as a pass through pushes makes it."""
    total = mine(batch, ["loss"], **pulls)["loss"].sum()
    return total / getattr(batch, COUNTS[reduction], 1)


def gradients(mine: Any, loss: Any, *more: Any) -> list[Any]:
    """Return the gradients of parameters and of pulls."""
    wanted = [p for p in mine.parameters() if p.requires_grad]
    return list(torch.autograd.grad(loss, [*wanted, *more]))


def assert_same(found: list[Any], wanted: list[Any]) -> None:
    for a, b in zip(found, wanted, strict=True):
        assert b.abs().sum() > 0
        torch.testing.assert_close(a, b, rtol=0.0, atol=1e-12)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("reduction", COUNTS)
def test_it_is_the_sum_of_the_push(engine: str, reduction: str) -> None:
    mine, batch = module(engine=engine), trees(4)
    x = drawn(batch)
    for pulls in ({}, {"x": x}):
        found = mine.loss(batch, reduction=reduction, **pulls)
        wanted = by_pushes(mine, batch, reduction, **pulls)
        assert found.shape == ()
        assert found.item() == pytest.approx(wanted.item(), rel=1e-12)
        with torch.no_grad():
            alone = mine.loss(batch, reduction=reduction, **pulls)
        assert not alone.requires_grad
        assert alone.item() == pytest.approx(found.item(), rel=1e-12)
        more = pulls.values()
        assert_same(gradients(mine, found, *more), gradients(mine, wanted, *more))


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # PyTorch 2.11 warns once
@pytest.mark.parametrize("device", SHIM_AND_GPU)
@pytest.mark.parametrize("engine", ENGINES)
def test_on_a_gpu(device: str, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, judge = modules(device, engine, monkeypatch)
    place = next(mine.parameters()).device
    for count, drop_table in ((3, False), (2, True), (4, False)):
        batch, mine.sparse = trees(count), drop_table
        x = drawn(batch)
        ours = x.detach().to(place, torch.float32).requires_grad_()
        for each in (mine, judge):
            each.zero_grad()
        found, wanted = mine.loss(batch, x=ours), by_pushes(judge, batch, x=x)
        assert found.device == place
        assert_near(found, wanted)
        with torch.no_grad():
            assert_near(mine.loss(batch, x=ours), wanted)
        mine(batch)["h"].sum().backward()  # what comes between changes nothing
        (3.0 * found).backward()
        judge(batch)["h"].sum().backward()
        (3.0 * wanted).backward()
        assert_near(ours.grad, x.grad)
        for p, q in zip(mine.parameters(), judge.parameters(), strict=True):
            if q.grad is not None:
                assert_near(p.grad.to_dense(), q.grad)


@pytest.mark.parametrize("device", ["cpu", *SHIM_AND_GPU])
@pytest.mark.parametrize("engine", ENGINES)
def test_training_is_the_networks(
    device: str, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leaves with equal words are one row, so that losses have weights."""
    rng, graphs = np.random.default_rng(0), []
    for _ in range(6):
        pulls = {"word": rng.integers(0, 2, 5), "label": rng.integers(0, 2, 5)}
        pulls["word"][[2, 4]], pulls["label"][:3] = -1, -1
        graphs.append(vrt.InputGraph.from_children([[], [], [0, 1], [], [2, 3]], pulls))
    batch = vrt.GraphBatch.from_graphs(graphs)
    modules("shim" if device == "cpu" else device, engine, monkeypatch)  # skips, and lends the shim
    given = {"device": "cpu" if device == "cpu" else "cuda", "engine": engine, "seed": 3}
    if device != "cpu" and engine == "persistent":
        given["processors"] = 4
    net, inside = (
        vrt.compile(TreeLSTM(vocab=2, embed=8, hidden=8, classes=2), **given) for _ in range(2)
    )
    mine = vt.Module(inside)
    theirs, ours = torch.optim.SGD(mine.parameters(), lr=0.5), vrt.SGD(lr=0.5)
    for _ in range(3):
        theirs.zero_grad()
        loss = mine.loss(batch)
        loss.backward()
        theirs.step()
        assert float(net.step(batch, ours)) == pytest.approx(loss.item(), rel=1e-5)
    for name, value in net.parameters.items():
        found = mine.get_parameter(name).detach().cpu()
        np.testing.assert_allclose(found, value, rtol=0.0, atol=2e-6)


@pytest.mark.parametrize("engine", ENGINES)
def test_gradients_by_differences(engine: str) -> None:
    mine, batch = module(engine=engine), trees()
    x = drawn(batch)
    names = [name for name, p in mine.named_parameters() if p.requires_grad]

    class Loss(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inside = mine

        def forward(self, x: Any) -> Any:
            return 0.5 * self.inside.loss(batch, x=x)

    whole = Loss()

    def loss(x: Any, *weights: Any) -> Any:
        named = {f"inside.{n}": w for n, w in zip(names, weights, strict=True)}
        return torch.func.functional_call(whole, named, (x,))

    weights = [mine.get_parameter(n).detach().clone().requires_grad_() for n in names]
    assert torch.autograd.gradcheck(loss, (x, *weights))
    assert mine.network.parameters["embedding"].any()  # its own are back


def test_rows_that_vertices_share() -> None:
    """A table's row gets the sum over the vertices that pull it, of which some are alike."""
    mine, batch = module(), trees()
    index = (np.arange(batch.num_vertices) % 2).astype(np.int32)
    words = np.zeros(batch.num_vertices, np.int32)
    batch = batch.with_pulls({"x": vrt.Rows(np.zeros((2, SIZE)), index), "word": words})
    rows = torch.randn(2, SIZE, dtype=torch.float64, requires_grad=True)
    found, wanted = mine.loss(batch, x=rows), by_pushes(mine, batch, x=rows)
    assert_same(gradients(mine, found, rows), gradients(mine, wanted, rows))


def test_losses_add_up_and_gradients_accumulate() -> None:
    mine, batch, other = module(), trees(3), trees(5)
    loss = mine.loss(batch) - 2.0 * mine.loss(other) + mine.get_parameter("cell.bias").sum()
    loss.backward()
    mine.loss(other).backward()
    found = [p.grad for p in mine.parameters() if p.requires_grad]
    mine.zero_grad()
    wanted = by_pushes(mine, batch) - by_pushes(mine, other)
    (wanted + mine.get_parameter("cell.bias").sum()).backward()
    assert_same(found, [p.grad for p in mine.parameters() if p.requires_grad])


def test_twice_and_no_second_derivative() -> None:
    mine, batch = module(), trees()
    loss = mine.loss(batch)
    first = gradients(mine, loss.square().sqrt())
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()
    loss = mine.loss(batch)
    loss.backward(retain_graph=True)
    with torch.no_grad():
        mine.embedding.mul_(2.0)  # gradients are of what was computed
    loss.backward()
    assert_same([p.grad / 2 for p in mine.parameters() if p.requires_grad], first)
    again = torch.autograd.grad(mine.loss(batch).square(), mine.embedding, create_graph=True)
    with pytest.raises(UsageError, match="twice"):
        again[0].sum().backward()
    penalty = torch.autograd.grad(mine.loss(batch), mine.embedding, create_graph=True)[0].norm()
    with pytest.raises(UsageError, match="twice"):  # what comes in has no history there
        penalty.backward()


@pytest.mark.filterwarnings("ignore")
def test_second_derivatives_by_parameters_and_programs_of_pytorch_are_refused() -> None:
    mine, batch = module(), vt.BatchTensors.of(trees())
    weights = [each for each in mine.parameters() if each.requires_grad]
    found = torch.autograd.grad(mine.loss(batch), weights, create_graph=True, allow_unused=True)
    with pytest.raises(UsageError, match="differentiate twice"):
        torch.autograd.grad(sum(each.sum() for each in found if each is not None), weights)
    layer, x = vt.GRU(3, 2), torch.ones(4, 1, 3)
    for each, given in ((mine, batch), (layer, x)):
        with pytest.raises(UsageError, match="have no such form; give the weights of a layer"):
            torch.export.export(each, (given,), strict=False)
    with pytest.raises(UsageError, match=r"in torch.export or torch.jit.trace"):
        torch.jit.trace(layer, (x,))
    with pytest.raises(RuntimeError, match="a layer that is exported"):
        torch.export.export(layer, (x,), strict=True)


def test_frozen_parameters_and_none_at_all() -> None:
    mine, batch = module(), trees()
    wanted = torch.autograd.grad(mine.loss(batch), mine.get_parameter("cell.bias"))
    mine.embedding.requires_grad_(False)
    loss = mine.loss(batch)
    loss.backward()
    assert mine.embedding.grad is None
    assert mine.fixed.grad is None
    assert_same([mine.get_parameter("cell.bias").grad], list(wanted))
    mine.requires_grad_(False)
    assert not mine.loss(batch).requires_grad
    x = drawn(batch)
    mine.loss(batch, x=x).backward()
    assert_same([x.grad], list(torch.autograd.grad(by_pushes(mine, batch, x=x), x)))


def test_sparse_gradients_of_tables() -> None:
    net = vrt.compile(Node(), device="cpu", dtype="float64", seed=2)
    mine, dense, batch = vt.Module(net, sparse=True), module(), trees(1)
    for each in (mine, dense):
        (3.0 * each.loss(batch)).backward()
    assert mine.embedding.grad.is_sparse
    assert len(mine.embedding.grad.coalesce().indices()[0]) < 7
    found = [p.grad.to_dense() for p in mine.parameters() if p.requires_grad]
    assert_same(found, [p.grad for p in dense.parameters() if p.requires_grad])


def test_dropout_is_pytorchs_mode_and_seed() -> None:
    mine, batch = module(dropout=0.5), trees(6)
    torch.manual_seed(4)
    first, second = mine.loss(batch), mine.loss(batch)
    torch.manual_seed(4)
    with torch.no_grad():
        assert mine.loss(batch).item() == pytest.approx(first.item(), rel=1e-12)
    torch.manual_seed(4)
    assert by_pushes(mine, batch).item() == pytest.approx(first.item(), rel=1e-12)
    assert first.item() != second.item()
    mine.eval()
    assert mine.loss(batch).item() == pytest.approx(by_pushes(mine, batch).item(), rel=1e-12)
    assert mine.loss(batch).requires_grad


def test_what_draws_nothing_leaves_the_generator_alone() -> None:
    mine, batch = module(), trees()
    torch.manual_seed(4)
    wanted = torch.rand(3)
    torch.manual_seed(4)
    mine.loss(batch)
    assert torch.equal(torch.rand(3), wanted)


@pytest.mark.filterwarnings("ignore")
def test_a_compiler_leaves_it_outside() -> None:
    mine, batch = module(), vt.BatchTensors.of(trees())
    torch.compiler.reset()
    around = torch.compile(lambda b: 2.0 * mine.loss(b), backend="aot_eager")
    found = around(batch)
    assert found.item() == pytest.approx(2.0 * mine.loss(batch).item(), rel=1e-12)
    assert_same(gradients(mine, found / 2.0), gradients(mine, mine.loss(batch)))
    whole = torch.compile(lambda b: mine.loss(b), fullgraph=True, backend="aot_eager")
    with pytest.raises(RuntimeError, match=r"leave fullgraph out, or write module"):
        whole(batch)


class NoLoss(vrt.VertexFunction):
    """It pushes none."""

    def __init__(self) -> None:
        super().__init__(state={})
        self.fixed = vrt.Parameter((SIZE,))

    def forward(self) -> None:
        self.push("x", self.pull("x", shape=(SIZE,)) * self.fixed)


def test_mistakes_are_named() -> None:
    mine, batch = module(), trees()
    with pytest.raises(
        UsageError, match="reduction='mean'; one of mean_graphs, mean_vertices, sum; name one"
    ):
        mine.loss(batch, reduction="mean")
    with pytest.raises(UsageError, match="'y'; it pulls word, x"):
        mine.loss(batch, y=torch.zeros(3))
    with pytest.raises(UsageError, match="a list; a GraphBatch"):
        mine.loss([batch])
    with pytest.raises(UsageError, match="NoLoss pushes x; a push named 'loss'"):
        vt.Module(vrt.compile(NoLoss(), device="cpu")).loss(batch)
