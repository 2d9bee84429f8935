"""Layers and modules beside PyTorch's own: what is drawn of options, and what is done to them.

The layers of `vertexrt.torch` are run on forms of input that are drawn, and so are cells of one's
own. A table of uses takes a module of either kind and returns what is used then; both have the same
results, gradients, parameters after steps, and state dicts.
"""

from __future__ import annotations

import contextlib
import copy
import io
import pickle
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch import cuda, nn  # noqa: E402
from torch.nn.utils import parametrizations, parametrize, prune  # noqa: E402

import vertexrt.torch as vt  # noqa: E402
from tests.device_rows import put_row  # noqa: E402
from tests.torch.beside import (  # noqa: E402
    CELLS,
    INPUT,
    SIZE,
    SUBJECTS,
    Side,
    cell_pair,
    flat,
    layer_pair,
    rnn,
    same,
    total,
)
from vertexrt.engine.devices import module_of  # noqa: E402

KINDS = ("LSTM", "GRU", "RNN")
FORMS = ("whole", "one", "packed", "sorted", "spread", "none")


def drawn(kind: str, seed: int) -> tuple[dict[str, Any], str, bool, bool]:
    """Draw options of a layer, the form of its input, if it gets states, and if it trains.

    All is drawn so that nothing is random in a result: what drops out drops out whole, or not.
    """
    rng = random.Random(f"{kind} {seed}")
    form, training = FORMS[seed % len(FORMS)], rng.random() < 0.5
    options: dict[str, Any] = {"batch_first": rng.random() < 0.5}
    if kind not in CELLS:
        options |= {"bias": rng.random() < 0.7, "bidirectional": rng.random() < 0.5}
        options["num_layers"] = rng.choice((1, 1, 2, 3))
        if options["num_layers"] > 1:
            options["dropout"] = rng.choice((0.0, 1.0 if training else 0.5))
    if kind == "LSTM":
        options["proj_size"] = rng.choice((0, 2))
    if kind == "RNN":
        options["nonlinearity"] = rng.choice(("tanh", "relu"))
    return options, form, rng.random() < 0.6, training


def input_of(form: str, batch_first: bool) -> tuple[Any, int]:
    """Return steps in a form, and how many sequences these are; 0 for one without a batch."""
    if form in ("packed", "sorted"):
        steps = [torch.randn(n, INPUT).double() for n in (5, 5, 2)]
        several = steps if form == "sorted" else [steps[2], *steps[:2]]
        packed = rnn.pack_sequence(several, enforce_sorted=form == "sorted")
        return packed._replace(data=packed.data.requires_grad_()), 3
    count = 0 if form == "none" else 3
    x = torch.randn(5, count, 2 * INPUT).double()
    x = x[..., ::2] if form == "spread" else x[..., :INPUT].contiguous()
    if form == "one":
        return x[:, 0].detach().requires_grad_(), 0
    return (x.transpose(0, 1) if batch_first else x).detach().requires_grad_(), count


def states_of(kind: str, options: dict[str, Any], form: str, count: int) -> Any:
    """Return states to begin with, some of which are views."""
    number = options.get("num_layers", 1) * (1 + options.get("bidirectional", False))
    shape = (count,) if kind in CELLS else (number,) if form == "one" else (number, count)
    sizes = [options.get("proj_size") or SIZE, *[SIZE] * kind.startswith("LSTM")]
    wide = [torch.randn(*shape, 2 * size).double()[..., ::2] for size in sizes]
    made = [each.detach().requires_grad_() for each in wide]
    return tuple(made) if len(made) > 1 else made[0]


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("kind", [*KINDS, *CELLS])
def test_results_and_gradients_are_theirs(kind: str, seed: int) -> None:
    options, form, with_states, training = drawn(kind, seed)
    if kind in CELLS and form in ("one", "none"):
        form = "whole"
    pair = (cell_pair if kind in CELLS else layer_pair)(kind, **options)
    torch.manual_seed(seed)
    x, count = input_of(form, options["batch_first"])
    given = [x]
    if with_states:
        given.append(states_of(kind, options, form, count))
    if kind in CELLS and seed % 2:  # resets, without states and with them
        steps = x.data.shape[:-1] if form in ("packed", "sorted") else x.shape[:-1]
        given = [x, given[1] if with_states else None, torch.rand(steps) < 0.3]
    leaves = [*flat(x), *(flat(given[1]) if with_states else [])]
    found = []
    for layer in pair:
        layer.train(training)
        results = flat(layer(*given))
        wanted = [*leaves, *layer.parameters()]
        torch.manual_seed(seed)
        several = [torch.randn(2, *each.shape).double() for each in results]
        grads = torch.autograd.grad(
            results, wanted, several, is_grads_batched=True, create_graph=seed % 2 == 1
        )
        found.append([*results, *grads, *layer.state_dict().values()])
        whole = layer(*given)[0]
        if isinstance(whole, rnn.PackedSequence):
            found[-1] += [*whole[1:]]
    same(*found)
    mine, judge = pair
    assert list(mine.state_dict()) == list(judge.state_dict())
    if kind in KINDS:
        assert isinstance(mine, type(judge))
        assert repr(mine) == repr(judge)


