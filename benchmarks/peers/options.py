"""The command line of the comparison."""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

SUITES = ("tree-lstm", "tree-fc", "var-lstm", "fixed-lstm")
MODES = ("train", "infer")
ENGINES = ("batched", "persistent", "auto")
UNMERGED = ":unmerged"


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers",
        description="Time vertexrt beside PyTorch, after checking that both compute the same.",
    )
    parser.add_argument(
        "--suite",
        type=_among(SUITES),
        default=list(SUITES),
        metavar="S,S,...",
        help=f"of {', '.join(SUITES)}; all by default",
    )
    parser.add_argument("--device", default="cpu", help="cpu or cuda, for both sides")
    parser.add_argument("--threads", type=_positive, default=1, help="of both sides")
    parser.add_argument("--json", type=Path, help="write all samples, machine and versions here")
    parser.add_argument(
        "--mode", type=_among(MODES), default=list(MODES), metavar="M,M", help="train, infer"
    )
    parser.add_argument(
        "--batch",
        type=lambda text: [_positive(part) for part in text.split(",")],
        default=[1, 16, 64, 256],
        metavar="N,N,...",
        help="graphs in a minibatch",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=5.0,
        help="for each suite, mode and batch size (at least three samples)",
    )
    parser.add_argument(
        "--engines",
        type=_engines,
        default=["batched"],
        metavar="E,E,...",
        help=f"of {', '.join(ENGINES)}; with {UNMERGED} after it, identical vertices of a batch "
        "are all computed; the first is the one that ratios are of; none: peers alone",
    )
    parser.add_argument("--peers", choices=("torch", "none"), default="torch")
    parser.add_argument(
        "--hidden",
        type=_positive,
        help="hidden and embedding size; by default 256 for tree-lstm, 512 for the others",
    )
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float32")
    parser.add_argument("--leaves", type=_positive, default=256, help="of a tree of tree-fc")
    parser.add_argument("--length", type=_positive, default=64, help="words in fixed-lstm")
    data = "a name or a folder; by default {} if it is cached, else generated"
    parser.add_argument("--trees", help="data of tree-lstm: " + data.format("sst"))
    parser.add_argument("--text", help="data of the LSTMs: " + data.format("ptb"))
    options = parser.parse_args(arguments)
    if not options.engines and options.peers == "none":
        parser.error("--engines none with --peers none leaves nothing to time")
    return options


def _among(known: Sequence[str]) -> Callable[[str], list[str]]:
    def read(text: str) -> list[str]:
        parts = text.split(",")
        for part in parts:
            if part not in known:
                raise argparse.ArgumentTypeError(f"{part!r} is none of {', '.join(known)}")
        return list(dict.fromkeys(parts))

    return read


def _engines(text: str) -> list[str]:
    if text == "none":
        return []
    return _among([name + tail for name in ENGINES for tail in ("", UNMERGED)])(text)


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return value
