"""Declare the options of `vertexrt bench`."""

from __future__ import annotations

from vertexrt.cli.limits import WHOLE
from vertexrt.cli.values import Parser, list_of, path, real, whole
from vertexrt.engine.devices import DEVICES

LARGEST_GRAPH = 2**20  # leaves of a tree, words of a chain
MOST_SECONDS = 7 * 86_400.0
DATA = "data set, or a folder that holds one"
ACTIONS = ("ablation", "breakdown", "report", "compare")


def add_bench(parser: Parser) -> None:
    """Add the actions of the command."""
    actions = parser.add_subparsers(dest="action", metavar="|".join(ACTIONS), required=True)
    ablation = actions.add_parser("ablation", help="each optimisation alone, and each left out")
    add_job(ablation)
    add_sizes(ablation, (16, 64))
    add_run(ablation, 60.0, "for each batch size, over all variants")
    breakdown = actions.add_parser("breakdown", help="where the time of a step goes")
    add_job(breakdown)
    add_sizes(breakdown, (1, 16, 64))
    add_run(breakdown, 20.0, "over all batch sizes")
    report = actions.add_parser("report", help="join results in one HTML page")
    report.add_argument("folder", metavar="FOLDER", type=path("report"), help="that holds results")
    compare = actions.add_parser("compare", help="what got faster or slower")
    compare.add_argument("before", metavar="A.json", type=path("compare"))
    compare.add_argument("after", metavar="B.json", type=path("compare"))


def add_job(parser: Parser) -> None:
    """Add the vertex function and its data."""
    parser.add_argument(
        "--model",
        metavar="MODEL",
        default="tree-lstm",
        help="by default tree-lstm; or FILE.py:CLASS, a model of yours: the file is run",
    )
    parser.add_path("data", DATA, "NAME|PATH")
    parser.add_whole("leaves", "of a tree of tree-fc", (2, LARGEST_GRAPH))
    parser.add_whole("hidden", "and embedding size", default=64)
    parser.add_settings()


def add_sizes(parser: Parser, sizes: tuple[int, ...]) -> None:
    """Add the batch sizes, with those that are taken by default."""
    parser.add_argument(
        "--batch-sizes",
        metavar="N,N,...",
        type=list_of("--batch-sizes", whole("--batch-sizes", *WHOLE["batch_size"])),
        default=sizes,
        help="graphs in a minibatch",
    )


def add_run(parser: Parser, seconds: float, of_what: str) -> None:
    """Add what every measurement is told: device, threads, seconds, folder."""
    parser.add_word("device", DEVICES, "auto (default), cuda, cpu", "D", "auto")
    parser.add_whole("threads", "CPU threads")
    read = real("--seconds", MOST_SECONDS)
    parser.add_argument("--seconds", metavar="S", type=read, default=seconds, help=of_what)
    parser.add_path("out", "folder for the results", "DIR", "bench")
