"""What a step of greedy decoding costs: one sequence, an LSTM cell and a layer over the words.

    python -m benchmarks.decoding [--hidden 32,64,256] [--words 1000] [--steps 100] [--rounds 60]

`vrt.Decoder` against PyTorch's embedding, LSTMCell, Linear and argmax with the same weights, on
one thread of a CPU, in turn; PyTorch also with the score of each word (log_softmax), which a
decoder returns. Words are first compared. A time is that of this thread, so that other programs
disturb it less.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

import vertexrt as vrt
from benchmarks.command import declare, parsed
from vertexrt import nn
from vertexrt.bench.measure import in_turn


class Step(vrt.VertexFunction):
    """A word of a sequence, whose state is pulled."""

    def __init__(self, words: int, hidden: int) -> None:
        super().__init__(state={})
        self.embedding, self.cell = nn.Embedding(words, hidden), nn.LSTMCell(hidden, hidden)
        self.out, self.size = nn.Linear(hidden, words), hidden

    def forward(self) -> None:
        """Compute one word."""
        before = self.pull("h", shape=(self.size,)), self.pull("c", shape=(self.size,))
        h, c = self.cell(self.embedding(self.pull("word")), before)
        self.push("h", h)
        self.push("c", c)
        self.push("logits", self.out(h))


class Torch(torch.nn.Module):
    """The same of PyTorch's modules."""

    def __init__(self, words: int, hidden: int) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(words, hidden)
        self.cell, self.out = torch.nn.LSTMCell(hidden, hidden), torch.nn.Linear(hidden, words)

    @torch.inference_mode()
    def decode(self, steps: int, scored: bool = False) -> list[int]:
        """Return the words that follow word 0."""
        word, found = torch.zeros(1, dtype=torch.long), []
        h = c = torch.zeros(1, self.cell.hidden_size)
        for _ in range(steps):
            h, c = self.cell(self.embedding(word), (h, c))
            logits = self.out(h)
            word = (logits.log_softmax(1) if scored else logits).max(1)[1]
            found.append(int(word))
        return found


def report(words: int, hidden: int, steps: int, rounds: int) -> None:
    """Check and time one size."""
    net, peer = vrt.compile(Step(words, hidden), device="cpu", threads=1), Torch(words, hidden)
    net.load_state({"parameters": {k: v.numpy() for k, v in peer.state_dict().items()}})
    start = vrt.InputGraph.chain(1, {"word": [0]})
    decoder = vrt.Decoder(net, vrt.GraphBatch.from_graphs([start]))

    def ours() -> Any:
        return decoder(max_length=steps)

    assert list(ours()[0][0].words) == peer.decode(steps)

    def timed(way: Callable[[], object]) -> Callable[[int], float]:
        def once(_: int) -> float:
            begin = time.thread_time()
            way()
            return 1e6 * (time.thread_time() - begin) / steps

        return once

    ways: dict[str, Callable[[], object]] = {
        "vrt.Decoder": ours,
        "PyTorch": lambda: peer.decode(steps),
        "PyTorch, with scores": lambda: peer.decode(steps, scored=True),
    }
    took = in_turn({name: timed(way) for name, way in ways.items()}, rounds, -2)
    for name, times in took.items():
        low, middle, high = np.percentile(times, [25, 50, 75])
        ratio = np.median(np.array(times) / took["PyTorch"])
        print(
            f"{words} words, h {hidden:4} {name:22} {middle:7.1f} us a step "
            f"[{low:.1f} {high:.1f}], {ratio:.2f} times PyTorch",
            flush=True,
        )


def main(words: Sequence[str] | None = None) -> None:
    """Read the options, measure."""
    sizes = {"hidden": (32, 64, 256), "words": 1000, "steps": 100, "rounds": 60}
    given = parsed(declare("benchmarks.decoding", __doc__, **sizes), words)
    torch.set_num_threads(1)
    for hidden in given.hidden:
        report(given.words, hidden, given.steps, given.rounds)


if __name__ == "__main__":
    main()
