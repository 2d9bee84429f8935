"""The recurrent layers beside PyTorch's own: one table of what is done to a layer, run on both.

Each row takes a layer of either kind and returns what is used then. Both have the same results,
gradients, parameters after steps, and state dicts.
"""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch import nn  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.nn.utils import parametrizations, parametrize, prune  # noqa: E402

import vertexrt.torch as vt  # noqa: E402
from vertexrt.errors import UsageError  # noqa: E402

INPUT, H, STEPS, COUNT = 3, 4, 5, 2
KINDS = ("LSTM", "GRU", "RNN")
LAYERS: dict[str, tuple[str, dict[str, Any]]] = {
    "lstm": ("LSTM", {}),
    "lstm-projected": ("LSTM", {"proj_size": 2, "bidirectional": True, "num_layers": 2}),
    "lstm-batch-first": ("LSTM", {"batch_first": True, "num_layers": 2, "bias": False}),
    "gru": ("GRU", {}),
    "gru-both-ways": ("GRU", {"bidirectional": True, "num_layers": 2, "dropout": 1.0}),
    "rnn": ("RNN", {"batch_first": True}),
    "rnn-relu": ("RNN", {"nonlinearity": "relu", "bias": False, "bidirectional": True}),
}


class Twice(nn.Module):
    """A parametrisation."""

    def forward(self, x: Any) -> Any:
        return 2.0 * x


class Turned(nn.Module):
    """A parametrisation that is a view of what it takes."""

    def forward(self, x: Any) -> Any:
        return x.T


class Same(nn.Module):
    """A parametrisation that changes nothing."""

    def forward(self, x: Any) -> Any:
        return x


def made(kind: str, ours: bool, given: dict[str, Any]) -> Any:
    torch.manual_seed(0)
    return getattr(vt if ours else nn, kind)(INPUT, H, dtype=torch.float64, **given)


def pair(row: str) -> tuple[Any, Any]:
    """Return a layer of each kind, with the same numbers."""
    kind, given = LAYERS[row]
    return made(kind, True, given), made(kind, False, given)


def inputs(packed: bool = False, grad: bool = False) -> Any:
    torch.manual_seed(1)
    if packed:
        steps = [torch.randn(n, INPUT, dtype=torch.float64) for n in (2, STEPS, 3)]
        return nn.utils.rnn.pack_sequence(steps, enforce_sorted=False)
    return torch.randn(STEPS, COUNT, INPUT, dtype=torch.float64, requires_grad=grad)


def states(row: str, count: int) -> Any:
    """Return states to begin with."""
    kind, given = LAYERS[row]
    number = given.get("num_layers", 1) * (2 if given.get("bidirectional") else 1)
    torch.manual_seed(2)
    sizes = [given.get("proj_size", H), H] if kind == "LSTM" else [H]
    found = [
        torch.randn(number, count, size, dtype=torch.float64, requires_grad=True) for size in sizes
    ]
    return tuple(found) if kind == "LSTM" else found[0]


def flat(found: Any) -> list[Any]:
    """Return the real tensors of a result."""
    if isinstance(found, nn.utils.rnn.PackedSequence):
        return [found.data]
    return [x for each in found for x in flat(each)] if isinstance(found, tuple) else [found]


def total(found: Any) -> Any:
    """Return a number that depends on all of a result, and on where each number is."""
    return sum((x * torch.linspace(1.0, 2.0, x.numel()).view_as(x)).sum() for x in flat(found))


def same(mine: Any, theirs: Any) -> None:
    """Compare what is given and returned, in order."""
    assert len(mine) == len(theirs)
    for a, b in zip(mine, theirs, strict=True):
        assert (a is None) == (b is None)
        if b is not None:
            assert a.dtype == b.dtype
            bound = 1e-12 if b.dtype == torch.float64 else 1e-5
            torch.testing.assert_close(a.to_dense(), b.to_dense(), rtol=0.0, atol=bound)