def test_jacobians_of_all_at_once() -> None:
    mine, judge = layer_pair("LSTM", proj_size=2, bidirectional=True, num_layers=2)
    x = torch.randn(4, 2, INPUT).double().requires_grad_()
    jacobian = torch.autograd.functional.jacobian
    same(*[[jacobian(lambda y, m=m: m(y)[0].sum(0), x, vectorize=True)] for m in (mine, judge)])
    assert torch.autograd.gradcheck(lambda y: mine(y)[0], x, check_batched_grad=True)


# What is done to a module: it takes one of either kind and the name of a weight, and returns the
# module that is used then.


class Twice(nn.Module):
    """A parametrisation."""

    def forward(self, x: Any) -> Any:
        return 2.0 * x


def part(module: Any, name: str) -> tuple[Any, str]:
    """Return where a parameter is registered, and its name there."""
    inside, _, last = name.rpartition(".")
    return module.get_submodule(inside), last


def weight(module: Any, name: str) -> Any:
    inside, last = part(module, name)
    return getattr(inside, last)


def parametrized(module: Any, name: str, how: Any = Twice) -> Any:
    parametrize.register_parametrization(*part(module, name), how())
    return module


def by_a_tool(tool: Callable[..., Any], *more: Any) -> Callable[[Any, str], Any]:
    """Return the use of a tool of PyTorch that takes a module, a name and more."""

    def change(module: Any, name: str) -> Any:
        torch.manual_seed(3)
        tool(*part(module, name), *more)
        return module.eval()  # `spectral_norm` changes in training

    return change


def parametrized_and_back(module: Any, name: str) -> Any:
    parametrizations.weight_norm(*part(module, name))
    parametrize.remove_parametrizations(*part(module, name))
    return module


def saved(module: Any, _: str) -> Any:
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def empty(module: Any) -> Any:
    """Return a module like one that has no memory yet."""
    if isinstance(module, nn.RNNBase):
        return type(module)(INPUT, SIZE, device="meta", dtype=torch.float64)
    return copy.deepcopy(module).to("meta")


def one_by_one(how: str, dtype: Any = torch.float64) -> Callable[[Any, str], Any]:
    """Return a use that sets all parameters, in a module without memory, or of another dtype."""

    def change(module: Any, _: str) -> Any:
        other = module if dtype == torch.float32 else empty(module)
        for name, p in list(module.named_parameters()):
            inside, last = part(other, name)
            new = nn.Parameter(p.detach().to(dtype, copy=True), p.requires_grad)
            if how == "set":
                setattr(inside, last, new)
            elif how == "inside":
                inside._parameters[last] = new
            else:
                other.load_state_dict({name: new}, strict=False, assign=True)
        return other

    return change


def made_real(module: Any, _: str) -> Any:
    other = empty(module).to_empty(device="cpu")
    other.load_state_dict(module.state_dict())
    return other


def shared(module: Any, _: str = "") -> Any:
    module.share_memory()
    assert all(p.is_shared() for p in module.parameters())
    return module


def spawned(module: Any, _: str) -> Any:
    """Return a module as a process that is spawned gets it: it sees what happens to the first."""
    other = pickle.loads(bytes(ForkingPickler.dumps(module)))
    with torch.no_grad():
        for p in module.parameters():
            p.mul_(0.5)
    same(list(other.parameters()), list(module.parameters()))
    return other


def through_a_queue(module: Any, _: str) -> Any:
    queue = torch.multiprocessing.SimpleQueue()
    queue.put(module.state_dict())
    module.held = queue.get()
    return module


