"""Networks inside PyTorch: a module's training against `net.step`, layers against `torch.nn`'s.

    python -m benchmarks.torch_module [--device cuda] [--trees SST] [--text PTB]

Both of a pair have the same parameters and minibatches; results are compared at the size that is
timed, then both take turns. One thread of the host. The module trains with `torch.optim.SGD`, fused
on a GPU. A GRU with resets is compared with padded segments, and with a scan over its steps.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

import vertexrt as vrt
from benchmarks.turns import ratio_text, seconds_in_turn
from vertexrt.data import load
from vertexrt.models import get

HIDDEN, RATE = 256, 1e-4
SIZES, LENGTH = (1, 16, 64), 24  # of the layers: sentences, and words where no text is given


def ratio_of(pair: tuple[Callable[[], None], Callable[[], None]], rounds: int) -> str:
    """Time two ways in turn; return how often the second goes into the first: median, quartiles."""
    took = seconds_in_turn({"before": pair[0], "after": pair[1]}, rounds)
    return ratio_text(took["before"], took["after"])


def trees(options: argparse.Namespace) -> None:
    """Compare the rate of a module with that of the network's own steps."""
    torch, vt = import_module("torch"), import_module("vertexrt.torch")
    data = load(options.trees or "generated", format="trees")
    pool = data.splits["train"]
    for size in map(int, options.batch.split(",")):
        sizes = {"hidden": HIDDEN, "embed": HIDDEN, "dropout": 0.0}
        made = [get("tree-lstm").build(data, **sizes) for _ in range(2)]
        gpu = options.device == "cuda"
        given = {"device": options.device, "engine": "persistent" if gpu else "batched"}
        net, inside = (vrt.compile(m, seed=1, threads=1, **given) for m in made)
        module, optimizer = vt.Module(inside, sparse=not gpu), vrt.SGD(lr=RATE)
        rng = np.random.default_rng(size)
        steps = max(2, 128 // size)
        batches = [pool.take(rng.integers(0, pool.num_graphs, size)) for _ in range(steps)]
        theirs = torch.optim.SGD(module.parameters(), lr=RATE, fused=gpu)

        def by_module(batches: Any = batches, module: Any = module, theirs: Any = theirs) -> None:
            for batch in batches:
                theirs.zero_grad()
                loss = module(batch, outputs=("loss",))["loss"].sum() / batch.num_graphs
                loss.backward()
                theirs.step()
            wait(options.device)

        def by_steps(batches: Any = batches, net: Any = net, optimizer: Any = optimizer) -> None:
            for batch in batches:
                net.step(batch, optimizer)
            net.sync()

        by_module()
        by_steps()
        for name, value in net.parameters.items():
            ours = module.get_parameter(name).detach().cpu()
            assert np.allclose(ours, value, atol=1e-5), name
        took = ratio_of((by_steps, by_module), options.rounds)
        print(f"tree-lstm h {HIDDEN} batch {size:3}: module to net.step, rate {took}", flush=True)


def wait(device: str) -> None:
    """Wait for what a device was asked for."""
    if device == "cuda":
        import_module("torch").cuda.synchronize()


def sentences(options: argparse.Namespace, count: int) -> list[int]:
    """Return the lengths of some sentences."""
    if not options.text:
        return [LENGTH] * count
    lines = Path(options.text).read_text(encoding="utf-8").splitlines()
    rng = np.random.default_rng(count)
    return [max(1, len(lines[k].split())) for k in rng.integers(0, len(lines), count)]


def layers(options: argparse.Namespace) -> None:
    """Compare forward and backward of the layers with PyTorch's, on packed sequences."""
    torch, vt = import_module("torch"), import_module("vertexrt.torch")
    for name in ("LSTM", "GRU"):
        for count in SIZES:
            torch.manual_seed(0)
            judge = getattr(torch.nn, name)(options.size, options.size).to(options.device)
            mine = getattr(vt, name)(options.size, options.size).to(options.device)
            mine.load_state_dict(judge.state_dict())
            given = [
                torch.randn(n, options.size, device=options.device)
                for n in sentences(options, count)
            ]
            packed = torch.nn.utils.rnn.pack_sequence(given, enforce_sorted=False)

            def train(layer: Any, packed: Any = packed) -> list[Any]:
                layer.zero_grad()
                layer(packed)[0].data.square().sum().backward()
                return [p.grad for p in layer.parameters()]

            for a, b in zip(train(mine), train(judge), strict=True):
                assert (a - b).abs().max() <= 1e-4 * b.abs().max() + 1e-6
            repeats = max(10, 64 // count) if options.device == "cuda" else max(2, 64 // count)

            def ours(layer: Any = mine, train: Any = train, repeats: int = repeats) -> None:
                for _ in range(repeats):
                    train(layer)
                wait(options.device)

            def theirs(layer: Any = judge, train: Any = train, repeats: int = repeats) -> None:
                for _ in range(repeats):
                    train(layer)
                wait(options.device)

            took = ratio_of((theirs, ours), options.rounds)
            what = f"{name} {options.size}, {count:3} sentences"
            print(f"{what}: vertexrt.torch to torch.nn, rate {took}", flush=True)


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
        wait(options.device)
        return found.detach()

    expected = train(ours)
    for way, what in ((by_padding, "padding + torch.nn.GRU"), (by_scan, "a scan of its cell")):
        assert torch.allclose(train(way), expected, atol=1e-4), what
        pair = (lambda way=way: train(way)), (lambda: train(ours))
        took = ratio_of(pair, options.rounds)
        print(f"GRU 256, 128 x 128, 3 % resets: vertexrt.torch to {what}, rate {took}", flush=True)


def main() -> None:
    """Read the options, compare."""
    parser = argparse.ArgumentParser("python -m benchmarks.torch_module", description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--trees", help="folder with train.txt of bracketed trees")
    parser.add_argument("--text", help="a file with a sentence a line, for its lengths")
    parser.add_argument("--batch", default="1,16,64,256")
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch = import_module("torch")
    torch.set_num_threads(1)
    torch.backends.cudnn.allow_tf32 = False  # the results of both are float32
    trees(options)
    layers(options)
    resets(options)


if __name__ == "__main__":
    main()
