"""Declare the commands and their options; values are checked here, names of models and data later.

Nothing heavy is imported, so that `--help` and a mistyped flag answer at once.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

from vertexrt.cli.bench_options import ACTIONS as BENCH_ACTIONS
from vertexrt.cli.bench_options import add_bench, add_data
from vertexrt.cli.limits import (
    OPTIMIZERS,
    POLICIES,
    REAL,
    SPLITS,
    TASKS,
    WHOLE,
    WITH_MOMENTUM,
)
from vertexrt.cli.values import Parser, one_of, path, real, whole
from vertexrt.engine.devices import DEVICES, DTYPES, ENGINES, KERNEL_FORMS, PRECISIONS
from vertexrt.errors import UsageError, nearest
from vertexrt.models.catalogue import names

*_FIRST, _LAST = names()
MODELS = f"{', '.join(_FIRST)} or {_LAST}"


def _whole(parser: Parser, name: str, text: str) -> None:
    """Add an option that takes a whole number."""
    flag = "--" + name.replace("_", "-")
    parser.add_argument(flag, metavar="N", type=whole(flag, *WHOLE[name]), help=text)


def _real(parser: Parser, name: str, text: str, metavar: str = "X") -> None:
    """Add an option that takes a number."""
    flag = "--" + name.replace("_", "-")
    parser.add_argument(flag, metavar=metavar, type=real(flag, REAL[name]), help=text)


def _word(
    parser: Parser, name: str, known: Sequence[str], text: str, metavar: str = "NAME"
) -> None:
    """Add an option that takes one of some words."""
    flag = "--" + name
    parser.add_argument(flag, metavar=metavar, type=one_of(flag, known), help=text)


def _path(parser: Parser, name: str, text: str, metavar: str) -> None:
    """Add an option that takes a path."""
    flag = "--" + name
    parser.add_argument(flag, metavar=metavar, type=path(flag), help=text)


def _add_data(parser: Parser) -> None:
    add_data(parser)
    _word(parser, "task", TASKS, "fine or binary (sentiment)", "TASK")
    _whole(parser, "pieces", "cut a text into pieces of N words (language models)")


def _add_shape(parser: Parser) -> None:
    _whole(parser, "hidden", "width of the state")
    _whole(parser, "embed", "width of the word embedding")
    _real(parser, "dropout", "probability, 0 to 1", "P")


def _add_machine(parser: Parser) -> None:
    _word(parser, "policy", POLICIES, "frontier, depth, agenda or serial", "P")
    _word(parser, "dtype", DTYPES, "float32 or float64", "T")
    _add_device(parser)
    _word(parser, "engine", ENGINES, "batched (default), persistent or auto", "E")
    _whole(
        parser,
        "processors",
        "threads, on a GPU blocks, that share each task (persistent); by default chosen",
    )
    _add_threads(parser)


def _add_device(parser: Parser) -> None:
    _word(parser, "device", DEVICES, "auto (default), cuda, cpu or reference", "D")
    text = "of products on a GPU: float32 (default), tf32, or bf16 (persistent)"
    _word(parser, "precision", PRECISIONS, text, "P")


def _add_threads(parser: Parser) -> None:
    _whole(parser, "threads", "CPU threads, BLAS included")


def _add_batch_size(parser: Parser) -> None:
    _whole(parser, "batch_size", "graphs in a minibatch")


def _add_window(parser: Parser) -> None:
    _whole(
        parser,
        "window",
        "sort graphs by size within N minibatches, so that like sizes come together",
    )


def _add_train(parser: Parser) -> None:
    parser.add_argument("model", metavar="MODEL", nargs="?", help=MODELS)
    _add_data(parser)
    _whole(parser, "epochs", "epochs")
    _add_batch_size(parser)
    _add_window(parser)
    _whole(parser, "seed", "of weights, dropout and order")
    _path(parser, "out", "run folder (default runs/MODEL-DATE-TIME)", "DIR")
    _add_shape(parser)
    _real(parser, "lr", "learning rate")
    _word(parser, "optimizer", tuple(OPTIMIZERS), ", ".join(OPTIMIZERS))
    _real(parser, "momentum", "of " + ", ".join(WITH_MOMENTUM))
    _real(parser, "weight_decay", "L2 penalty")
    _real(parser, "clip_norm", "largest global norm; 0: none")
    _add_machine(parser)
    _whole(parser, "patience", "stop after N epochs without a better dev value; 0: never")
    _path(parser, "resume", "continue the run in this folder", "RUN")
    _path(parser, "trace", "timeline of minibatches (persistent)", "FILE")
    parser.add_argument("--quiet", action="store_true", help="print the result only")


def _add_eval(parser: Parser) -> None:
    parser.add_argument(
        "run", metavar="RUN", type=path("eval"), help="run folder, or one checkpoint of it"
    )
    parser.add_argument(
        "--split", metavar="SPLIT", type=one_of("--split", SPLITS), default="dev", help="dev, test"
    )
    _path(parser, "data", "another data set of the same task", "NAME|PATH")
    _add_batch_size(parser)
    _add_device(parser)
    _add_threads(parser)


def _add_model(parser: Parser) -> None:
    parser.add_argument("model", metavar="MODEL", help=MODELS)
    _add_data(parser)
    _add_batch_size(parser)
    _add_window(parser)
    _add_shape(parser)
    _add_machine(parser)


def _add_explain(parser: Parser) -> None:
    _add_model(parser)
    parser.add_argument(
        "--kernels",
        metavar="ir|llvm",
        type=one_of("--kernels", KERNEL_FORMS),
        nargs="?",
        const="ir",
        help="print what each task program is lowered to, or its LLVM on a CPU, too",
    )


def _add_warm(parser: Parser) -> None:
    _add_model(parser)
    _word(parser, "optimizer", tuple(OPTIMIZERS), ", ".join(OPTIMIZERS))


def _add_data_commands(parser: Parser) -> None:
    commands = parser.add_subparsers(dest="action", metavar="list|fetch", required=True)
    commands.add_parser("list", help="show the data sets that can be named")
    fetch = commands.add_parser("fetch", help="download one into the cache folder")
    fetch.add_argument("name", metavar="NAME", help="a name of `vertexrt data list`")


COMMANDS: dict[str, tuple[str, Callable[[Parser], None]]] = {
    "train": ("train a model, or continue a run", _add_train),
    "eval": ("evaluate a trained run", _add_eval),
    "explain": ("show what the compiler makes of a model", _add_explain),
    "warm": ("compile ahead what training a model needs", _add_warm),
    "bench": ("measure, and report what was measured", add_bench),
    "data": ("list or download data sets", _add_data_commands),
}
ACTIONS = {"data": ("list", "fetch"), "bench": BENCH_ACTIONS}


def build() -> tuple[Parser, dict[str, Parser]]:
    """Return the parser of the command line and the parser of each command."""
    parser = Parser(
        prog="vertexrt",
        description="Train dynamic neural networks: one vertex function, a graph per example.",
    )
    parser.add_argument("--version", action="store_true", help="show the version")
    groups = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)
    parsers: dict[str, Parser] = {}
    for name, (text, fill) in COMMANDS.items():
        parsers[name] = groups.add_parser(
            name, help=text, description=text[0].upper() + text[1:] + "."
        )
        fill(parsers[name])
    return parser, parsers


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Read the words of a command line.

    Args:
        argv: the words after the program's name.
    Returns: the options by name; an option that was not given is None.
    Raises: UsageError, for an unknown command or option (the nearest ones are offered) or a value
        that the option does not take; SystemExit, after the help was printed.
    """
    parser, parsers = build()
    _check_command(argv)
    if "--version" in argv and len(argv) > 1:
        raise UsageError.at(
            "vertexrt", "--version and other words", "expected it alone", "Leave them out"
        )
    options, unknown = parser.parse_known_args(list(argv))
    if unknown:
        raise _unknown(unknown[0], parsers.get(options.command, parser), options)
    return options


def _check_command(argv: Sequence[str]) -> None:
    """Refuse commands and actions that there are not."""
    if not argv or argv[0].startswith("-"):
        return
    _require(argv[0], tuple(COMMANDS), "vertexrt")
    words = [word for word in argv if not word.startswith("-")]
    if argv[0] in ACTIONS and len(words) > 1:
        _require(words[1], ACTIONS[argv[0]], f"vertexrt {argv[0]}")


def _unknown(word: str, command: Parser, options: argparse.Namespace) -> UsageError:
    """Say that a command has no such option, and which is near."""
    command = command.of_action(getattr(options, "action", None))
    flag = word.split("=")[0]
    what = "option" if flag.startswith("-") else "argument"
    return UsageError.at(
        command.prog,
        f"unknown {what} '{flag}'",
        "expected an option of this command",
        f"See `{command.prog} --help`." + nearest(flag, command.options()),
    )


def _require(word: str, known: Sequence[str], where: str) -> None:
    if word not in known:
        raise UsageError.at(
            where,
            f"unknown command '{word}'",
            "expected one of " + ", ".join(known),
            f"See `{where} --help`." + nearest(word, known),
        )
