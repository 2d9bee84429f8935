"""Training a BiLSTM tagger over words and letters: one network of six vertex types against cuDNN.

    python -m benchmarks.tagger --data WIKINER [--device cuda] [--hidden 256] [--batch 1,4,16,64]

The model is `bilstm-char-tagger` of the catalogue; the peer is PyTorch's `nn.LSTM`, bidirectional,
over packed sequences, with the same parameters: letters of all words, words of all sentences, a
linear layer. Losses are compared first, at the size that is timed. A step of ours assembles and
schedules its minibatch; minibatches of the peer lie ready on the device. Ways take turns.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence

import vertexrt as vrt
from vertexrt.data import load
from vertexrt.models import get

STEPS = {1: 200, 4: 150, 16: 80, 64: 30}  # of a block
ROUNDS, RATE, BOUND = 5, 1e-4, 1e-4
DIRECTIONS = (("", "forth", "left"), ("_reverse", "back", "right"))


class Peer(nn.Module):
    """The same tagger of `nn.LSTM`."""

    def __init__(self, of: vrt.Network) -> None:
        super().__init__()
        shapes = {name: value.shape for name, value in of.parameters.items()}
        letters, spelling = shapes["forth.embedding"]
        words, embed = shapes["word.weight"]
        tags, both = shapes["tag.out.weight"]
        self.letter, self.word = nn.Embedding(letters, spelling), nn.Embedding(words, embed)
        self.letters = nn.LSTM(spelling, spelling, bidirectional=True)
        self.words = nn.LSTM(embed + 2 * spelling, both // 2, bidirectional=True)
        self.out = nn.Linear(both, tags)

    def take(self, values: Any) -> None:
        """Copy parameters of ours."""
        found = {"letter.weight": "forth.embedding", "word.weight": "word.weight"}
        found |= {f"out.{each}": f"tag.out.{each}" for each in ("weight", "bias")}
        for end, of_letters, of_words in DIRECTIONS:
            for each in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
                found[f"letters.{each}_l0{end}"] = f"{of_letters}.cell.{each}"
                found[f"words.{each}_l0{end}"] = f"{of_words}.cell.{each}"
        self.load_state_dict({k: torch.tensor(np.asarray(values[v])) for k, v in found.items()})

    def forward(self, given: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the mean over sentences of the sum of losses."""
        letters, lengths, words, places, sizes, tags = given
        packed = pack_padded_sequence(self.letter(letters), lengths, enforce_sorted=False)
        _, (ends, _) = self.letters(packed)
        x = torch.cat([self.word(words), ends[0][places], ends[1][places]], -1)
        y, _ = self.words(pack_padded_sequence(x, sizes, enforce_sorted=False))
        label = pack_padded_sequence(tags, sizes, enforce_sorted=False).data
        loss = nn.functional.cross_entropy(self.out(y.data), label, reduction="sum")
        return loss / len(sizes)


def collate(batch: vrt.GraphBatch, device: str) -> list[torch.Tensor]:
    """Return a minibatch as the peer reads it: its letters, words and tags, padded."""
    assert batch.types
    letter = np.asarray(batch.pulls["letter"])[batch.of_type("forth")]
    follows = np.diff(batch.child_ptr)[batch.of_type("forth")] > 0
    word = np.asarray(batch.pulls["word"])[batch.of_type("word")]
    tag = np.asarray(batch.pulls["label"])[batch.of_type("tag")]
    spelt = [torch.tensor(x) for x in np.split(letter, np.flatnonzero(~follows)[1:])]
    graph = np.searchsorted(batch.graph_ptr, batch.of_type("word"), side="right")
    cuts = np.flatnonzero(np.diff(graph)) + 1

    def padded(values: np.ndarray) -> torch.Tensor:
        parts = np.split(values.astype(np.int64), cuts)
        return pad_sequence([torch.tensor(x) for x in parts]).to(device)

    return [
        pad_sequence(spelt).to(device),
        torch.tensor([len(x) for x in spelt]),
        padded(word),
        padded(np.arange(len(word))),
        torch.tensor([len(x) for x in np.split(word, cuts)]),
        padded(tag),
    ]


