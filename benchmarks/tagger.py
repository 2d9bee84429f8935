"""Training a BiLSTM tagger over words and letters: one network of six vertex types against cuDNN.

    python -m benchmarks.tagger --data WIKINER [--device cuda] [--hidden 256] [--batch 1,4,16,64]

The model is `bilstm-char-tagger` of the catalogue without its CRF; the peer is PyTorch's `nn.LSTM`,
bidirectional, over packed sequences, with the same parameters: letters of all words, words of all
sentences, a linear layer. Losses are compared first, at the size that is timed. A step of ours
assembles and schedules its minibatch; minibatches of the peer lie ready on the device. Ways take
turns.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module

import numpy as np

import vertexrt as vrt
from benchmarks.command import read_options
from benchmarks.turns import compiled, ratio_text, seconds_in_turn
from vertexrt.cli.options import PATH, SIZE, CommandOption
from vertexrt.data import load
from vertexrt.models.taggers import Direction, Label, Letters, SpeltWord

STEPS = {1: 200, 4: 150, 16: 80, 64: 30}  # of a block
ROUNDS, RATE, BOUND = 5, 1e-4, 1e-4
EMBED = 128  # elements of a word


class Tagger(vrt.Model):
    """A bidirectional LSTM over words and letters; each tag is chosen by itself."""

    def __init__(self, sizes: Mapping[str, int], embed: int, spelling: int, hidden: int) -> None:
        self.forth, self.back = (Letters(sizes["num_letter"], spelling) for _ in range(2))
        self.word = SpeltWord(sizes["vocab"], embed, self.forth, self.back, 0.0)
        self.left, self.right = (Direction(self.word, hidden, 0.0) for _ in range(2))
        self.tag = Label({"left": self.left, "right": self.right}, sizes["classes"])


def train_ours(net: vrt.Network, pool: vrt.GraphBatch, ids: Sequence[np.ndarray]) -> None:
    """Take a step on each minibatch."""
    optimizer = vrt.SGD(lr=RATE)
    for chosen in ids:
        net.step(pool.take(chosen), optimizer)
    net.sync()


def compare(
    nets: dict[str, vrt.Network], pool: vrt.GraphBatch, size: int, options: argparse.Namespace
) -> str:
    """Check that all have one loss, time them in turn, and return a line."""
    torch_tagger = import_module("benchmarks.peers.torch_tagger")  # PyTorch is optional
    rng = np.random.default_rng(size)
    ids = [rng.integers(0, pool.num_graphs, size) for _ in range(STEPS.get(size, 30))]
    ready = [torch_tagger.collate(pool.take(chosen), options.device) for chosen in ids]
    first = next(iter(nets.values()))
    first.parameters["back.embedding"] = first.parameters["forth.embedding"]  # the peer has one
    peer = torch_tagger.Peer(first, options.device)
    peer.take(first.parameters)
    peer.to(options.device)
    expected = peer(ready[0]).item()
    ways: dict[str, Callable[[], None]] = {
        "torch": lambda: torch_tagger.train_peer(peer, ready, options.device, RATE)
    }
    for engine, net in nets.items():
        net.parameters.update(first.parameters)
        loss = float(net(pool.take(ids[0]), outputs=["loss"])["loss"].sum()) / size
        assert abs(loss - expected) < BOUND * expected, (engine, loss, expected)
        ways[engine] = lambda net=net: train_ours(net, pool, ids)  # type: ignore[misc]
    took = seconds_in_turn(ways, ROUNDS)
    line = f"batch {size:3}  torch {size * len(ids) / np.median(took['torch']):8,.0f}/s"
    for engine in nets:
        rate = size * len(ids) / np.median(took[engine])
        line += f"  {engine} {rate:8,.0f}/s {ratio_text(took['torch'], took[engine])}"
    return line


def main() -> None:
    """Read the options, compile, compare."""
    text = "folder with train.txt, word|tag"
    options = read_options(
        "benchmarks.tagger",
        __doc__,
        None,
        CommandOption("--data FOLDER", PATH, "", text, more={"required": True}),
        CommandOption("--hidden N", SIZE, "", "of a direction", default=256),
        device="cuda",
        engines=("persistent", "batched"),
        spelling=64,
        batch=(1, 4, 16, 64),
    )
    data = load(options.data, format="tagged", letters=True)
    pool = data.splits["train"]
    make = partial(Tagger, data.sizes(), EMBED, options.spelling, options.hidden)
    nets = compiled(options.engines, make, pool[:16], options.device)
    for size in options.batch:
        print(compare(nets, pool, size, options), flush=True)


if __name__ == "__main__":
    main()
