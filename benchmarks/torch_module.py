"""Networks inside PyTorch: a module's training against `net.step`, layers against `torch.nn`'s.

    python -m benchmarks.torch_module [--device cuda] [--trees SST] [--text PTB]

All ways have the same parameters and minibatches; results are compared at the size that is timed,
then they take turns. PyTorch computes with one thread of the host. The module trains with
`torch.optim.SGD`, fused on a GPU, by `module.loss(batch)` and by the push of `module(batch)`; "no
network" is a loss of the same parameters that computes nothing, in the same loop. "One thread" is
`torch.autograd.set_multithreading_enabled(False)`: without it autograd goes back in another thread
where there is a GPU. Layers are called with minibatches that differ; "new lengths" are of others,
which come once. A GRU with resets is compared with padded segments, and with a scan over its steps.
"Loops" have an LSTM of 128 over 128 steps of 8 environments with resets, forward and backward: a
call for each step, as training of policies often has it, and one call of `Recurrent`. "Convert"
makes graphs of objects with the attributes of `Data` of PyTorch Geometric before every step, or
once.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

import vertexrt as vrt
from benchmarks.command import read_options
from benchmarks.turns import ratio_text, seconds_in_turn
from vertexrt.cli.options import PATH, CommandOption
from vertexrt.data import load
from vertexrt.models import ChildSumTreeLSTM, get

HIDDEN, RATE = 256, 1e-4
SIZES, LENGTH = (1, 16, 64), 24  # of the layers: sentences, and words in one, on average


def ratio_of(pair: tuple[Callable[[], None], Callable[[], None]], rounds: int) -> str:
    """Time two ways in turn; return how often the second goes into the first: median, quartiles."""
    took = seconds_in_turn({"before": pair[0], "after": pair[1]}, rounds)
    return ratio_text(took["before"], took["after"])


def one_thread(way: Callable[[], None]) -> Callable[[], None]:
    """Let autograd go back in the caller's thread; on a GPU it has one of its own else."""
    autograd = import_module("torch").autograd

    def run() -> None:
        with autograd.set_multithreading_enabled(False):
            way()

    return run


def trivial_loss(parameters: list[Any]) -> Callable[[], Any]:
    """Return a loss of parameters that computes nothing: what a step costs PyTorch itself.

    It is a function of autograd as `Module.loss` is: backward multiplies a flat array and hands out
    views of it.
    """
    torch = import_module("torch")
    flat = torch.zeros(sum(p.numel() for p in parameters), device=parameters[0].device)

    class Trivial(torch.autograd.Function):  # type: ignore[name-defined]
        @staticmethod
        def forward(ctx: Any, *given: Any) -> Any:
            ctx.save_for_backward(flat)
            return flat.new_empty(())

        @staticmethod
        def backward(ctx: Any, d: Any) -> tuple[Any, ...]:
            found, start = [], 0
            (whole,) = [each * d for each in ctx.saved_tensors]
            for p in parameters:
                found.append(whole[start : start + p.numel()].view(p.shape))
                start += p.numel()
            return tuple(found)

    return lambda: Trivial.apply(*parameters)


