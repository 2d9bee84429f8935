"""A network as a module of PyTorch: names and memory, its ops, its compiler, batches.

What modules compute is judged in `test_kept.py`, what is done to them in `test_drop_ins.py`, what
they refuse in `test_refusals.py`.
"""

from __future__ import annotations

import copy
import gc
import pickle
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import vertexrt as vrt  # noqa: E402
import vertexrt.torch as vt  # noqa: E402
from tests.declared import Declared  # noqa: E402
from tests.torch.beside import (  # noqa: E402
    COUNTS,
    ENGINES,
    WIDTH,
    compile_again,
    same,
    tree_pair,
    trees,
)
from vertexrt import nn  # noqa: E402
from vertexrt.api.network import ForwardPass  # noqa: E402
from vertexrt.errors import UsageError  # noqa: E402
from vertexrt.torch import passes  # noqa: E402


def drawn(batch: vrt.GraphBatch, dtype: Any = torch.float64) -> Any:
    torch.manual_seed(0)
    return torch.randn(batch.num_vertices, WIDTH, dtype=dtype, requires_grad=True)


def test_parameters_are_those_of_the_network() -> None:
    """They have one memory, also after conversions and when others are assigned."""
    mine, fresh = tree_pair()[0], tree_pair()[0]
    before = list(mine.parameters())
    assert list(mine.state_dict()) == list(mine.network.parameters)
    assert "cell.weight_hh" in mine.state_dict()
    assert not mine.fixed.requires_grad
    assert mine.embedding.requires_grad
    mine.float().double()
    assert all(p is q for p, q in zip(mine.parameters(), before, strict=True))
    fresh.load_state_dict(copy.deepcopy(mine.state_dict()), assign=True)
    for module in (mine, fresh):
        with torch.no_grad():
            module.get_parameter("cell.bias_hh").fill_(3.0)
        assert (module.network.parameters["cell.bias_hh"] == 3.0).all()
        module.network.parameters["embedding"] = 4.0 * np.ones(module.embedding.shape)
        assert (module.embedding == 4.0).all()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("reduction", COUNTS)
def test_a_loss_is_the_push_reduced(engine: str, reduction: str) -> None:
    (mine, judge), batch = tree_pair(), trees(4)
    compile_again(mine, "cpu", engine)
    for pulls in ({}, {"x": drawn(batch)}):
        found, wanted = (m.loss(batch, reduction=reduction, **pulls) for m in (mine, judge))
        with torch.no_grad():
            alone = mine.loss(batch, reduction=reduction, **pulls)
        assert found.shape == ()
        assert not alone.requires_grad
        same([found, alone], [wanted, wanted])
    mine.requires_grad_(False)
    assert not mine.loss(batch).requires_grad


def alive() -> int:
    """Count passes that are kept for their way back."""
    gc.collect()
    return sum(type(each) is ForwardPass for each in gc.get_objects())


def test_a_pass_that_nobody_wants_is_freed() -> None:
    mine, batch, before = tree_pair()[0], trees(), alive()
    kept = [mine(batch)["h"] for _ in range(3)]
    assert alive() == before + 3
    del kept
    assert alive() == before


def test_autocast_computes_in_float32() -> None:
    mine, batch = tree_pair()[0].float(), trees()
    x = drawn(batch, torch.float32)
    wanted = mine(batch, x=x)["h"]
    layer = torch.nn.Linear(WIDTH, WIDTH)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(mine(batch, x=x)["h"], wanted)
        below = layer(x)
        assert below.dtype == torch.bfloat16
        found = mine(batch, x=below)["h"]
    assert found.dtype == torch.float32
    found.sum().backward()
    assert layer.weight.grad.any()


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
    mine, batch = tree_pair()[0], vt.BatchTensors.of(trees())
    x = drawn(batch.graphs)
    # The token of a pass is another number each time: the compiler's results are compared below.
    some = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(passes.forward, arguments(mine, batch, x, keep=True), test_utils=some)
    alone = arguments(mine, batch, x, keep=False)
    torch.library.opcheck(passes.forward, alone, test_utils=some[::2])
    tensors, of_batch, call = given = arguments(mine, batch, x, keep=True)
    *pushes, token = passes.forward(*given)
    grads = [torch.ones_like(each) for each in pushes]
    made = [t.detach() for t in tensors], [*of_batch, token]
    torch.library.opcheck(passes.backward, (grads, *made, call))
    (found,) = torch.autograd.grad(pushes[1].sum(), x, create_graph=True)
    with pytest.raises(UsageError, match="differentiate twice"):
        torch.autograd.grad(found.square().sum() + x.sum(), x)


class Outer(torch.nn.Module):
    """A model around a module."""

    def __init__(self, inside: Any) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.before = torch.nn.Linear(3, WIDTH).double()
        self.inside = inside
        self.after = torch.nn.Linear(WIDTH, 2).double()

    def forward(self, batch: vt.BatchTensors, x: Any) -> Any:
        h = self.inside(batch, outputs=["h"], x=self.before(x))["h"]
        return self.after(torch.tanh(h)[batch.roots])


@pytest.mark.filterwarnings("ignore")
def test_a_model_around_it_compiles_whole() -> None:
    torch.compiler.reset()
    mine, judge = map(Outer, tree_pair())
    compiled = torch.compile(mine, fullgraph=True, backend="aot_eager", dynamic=True)
    for graphs in (3, 5, 2):
        batch = vt.BatchTensors.of(trees(graphs))
        x = torch.randn(len(batch.graph_of), 3, dtype=torch.float64)
        found = []
        for model, call in ((mine, compiled), (judge, judge)):
            out = call(batch, x)
            weights = [p for p in model.parameters() if p.requires_grad]
            found.append([out, *torch.autograd.grad(out.square().sum(), weights)])
        same(*found)


def one(batch: vrt.GraphBatch) -> vrt.GraphBatch:
    return batch


class Forests(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Batches by number."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, k: int) -> vrt.GraphBatch:
        return trees(k + 1)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("collate", [one, vt.BatchTensors.of])
def test_batches_from_workers_of_a_data_loader(collate: Any) -> None:
    more: Any = {"num_workers": 1, "multiprocessing_context": "spawn", "collate_fn": collate}
    mine = tree_pair()[0]
    for k, batch in enumerate(torch.utils.data.DataLoader(Forests(), batch_size=None, **more)):
        assert torch.equal(mine(batch)["h"], mine(trees(k + 1))["h"])


def test_tensors_of_a_batch_are_rebuilt_as_training_loops_do() -> None:
    mine, wanted = tree_pair()[0], tree_pair()[0](trees())["h"]
    for rebuilt in (
        lambda ts: type(ts)(t.clone() for t in ts),
        lambda ts: type(ts)(*map(torch.clone, ts)),
        lambda ts: pickle.loads(pickle.dumps(ts)),
    ):
        batch = rebuilt(vt.BatchTensors.of(trees()))  # the token of the first one is gone
        gc.collect()
        assert torch.equal(mine(batch)["h"], wanted)
    last = vt.BatchTensors(t.clone() for t in vt.BatchTensors.of(batch))  # nobody else holds them
    assert last.graphs is batch.graphs


class Pool(Declared, state={"h": WIDTH}):
    """A mean over children: it has no parameters."""

    def forward(self) -> None:
        h = self.pull("x", shape=(WIDTH,)) + vrt.mean(self.gather_all().h)
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
    cell = vt.Recurrent(Decay(), WIDTH, {"h": WIDTH}).double()
    assert torch.equal(cell(torch.ones(2, 1, WIDTH).double())[0][1], torch.full((1, WIDTH), 1.5))
