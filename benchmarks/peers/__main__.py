"""`python -m benchmarks.peers`: the options; `benchmarks.peers.run` says what is timed."""

import sys
from collections.abc import Sequence

from benchmarks.command import add_list, add_measured, run_command
from benchmarks.peers.run import AGAIN, UNMERGED, run
from vertexrt.cli.options import LARGEST_GRAPH, PATH, SIZE, CommandOption, OneOf, Parser, Whole
from vertexrt.engine.devices import DTYPES

PROGRAM = "python -m benchmarks.peers"
SUITES = ("tree-lstm", "tree-fc", "var-lstm", "fixed-lstm")
MODES = ("train", "infer")
PEERS = ("torch", "dynet", "none")


def main(words: Sequence[str] | None = None) -> int:
    """Read the options, run, draw; return the exit code."""
    return run_command(make_parser(), run, words)


def make_parser() -> Parser:
    """Declare the options."""
    parser = Parser(prog=PROGRAM, description="Time vertexrt against PyTorch and DyNet.")
    names = f"of {', '.join(SUITES)}; all by default"
    add_list(parser, "--suite", OneOf(SUITES), SUITES, names)
    add_list(parser, "--mode", OneOf(MODES), MODES, "train, infer")
    text = "for each suite, mode and batch size"
    add_measured(parser, 5.0, text, batch_sizes=(1, 16, 64, 256))
    engines = tuple(e + tail for e in ("batched", "persistent", "auto") for tail in ("", UNMERGED))
    known = (*engines, AGAIN, "none")
    text = (
        f"batched, persistent, auto; with {UNMERGED} appended, identical vertices of a batch "
        "are all computed; the first is the one that ratios are of, again is that once more; none: "
        "peers alone"
    )
    add_list(parser, "--engines", OneOf(known), ("batched",), text)
    text = "torch (default), dynet (tree-lstm on the CPU), none"
    add_list(parser, "--peers", OneOf(PEERS), ("torch",), text)
    text = "and embedding size; by default 256 for tree-lstm, 512 for the others"
    data = "a name or a folder; by default {} if it is cached, else generated"
    leaves, length = Whole(2, LARGEST_GRAPH), Whole(1, LARGEST_GRAPH)
    rows = (
        CommandOption("--hidden N", SIZE, "", text),
        CommandOption("--dtype T", OneOf(DTYPES), "", "float32 or float64", default="float32"),
        CommandOption("--leaves N", leaves, "", "of tree-fc", default=256),
        CommandOption("--length N", length, "", "words in fixed-lstm", default=64),
        CommandOption("--trees NAME|PATH", PATH, "", data.format("sst")),
        CommandOption("--text NAME|PATH", PATH, "", data.format("ptb")),
    )
    parser.add(rows)
    return parser


if __name__ == "__main__":
    sys.exit(main())
