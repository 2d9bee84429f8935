"""An LSTM language model of PyTorch, over pieces of one length; on a GPU a step is a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import vertexrt as vrt
from benchmarks.peers.cuda_graph import Graph
from benchmarks.peers.float32 import only_float32

Step = Callable[[Tensor, Tensor], None]


class Peer(nn.Module):
    """The model of `vertexrt.models.lstm_lm`, with its parameters."""

    def __init__(self, values: Mapping[str, Any], device: str) -> None:
        super().__init__()
        only_float32(device)
        vocab, embed = np.shape(values["layers.0.words"])
        layers = len({name.split(".")[1] for name in values if name.startswith("layers.")})
        hidden = np.shape(values["next.weight"])[1]
        self.words, self.next = nn.Embedding(vocab, embed), nn.Linear(hidden, vocab)
        self.layers = nn.LSTM(embed, hidden, layers)
        found = {f"next.{name}": f"next.{name}" for name in ("weight", "bias")}
        found["words.weight"] = "layers.0.words"
        for k in range(layers):
            for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
                found[f"layers.{name}_l{k}"] = f"layers.{k}.cell.{name}"
        self.load_state_dict({k: torch.tensor(np.asarray(values[v])) for k, v in found.items()})
        self.to(device)

    def forward(self, words: Tensor, labels: Tensor) -> Tensor:
        """Return the mean loss of a word; both are [steps, batch]."""
        states, _ = self.layers(self.words(words))
        logits = self.next(states).flatten(0, 1)
        return nn.functional.cross_entropy(logits, labels.flatten())

    def loss(self, words: Tensor, labels: Tensor) -> float:
        """Return it as a number."""
        with torch.no_grad():
            return float(self(words, labels))


def collate(batch: vrt.GraphBatch, length: int, device: str) -> list[Tensor]:
    """Return words and labels [steps, batch] of pieces that have all one length."""
    found = []
    for name, of in (("word", "layers.0"), ("label", "next")):
        rows = np.asarray(batch.pulls[name])[batch.of_type(of)]
        found.append(torch.tensor(rows.reshape(-1, length).T.astype(np.int64)).to(device))
    return found


def step_of(peer: Peer, example: Sequence[Tensor], rate: float) -> Step:
    """Return what takes a step; on a GPU it copies a minibatch and replays a graph."""
    fused = example[0].is_cuda
    optimizer = torch.optim.SGD(peer.parameters(), lr=rate, fused=fused or None)

    def step(words: Tensor, labels: Tensor) -> None:
        optimizer.zero_grad(set_to_none=False)
        peer(words, labels).backward()
        optimizer.step()

    if not fused:
        return step
    held = [each.clone() for each in example]
    again = Graph(lambda: step(*held))

    def replay(words: Tensor, labels: Tensor) -> None:
        for mine, given in zip(held, (words, labels), strict=True):
            mine.copy_(given)
        again()

    return replay


def train(step: Step, batches: Sequence[Sequence[Tensor]]) -> None:
    """Take a step on each minibatch, and wait."""
    for words, labels in batches:
        step(words, labels)
    if batches[0][0].is_cuda:
        torch.cuda.synchronize()
