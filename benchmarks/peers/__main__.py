"""`python -m benchmarks.peers`: the options; `benchmarks.peers.run` says what is timed."""

import sys
from collections.abc import Sequence

from benchmarks.command import run_command
from benchmarks.peers.options import AGAIN, UNMERGED, Options
from benchmarks.peers.run import run
from vertexrt.cli.bench_options import LARGEST_GRAPH, add_run, add_sizes
from vertexrt.cli.limits import DTYPES, WHOLE
from vertexrt.cli.values import Parser, list_of, one_of, path, whole

PROGRAM = "python -m benchmarks.peers"
SUITES = ("tree-lstm", "tree-fc", "var-lstm", "fixed-lstm")
MODES = ("train", "infer")
PEERS = ("torch", "dynet", "none")


def main(words: Sequence[str] | None = None) -> int:
    """Read the options, run, draw; return the exit code."""
    return run_command(make_parser(), Options, run, words)


def make_parser() -> Parser:
    """Declare the options."""
    parser = Parser(prog=PROGRAM, description="Time vertexrt beside PyTorch and DyNet.")
    parser.add_argument(
        "--suite",
        metavar="S,S,...",
        type=list_of("--suite", one_of("--suite", SUITES)),
        default=SUITES,
        help=f"of {', '.join(SUITES)}; all by default",
    )
    parser.add_argument(
        "--mode",
        metavar="M,M",
        type=list_of("--mode", one_of("--mode", MODES)),
        default=MODES,
        help="train, infer",
    )
    add_sizes(parser, (1, 16, 64, 256))
    add_run(parser, 5.0, "for each suite, mode and batch size")
    _add_contenders(parser)
    _add_sizes_of_jobs(parser)
    return parser


def _add_contenders(parser: Parser) -> None:
    engines = tuple(e + tail for e in ("batched", "persistent", "auto") for tail in ("", UNMERGED))
    parser.add_argument(
        "--engines",
        metavar="E,E,...",
        type=list_of("--engines", one_of("--engines", (*engines, AGAIN, "none"))),
        default=("batched",),
        help=f"batched, persistent, auto; with {UNMERGED} behind it, identical vertices of a batch "
        "are all computed; the first is the one that ratios are of, again is that once more; none: "
        "peers alone",
    )
    parser.add_argument(
        "--peers",
        metavar="P,P",
        type=list_of("--peers", one_of("--peers", PEERS)),
        default=("torch",),
        help="torch (default), dynet (tree-lstm on the CPU), none",
    )


def _add_sizes_of_jobs(parser: Parser) -> None:
    parser.add_argument(
        "--hidden",
        metavar="N",
        type=whole("--hidden", *WHOLE["hidden"]),
        help="and embedding size; by default 256 for tree-lstm, 512 for the others",
    )
    parser.add_argument("--dtype", metavar="T", type=one_of("--dtype", DTYPES), default="float32")
    parser.add_argument(
        "--leaves",
        metavar="N",
        type=whole("--leaves", 2, LARGEST_GRAPH),
        default=256,
        help="of tree-fc",
    )
    parser.add_argument(
        "--length",
        metavar="N",
        type=whole("--length", 1, LARGEST_GRAPH),
        default=64,
        help="words in fixed-lstm",
    )
    data = "a name or a folder; by default {} if it is cached, else generated"
    parser.add_argument(
        "--trees", metavar="NAME|PATH", type=path("--trees"), help=data.format("sst")
    )
    parser.add_argument("--text", metavar="NAME|PATH", type=path("--text"), help=data.format("ptb"))


if __name__ == "__main__":
    sys.exit(main())
