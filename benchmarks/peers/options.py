"""What the command line of `python -m benchmarks.peers` says."""

from __future__ import annotations

from dataclasses import dataclass

UNMERGED = ":unmerged"
AGAIN = "again"  # the first engine once more


@dataclass(frozen=True, slots=True)
class Options:
    """The jobs, the contenders and how long they are timed.

    Attributes:
        suite: of tree-lstm, tree-fc, var-lstm, fixed-lstm.
        mode: of train, infer.
        batch_sizes: graphs in a minibatch.
        engines: of batched, persistent, auto, each also with `:unmerged`, and again; the first is
            the one that ratios are of; none leaves ours out.
        peers: of torch, dynet; none leaves them out.
        device, threads: for all sides; threads None for all cores.
        seconds: for each suite, mode and batch size (at least three samples).
        hidden: and embedding size; None for 256 with tree-lstm, else 512.
        leaves: of a tree of tree-fc; length: words in fixed-lstm.
        trees, text: data sets or folders; None for SST and PTB where cached, else generated ones.
        out: folder for the results.
    """

    suite: tuple[str, ...] = ("tree-lstm", "tree-fc", "var-lstm", "fixed-lstm")
    mode: tuple[str, ...] = ("train", "infer")
    batch_sizes: tuple[int, ...] = (1, 16, 64, 256)
    engines: tuple[str, ...] = ("batched",)
    peers: tuple[str, ...] = ("torch",)
    device: str = "cpu"
    threads: int | None = None
    seconds: float = 5.0
    hidden: int | None = None
    dtype: str = "float32"
    leaves: int = 256
    length: int = 64
    trees: str | None = None
    text: str | None = None
    out: str = "bench"