@pytest.mark.parametrize("with_states", [False, True])
@pytest.mark.parametrize("form", ["whole", "one", "packed"])
@pytest.mark.parametrize("row", LAYERS)
def test_values_and_gradients(row: str, form: str, with_states: bool) -> None:
    found = []
    for layer in pair(row):
        x: Any = inputs(form == "packed")
        if form == "packed":
            x = x._replace(data=x.data.requires_grad_())
        else:
            x = (x[:, 0] if form == "one" else x).detach().requires_grad_()
        count = 3 if form == "packed" else STEPS if layer.batch_first else COUNT
        hx = states(row, count) if with_states else None
        wanted = [*flat(x), *layer.parameters(), *(flat(hx) if with_states else [])]
        if form == "one" and with_states:
            hx = tuple(h[:, 0] for h in hx) if isinstance(hx, tuple) else hx[:, 0]
        out = layer(x, hx)
        found.append([*flat(out), *torch.autograd.grad(total(out), wanted)])
    same(*found)


# What is done to a layer: it takes one of either kind, and returns the one that is used then.


def parametrized(how: Any, name: str = "weight_hh_l0") -> Callable[[Any], Any]:
    def change(layer: Any) -> Any:
        parametrize.register_parametrization(layer, name, how())
        return layer

    return change


def spectral(layer: Any) -> Any:
    torch.manual_seed(3)
    return parametrizations.spectral_norm(layer, "weight_hh_l0").eval()


def weight_norm(layer: Any) -> Any:
    return parametrizations.weight_norm(layer, "weight_ih_l0")


def old_weight_norm(layer: Any) -> Any:
    return nn.utils.weight_norm(layer, "weight_hh_l0")


def pruned(layer: Any) -> Any:
    return prune.l1_unstructured(layer, "weight_hh_l0", 0.4)


def pruned_for_good(layer: Any) -> Any:
    return prune.remove(pruned(layer), "weight_hh_l0")


def parametrized_and_back(layer: Any) -> Any:
    weight_norm(layer)
    return parametrize.remove_parametrizations(layer, "weight_ih_l0")


def pickled(layer: Any) -> Any:
    return pickle.loads(pickle.dumps(layer))


def saved(layer: Any) -> Any:
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def empty(layer: Any) -> Any:
    """Return a layer like one that has no memory yet."""
    return type(layer)(INPUT, H, layer.num_layers, device="meta", dtype=torch.float64)


def one_by_one(layer: Any) -> Any:
    other = empty(layer)
    for name, p in layer.state_dict().items():
        setattr(other, name, nn.Parameter(p.clone()))
    return other


def one_by_one_inside(layer: Any) -> Any:
    other = empty(layer)
    for name, p in layer.state_dict().items():
        other._parameters[name] = nn.Parameter(p.clone())
    return other


def assigned_one_by_one(layer: Any) -> Any:
    other = empty(layer)
    for name, p in layer.state_dict().items():
        other.load_state_dict({name: p.clone()}, strict=False, assign=True)
    return other


def made_real(layer: Any) -> Any:
    other = empty(layer).to_empty(device="cpu")
    other.load_state_dict(layer.state_dict())
    return other


def other_dtype_one_by_one(layer: Any) -> Any:
    layer(inputs())
    for name, p in list(layer.named_parameters()):
        setattr(layer, name, nn.Parameter(p.detach().float()))
    return layer


def shared(layer: Any) -> Any:
    layer.share_memory()
    assert all(p.is_shared() for p in layer.parameters())
    return layer


def shared_and_moved(layer: Any) -> Any:
    shared(layer).to("cpu").load_state_dict(layer.state_dict())
    assert all(p.is_shared() for p in layer.parameters())
    return layer


def shared_and_pickled(layer: Any) -> Any:
    """As a process that is spawned gets it."""
    from multiprocessing.reduction import ForkingPickler

    other = pickle.loads(bytes(ForkingPickler.dumps(layer)))
    with torch.no_grad():
        for p in layer.parameters():
            p.mul_(0.5)
    same(list(other.parameters()), list(layer.parameters()))
    return other


def through_a_queue(layer: Any) -> Any:
    queue = torch.multiprocessing.SimpleQueue()
    queue.put(layer.state_dict())
    layer.held = queue.get()
    return layer