def train_ours(net: vrt.Network, pool: vrt.GraphBatch, ids: Sequence[np.ndarray]) -> None:
    """Take a step on each minibatch."""
    optimizer = vrt.SGD(lr=RATE)
    for chosen in ids:
        net.step(pool.take(chosen), optimizer)
    net.sync()


def train_peer(peer: Peer, ready: Sequence[Sequence[torch.Tensor]], device: str) -> None:
    """Take a step on each minibatch."""
    optimizer = torch.optim.SGD(peer.parameters(), lr=RATE, fused=device == "cuda")
    for given in ready:
        optimizer.zero_grad(set_to_none=True)
        peer(given).backward()
        optimizer.step()
    if device == "cuda":
        torch.cuda.synchronize()


def compare(
    nets: dict[str, vrt.Network], pool: vrt.GraphBatch, size: int, options: argparse.Namespace
) -> str:
    """Check that all have one loss, time them in turn, and return a line."""
    rng = np.random.default_rng(size)
    ids = [rng.integers(0, pool.num_graphs, size) for _ in range(STEPS.get(size, 30))]
    ready = [collate(pool.take(chosen), options.device) for chosen in ids]
    first = next(iter(nets.values()))
    peer = Peer(first)
    peer.take(first.parameters)
    peer.to(options.device)
    expected = peer(ready[0]).item()
    ways: dict[str, Callable[[], None]] = {"torch": lambda: train_peer(peer, ready, options.device)}
    for engine, net in nets.items():
        net.set_parameters(first.parameters)
        loss = float(net.forward(pool.take(ids[0]), outputs=["loss"])["loss"].sum()) / size
        assert abs(loss - expected) < BOUND * expected, (engine, loss, expected)
        ways[engine] = lambda net=net: train_ours(net, pool, ids)  # type: ignore[misc]
    took: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(ROUNDS + 1):
        for name, way in ways.items():
            start = time.perf_counter()
            way()
            if number:
                took[name].append(time.perf_counter() - start)
    line = f"batch {size:3}  torch {size * len(ids) / np.median(took['torch']):8,.0f}/s"
    for engine in nets:
        low, ratio, high = np.percentile(
            np.array(took["torch"]) / np.array(took[engine]), [25, 50, 75]
        )
        rate = size * len(ids) / np.median(took[engine])
        line += f"  {engine} {rate:8,.0f}/s {ratio:5.2f} [{low:.2f} {high:.2f}]"
    return line


def main() -> None:
    """Read the options, compile, compare."""
    parser = argparse.ArgumentParser("python -m benchmarks.tagger", description=__doc__)
    parser.add_argument("--data", required=True, help="folder with train.txt, word|tag")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--engines", default="persistent,batched")
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--spelling", type=int, default=64)
    parser.add_argument("--batch", default="1,4,16,64")
    options = parser.parse_args()
    data = load(options.data, format="tagged", letters=True)
    pool = data.splits["train"]
    sizes = {"hidden": options.hidden, "embed": 128, "spelling": options.spelling, "dropout": 0.0}
    nets = {}
    for engine in options.engines.split(","):
        start = time.perf_counter()
        model = get("bilstm-char-tagger").build(data, **sizes)
        net = vrt.compile(model, device=options.device, engine=engine, seed=1)
        net.parameters["back.embedding"] = net.parameters["forth.embedding"]
        net.step(pool[:16], vrt.SGD(lr=0.0))
        net.sync()
        nets[engine] = net
        print(f"{engine}: first step after {time.perf_counter() - start:.1f} s", flush=True)
    for size in map(int, options.batch.split(",")):
        print(compare(nets, pool, size, options), flush=True)


if __name__ == "__main__":
    main()
