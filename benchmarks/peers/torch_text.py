"""Training of PyTorch's language model on a text whose state is carried from piece to piece."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

import vertexrt as vrt
from benchmarks.peers.cuda_graph import Graph
from benchmarks.peers.torch_language import NO_LABEL, Peer, collate

Piece = Sequence[Tensor]


class Epoch(NamedTuple):
    """What an epoch gave: perplexities, and the words that were trained on in a second."""

    train: float
    dev: float
    words_per_s: float


class TextTraining:
    """The model, and a step of truncated backpropagation; on a GPU a CUDA graph (Zaremba 2014).

    Args:
        values: first parameters, by the names of `LSTMLanguageModel`.
        splits: minibatches in the order of the text: piece n of each stream.
        dropout: see `Peer`; clip_norm: of the gradients of the loss of a stream; 0 for none.
    """

    def __init__(
        self,
        values: Mapping[str, Any],
        splits: Mapping[str, Sequence[vrt.GraphBatch]],
        device: str,
        dropout: float,
        clip_norm: float,
    ) -> None:
        self.peer = Peer(values, device, dropout)
        self.splits = {n: [collate(b, device) for b in found] for n, found in splits.items()}
        first = self.splits["train"][0]
        self._held = [each.clone() for each in first]
        layers, width = self.peer.layers.num_layers, self.peer.layers.hidden_size
        shape = layers, first[0].shape[1], width
        self._states = torch.zeros(shape, device=device), torch.zeros(shape, device=device)
        self._loss = torch.zeros((), dtype=torch.float64, device=device)
        self._rate, self._clip_norm = torch.zeros((), device=device), clip_norm
        self._optimizer = torch.optim.SGD(self.peer.parameters(), lr=self._rate, fused=True)
        self._graph = Graph(lambda: self._step(*self._held)) if device == "cuda" else None

    def _step(self, words: Tensor, labels: Tensor) -> None:
        """Train on a piece of each stream, at the rate that is set."""
        self._optimizer.zero_grad(set_to_none=False)
        loss, after = self.peer.total(words, labels, self._states)
        (loss / words.shape[1]).backward()
        if self._clip_norm:
            torch.nn.utils.clip_grad_norm_(self.peer.parameters(), self._clip_norm)
        self._optimizer.step()
        with torch.no_grad():
            self._loss += loss
            for mine, new in zip(self._states, after, strict=True):
                mine.copy_(new)

    def first_loss(self) -> float:
        """Return the loss of the first pieces, without dropout, from states of zeros."""
        self.peer.eval()
        with torch.no_grad():
            return float(self.peer.total(*self.splits["train"][0])[0])

    def epoch(self, rate: float) -> Epoch:
        """Train on all pieces, and judge dev."""
        self.peer.train()
        self._restart(rate)
        pieces = self.splits["train"]
        start = time.perf_counter()
        for piece in pieces:
            if self._graph is None or piece[0].shape != self._held[0].shape:
                self._step(*piece)
                continue
            for mine, given in zip(self._held, piece, strict=True):
                mine.copy_(given)
            self._graph()
        loss, words = float(self._loss), _words(pieces)  # waits for the last step
        rate_of_words = words / (time.perf_counter() - start)
        return Epoch(math.exp(loss / words), self.perplexity("dev"), rate_of_words)

    def _restart(self, rate: float) -> None:
        """Begin a text: with states of zeros."""
        self._rate.fill_(rate)
        self._loss.zero_()
        for each in self._states:
            each.zero_()

    def perplexity(self, split: str) -> float:
        """Return the perplexity of a split, without dropout."""
        self.peer.eval()
        states, loss = tuple(map(torch.zeros_like, self._states)), 0.0
        with torch.no_grad():
            for words, labels in self.splits[split]:
                found, states = self.peer.total(words, labels, states)
                loss += float(found)
        return math.exp(loss / _words(self.splits[split]))

    def kept(self) -> dict[str, Tensor]:
        """Return a copy of the parameters."""
        return copy.deepcopy(self.peer.state_dict())

    def put_back(self, kept: dict[str, Tensor]) -> None:
        """Put parameters back that were kept."""
        self.peer.load_state_dict(kept)


def _words(pieces: Sequence[Piece]) -> int:
    return int(np.sum([int((labels != NO_LABEL).sum()) for _, labels in pieces]))
