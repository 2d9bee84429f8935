"""A network as a module of PyTorch, by PyTorch's own judges: gradcheck, opcheck, its compiler."""

from __future__ import annotations

import copy
import gc
import io
import pickle
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import vertexrt as vrt  # noqa: E402
import vertexrt.torch as vt  # noqa: E402
from vertexrt import nn  # noqa: E402
from vertexrt.api.network import ForwardPass  # noqa: E402
from vertexrt.errors import UsageError  # noqa: E402
from vertexrt.torch import passes  # noqa: E402

SIZE = 5


class Node(vrt.VertexFunction):
    """A child-sum Tree-LSTM over words and vectors."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__(state={"h": SIZE, "c": SIZE})
        self.embedding = vrt.Parameter((7, SIZE), vrt.init.normal(1.0))
        self.fixed = vrt.Parameter((SIZE,), vrt.init.normal(1.0), trainable=False)
        self.cell = nn.ChildSumTreeLSTMCell(SIZE, SIZE)
        self.dropout = dropout

    def forward(self) -> None:
        x = vrt.embed(self.embedding, self.pull("word")) + self.pull("x", shape=(SIZE,))
        h, c = self.cell(vrt.random.dropout(x * self.fixed, self.dropout), self.gather_all())
        self.scatter(h=h, c=c)
        self.push("h", h)
        self.push("loss", vrt.sum(h * h))


def trees(graphs: int = 3) -> vrt.GraphBatch:
    rng, made = np.random.default_rng(graphs), []
    for _ in range(graphs):
        n = int(rng.integers(2, 7))
        lists: list[list[int]] = [[] for _ in range(n)]
        for child in range(n - 1):
            lists[int(rng.integers(child + 1, n))].append(child)
        pulls = {"word": rng.integers(0, 7, n), "x": np.zeros((n, SIZE))}
        made.append(vrt.InputGraph.from_children(lists, pulls))
    return vrt.GraphBatch.from_graphs(made)


def module(dtype: str = "float64", dropout: float = 0.0, engine: str = "batched") -> Any:
    net = vrt.compile(Node(dropout), device="cpu", dtype=dtype, seed=2, engine=engine)
    return vt.Module(net)


def drawn(batch: vrt.GraphBatch, dtype: Any = torch.float64) -> Any:
    torch.manual_seed(0)
    return torch.randn(batch.num_vertices, SIZE, dtype=dtype, requires_grad=True)


def test_parameters_are_those_of_the_network() -> None:
    mine = module()
    assert list(mine.state_dict()) == list(mine.network.parameters)
    assert "cell.weight_fh" in mine.state_dict()
    with torch.no_grad():
        mine.get_parameter("cell.bias").fill_(3.0)
    assert (mine.network.parameters["cell.bias"] == 3.0).all()
    mine.network.parameters["embedding"] = 4.0 * np.ones(mine.embedding.shape)
    assert (mine.embedding == 4.0).all()
    assert not mine.fixed.requires_grad
    assert mine.embedding.requires_grad


@pytest.mark.parametrize("engine", ["batched", "persistent"])
def test_gradients_by_differences(engine: str) -> None:
    mine, batch = module(engine=engine), trees()
    x = drawn(batch)
    names = [name for name, p in mine.named_parameters() if p.requires_grad]

    def outputs(x: Any, *weights: Any) -> Any:
        named = dict(zip(names, weights, strict=True))
        found = torch.func.functional_call(mine, named, (batch,), {"x": x})
        return found["h"], found["loss"]

    weights = [mine.get_parameter(n).detach().clone().requires_grad_() for n in names]
    assert torch.autograd.gradcheck(outputs, (x, *weights))
    assert mine.network.parameters["embedding"].any()  # its own are back


def test_training_is_the_networks() -> None:
    mine, net = module(), module().network
    batch, other = trees(4), trees(2)
    theirs = torch.optim.SGD(mine.parameters(), lr=0.1)
    ours = vrt.SGD(lr=0.1)
    for each in (batch, other, batch):
        theirs.zero_grad()
        loss = mine(each, outputs=["loss"])["loss"].sum() / each.num_graphs
        loss.backward()
        theirs.step()
        assert net.step(each, ours) == pytest.approx(loss.item(), rel=1e-12)
    for name, value in net.parameters.items():
        np.testing.assert_allclose(mine.get_parameter(name).detach(), value, atol=1e-12)


def test_several_passes_and_one_twice() -> None:
    mine, batch = module(), trees()
    x, y = drawn(batch), torch.ones(batch.num_vertices, SIZE, dtype=torch.float64)
    y.requires_grad_()
    first, second = mine(batch, ["h"], x=x)["h"], mine(batch, ["h"], x=y)["h"]
    (first * second.detach()).sum().backward(retain_graph=True)
    alone = x.grad.clone()
    (first * second).sum().backward(retain_graph=True)
    torch.testing.assert_close(x.grad, 2 * alone, rtol=0.0, atol=1e-12)
    assert y.grad.any()
    shared = mine(batch, ["h"], x=mine(batch, ["h"], x=x)["h"])["h"]
    shared.sum().backward()


def alive() -> int:
    """Count passes that are kept for their way back."""
    gc.collect()
    return sum(type(each) is ForwardPass for each in gc.get_objects())


def test_a_pass_that_nobody_wants_is_freed() -> None:
    mine, batch = module(), trees()
    before = alive()
    kept = [mine(batch)["h"] for _ in range(3)]
    assert alive() == before + 3
    del kept
    assert alive() == before


def test_weights_changed_before_backward_are_an_error() -> None:
    mine, batch = module(), trees()
    loss = mine(batch)["loss"].sum()
    with torch.no_grad():
        mine.embedding.mul_(2.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_dropout_is_pytorchs_mode_and_seed() -> None:
    mine, batch = module(dropout=0.5), trees(6)
    torch.manual_seed(4)
    first, second = mine(batch)["h"], mine(batch)["h"]
    torch.manual_seed(4)
    with torch.no_grad():  # it drops without gradients too
        assert torch.equal(mine(batch)["h"], first)
    assert not torch.equal(first, second)
    mine.eval()
    assert torch.equal(mine(batch)["h"], mine(batch)["h"])
    assert mine(batch)["h"].requires_grad
    assert torch.equal(mine(batch)["h"], module(dropout=0.0)(batch)["h"])
    mine.train()
    torch.manual_seed(4)
    loss = mine(batch)["loss"].sum()
    loss.backward(retain_graph=True)
    alone = mine.embedding.grad.clone()
    loss.backward()  # the pass is repeated, and draws the same
    torch.testing.assert_close(mine.embedding.grad, 2 * alone, rtol=0.0, atol=1e-12)


def test_copies_have_weights_of_their_own() -> None:
    mine, batch = module(), trees()
    wanted = mine(batch)["h"]
    saved = io.BytesIO()
    torch.save(mine, saved)
    saved.seek(0)
    whole = torch.load(saved, weights_only=False)
    for copied in (copy.deepcopy(mine), pickle.loads(pickle.dumps(mine)), whole):
        assert torch.equal(copied(batch)["h"], wanted)
        with torch.no_grad():
            copied.embedding.zero_()
        assert not torch.equal(copied(batch)["h"], wanted)
        assert torch.equal(mine(batch)["h"], wanted)


def test_conversions() -> None:
    mine, batch = module(), trees()
    wanted = mine(batch)["h"].detach()
    optimizer = torch.optim.SGD(mine.parameters(), lr=0.0)
    mine.float()
    found = mine(batch)["h"]
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), wanted, rtol=0.0, atol=1e-5)
    found.sum().backward()
    optimizer.step()  # it knows the same parameters
    mine.double().to("cpu")
    with torch.no_grad():
        mine.embedding.mul_(0.0)
    assert not mine.network.parameters["embedding"].any()
    with pytest.raises(UsageError, match=r"bfloat16.*float32 or float64"):
        mine.bfloat16()
    assert mine.embedding.dtype == torch.float64


def test_autocast_computes_in_float32() -> None:
    mine, batch = module("float32"), trees()
    x = drawn(batch, torch.float32)
    wanted = mine(batch, x=x)["h"]
    layer = torch.nn.Linear(SIZE, SIZE)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(mine(batch, x=x)["h"], wanted)
        below = layer(x)
        assert below.dtype == torch.bfloat16
        found = mine(batch, x=below)["h"]
    assert found.dtype == torch.float32
    found.sum().backward()
    assert layer.weight.grad.any()


def test_loading_by_assignment() -> None:
    mine, fresh, batch = module(), module(), trees()
    with torch.no_grad():
        mine.embedding.mul_(2.0)
    fresh.load_state_dict(copy.deepcopy(mine.state_dict()), assign=True)
    assert torch.equal(mine(batch)["h"], fresh(batch)["h"])
    with torch.no_grad():
        fresh.embedding.fill_(1.0)  # the network has the memory that was assigned
    assert (fresh.network.parameters["embedding"] == 1.0).all()


def test_sparse_gradients_of_tables() -> None:
    net = vrt.compile(Node(), device="cpu", dtype="float64", seed=2)
    mine, dense = vt.Module(net, sparse=True), module()
    batch = trees(1)
    for each in (mine, dense):
        (each(batch)["loss"].sum() + each(trees(2))["h"].sum()).backward()
    assert mine.embedding.grad.is_sparse
    torch.testing.assert_close(
        mine.embedding.grad.to_dense(), dense.embedding.grad, rtol=0.0, atol=1e-12
    )
    assert not mine.get_parameter("cell.bias").grad.is_sparse
    torch.optim.SGD(mine.parameters(), lr=0.1).step()


def test_an_index_map_of_the_batch_is_kept() -> None:
    mine, batch = module(), trees()
    index = np.arange(batch.num_vertices) % 2
    table = vrt.Rows(np.zeros((2, SIZE)), index.astype(np.int32))
    rows = torch.randn(2, SIZE, dtype=torch.float64, requires_grad=True)
    found = mine(batch.with_pulls({"x": table}), ["h"], x=rows)["h"]
    wanted = mine(batch, ["h"], x=rows[torch.from_numpy(index)])["h"]
    assert torch.equal(found, wanted)
    by_rows, by_vertices = (torch.autograd.grad(h.sum(), rows)[0] for h in (found, wanted))
    torch.testing.assert_close(by_rows, by_vertices, rtol=0.0, atol=1e-12)
    taken = batch.with_pulls({"x": table}).take(np.arange(len(batch)))
    assert torch.equal(mine(taken, ["h"], x=rows)["h"], found), "graphs that were taken, too"


def arguments(mine: Any, batch: vt.BatchTensors, x: Any, *, keep: bool) -> tuple[Any, ...]:
    """Return the arguments of the forward op."""
    bound = mine.binding
    parameters = [mine.get_parameter(name).detach() for name in bound.names]
    for tensor, name in zip(parameters, bound.names, strict=True):
        tensor.requires_grad_(name in bound.trained)
    seed = torch.zeros(1, dtype=torch.int64)
    call = passes.Call(bound.number, ("x",), ("h", "loss"), ("x",), keep, False)
    return [*parameters, x], [batch.token, batch.graph_of, seed], call.text()


def test_the_ops_by_opcheck() -> None:
    mine, batch = module(), vt.BatchTensors.of(trees())
    x = drawn(batch.graphs)
    # The token of a pass is another number each time: the compiler's results are compared below.
    some = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(passes.forward, arguments(mine, batch, x, keep=True), test_utils=some)
    alone = arguments(mine, batch, x, keep=False)
    torch.library.opcheck(passes.forward, alone, test_utils=some[::2])
    given = arguments(mine, batch, x, keep=True)
    *pushes, token = passes.forward(*given)
    grads = [torch.ones_like(each) for each in pushes]
    tensors, of_batch, call = given
    made = [t.detach() for t in tensors], [*of_batch, token]
    torch.library.opcheck(passes.backward, (grads, *made, call))


def test_the_ops_have_no_second_derivative() -> None:
    mine, batch = module(), vt.BatchTensors.of(trees())
    x = drawn(batch.graphs)
    loss = passes.forward(*arguments(mine, batch, x, keep=True))[1].sum()
    (found,) = torch.autograd.grad(loss, x, create_graph=True)
    with pytest.raises(UsageError, match="differentiate twice"):
        torch.autograd.grad(found.square().sum() + x.sum(), x)


@pytest.mark.filterwarnings("ignore")
def test_a_model_around_it_compiles_whole() -> None:
    class Outer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before = torch.nn.Linear(3, SIZE).double()
            self.inside = module()
            self.after = torch.nn.Linear(SIZE, 2).double()

        def forward(self, batch: vt.BatchTensors, x: Any) -> Any:
            h = self.inside(batch, outputs=["h"], x=self.before(x))["h"]
            return self.after(torch.tanh(h)[batch.roots])

    torch.manual_seed(1)
    outer = Outer()
    torch.compiler.reset()
    compiled = torch.compile(outer, fullgraph=True, backend="aot_eager", dynamic=True)
    for graphs in (3, 5, 2):
        batch = vt.BatchTensors.of(trees(graphs))
        x = torch.randn(len(batch.graph_of), 3, dtype=torch.float64)
        found = []
        for each in (outer, compiled):
            outer.zero_grad()
            out = each(batch, x)
            out.square().sum().backward()
            gradients = [p.grad.clone() for p in outer.parameters() if p.requires_grad]
            found.append([out.detach(), *gradients])
        for a, b in zip(*found, strict=True):
            torch.testing.assert_close(a, b, rtol=0.0, atol=1e-12)


def one(batch: vrt.GraphBatch) -> vrt.GraphBatch:
    return batch


class Forests(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Batches by number."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, k: int) -> vrt.GraphBatch:
        return trees(k + 1)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_batches_from_workers_of_a_data_loader() -> None:
    mine = module()
    for collate in (one, vt.BatchTensors.of):
        loader = torch.utils.data.DataLoader(
            Forests(),
            batch_size=None,
            num_workers=1,
            collate_fn=collate,
            multiprocessing_context="spawn",
        )
        for k, batch in enumerate(loader):
            assert torch.equal(mine(batch)["h"], mine(trees(k + 1))["h"])


def test_tensors_of_a_batch_are_rebuilt_as_training_loops_do() -> None:
    mine = module()
    for rebuilt in (
        lambda ts: type(ts)(t.clone() for t in ts),
        lambda ts: type(ts)(*map(torch.clone, ts)),
    ):
        batch = rebuilt(vt.BatchTensors.of(trees()))  # the token of the first one is gone
        gc.collect()
        assert batch.graphs.num_graphs == len(trees())
        assert torch.equal(mine(batch)["h"], mine(trees())["h"])
        assert torch.equal(mine(pickle.loads(pickle.dumps(batch)))["h"], mine(trees())["h"])
    last = vt.BatchTensors(t.clone() for t in vt.BatchTensors.of(batch))  # nobody else holds them
    assert last.graphs is batch.graphs


class Named(Node):
    """A node with a parameter that has the name of a method of modules."""

    def __init__(self) -> None:
        super().__init__()
        self.type = vrt.Parameter((SIZE,))

    def forward(self) -> None:
        super().forward()
        self.push("typed", self.type * self.pull("x", shape=(SIZE,)))


def test_mistakes_are_named() -> None:
    with pytest.raises(UsageError, match="a part of F called 'type'"):
        vt.Module(vrt.compile(Named(), device="cpu"))
    mine, batch = module(), trees()
    with pytest.raises(UsageError, match="a Node; a network; write Module"):
        vt.Module(Node())  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="a list; a GraphBatch"):
        mine([batch])
    with pytest.raises(UsageError, match="'hh'; it pushes h, loss"):
        mine(batch, outputs=["hh"])
    with pytest.raises(UsageError, match="'y'; it pulls word, x"):
        mine(batch, y=torch.zeros(3))
    with pytest.raises(UsageError, match="of another process"):
        vt.BatchTensors(torch.tensor([10**9]), torch.zeros(3), torch.zeros(1)).graphs  # noqa: B018


class Pool(vrt.VertexFunction):
    """A mean over children: it has no parameters."""

    def __init__(self) -> None:
        super().__init__(state={"h": SIZE})

    def forward(self) -> None:
        h = self.pull("x", shape=(SIZE,)) + vrt.mean(self.gather_all().h)
        self.scatter(h=h)
        self.push("h", h)
        self.push("loss", vrt.sum(h * h))


class Decay(nn.Cell):
    """A cell without parameters."""

    def __call__(self, x: Any, h: Any) -> Any:
        return 0.5 * h + x


def test_no_parameters() -> None:
    mine, batch = vt.Module(vrt.compile(Pool(), device="cpu")), trees()
    wanted = mine(batch, x=drawn(batch).float())["h"]
    for change in (
        lambda m: m,
        lambda m: m.double(),
        copy.deepcopy,
        lambda m: pickle.loads(pickle.dumps(m)),
        lambda m: m.float(),
        lambda m: m.to("meta").to_empty(device="cpu"),
    ):
        mine = change(mine)
        x = drawn(batch).detach().to(mine.place.dtype).requires_grad_()
        h = mine(batch, x=x)["h"]
        assert h.dtype == x.dtype
        torch.testing.assert_close(h.float(), wanted, rtol=0.0, atol=1e-5)
        (by_h,) = torch.autograd.grad(h.square().sum(), x)
        (by_loss,) = torch.autograd.grad(mine.loss(batch, reduction="sum", x=x), x)
        torch.testing.assert_close(by_h, by_loss)
    assert not mine.state_dict()
    assert not list(mine.parameters())
    cell = vt.Recurrent(Decay(), SIZE, {"h": SIZE}).double()
    assert torch.equal(cell(torch.ones(2, 1, SIZE).double())[0][1], torch.full((1, SIZE), 1.5))


def test_a_pass_of_other_parameters_is_not_repeated() -> None:
    mine, batch = module(), trees()
    loss = mine(batch)["loss"].sum()
    loss.backward(retain_graph=True)
    mine.network.step(batch, vrt.SGD(0.1))
    with pytest.raises(UsageError, match="parameters have changed since that forward pass"):
        loss.backward()


def test_a_frozen_parameter_that_wants_a_gradient_is_named() -> None:
    mine, batch = module(), trees()
    mine.requires_grad_(True)
    for call in (mine, mine.loss):
        with pytest.raises(UsageError, match=r"fixed wants a gradient; .*; leave its"):
            call(batch)
    with torch.no_grad():
        mine(batch)


def test_part_of_a_module_is_converted() -> None:
    mine, batch = module(), trees()
    mine.get_submodule("cell").float()
    with pytest.raises(UsageError, match=r"torch.float32 .*; torch.float64 .*; convert the module"):
        mine(batch)
    mine.double()
    assert mine(batch)["h"].isfinite().all()


class OfNoArray:
    """A tensor on a GPU that has no interface, as sparse ones."""

    is_cuda = True

    @property
    def __cuda_array_interface__(self) -> Any:
        raise RuntimeError("it is sparse")


@pytest.mark.filterwarnings("ignore:Sparse")
def test_tensors_that_are_no_arrays() -> None:
    for given in (torch.eye(3).to_sparse_csr(), torch.eye(3).to_mkldnn(), OfNoArray()):
        for take in (
            lambda x: vrt.GraphBatch.from_graphs([vrt.InputGraph.chain(3)]).with_pulls({"x": x}),
            lambda x: vrt.InputGraph.chain(3, {"x": x}),
            lambda x: vrt.Rows(x, np.arange(3)),
        ):
            with pytest.raises(vrt.errors.PullError, match="that is no array"):
                take(given)
