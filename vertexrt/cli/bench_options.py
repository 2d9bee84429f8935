"""Declare the options of `vertexrt bench`."""

from __future__ import annotations

from vertexrt.cli.limits import DEVICES, DTYPES, WHOLE
from vertexrt.cli.values import Parser, list_of, one_of, path, real, whole

PARTS = ("time", "schedule", "throughput", "weights", "compile")
SUITES = ("tree-lstm", "tree-fc", "var-lstm", "fixed-lstm")
MODES = ("train", "infer")
PEERS = ("torch", "dynet", "none")
UNMERGED = ":unmerged"
LARGEST_GRAPH = 2**20  # leaves of a tree, words of a chain
MOST_COMPILERS = 1024
MOST_SECONDS = 7 * 86_400.0
ACTIONS = ("ablation", "breakdown", "peers", "report", "compare")


def add_bench(parser: Parser) -> None:
    """Add the actions of the command."""
    actions = parser.add_subparsers(dest="action", metavar="|".join(ACTIONS), required=True)
    ablation = actions.add_parser("ablation", help="each optimisation alone, and each left out")
    _add_job(ablation)
    _add_sizes(ablation, (16, 64))
    _add_run(ablation, 60.0, "for each batch size, over all variants")
    _add_compilers(ablation)
    breakdown = actions.add_parser("breakdown", help="where the time of a step goes")
    _add_job(breakdown)
    _add_sizes(breakdown, (1, 16, 64))
    _add_run(breakdown, 20.0, "for each part")
    breakdown.add_argument(
        "--parts",
        metavar="P,P,...",
        type=list_of("--parts", one_of("--parts", PARTS)),
        default=PARTS,
        help=f"of {', '.join(PARTS)}; all by default",
    )
    breakdown.add_argument(
        "--hidden-sizes",
        metavar="N,N,...",
        type=list_of("--hidden-sizes", whole("--hidden-sizes", *WHOLE["hidden"])),
        default=(64, 128, 256, 512),
        help="of the part throughput",
    )
    breakdown.add_argument(
        "--leaf-counts",
        metavar="N,N,...",
        type=list_of("--leaf-counts", whole("--leaf-counts", 2, LARGEST_GRAPH)),
        default=(32, 64, 128, 256, 512, 1024),
        help="of the trees of the part schedule, powers of 2",
    )
    _add_peers(actions.add_parser("peers", help="beside PyTorch and DyNet"))
    report = actions.add_parser("report", help="join results in one HTML page")
    report.add_argument("folder", metavar="FOLDER", type=path("report"), help="that holds results")
    compare = actions.add_parser("compare", help="what got faster or slower")
    compare.add_argument("before", metavar="A.json", type=path("compare"))
    compare.add_argument("after", metavar="B.json", type=path("compare"))


def _add_job(parser: Parser) -> None:
    parser.add_argument(
        "--model", metavar="MODEL", default="tree-lstm", help="tree-lstm (default), tree-fc, ..."
    )
    parser.add_argument(
        "--data",
        metavar="NAME|PATH",
        type=path("--data"),
        help="data set, or a folder that holds one",
    )
    parser.add_argument(
        "--leaves",
        metavar="N",
        type=whole("--leaves", 2, LARGEST_GRAPH),
        help="of a tree of tree-fc",
    )
    parser.add_argument(
        "--hidden",
        metavar="N",
        type=whole("--hidden", *WHOLE["hidden"]),
        default=64,
        help="and embedding size",
    )


def _add_sizes(parser: Parser, sizes: tuple[int, ...]) -> None:
    parser.add_argument(
        "--batch-sizes",
        metavar="N,N,...",
        type=list_of("--batch-sizes", whole("--batch-sizes", *WHOLE["batch_size"])),
        default=sizes,
        help="graphs in a minibatch",
    )


def _add_run(parser: Parser, seconds: float, of_what: str) -> None:
    parser.add_argument(
        "--device",
        metavar="D",
        type=one_of("--device", DEVICES),
        default="auto",
        help="auto (default), cuda, cpu",
    )
    parser.add_argument(
        "--threads", metavar="N", type=whole("--threads", *WHOLE["threads"]), help="CPU threads"
    )
    parser.add_argument(
        "--seconds",
        metavar="S",
        type=real("--seconds", MOST_SECONDS),
        default=seconds,
        help=of_what,
    )
    parser.add_argument(
        "--out", metavar="DIR", type=path("--out"), default="bench", help="folder for the results"
    )


def _add_compilers(parser: Parser) -> None:
    parser.add_argument(
        "--compilers",
        metavar="N",
        type=whole("--compilers", 1, MOST_COMPILERS),
        help="processes that compile at once (default: cores)",
    )


def _add_peers(parser: Parser) -> None:
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
    _add_sizes(parser, (1, 16, 64, 256))
    _add_run(parser, 5.0, "for each suite, mode and batch size")
    engines = tuple(e + tail for e in ("batched", "persistent", "auto") for tail in ("", UNMERGED))
    parser.add_argument(
        "--engines",
        metavar="E,E,...",
        type=list_of("--engines", one_of("--engines", (*engines, "none"))),
        default=("batched",),
        help=f"batched, persistent, auto; with {UNMERGED} behind it, identical vertices of a batch "
        "are all computed; the first is the one that ratios are of; none: peers alone",
    )
    parser.add_argument(
        "--peers",
        metavar="P,P",
        type=list_of("--peers", one_of("--peers", PEERS)),
        default=("torch",),
        help="torch (default), dynet (tree-lstm on the CPU), none",
    )
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
