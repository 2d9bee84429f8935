"""What modules and layers refuse: mistakes are named, and PyTorch's own errors stay PyTorch's."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.autograd import functional  # noqa: E402

import vertexrt as vrt  # noqa: E402
import vertexrt.torch as vt  # noqa: E402
from tests.declared import Declared  # noqa: E402
from tests.messages import table  # noqa: E402
from tests.torch.beside import (  # noqa: E402
    INPUT,
    SIZE,
    WIDTH,
    Leaky,  # noqa: F401 - mistakes name it, as below
    Node,  # noqa: F401
    layer_pair,
    rnn,
    tree_pair,
    trees,
)
from tests.torch.test_drop_ins import parametrized, shared  # noqa: E402
from vertexrt import nn  # noqa: E402
from vertexrt.errors import PullError, UsageError  # noqa: E402

BATCH, TREES = 2, trees()


def of_layer(kind: str) -> tuple[Any, Any, Any, Any]:
    layer, x = layer_pair(kind)[0], torch.ones(5, BATCH, INPUT).double().requires_grad_()
    return layer, x, lambda y: layer(y)[0], layer.weight_hh_l0


def of_module(outputs: str) -> tuple[Any, Any, Any, Any]:
    module = tree_pair()[0]
    x = torch.ones(TREES.num_vertices, WIDTH).double().requires_grad_()
    ask = (
        (lambda y: module.loss(TREES, x=y))
        if outputs == "loss"
        else (lambda y: module(TREES, x=y)[outputs])
    )
    return module, x, ask, module.embedding


ASKED = {kind: lambda kind=kind: of_layer(kind) for kind in ("LSTM", "GRU", "RNN")}
ASKED |= {name: lambda name=name: of_module(name) for name in ("h", "loss")}


def penalty(found: Any, of: Any) -> Any:
    """Return a number that depends on a gradient."""
    (first,) = torch.autograd.grad(found.square().sum(), of, create_graph=True)
    return first.square().sum() + of.sum()


grad = torch.autograd.grad
TWICE: dict[str, Callable[[Any, Any, Any], Any]] = {
    "of a weight": lambda f, x, w: grad(penalty(f(x), w), w),
    "of the input, by a weight": lambda f, x, w: grad(penalty(f(x), x) + w.sum(), w),
    "of what has no history": lambda f, x, w: (
        grad(f(x).sum(), x, create_graph=True)[0].norm().backward()
    ),
    "backward": lambda f, x, w: penalty(f(x), x).backward(),
    "backward to some": lambda f, x, w: penalty(f(x), w).backward(inputs=[w]),
    "backward of gradients": lambda f, x, w: (
        f(x).square().sum().backward(create_graph=True),
        (w.grad.sum() + x.sum()).backward(inputs=[x]),
    ),
    "hessian": lambda f, x, w: functional.hessian(lambda y: f(y).square().sum(), x),
    "gradgradcheck": lambda f, x, w: torch.autograd.gradgradcheck(f, x),
}


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph")
@pytest.mark.parametrize("name", ASKED)
@pytest.mark.parametrize("way", TWICE)
def test_second_derivatives(way: str, name: str) -> None:
    _, x, ask, weight = ASKED[name]()
    for _ in range(3):  # passes that are kept refuse, too
        with pytest.raises(UsageError, match="differentiate twice; networks have no second deriv"):
            TWICE[way](ask, x, weight)


def test_second_derivatives_through_a_hook() -> None:
    layer, x, ask, _ = of_layer("LSTM")
    parametrized(layer, "weight_hh_l0")
    with pytest.raises(UsageError, match="differentiate twice"):
        penalty(ask(x), x).backward()


func = torch.func
TRANSFORMS: dict[str, Callable[[Any, Any], Any]] = {
    "transform: grad": lambda f, x: func.grad(lambda y: f(y).sum())(x),
    "transform: vjp": func.vjp,
    "transform: jacrev": lambda f, x: func.jacrev(f)(x),
    "transform: vmap": lambda f, x: func.vmap(f)(x[None]),
    "transform: vmap of a gradient": lambda f, x: of_gradients(f(x), x),
    "transform: jvp": lambda f, x: func.jvp(f, (x,), (x,)),
    "forward mode: jacobian": lambda f, x: functional.jacobian(
        f, x, strategy="forward-mode", vectorize=True
    ),
}


def of_gradients(out: Any, x: Any) -> Any:
    batch = torch.ones(2, *out.shape, dtype=out.dtype)
    return func.vmap(lambda d: grad(out, x, d))(batch)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", ["GRU", "h"])
@pytest.mark.parametrize("way", TRANSFORMS)
def test_transforms(way: str, name: str) -> None:
    _, x, ask, _ = ASKED[name]()
    said = way.partition(":")[0]
    with pytest.raises(UsageError, match=rf"^\[torch\] .*{said}.*; gradients by backward"):
        TRANSFORMS[way](ask, x)


@pytest.mark.parametrize("name", ["LSTM", "GRU", "RNN", "h"])
@pytest.mark.parametrize("use", [lambda m: m, shared, lambda m: parametrized(m, first_of(m))])
def test_weights_changed_before_backward(use: Callable[[Any], Any], name: str) -> None:
    module, x, ask, _ = ASKED[name]()
    use(module)
    loss = ask(x).sum()
    with torch.no_grad():
        next(p for p in module.parameters() if p.requires_grad).mul_(2.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def first_of(module: Any) -> str:
    return next(name for name, _ in module.named_parameters())


def test_a_loss_keeps_its_gradients() -> None:
    """They are of what was computed, whatever weights became; and once, unless they are kept."""
    _, x, ask, weight = of_module("loss")
    loss = ask(x)
    wanted = grad(loss.square().sqrt(), weight, retain_graph=True)[0]
    with torch.no_grad():
        weight.mul_(2.0)
    assert torch.equal(grad(loss, weight)[0], wanted)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()


# Mistakes: an expression, and what is said of it. `PyTorch's` is what the layer of PyTorch says.


def faked(module: Any, x: Any) -> Any:
    with FakeTensorMode(allow_non_fake_inputs=True):
        return module(torch.zeros(x.shape))


def without(module: Any, name: str) -> Any:
    """Return a module without a parameter, which conversions and states do not mind."""
    delattr(module, name)
    module.to("cpu").load_state_dict(module.state_dict())
    return module


def with_weight(layer: Any, value: Any) -> Any:
    return torch.func.functional_call(layer, {"weight_hh_l0": value}, (torch.ones(5, 2, 3),))


def whole(function: Any) -> Any:
    torch.compiler.reset()
    return torch.compile(function, fullgraph=True, backend="aot_eager")


def repeated_after_a_step(module: Any) -> Any:
    loss = module(TREES)["loss"].sum()
    loss.backward(retain_graph=True)
    module.network.step(TREES, vrt.SGD(0.1))
    loss.backward()


def partly_converted(module: Any) -> Any:
    module.get_submodule("cell").float()
    return module(TREES)


class NoLoss(Declared, state={}, fixed=(WIDTH,)):
    """It pushes none."""

    def forward(self) -> None:
        self.push("x", self.pull("x", shape=(WIDTH,)) * self.fixed)


class Named(NoLoss):
    """It has a parameter with the name of a method of modules."""

    def __init__(self) -> None:
        super().__init__()
        self.type = vrt.Parameter((WIDTH,))

    def forward(self) -> None:
        self.push("typed", self.type * self.pull("x", shape=(WIDTH,)))


def cpu(function: Any) -> Any:
    return vt.Module(vrt.compile(function, device="cpu"))


def packed(*sizes: int, rows: int = 4, **orders: Any) -> Any:
    counts = torch.tensor(sizes, dtype=torch.int64)
    return rnn.PackedSequence(torch.ones(rows, INPUT), counts, **orders)


MISTAKES = table(__file__, "MISTAKES")


@pytest.mark.filterwarnings("ignore")  # what PyTorch says of captures themselves
@pytest.mark.parametrize("code", MISTAKES)
def test_mistakes_are_named(code: str) -> None:
    names = {**globals(), "x": torch.zeros(5, BATCH, INPUT), "h": torch.zeros(1, BATCH, SIZE)}
    names |= {"gru": vt.GRU(INPUT, SIZE), "lstm": vt.LSTM(INPUT, SIZE), "module": tree_pair()[0]}
    names |= {"cell": vt.Recurrent(nn.LSTMCell(INPUT, SIZE), INPUT)}
    names["tensors"] = vt.BatchTensors.of(TREES)
    kind, _, text = MISTAKES[code].rpartition("Error: ")
    with pytest.raises(Exception) as found:  # noqa: PT011 - its kind and words are looked at
        eval(code, names)
    if text == "PyTorch's":
        theirs = {"gru": torch.nn.GRU(INPUT, SIZE), "lstm": torch.nn.LSTM(INPUT, SIZE)}
        with pytest.raises(type(found.value)) as wanted:
            eval(code, {**names, **theirs})
        assert str(found.value) == str(wanted.value)
        return
    assert found.errisinstance(getattr(builtins, f"{kind}Error") if kind else UsageError)
    found.match(f"(?s){text}")


def test_what_was_missing_can_be_set() -> None:
    layer, x, ask, _ = of_layer("GRU")
    wanted, weight = ask(x), layer.weight_ih_l0
    without(layer, "weight_ih_l0").weight_ih_l0 = torch.nn.Parameter(weight.detach())
    assert torch.equal(ask(x), wanted)
    module, _, _, _ = of_module("h")
    with torch.no_grad():
        module.requires_grad_(True)(TREES)  # nothing wants a gradient


class OfNoArray:
    """A tensor on a GPU that has no interface, as sparse ones."""

    is_cuda = True

    @property
    def __cuda_array_interface__(self) -> Any:
        raise RuntimeError("it is sparse")


@pytest.mark.filterwarnings("ignore:Sparse")
def test_tensors_that_are_no_arrays() -> None:
    chain = vrt.InputGraph.chain(3)
    for given in (torch.eye(3).to_sparse_csr(), torch.eye(3).to_mkldnn(), OfNoArray()):
        for take in (
            lambda x: vrt.GraphBatch.from_graphs([chain]).with_pulls({"x": x}),
            lambda x: vrt.InputGraph.chain(3, {"x": x}),
            lambda x: vrt.Rows(x, np.arange(3)),
        ):
            with pytest.raises(PullError, match="that is no array"):
                take(given)