def turned_in_place(layer: Any) -> Any:
    layer.weight_hh_l0.data = layer.weight_hh_l0.data[:H].T.repeat(len(layer.weight_hh_l0) // H, 1)
    square = layer.weight_hh_l0.data[:H]
    square.copy_(square.T.clone())
    return layer


def exchanged(layer: Any) -> Any:
    a, b = layer.bias_ih_l0, layer.bias_hh_l0
    a.data, b.data = b.data, a.data
    a.data.mul_(2.0)
    return layer


def exchanged_and_moved(layer: Any) -> Any:
    return exchanged(layer).to("cpu")


def tied(layer: Any) -> Any:
    layer.bias_hh_l0 = layer.bias_ih_l0
    return layer.to("cpu")


def from_a_vector(layer: Any) -> Any:
    vector = nn.utils.parameters_to_vector(layer.parameters()).detach().flip(0)
    nn.utils.vector_to_parameters(vector, layer.parameters())
    return layer


def other_dtype_inside(layer: Any) -> Any:
    for name, p in list(layer.named_parameters()):
        layer._parameters[name] = nn.Parameter(p.detach().float())
    return layer


def swapped(layer: Any) -> Any:
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        return layer.float().double()
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)


def frozen(layer: Any) -> Any:
    layer.weight_ih_l0.requires_grad_(False)
    return layer


def averaged(layer: Any) -> Any:
    mean = torch.optim.swa_utils.AveragedModel(layer)
    mean.update_parameters(layer)
    return mean.module


def resized(layer: Any) -> Any:
    """As fully sharded training takes the memory of a parameter away, and brings it back."""
    weight = layer.weight_hh_l0
    values, storage = weight.detach().clone(), nn.Parameter(weight.detach().clone())
    layer.weight_hh_l0 = storage
    size = storage.untyped_storage().nbytes()
    storage.untyped_storage().resize_(0)
    storage.untyped_storage().resize_(size)
    storage.data.copy_(values)
    return layer


DONE: dict[str, Callable[[Any], Any]] = {
    "nothing": lambda layer: layer,
    "float": lambda layer: layer.float(),
    "double": lambda layer: layer.float().double(),
    "conversion by swapping": swapped,
    "frozen": frozen,
    "zero_grad": lambda layer: layer.requires_grad_(True),
    "parametrised": parametrized(Twice),
    "parametrised by a bias": parametrized(Twice, "bias_ih_l0"),
    "parametrised by nothing": parametrized(Same),
    "parametrised, double": lambda layer: parametrized(Twice)(layer).float().double(),
    "parametrised, a copy": lambda layer: copy.deepcopy(parametrized(Twice)(layer)),
    "parametrised and back": parametrized_and_back,
    "spectral_norm": spectral,
    "weight_norm": weight_norm,
    "weight_norm of old": old_weight_norm,
    "pruned": pruned,
    "pruned for good": pruned_for_good,
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
    "pickle": pickled,
    "torch.save": saved,
    "set one by one": one_by_one,
    "set one by one inside": one_by_one_inside,
    "set one by one, other dtype": other_dtype_one_by_one,
    "set one by one inside, other dtype": other_dtype_inside,
    "assigned one by one": assigned_one_by_one,
    "to_empty": made_real,
    "share_memory": shared,
    "share_memory, to": shared_and_moved,
    "spawn": shared_and_pickled,
    "a queue": through_a_queue,
    "turned": turned_in_place,
    "exchanged": exchanged,
    "exchanged, to": exchanged_and_moved,
    "tied": tied,
    "a vector": from_a_vector,
    "averaged": averaged,
    "resized": resized,
}


