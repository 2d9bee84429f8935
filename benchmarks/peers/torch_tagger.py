"""A BiLSTM tagger over words and letters of PyTorch's `nn.LSTM`, over packed sequences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence

import vertexrt as vrt
from benchmarks.peers.float32 import only_float32

DIRECTIONS = (("", "forth", "left"), ("_reverse", "back", "right"))


class Peer(nn.Module):
    """The tagger of `vertexrt.models`, with one table of letters."""

    def __init__(self, of: vrt.Network, device: str) -> None:
        super().__init__()
        only_float32(device)
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


def train_peer(
    peer: Peer, ready: Sequence[Sequence[torch.Tensor]], device: str, rate: float
) -> None:
    """Take a step on each minibatch."""
    optimizer = torch.optim.SGD(peer.parameters(), lr=rate, fused=device == "cuda")
    for given in ready:
        optimizer.zero_grad(set_to_none=True)
        peer(given).backward()
        optimizer.step()
    if device == "cuda":
        torch.cuda.synchronize()
