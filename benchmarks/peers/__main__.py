"""`python -m benchmarks.peers`: the options; `benchmarks.peers.run` says what is timed."""

import sys
from collections.abc import Sequence

from benchmarks.command import add_list, run_command
from benchmarks.peers.options import AGAIN, UNMERGED, Options
from benchmarks.peers.run import run
from vertexrt.cli.bench_options import LARGEST_GRAPH, add_run, add_sizes
from vertexrt.cli.values import Parser, one_of
from vertexrt.engine.devices import DTYPES

PROGRAM = "python -m benchmarks.peers"
SUITES = ("tree-lstm", "tree-fc", "var-lstm", "fixed-lstm")
MODES = ("train", "infer")
PEERS = ("torch", "dynet", "none")


def main(words: Sequence[str] | None = None) -> int:
    """Read the options, run, draw; return the exit code."""
    return run_command(make_parser(), Options, run, words)


def make_parser() -> Parser:
    """Declare the options."""
    parser = Parser(prog=PROGRAM, description="Time vertexrt against PyTorch and DyNet.")
    names = f"of {', '.join(SUITES)}; all by default"
    add_list(parser, "--suite", one_of("--suite", SUITES), SUITES, names)
    add_list(parser, "--mode", one_of("--mode", MODES), MODES, "train, infer")
    add_sizes(parser, (1, 16, 64, 256))
    add_run(parser, 5.0, "for each suite, mode and batch size")
    _add_contenders(parser)
    _add_sizes_of_jobs(parser)
    return parser


def _add_contenders(parser: Parser) -> None:
    engines = tuple(e + tail for e in ("batched", "persistent", "auto") for tail in ("", UNMERGED))
    known = (*engines, AGAIN, "none")
    text = (
        f"batched, persistent, auto; with {UNMERGED} appended, identical vertices of a batch "
        "are all computed; the first is the one that ratios are of, again is that once more; none: "
        "peers alone"
    )
    add_list(parser, "--engines", one_of("--engines", known), ("batched",), text)
    text = "torch (default), dynet (tree-lstm on the CPU), none"
    add_list(parser, "--peers", one_of("--peers", PEERS), ("torch",), text)


def _add_sizes_of_jobs(parser: Parser) -> None:
    text = "and embedding size; by default 256 for tree-lstm, 512 for the others"
    parser.add_whole("hidden", text)
    parser.add_argument("--dtype", metavar="T", type=one_of("--dtype", DTYPES), default="float32")
    parser.add_whole("leaves", "of tree-fc", (2, LARGEST_GRAPH), 256)
    parser.add_whole("length", "words in fixed-lstm", (1, LARGEST_GRAPH), 64)
    data = "a name or a folder; by default {} if it is cached, else generated"
    parser.add_path("trees", data.format("sst"), "NAME|PATH")
    parser.add_path("text", data.format("ptb"), "NAME|PATH")


if __name__ == "__main__":
    sys.exit(main())