def used(layer: Any) -> list[Any]:
    """Use a layer in several ways; return all numbers that come of it."""
    dtype = next(layer.parameters()).dtype
    x, found = inputs().to(dtype).requires_grad_(), []
    steps = torch.optim.SGD([p for p in layer.parameters() if p.requires_grad], lr=0.1)
    for k in range(3):
        steps.zero_grad()
        out = layer(x)
        total(out).backward()
        found += [*flat(out), x.grad.clone(), *[p.grad for p in layer.parameters()]]
        steps.step()
        if k == 1:  # which changes nothing
            layer.to("cpu")
            layer.load_state_dict(layer.state_dict())
    with torch.no_grad():
        found += flat(layer(x))
    return [*found, *layer.state_dict().values()]


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
@pytest.mark.parametrize(("kind", "used_before"), [("LSTM", True), ("GRU", False), ("RNN", True)])
@pytest.mark.parametrize("done", DONE)
def test_what_is_done_to_a_layer(done: str, kind: str, used_before: bool) -> None:
    found = []
    for ours in (True, False):
        layer = made(kind, ours, {})
        if used_before:
            total(layer(inputs())).backward()
            layer.zero_grad()
        found.append(used(DONE[done](layer)))
    same(*found)


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    """Make a group of this process alone."""
    distributed = torch.distributed
    if not distributed.is_available():
        pytest.skip("PyTorch has no torch.distributed")
    distributed.init_process_group("gloo", f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


class Around(nn.Module):
    """A model with a layer inside."""

    def __init__(self, ours: bool) -> None:
        super().__init__()
        self.inside = made("LSTM", ours, {"num_layers": 2})
        self.after = nn.Linear(H, 2, dtype=torch.float64)

    def forward(self, x: Any) -> Any:
        return self.after(self.inside(x)[0])


def loaded_again(model: Any) -> Any:
    model.load_state_dict(model.state_dict())
    return model


def flat_shards(model: Any, original: bool, inside: bool) -> Any:
    from torch.distributed.fsdp import FullyShardedDataParallel

    given: Any = {"use_orig_params": original, "device_id": torch.device("cpu")}
    if inside:
        model.inside = FullyShardedDataParallel(model.inside, **given)
    return FullyShardedDataParallel(model, **given)


def shards(model: Any) -> Any:
    from torch.distributed.fsdp import fully_shard

    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
    fully_shard(model.inside, mesh=mesh)
    return fully_shard(model, mesh=mesh)


AROUND: dict[str, Callable[[Any], Any]] = {
    "ddp": lambda model: nn.parallel.DistributedDataParallel(model),
    "fsdp": lambda model: flat_shards(model, False, False),
    "fsdp inside": lambda model: flat_shards(model, False, True),
    "fsdp of parameters": lambda model: loaded_again(flat_shards(model, True, True)),
    "fully_shard": shards,
    "fully_shard, to": lambda model: loaded_again(shards(model).to("cpu")),
    "checkpoint": lambda model: (
        lambda x: torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False)
    ),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("around", AROUND)
def test_what_is_around_a_layer(around: str) -> None:
    found = []
    for ours in (True, False):
        model = Around(ours)
        torch.manual_seed(5)
        nn.init.normal_(model.after.weight)
        nn.init.zeros_(model.after.bias)
        whole: Any = AROUND[around](model) if ours else model
        steps = torch.optim.SGD((whole if ours and around != "checkpoint" else model).parameters())
        losses = []
        for _ in range(3):
            steps.zero_grad()
            loss = whole(inputs()).square().sum()
            loss.backward()
            steps.step()
            losses.append(loss.detach())
        found.append(losses)
    same(*found)


def penalty(layer: Any, x: Any, of: Any) -> Any:
    """Return a number that depends on a gradient."""
    (found,) = torch.autograd.grad(total(layer(x)), of, create_graph=True)
    return found.square().sum() + of.sum()


TWICE: dict[str, Callable[[Any, Any], Any]] = {
    "of a weight": lambda m, x: torch.autograd.grad(penalty(m, x, m.weight_hh_l0), m.weight_hh_l0),
    "of a weight, by the input": lambda m, x: torch.autograd.grad(
        penalty(m, x, m.weight_hh_l0) + x.sum(), x
    ),
    "of the input, by a weight": lambda m, x: torch.autograd.grad(
        penalty(m, x, x) + m.bias_hh_l0.sum(), m.bias_hh_l0
    ),
    "backward": lambda m, x: penalty(m, x, x).backward(),
    "backward to some": lambda m, x: penalty(m, x, m.weight_hh_l0).backward(
        inputs=[m.weight_hh_l0]
    ),
    "backward of gradients": lambda m, x: (
        total(m(x)).backward(create_graph=True),
        (m.weight_hh_l0.grad.sum() + x.sum()).backward(inputs=[x]),
    ),
    "hessian": lambda m, x: torch.autograd.functional.hessian(lambda y: total(m(y)), x),
    "hessian at once": lambda m, x: torch.autograd.functional.hessian(
        lambda y: total(m(y)), x, vectorize=True
    ),
    "hvp": lambda m, x: torch.autograd.functional.hvp(lambda y: total(m(y)), x, torch.ones_like(x)),
    "gradgradcheck": lambda m, x: torch.autograd.gradgradcheck(lambda y: m(y)[0], x),
    "of a hook": lambda m, x: penalty(parametrized(Twice)(m), x, x).backward(),
}


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", TWICE)
def test_second_derivatives_are_refused(way: str, kind: str) -> None:
    with pytest.raises(UsageError, match="differentiate twice; networks have no second deriv"):
        TWICE[way](made(kind, True, {}), inputs(grad=True))


BAD_STATES: dict[str, Any] = {
    "one": lambda h: (h,),
    "none": lambda h: (),
    "three": lambda h: (h, h, h),
    "no pair": lambda h: h,
}


@pytest.mark.parametrize("given", BAD_STATES)
def test_other_numbers_of_states(given: str) -> None:
    layer, h = made("LSTM", True, {}), torch.zeros(1, COUNT, H, dtype=torch.float64)
    with pytest.raises(RuntimeError, match="lstm expects two hidden states"):
        layer(inputs(), BAD_STATES[given](h))


@pytest.mark.parametrize("kind", KINDS)
def test_mistakes_are_named(kind: str) -> None:
    layer, packed = made(kind, True, {}), inputs(packed=True)
    few = packed._replace(data=packed.data[:-1])
    with pytest.raises(UsageError, match="9 steps; 10, as batch_sizes say; pack them"):
        layer(few)
    other = torch.zeros(len(layer.weight_hh_l0), H)
    with pytest.raises(UsageError, match=r"weight_hh is torch.float32 .* on cpu; torch.float64"):
        torch.func.functional_call(layer, {"weight_hh_l0": other}, (inputs(),))
    with pytest.raises(UsageError, match=r"weight_hh is torch.float64 \[1, 4\] on cpu; .*, 4\]"):
        torch.func.functional_call(layer, {"weight_hh_l0": other[:1].double()}, (inputs(),))
    for name in ("weight_ih_l0", "weight_hh_l0"):
        delattr(layer, name)
        layer.to("cpu").load_state_dict(layer.state_dict())
        with pytest.raises(UsageError, match=rf"no parameter {name}; all of the network; set it"):
            layer(inputs())
        setattr(layer, name, nn.Parameter(getattr(made(kind, False, {}), name).detach()))
    same(flat(layer(inputs())), flat(made(kind, False, {})(inputs())))
    with pytest.raises(UsageError, match="parameters on meta; on a CPU or a GPU; load them"):
        layer.to("meta")(inputs())


@pytest.mark.parametrize("kind", KINDS)
def test_weights_changed_before_backward_are_an_error(kind: str) -> None:
    layer, before = made(kind, True, {}), made(kind, True, {})
    for each in (shared(layer), parametrized(Twice)(before)):
        loss = total(each(inputs()))
        with torch.no_grad():
            each.weight_ih_l0.mul_(2.0)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


@pytest.mark.parametrize("kind", KINDS)
def test_given_weights_may_lie_in_the_layers_own_memory(kind: str) -> None:
    found = []
    for ours in (True, False):
        layer = made(kind, ours, {})
        a, b, w = layer.bias_ih_l0, layer.bias_hh_l0, layer.weight_hh_l0
        given = {"bias_ih_l0": b, "bias_hh_l0": 2.0 * a, "weight_hh_l0": w.flip(0)}
        out = [*flat(torch.func.functional_call(layer, given, (inputs(),)))]
        turned = {"weight_hh_l0": w.view(-1, H, H).transpose(1, 2).reshape(-1, H)}
        if kind == "RNN":
            turned = {"weight_hh_l0": w.T}
        out += [*flat(torch.func.functional_call(layer, turned, (inputs(),)))]
        spread = {"weight_hh_l0": w[:1].expand(len(w), H)}
        out += [*flat(torch.func.functional_call(layer, spread, (inputs(),)))]
        exchanged = {"bias_ih_l0": b, "bias_hh_l0": a}
        out += [*flat(torch.func.functional_call(layer, exchanged, (inputs(),)))]
        found.append([*out, *torch.autograd.grad(total(tuple(out)), [a, b, w])])
    same(*found)


def of_gradients(out: Any, x: Any) -> Any:
    batch = torch.ones(2, *out.shape, dtype=out.dtype)
    return torch.func.vmap(lambda d: torch.autograd.grad(out, x, d))(batch)


TRANSFORMS: dict[str, tuple[str, Callable[[Any, Any], Any]]] = {
    "grad": ("transform", lambda m, x: torch.func.grad(lambda y: total(m(y)))(x)),
    "vjp": ("transform", lambda m, x: torch.func.vjp(lambda y: m(y)[0], x)),
    "jacrev": ("transform", lambda m, x: torch.func.jacrev(lambda y: m(y)[0])(x)),
    "vmap": ("transform", lambda m, x: torch.func.vmap(lambda y: m(y)[0])(x[None])),
    "vmap of a gradient": ("transform", lambda m, x: of_gradients(m(x)[0], x)),
    "jvp": ("transform", lambda m, x: torch.func.jvp(lambda y: m(y)[0], (x,), (x,))),
    "forward mode": (
        "forward mode",
        lambda m, x: torch.autograd.functional.jacobian(
            lambda y: m(y)[0], x, strategy="forward-mode", vectorize=True
        ),
    ),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("way", TRANSFORMS)
def test_transforms_are_refused(way: str) -> None:
    words, ask = TRANSFORMS[way]
    with pytest.raises(UsageError, match=rf"^\[torch\] .*{words}.*; gradients by backward"):
        ask(made("GRU", True, {}), inputs(grad=True))


def faked(m: Any, x: Any) -> Any:
    with FakeTensorMode(allow_non_fake_inputs=True):
        return m(torch.zeros(x.shape))


# What is no tensor, or reads a layer as a graph of PyTorch's own; and what is said.
CAPTURES = {
    "torch.jit.script(m)": "torch.jit.script of a network",
    "torch.jit.trace(m, (x,))": "in torch.export or torch.jit.trace",
    "torch.export.export(m, (x,))": "a FakeTensor",
    "torch.fx.symbolic_trace(m)": "a Proxy",
    "faked(m, x)": "a FakeTensor",
    "m(x.numpy())": "a ndarray; a tensor; write torch.as_tensor",
    "m([1.0])": "a list; a tensor",
    "m(x, (x, x))": "a tuple; a tensor",
    "vt.LSTMCell(3, 4)": "there is no vt.LSTMCell; .*; write vt.LSTM",
    "vt.Recurrent(nn.LSTMCell(3, 4), 3)": "a LSTMCell, whose .*; take a cell of vrt.nn",
}


@pytest.mark.filterwarnings("ignore")  # what PyTorch says of the captures themselves
@pytest.mark.parametrize("code", CAPTURES)
def test_captures_are_refused(code: str) -> None:
    names = {**globals(), "m": made("GRU", True, {}), "x": inputs()}
    with pytest.raises(UsageError, match=CAPTURES[code]):
        eval(code, names)


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("row", LAYERS)
def test_batches_of_gradients(row: str, create_graph: bool) -> None:
    found = []
    for layer in pair(row):
        x = inputs(grad=True)
        out = layer(x)[0]
        torch.manual_seed(4)
        d = torch.randn(3, *out.shape, dtype=out.dtype)
        wanted = [x, *layer.parameters()]
        more: Any = {"is_grads_batched": True, "create_graph": create_graph}
        at_once = torch.autograd.grad(out, wanted, d, **more)
        jacobian = torch.autograd.functional.jacobian
        whole = jacobian(lambda y, layer=layer: layer(y)[0].sum(0), x, vectorize=True)
        found.append([*at_once, whole])
    same(*found)
    if row == "lstm-projected":
        mine = pair(row)[0]
        assert torch.autograd.gradcheck(lambda y: mine(y)[0], x, check_batched_grad=True)
