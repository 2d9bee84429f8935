"""Training an LSTM language model: both engines against PyTorch's `nn.LSTM` (EcoRNN, section 3.3).

    python -m benchmarks.language --data PTB [--device cuda] [--hidden 200,650] [--batch 20,64]

The model is `lstm-lm` of the catalogue without dropout, on pieces of 35 words that are all of one
length; the peer is `nn.Embedding`, `nn.LSTM`, `nn.Linear` and fused SGD, on a GPU as one CUDA graph
of a whole step. Losses are compared first, at the size that is timed. A step of ours assembles and
schedules its minibatch; those of the peer lie ready on the device. Ways take turns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module

import numpy as np

import vertexrt as vrt
from benchmarks.command import declare, parsed
from benchmarks.turns import compiled, ratio_text, seconds_in_turn
from vertexrt.cli.options import PATH, CommandOption, Parser
from vertexrt.data import load
from vertexrt.models.language_model import LSTMLanguageModel

PIECE, STEPS, ROUNDS, RATE, BOUND = 35, 20, 5, 1e-4, 1e-4


def train_ours(net: vrt.Network, batches: Sequence[vrt.GraphBatch]) -> None:
    """Take a step on each minibatch."""
    optimizer = vrt.SGD(lr=RATE)
    for batch in batches:
        net.step(batch, optimizer)
    net.sync()


def compare(nets: dict[str, vrt.Network], pool: vrt.GraphBatch, size: int, device: str) -> str:
    """Check that all have one loss, time them in turn, and return a line."""
    torch_language = import_module("benchmarks.peers.torch_language")  # PyTorch is optional
    batches = [pool[k * size : (k + 1) * size] for k in range(STEPS)]
    first = next(iter(nets.values()))
    peer = torch_language.Peer(first.parameters, device)
    ready = [torch_language.collate(batch, device) for batch in batches]
    expected = peer.loss(*ready[0])
    step = torch_language.step_of(peer, ready[0], RATE)
    ways: dict[str, Callable[[], None]] = {"torch": lambda: torch_language.train(step, ready)}
    for engine, net in nets.items():
        net.parameters.update(first.parameters)
        loss = float(net(batches[0], outputs=["loss"])["loss"].sum()) / (size * PIECE)
        assert abs(loss - expected) < BOUND * expected, (engine, loss, expected)
        ways[engine] = lambda net=net: train_ours(net, batches)  # type: ignore[misc]
    took = seconds_in_turn(ways, ROUNDS)
    words = size * PIECE * STEPS / 1000
    line = f"batch {size:3}  torch {words / np.median(took['torch']):6,.0f} kwords/s"
    for engine in nets:
        rate = words / np.median(took[engine])
        line += f"  {engine} {rate:6,.0f} {ratio_text(took['torch'], took[engine])}"
    return line


def make_parser() -> Parser:
    """Declare the options."""
    text = "folder with ptb.train.txt"
    return declare(
        "benchmarks.language",
        __doc__,
        CommandOption("--data FOLDER", PATH, "", text, more={"required": True}),
        device="cuda",
        engines=("persistent", "batched"),
        hidden=(200, 650),
        layers=2,
        batch=(20, 64),
    )


def main() -> None:
    """Read the options, compile, compare."""
    options = parsed(make_parser(), None)
    data = load(options.data, format="text", pieces=PIECE, streams=64, layers=options.layers)
    pool, vocab = data.splits["train"], data.sizes()["vocab"]
    for hidden in options.hidden:
        print(f"hidden {hidden}", flush=True)
        make = partial(LSTMLanguageModel, vocab, hidden, hidden, layers=options.layers)
        nets = compiled(options.engines, make, pool[:16], options.device)
        for size in options.batch:
            print(f"hidden {hidden}  {compare(nets, pool, size, options.device)}", flush=True)


if __name__ == "__main__":
    main()
