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
States = tuple[Tensor, Tensor]
NO_LABEL = -1


class Peer(nn.Module):
    """The model of `vertexrt.models.language_model`, with its parameters.

    Args:
        dropout: of the input of each layer, and of the softmax.
    """

    def __init__(self, values: Mapping[str, Any], device: str, dropout: float = 0.0) -> None:
        super().__init__()
        only_float32(device)
        vocab, embed = np.shape(values["layers.0.words"])
        layers = len({name.split(".")[1] for name in values if name.startswith("layers.")})
        hidden = np.shape(values["next.weight"])[1]
        self.words, self.next = nn.Embedding(vocab, embed), nn.Linear(hidden, vocab)
        self.layers = nn.LSTM(embed, hidden, layers, dropout=dropout if layers > 1 else 0.0)
        self.drop = nn.Dropout(dropout)
        found = {f"next.{name}": f"next.{name}" for name in ("weight", "bias")}
        found["words.weight"] = "layers.0.words"
        for k in range(layers):
            for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
                found[f"layers.{name}_l{k}"] = f"layers.{k}.cell.{name}"
        self.load_state_dict({k: torch.tensor(np.asarray(values[v])) for k, v in found.items()})
        self.to(device)

    def total(
        self, words: Tensor, labels: Tensor, before: States | None = None
    ) -> tuple[Tensor, States]:
        """Return the sum of the losses of all words, and the states after the last ones.

        Args:
            words, labels: [steps, batch]; NO_LABEL adds nothing.
            before: states of all layers before the first words; zeros by default.
        """
        outputs, after = self.layers(self.drop(self.words(words)), before)
        logits = self.next(self.drop(outputs)).flatten(0, 1)
        how = {"ignore_index": NO_LABEL, "reduction": "sum"}
        return nn.functional.cross_entropy(logits, labels.flatten(), **how), after

    def forward(self, words: Tensor, labels: Tensor) -> Tensor:
        """Return the mean loss of a word; both are [steps, batch]."""
        return self.total(words, labels)[0] / labels.numel()

    def loss(self, words: Tensor, labels: Tensor) -> float:
        """Return it as a number."""
        with torch.no_grad():
            return float(self(words, labels))


def collate(batch: vrt.GraphBatch, device: str) -> list[Tensor]:
    """Return words and labels [steps, batch]; NO_LABEL behind pieces that are shorter."""
    found = []
    for name, of, filled in (("word", "layers.0", 0), ("label", "next", NO_LABEL)):
        vertices = batch.of_type(of)
        rows = np.asarray(batch.pulls[name])[vertices]
        lengths = np.bincount(batch.graph_of[vertices], minlength=batch.num_graphs)
        step = np.arange(len(rows)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        padded = np.full((lengths.max(), batch.num_graphs), filled, np.int64)
        padded[step, batch.graph_of[vertices]] = rows
        found.append(torch.tensor(padded).to(device))
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