def turned_in_place(module: Any, name: str) -> Any:
    p = weight(module, name)
    size = p.shape[1]
    p.data = p.data[:size].T.repeat(len(p) // size, 1)
    square = p.data[:size]
    square.copy_(square.T.clone())
    return module


def exchanged(module: Any, name: str) -> Any:
    a, b = (weight(module, name.replace("weight_hh", each)) for each in ("bias_ih", "bias_hh"))
    a.data, b.data = b.data, a.data
    a.data.mul_(2.0)
    return module


def tied(module: Any, name: str) -> Any:
    bias = name.replace("weight", "bias")
    setattr(module, bias, getattr(module, bias.replace("hh", "ih")))
    return module.to("cpu")


def swapped(module: Any, _: str) -> Any:
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        return module.float().double()
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)


def frozen(module: Any, name: str) -> Any:
    weight(module, name).requires_grad_(False)
    return module


def resized(module: Any, name: str) -> Any:
    """As fully sharded training takes the memory of a parameter away, and brings it back."""
    inside, last = part(module, name)
    values = getattr(inside, last).detach().clone()
    storage = nn.Parameter(values.clone())
    setattr(inside, last, storage)
    size = storage.untyped_storage().nbytes()
    storage.untyped_storage().resize_(0)
    storage.untyped_storage().resize_(size)
    storage.data.copy_(values)
    return module


USES: dict[str, Callable[[Any, str], Any]] = {
    "nothing": lambda m, w: m,
    "float": lambda m, w: m.float(),
    "double": lambda m, w: m.float().double(),
    "conversion by swapping": swapped,
    "frozen": frozen,
    "all frozen": lambda m, w: m.requires_grad_(False),
    "parametrised": parametrized,
    "parametrised, double": lambda m, w: parametrized(m, w).float().double(),
    "parametrised, a copy": lambda m, w: copy.deepcopy(parametrized(m, w)),
    "parametrised and back": parametrized_and_back,
    "spectral_norm": by_a_tool(parametrizations.spectral_norm),
    "weight_norm": by_a_tool(parametrizations.weight_norm),
    "weight_norm of old": by_a_tool(nn.utils.weight_norm),
    "pruned": by_a_tool(prune.l1_unstructured, 0.4),
    "pruned for good": lambda m, w: (
        prune.remove(*part(by_a_tool(prune.l1_unstructured, 0.4)(m, w), w)),
        m,
    )[1],
    "deepcopy": lambda m, w: copy.deepcopy(m),
    "copy": lambda m, w: copy.copy(m),
    "pickle": lambda m, w: pickle.loads(pickle.dumps(m)),
    "torch.save": saved,
    "set one by one": one_by_one("set"),
    "set one by one inside": one_by_one("inside"),
    "set one by one, other dtype": one_by_one("set", torch.float32),
    "assigned one by one": one_by_one("assigned"),
    "to_empty": made_real,
    "share_memory": shared,
    "spawn": spawned,
    "a queue": through_a_queue,
    "turned": turned_in_place,
    "resized": resized,
    "exchanged": exchanged,
    "tied": tied,
}
# Of two biases of one shape, or by hooks of the part that has the weight, when that is called.
OF_LAYERS = ("exchanged", "tied", "weight_norm of old", "pruned")