class TreeSteps:
    """Ways to train a Tree-LSTM on the same minibatches, from the same parameters."""

    def __init__(self, options: argparse.Namespace, data: Any, size: int) -> None:
        torch, vt = import_module("torch"), import_module("vertexrt.torch")
        self.gpu = options.device == "cuda"
        sizes = {"hidden": HIDDEN, "embed": HIDDEN, "dropout": 0.0}
        made = [get("tree-lstm").build(data, **sizes) for _ in range(3)]
        given = {"device": options.device, "engine": "persistent" if self.gpu else "batched"}
        self.net, *inside = (vrt.compile(m, seed=1, threads=1, **given) for m in made)
        self.modules = [vt.Module(net, sparse=not self.gpu) for net in inside]
        self.optimizers = [self._optimizer(list(m.parameters())) for m in self.modules]
        rng, pool = np.random.default_rng(size), data.splits["train"]
        steps = max(16, 128 // size) if self.gpu else max(2, 128 // size)
        self.batches = [pool.take(rng.integers(0, pool.num_graphs, size)) for _ in range(steps)]
        copies = [torch.nn.Parameter(p.detach().clone()) for p in self.modules[0].parameters()]
        self.nothing, self.floor = self._optimizer(copies), trivial_loss(copies)
        self.own = vrt.SGD(lr=RATE)

    def _optimizer(self, parameters: list[Any]) -> Any:
        return import_module("torch").optim.SGD(parameters, lr=RATE, fused=self.gpu)

    def by_step(self) -> None:
        """Let the network do it."""
        for batch in self.batches:
            self.net.step(batch, self.own)
        self.net.sync()

    def by_loss(self) -> None:
        """Ask a module for its loss."""
        module, optimizer = self.modules[0], self.optimizers[0]
        for batch in self.batches:
            optimizer.zero_grad()
            module.loss(batch).backward()
            optimizer.step()
        wait(self.gpu)

    def by_push(self) -> None:
        """Ask a module for a push, and reduce it."""
        module, optimizer = self.modules[1], self.optimizers[1]
        for batch in self.batches:
            optimizer.zero_grad()
            (module(batch, outputs=("loss",))["loss"].sum() / batch.num_graphs).backward()
            optimizer.step()
        wait(self.gpu)

    def by_nothing(self) -> None:
        """Step without a network: what PyTorch takes for as many parameters."""
        for _ in self.batches:
            self.nothing.zero_grad()
            self.floor().backward()
            self.nothing.step()
        wait(self.gpu)

    def check(self) -> None:
        """Assert that all trained alike."""
        self.by_step()
        self.by_loss()
        self.by_push()
        for name, value in self.net.parameters.items():
            for module in self.modules:
                ours = module.get_parameter(name).detach().cpu()
                assert np.allclose(ours, value, atol=1e-5), name


def trees(options: argparse.Namespace) -> None:
    """Compare the rate of a module with that of the network's own steps."""
    data = load(options.trees or "generated", format="trees")
    for size in options.batch:
        steps = TreeSteps(options, data, size)
        steps.check()
        ways = {
            "net.step": steps.by_step,
            "module.loss": steps.by_loss,
            "module.loss, one thread": one_thread(steps.by_loss),
            "module(batch)": steps.by_push,
            "module(batch), one thread": one_thread(steps.by_push),
            "no network": steps.by_nothing,
            "no network, one thread": one_thread(steps.by_nothing),
        }
        took = seconds_in_turn(ways, options.rounds)
        print(f"tree-lstm h {HIDDEN} batch {size:3}, a step; rate to that of net.step", flush=True)
        for name, seconds in took.items():
            each = 1e6 * float(np.median(seconds)) / len(steps.batches)
            rate = ratio_text(took["net.step"], seconds)
            print(f"  {name:26} {each:7.0f} us, rate {rate}", flush=True)


def wait(gpu: bool) -> None:
    """Wait for what a GPU was asked for."""
    if gpu:
        import_module("torch").cuda.synchronize()


def sentences(options: argparse.Namespace, count: int, rng: np.random.Generator) -> list[int]:
    """Return the lengths of some sentences."""
    if not options.text:
        return [int(n) for n in rng.integers(LENGTH // 2, 3 * LENGTH // 2, count)]
    lines = Path(options.text).read_text(encoding="utf-8").splitlines()
    return [max(1, len(lines[k].split())) for k in rng.integers(0, len(lines), count)]


def minibatches(options: argparse.Namespace, count: int, steps: int, seed: int = 0) -> list[Any]:
    """Return packed sequences, which differ in their lengths."""
    torch, rng = import_module("torch"), np.random.default_rng((count, seed))
    found = []
    for _ in range(steps):
        lengths = sentences(options, count, rng)
        given = [torch.randn(n, options.size, device=options.device) for n in lengths]
        found.append(torch.nn.utils.rnn.pack_sequence(given, enforce_sorted=False))
    return found


def train(layer: Any, packed: Any) -> list[Any]:
    """Go forward and back through a layer; return the gradients of its parameters."""
    layer.zero_grad()
    layer(packed)[0].data.square().sum().backward()
    return [p.grad for p in layer.parameters()]


def layers(options: argparse.Namespace) -> None:
    """Compare forward and backward of the layers with PyTorch's, over packed minibatches."""
    torch, vt = import_module("torch"), import_module("vertexrt.torch")
    gpu = options.device == "cuda"
    for name in ("LSTM", "GRU"):
        for count in SIZES:
            torch.manual_seed(0)
            judge = getattr(torch.nn, name)(options.size, options.size).to(options.device)
            mine = getattr(vt, name)(options.size, options.size).to(options.device)
            mine.load_state_dict(judge.state_dict())
            batches = minibatches(options, count, 16 if gpu else 2)
            for packed in batches:
                for a, b in zip(train(mine, packed), train(judge, packed), strict=True):
                    assert (a - b).abs().max() <= 1e-4 * b.abs().max() + 1e-6

            def over(layer: Any, batches: Any = batches) -> Callable[[], None]:
                def run() -> None:
                    for packed in batches:
                        train(layer, packed)
                    wait(gpu)

                return run

            steps, rounds = len(batches), options.rounds
            unseen = [minibatches(options, count, steps, k + 1) for k in range(rounds + 1)]

            def over_new(layer: Any = mine, sets: list[Any] = unseen) -> None:
                for packed in sets.pop():
                    train(layer, packed)
                wait(gpu)

            ways = {"theirs": over(judge), "ours": over(mine), "alone": one_thread(over(mine))}
            ways["new"] = one_thread(over_new)
            took = seconds_in_turn(ways, rounds)
            each = {name: 1e6 * float(np.median(s)) / len(batches) for name, s in took.items()}
            print(
                f"{name} {options.size}, {count:3} sentences: torch.nn {each['theirs']:.0f} us; "
                f"vertexrt.torch {each['ours']:.0f} us, "
                f"rate {ratio_text(took['theirs'], took['ours'])}; "
                f"one thread, rate {ratio_text(took['theirs'], took['alone'])}, "
                f"with new lengths {ratio_text(took['theirs'], took['new'])}",
                flush=True,
            )


def resets(options: argparse.Namespace) -> None:
    """Compare a GRU with resets with PyTorch's over padded segments, and step by step."""
    torch, vt = import_module("torch"), import_module("vertexrt.torch")
    length, count, size = 128, 128, 256
    torch.manual_seed(1)
    judge = torch.nn.GRU(size, size).to(options.device)
    cell = torch.nn.GRUCell(size, size).to(options.device)
    mine = vt.Recurrent(vrt.nn.GRUCell(size, size), size).to(options.device)
    plain = {name.removesuffix("_l0"): value for name, value in judge.state_dict().items()}
    for module in (cell, mine):
        module.load_state_dict(plain)
    x = torch.randn(length, count, size, device=options.device)
    marks = torch.rand(length, count) < 0.03
    marks[0] = True
    begin = marks.T.reshape(-1).nonzero()[:, 0]
    sizes = torch.diff(begin, append=torch.tensor([length * count]))
    keep = (~marks).to(options.device, torch.float32)[:, :, None]

    def by_padding() -> Any:
        segments = x.transpose(0, 1).reshape(length * count, size).split(sizes.tolist())
        padded = torch.nn.utils.rnn.pad_sequence(segments)
        out = judge(padded)[0].transpose(0, 1)
        mask = torch.arange(len(padded))[None, :] < sizes[:, None]
        rows = out[mask.to(options.device)]
        return rows.reshape(count, length, size).transpose(0, 1)

    def by_scan() -> Any:
        h, found = x.new_zeros(count, size), []
        for t in range(length):
            h = cell(x[t], h * keep[t])
            found.append(h)
        return torch.stack(found)

    def ours() -> Any:
        return mine(x, resets=marks)[0]

    def train(way: Callable[[], Any]) -> Any:
        found = way()
        found.square().sum().backward()
        wait(options.device == "cuda")
        return found.detach()

    expected = train(ours)
    for way, what in ((by_padding, "padding + torch.nn.GRU"), (by_scan, "a scan of its cell")):
        assert torch.allclose(train(way), expected, atol=1e-4), what
        pair = (lambda way=way: train(way)), (lambda: train(ours))
        took = ratio_of(pair, options.rounds)
        print(f"GRU 256, 128 x 128, 3 % resets: vertexrt.torch to {what}, rate {took}", flush=True)


def loops(options: argparse.Namespace) -> None:
    """Compare a call for each step of an LSTM with resets to one call for all."""
    torch, vt = import_module("torch"), import_module("vertexrt.torch")
    steps, count, size = 128, 8, 128
    torch.manual_seed(0)
    x, marks = torch.randn(steps, count, size), torch.rand(steps, count) < 0.02
    theirs, ours = torch.nn.LSTM(size, size), vt.LSTM(size, size)
    whole = vt.Recurrent(vrt.nn.LSTMCell(size, size), size, state={"h": size, "c": size})
    ours.load_state_dict(theirs.state_dict())
    whole.load_state_dict({n.removesuffix("_l0"): p for n, p in theirs.state_dict().items()})
    keep, start = (~marks).float()[:, None, :, None], torch.zeros(count, size)

    def by_steps(layer: Any) -> Any:
        found, (h, c) = [], (start[None], start[None])
        for t in range(steps):
            out, (h, c) = layer(x[t : t + 1], (h * keep[t], c * keep[t]))
            found.append(out)
        return torch.cat(found)

    def train(way: Callable[[], Any]) -> Any:
        found = way()
        found.square().sum().backward()
        return found.detach()

    ways: dict[str, Callable[[], Any]] = {
        "a step a call, torch.nn.LSTM": lambda: train(lambda: by_steps(theirs)),
        "a step a call, vertexrt.torch.LSTM": lambda: train(lambda: by_steps(ours)),
        "one call, vertexrt.torch.Recurrent": lambda: train(
            lambda: whole(x, (start, start), marks)[0]
        ),
    }
    expected = ways["a step a call, torch.nn.LSTM"]()
    for way in ways.values():
        assert torch.allclose(way(), expected, atol=1e-5)
    took = seconds_in_turn(ways, options.rounds)
    first, *names = ways
    for name in names:
        rate = ratio_text(took[first], took[name])
        print(f"LSTM 128, 128 x 8, resets: {name} to {first}, rate {rate}", flush=True)


def convert(options: argparse.Namespace) -> None:
    """Compare graphs that are converted before every step to graphs that were converted once."""
    torch, rng = import_module("torch"), np.random.default_rng(0)

    class Data(SimpleNamespace):
        """What has the documented attributes of a `Data` of PyTorch Geometric."""

        def keys(self) -> list[str]:
            return list(vars(self))

        def __getitem__(self, name: str) -> Any:
            return getattr(self, name)

    def data(size: int) -> Data:
        ends = torch.stack([torch.arange(size - 1), torch.arange(1, size)])
        word, label = (torch.from_numpy(rng.integers(0, n, size)) for n in (50, 2))
        return Data(edge_index=ends, word=word, label=label, num_nodes=size)

    pool = [data(int(rng.integers(10, 30))) for _ in range(64)]
    model = ChildSumTreeLSTM(vocab=50, classes=2, embed=64, hidden=64)
    net = vrt.compile(model, device="cpu", threads=1, seed=1)
    optimizer = vrt.Adam(lr=1e-3)

    def graphs() -> vrt.GraphBatch:
        found = [vrt.data.from_pyg(each, ["word", "label"]) for each in pool]
        return vrt.GraphBatch.from_graphs(found)

    once = graphs()

    def step(batch: vrt.GraphBatch) -> None:
        net.step(batch, optimizer)

    pair = (lambda: step(graphs())), (lambda: step(once.take(rng.permutation(64))))
    took = ratio_of(pair, options.rounds)
    print(f"Tree-LSTM 64, 64 graphs: converted once to before every step, rate {took}", flush=True)


def main() -> None:
    """Read the options, compare."""
    text = CommandOption("--text FILE", PATH, "", "with a sentence a line, for its lengths")
    options = read_options(
        "benchmarks.torch_module",
        __doc__,
        None,
        text,
        device="cpu",
        trees=None,
        batch=(1, 16, 64, 256),
        size=512,
        rounds=5,
        parts=("trees", "layers", "resets", "loops", "convert"),
    )
    torch = import_module("torch")
    torch.set_num_threads(1)
    import_module("benchmarks.peers.float32").only_float32(options.device)
    parts = {each.__name__: each for each in (trees, layers, resets, loops, convert)}
    for part in options.parts:
        parts[part](options)


if __name__ == "__main__":
    main()
