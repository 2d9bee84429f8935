"""Networks inside PyTorch: a module's training against `net.step`, layers against `torch.nn`'s.

    python -m benchmarks.torch_module [--trees SST] [--text PTB] [--batch 1,16,64,256] [--rounds 5]

Both of a pair have the same parameters and minibatches; results are compared at the size that is
timed, then both take turns. One thread. The module trains with `torch.optim.SGD`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

import vertexrt as vrt
from vertexrt.data import load
from vertexrt.models import get

HIDDEN, RATE = 256, 1e-4
SIZES, LENGTH = (1, 16, 64), 24  # of the layers: sentences, and words where no text is given


def ratio_of(pair: tuple[Callable[[], None], Callable[[], None]], rounds: int) -> str:
    """Time two ways in turn; return how often the second goes into the first: median, quartiles."""
    took: list[list[float]] = [[], []]
    for number in range(rounds + 1):
        for way, times in zip(pair, took, strict=True):
            start = time.perf_counter()
            way()
            if number:
                times.append(time.perf_counter() - start)
    low, middle, high = np.percentile(np.array(took[0]) / np.array(took[1]), [25, 50, 75])
    return f"{middle:5.2f} [{low:.2f} {high:.2f}]"


def trees(options: argparse.Namespace) -> None:
    """Compare the rate of a module with that of the network's own steps."""
    torch, vt = import_module("torch"), import_module("vertexrt.torch")
    data = load(options.trees or "generated", format="trees")
    pool = data.splits["train"]
    for size in map(int, options.batch.split(",")):
        sizes = {"hidden": HIDDEN, "embed": HIDDEN, "dropout": 0.0}
        made = [get("tree-lstm").build(data, **sizes) for _ in range(2)]
        net, inside = (vrt.compile(m, device="cpu", seed=1, threads=1) for m in made)
        module, optimizer = vt.Module(inside, sparse=True), vrt.SGD(lr=RATE)
        rng = np.random.default_rng(size)
        steps = max(2, 128 // size)
        batches = [pool.take(rng.integers(0, pool.num_graphs, size)) for _ in range(steps)]
        theirs = torch.optim.SGD(module.parameters(), lr=RATE)

        def by_module(batches: Any = batches, module: Any = module, theirs: Any = theirs) -> None:
            for batch in batches:
                theirs.zero_grad()
                loss = module(batch, outputs=("loss",))["loss"].sum() / batch.num_graphs
                loss.backward()
                theirs.step()

        def by_steps(batches: Any = batches, net: Any = net, optimizer: Any = optimizer) -> None:
            for batch in batches:
                net.step(batch, optimizer)

        by_module()
        by_steps()
        for name, value in net.parameters.items():
            assert np.allclose(module.get_parameter(name).detach(), value, atol=1e-5), name
        took = ratio_of((by_steps, by_module), options.rounds)
        print(f"tree-lstm h {HIDDEN} batch {size:3}: module to net.step, rate {took}", flush=True)


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
            judge = getattr(torch.nn, name)(options.size, options.size)
            mine = getattr(vt, name)(options.size, options.size)
            mine.load_state_dict(judge.state_dict())
            given = [torch.randn(n, options.size) for n in sentences(options, count)]
            packed = torch.nn.utils.rnn.pack_sequence(given, enforce_sorted=False)

            def train(layer: Any, packed: Any = packed) -> list[Any]:
                layer.zero_grad()
                layer(packed)[0].data.square().sum().backward()
                return [p.grad for p in layer.parameters()]

            for a, b in zip(train(mine), train(judge), strict=True):
                assert (a - b).abs().max() <= 1e-4 * b.abs().max() + 1e-6
            repeats = max(2, 64 // count)

            def ours(layer: Any = mine, train: Any = train, repeats: int = repeats) -> None:
                for _ in range(repeats):
                    train(layer)

            def theirs(layer: Any = judge, train: Any = train, repeats: int = repeats) -> None:
                for _ in range(repeats):
                    train(layer)

            took = ratio_of((theirs, ours), options.rounds)
            what = f"{name} {options.size}, {count:3} sentences"
            print(f"{what}: vertexrt.torch to torch.nn, rate {took}", flush=True)


def main() -> None:
    """Read the options, compare."""
    parser = argparse.ArgumentParser("python -m benchmarks.torch_module", description=__doc__)
    parser.add_argument("--trees", help="folder with train.txt of bracketed trees")
    parser.add_argument("--text", help="a file with a sentence a line, for its lengths")
    parser.add_argument("--batch", default="1,16,64,256")
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    import_module("torch").set_num_threads(1)
    trees(options)
    layers(options)


if __name__ == "__main__":
    main()