def used(side: Side) -> list[Any]:
    """Use a module in several ways; return all numbers that come of it."""
    found, module = [], side.module
    steps = torch.optim.SGD(list(module.parameters()), lr=0.003)
    for k in range(3):
        results, leaves = side(0)
        found += [*results, *side.gradients(total(results), leaves)]
        steps.step()
        if k == 1:  # which changes nothing
            module.to("cpu")
            module.load_state_dict(module.state_dict())
    with torch.no_grad():
        found += side(1)[0]
    return [*found, *module.state_dict().values()]


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
@pytest.mark.parametrize(
    ("use", "name"),
    [(use, name) for name in ("LSTM", "cell") for use in USES]
    + [(use, "both") for use in USES if use not in OF_LAYERS],
)
def test_what_is_done_to_a_module(use: str, name: str) -> None:
    found, numbers = [], []
    for module in SUBJECTS[name].make():
        side = Side(module, SUBJECTS[name])
        if name in ("LSTM", "both"):  # used before
            total(side(0)[0]).backward()
        side.module = USES[use](module, side.subject.weight)
        found.append(used(side))
        numbers.append(module.state_dict().values())  # of what was there, which a copy leaves
    same(*found)
    for a, b in zip(*found, strict=True):
        assert a is None or a.dtype == b.dtype
    same(*map(list, numbers))


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_given_weights_may_lie_in_the_layers_own_memory(kind: str) -> None:
    found = []
    for layer in layer_pair(kind):
        a, b, w = layer.bias_ih_l0, layer.bias_hh_l0, layer.weight_hh_l0
        squares = w.view(-1, SIZE, SIZE).transpose(1, 2)
        out = []
        for given in (
            {"bias_ih_l0": b, "bias_hh_l0": 2.0 * a, "weight_hh_l0": w.flip(0)},
            {"weight_hh_l0": w.T if kind == "RNN" else squares.reshape(-1, SIZE)},
            {"weight_hh_l0": w[:1].expand(len(w), SIZE)},
            {"bias_ih_l0": b, "bias_hh_l0": a},
        ):
            torch.manual_seed(1)
            x = torch.randn(5, 2, INPUT).double()
            out += flat(torch.func.functional_call(layer, given, (x,)))
        found.append([*out, *torch.autograd.grad(total(out), [a, b, w])])
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
    """A model with another module inside."""

    def __init__(self, inside: Any) -> None:
        super().__init__()
        self.inside = inside
        torch.manual_seed(5)
        self.before = nn.Linear(INPUT, INPUT, dtype=torch.float64)

    def forward(self, x: Any) -> Any:
        return self.inside(self.before(x))[0]


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
    "compiled": lambda model: torch.compile(model, backend="aot_eager"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("around", AROUND)
def test_what_is_around_a_layer(around: str) -> None:
    found = []
    torch.compiler.reset()
    for k, layer in enumerate(layer_pair("LSTM", num_layers=2)):
        model = Around(layer)
        whole: Any = AROUND[around](model) if k == 0 else model
        owner = whole if isinstance(whole, nn.Module) else model
        steps, losses = torch.optim.SGD(owner.parameters(), lr=0.1), []
        for _ in range(3):
            steps.zero_grad()
            torch.manual_seed(1)
            loss = whole(torch.randn(5, 2, INPUT).double()).square().sum()
            loss.backward()
            steps.step()
            losses.append(loss.detach())
        found.append(losses)
    same(*found)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["cell", "loss"])
def test_a_compiler_leaves_it_outside(name: str) -> None:
    torch.compiler.reset()
    found = []
    for k, module in enumerate(SUBJECTS[name].make()):
        side = Side(module, SUBJECTS[name])
        if k == 0:
            ask = side.subject.ask
            around = torch.compile(lambda *given, ask=ask: ask(*given), backend="aot_eager")
            side.subject = side.subject._replace(ask=around)
        results, leaves = side(0)
        found.append([*results, *side.gradients(total(results), leaves)])
    same(*found)


def test_equal_layers_are_compiled_once() -> None:
    """They have parameters of their own, and may run at once."""
    layers = [vt.GRU(3, 4, num_layers=2) for _ in range(4)]
    layers += [copy.deepcopy(layers[0]), vt.GRU(3, 5, num_layers=2)]
    compiled = [layer.binding.network.executor.model.variants for layer in layers]
    assert all(each is compiled[0] for each in compiled[:-1])
    assert compiled[-1] is not compiled[0]
    inputs = [torch.randn(n, 2, 3) for n in (3, 5, 2, 3, 4, 3)]

    def rounds(k: int) -> None:
        judge = torch.nn.GRU(3, layers[k].hidden_size, num_layers=2)
        judge.load_state_dict(layers[k].state_dict())
        for length in (1, 2, 3) * 3:
            x, grads = inputs[k][:length], []
            for layer in (layers[k], judge):
                loss = layer(x)[0].square().sum()
                grads.append(torch.autograd.grad(loss, list(layer.parameters())))
            same(*grads)

    with ThreadPoolExecutor(len(layers)) as threads:
        list(threads.map(rounds, range(len(layers))))


def test_a_gpu_gets_a_network_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs compiled for the host are not taken for another device."""
    layer, asked = vt.GRU(3, 4), []

    def compile_for(*_: object) -> Any:
        asked.append("cuda")
        return layer.binding.network.executor

    put_row(monkeypatch, "cuda", module_of("cpu"), compile_for)
    monkeypatch.setattr(cuda, "device", lambda _: contextlib.nullcontext())
    assert layer.source.network(torch.float32, torch.device("cpu")).device == "cpu"
    assert not asked  # the one there is
    layer.source.network(torch.float32, torch.device("cuda", 0))
    assert asked
